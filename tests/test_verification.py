"""verify: what it runs, that it passes, and that each of its checks can fail."""

import os
from functools import cache

import numpy as np
import pytest

from dpcompare.errors import RequestError, RunFailedError
from dpcompare.verification import (
    TOLERANCES,
    Group,
    _workload,
    compare_sides,
    config_of,
    plan_groups,
    run_side,
    usable_arms,
)
from tests.command import dpcompare
from tests.faults import FAULTS

BOTH = ("torch", "tensorflow")
ALL = ("single", "dp", "ddp", "mirrored", "multiworker")


def group(replicas=1, optimizer="sgd", modes=ALL):
    workload = _workload("toy-bn", optimizer, "float64", 16, quick=False)
    return Group(workload=workload, arms=usable_arms(BOTH, modes, replicas))


def test_a_plan_covers_every_mode_at_every_number_of_replicas():
    groups = plan_groups(BOTH, ALL, model="efficientnet-b2", replicas=[1, 2, 4], precisions=["float64"], quick=False)
    sizes = {(g.workload.model, g.workload.optimizer, len(g.arms), g.kind) for g in groups}
    assert sizes == {
        ("efficientnet-b2", "sgd", 2, "modes"),
        ("efficientnet-b2", "adam", 2, "modes"),
        ("efficientnet-b2", "sgd", 4, "modes"),
        ("efficientnet-b2", "adam", 4, "modes"),
        ("toy-bn", "sgd", 4, "modes"),
        ("toy-bn", "adam", 4, "modes"),
        ("mlp", "sgd", 8, "accumulation"),
    }


def test_a_quick_plan_has_the_big_model_on_one_device_only():
    groups = plan_groups(
        BOTH, ALL, model="efficientnet-b2", replicas=[1, 2], precisions=["float32", "float64"], quick=True
    )
    assert {len(g.arms) for g in groups if g.workload.model == "efficientnet-b2"} == {2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "single,ddpp"], "unknown mode 'ddpp'.*Did you mean 'ddp'"),
        (["--frameworks", "jax"], "unknown framework 'jax'"),
        (["--model", "resnet"], "unknown model 'resnet'"),
        (["--replicas", "3"], r"--replicas: received 3, .* expected some of 1, 2, 4, 8"),
        (["--replicas", "0"], "--replicas: received 0"),
        (["--replicas", "two"], "received 'two', expected numbers"),
        (["--precision", "float16"], "expected float32 and/or float64"),
        (["--frameworks", "torch", "--modes", "dp", "--replicas", "2"], "fewer than two sides"),
    ],
)
@pytest.mark.torch
@pytest.mark.tensorflow
def test_wrong_requests_are_refused(arguments, message):
    refused = dpcompare("verify", *arguments)
    assert refused.code == 2
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        raise AssertionError(refused.stderr)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The sides of a group, each run once per module."""

    @cache
    def run(replicas, optimizer, number):
        chosen = group(replicas, optimizer)
        arm = chosen.arms[number]
        return run_side(arm, config_of(arm, chosen.workload, 1, "cpu", {}), tmp_path_factory.mktemp("side") / "run")

    return run


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_both_frameworks_pass_every_check(healthy, optimizer):
    chosen = group(optimizer=optimizer)
    checks = list(compare_sides(chosen, [healthy(1, optimizer, number) for number in range(2)], {}))
    assert [check.name for check in checks if not check.passed] == []
    assert {check.name for check in checks} <= set(TOLERANCES)


@pytest.mark.torch
@pytest.mark.tensorflow
def test_a_side_that_is_not_a_number_does_not_pass(healthy):
    reference = healthy(1, "sgd", 0)
    losses = [*reference.result.train_loss[:-1], None]
    broken = type(reference)(
        arm=usable_arms(BOTH, ALL, 1)[1],
        config=reference.config,
        result=reference.result.model_copy(update={"train_loss": losses}),
        arrays=reference.arrays,
    )
    failed = {
        check.name: check.measured for check in compare_sides(group(), [reference, broken], {}) if not check.passed
    }
    assert failed == {"losses over sgd steps": np.inf}


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_each_broken_alignment_is_caught_and_named(healthy, name, tmp_path, monkeypatch, capsys):
    fault = FAULTS[name]
    chosen = group(fault.replicas, fault.optimizer)
    position = [arm.framework for arm in chosen.arms].index(fault.framework)
    if fault.replicas > 1:
        position = [arm.mode for arm in chosen.arms].index("ddp")
    other = next(n for n, arm in enumerate(chosen.arms) if arm.framework != fault.framework)
    reference = healthy(fault.replicas, fault.optimizer, other)
    fault.install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    arm = chosen.arms[position]
    config = config_of(arm, chosen.workload, 1, "cpu", {})
    if fault.caught_by == "run":
        with pytest.raises(RunFailedError, match="each of the 41 validation samples once"):
            run_side(arm, config, tmp_path / "run")
        return
    checks = list(compare_sides(chosen, [reference, run_side(arm, config, tmp_path / "run")], {}))
    failed = {check.name: check for check in checks if not check.passed}
    with capsys.disabled():
        caught = failed.get(fault.caught_by)
        figures = f"{caught.measured:.1e} against {caught.tolerance:.0e}" if caught else "not caught"
        print(f"\n| {name} | {fault.framework} | {fault.caught_by} | {figures} | {', '.join(failed)} |")
    assert fault.caught_by in failed


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_command_passes_and_its_json_has_the_contract(tmp_path):
    done = dpcompare("verify", "--model", "toy-bn", "--replicas", "1", "--precision", "float64", "--json")
    assert done.code == 0, done.stderr
    assert done.json["passed"] is True
    assert {"name", "modes", "precision", "measured", "tolerance", "passed"} <= set(done.json["checks"][0])


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_side_that_crashes_is_a_failed_check(tmp_path, monkeypatch):
    FAULTS["a sample dropped in evaluation"].install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = dpcompare("verify", "--model", "toy-bn", "--replicas", "1", "--precision", "float64", "--json")
    assert done.code == 3
    failed = [check for check in done.json["checks"] if not check["passed"]]
    assert {check["name"] for check in failed} == {"run"}
    assert "each of the 41 validation samples once" in failed[0]["detail"]


@pytest.mark.torch
def test_one_framework_alone_is_verified_and_the_other_is_named(monkeypatch):
    plan_groups(["torch"], ALL, model="toy-bn", replicas=[2], precisions=["float64"], quick=True)
    with pytest.raises(RequestError, match="unknown mode"):
        plan_groups(["torch"], ["nonsense"], model="toy-bn", replicas=[2], precisions=["float64"], quick=True)
