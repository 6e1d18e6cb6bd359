"""The arms of a study: topologies, names, and what is refused."""

from types import SimpleNamespace

import pytest

from dpcompare.cli.build_config import build_config
from dpcompare.cli.compare import _causes
from dpcompare.cli.options import RunOptions
from dpcompare.errors import RequestError
from dpcompare.experiments import arms
from dpcompare.experiments.arms import ArmRequest, expand_arms, reasons_of


@pytest.fixture(autouse=True)
def _torch_alone(monkeypatch):
    def require_framework(framework):
        if framework == "tensorflow":
            raise RequestError("tensorflow is not installed")

    monkeypatch.setattr(arms, "require_framework", require_framework)
    monkeypatch.setattr(arms, "require_environment", lambda config: None)


def request(framework, mode, stages=None, device="cpu"):
    return ArmRequest(
        text=f"{framework}:{mode}",
        framework=framework,
        mode=mode,
        changes="",
        device=device,
        devices_per_replica=stages,
        build=lambda nodes, devices, arms: build_config(
            RunOptions(
                framework=framework,
                mode=mode,
                nodes=nodes,
                devices_per_node=devices,
                device=device,
                fields={"model": "mlp", "image_size": 8, "stages": stages},
            ),
            arms,
        ),
    )


@pytest.mark.parametrize(
    ("mode", "stages", "expected"),
    [
        ("single", None, "torch single 1x1"),
        ("dp", None, "torch dp 1x2"),
        ("ddp", None, "torch ddp 2x1"),
        ("ddp", 2, "torch ddp 2x2"),
        ("pipeline", None, "torch pipeline 1x2"),
    ],
)
def test_an_arm_has_two_replicas_or_a_split_one_by_default(mode, stages, expected):
    (arm,), refusals = expand_arms([request("torch", mode, stages)], None, None, {})
    assert (arm.name, refusals) == (expected, [])


def test_an_arm_has_every_topology_that_its_mode_can_have():
    asked = [request("torch", "single"), request("torch", "dp"), request("torch", "ddp")]
    found, refusals = expand_arms(asked, (1, 2), (2,), {})
    assert [arm.name for arm in found] == ["torch single 1x1", "torch dp 1x2", "torch ddp 1x2", "torch ddp 2x2"]
    assert refusals == []


def test_every_arm_that_cannot_run_is_named_with_its_reason():
    asked = [request("tensorflow", "mirrored"), request("torch", "dp"), request("torch", "ddp")]
    found, refusals = expand_arms(asked, (3,), None, {})
    assert found == ()
    assert [refusal.is_wrong for refusal in refusals] == [False, False, True]
    reasons = reasons_of(refusals)
    assert reasons[0] == "tensorflow:mirrored: tensorflow is not installed"
    assert reasons[1] == (
        "torch:dp: received --nodes 3, expected 1: this mode runs on one node; use --devices-per-node"
    )
    assert reasons[2].startswith("torch:ddp on 3 nodes x 1 device: global_batch_size: received 32")


def test_a_reason_that_holds_for_several_arms_is_told_once():
    asked = [request("tensorflow", mode) for mode in ("single", "mirrored")]
    _, refusals = expand_arms([*asked, request("torch", "single")], None, None, {})
    assert reasons_of(refusals) == ["tensorflow:single, tensorflow:mirrored: tensorflow is not installed"]


def test_a_framework_without_gpus_is_refused_before_a_study(install_gpus, monkeypatch):
    def require_cuda(framework, python):
        raise RequestError(f"the {framework} of {python} has no CUDA libraries")

    install_gpus()
    monkeypatch.setattr(arms, "require_cuda", require_cuda)
    on_gpus = [request("torch", mode, device="gpu") for mode in ("single", "dp")]
    found, refusals = expand_arms([*on_gpus, request("torch", "single")], None, None, {})
    assert [arm.config.cluster.device_type for arm in found] == ["cpu"]
    assert [refusal.is_wrong for refusal in refusals] == [True, True]
    (reason,) = reasons_of(refusals)
    assert reason.startswith("torch:single on 1 node x 1 device, torch:dp on 1 node x 2 devices: the torch of ")


def test_where_every_run_failed_each_cause_is_told_once():
    driver = "process 0 (node 0, local rank 0, {}/log):\nTraceback\n  File\nRuntimeError: no driver"
    failed = [
        SimpleNamespace(framework="torch", mode="dp", error=driver.format("dp")),
        SimpleNamespace(framework="torch", mode="ddp", error="no answer for 9 s"),
        SimpleNamespace(framework="torch", mode="single", error=driver.format("single")),
        SimpleNamespace(framework="torch", mode="single", error=driver.format("single")),
    ]
    assert _causes(failed) == f"torch dp, torch single: {driver.format('dp')}\ntorch ddp: no answer for 9 s"


def test_the_same_arm_twice_is_refused():
    with pytest.raises(RequestError, match="received the arm torch single 1x1 twice"):
        expand_arms([request("torch", "single")] * 2, None, None, {})
