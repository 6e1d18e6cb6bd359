"""The groups of verify: which modes it trains side by side, with what, and what it refuses."""

import json

import pytest

from dpcompare.errors import RequestError
from dpcompare.experiments.crossed_groups import crossed_groups
from dpcompare.experiments.verify_groups import not_compared, plan_groups
from dpcompare.experiments.verify_runs import config_of
from stress.injection import injected, write_sitecustomize
from tests.support.command import invoke
from tests.support.contenders import ALL, BOTH


def test_a_plan_covers_every_mode_at_every_number_of_replicas():
    groups = plan_groups(BOTH, ALL, model="efficientnet-b2", replicas=[1, 2, 4], precisions=["float64"], quick=False)
    crossed = crossed_groups(BOTH, ALL, [1, 2, 4], device="cpu", asked={})
    assert groups[-len(crossed) :] == crossed
    assert [(g.described, len(g.contenders), g.kind) for g in groups[: -len(crossed)]] == [
        ("efficientnet-b2, sgd", 2, "modes"),
        ("efficientnet-b2, adam", 2, "modes"),
        ("efficientnet-b2, adam, regularization", 2, "modes"),
        ("toy-bn, adam, regularization, native", 4, "modes"),
        ("efficientnet-b2, sgd", 4, "modes"),
        ("efficientnet-b2, adam", 4, "modes"),
        ("toy-bn, adam, regularization, synchronized BatchNorm", 4, "modes"),
        ("toy-bn, sgd", 4, "modes"),
        ("toy-bn, adam", 4, "modes"),
        ("toy-bn, adam, regularization, synchronized BatchNorm", 4, "modes"),
        ("mlp, sgd", 8, "accumulation"),
    ]


def quick_plan(**options):
    return plan_groups(
        BOTH, ALL, model="efficientnet-b2", replicas=[1, 2], precisions=["float32", "float64"], quick=True, **options
    )


def test_a_quick_plan_has_the_big_model_on_one_device_only():
    assert [(g.described, g.workload.precision, len(g.to_run)) for g in quick_plan()] == [
        ("efficientnet-b2, adam", "float32", 2),
        ("toy-bn, sgd", "float32", 4),
        ("efficientnet-b2, sgd", "float64", 2),
        ("toy-bn, adam, regularization, native", "float64", 4),
        ("toy-bn, sgd", "float64", 4),
        ("toy-bn, adam, regularization, synchronized BatchNorm", "float64", 5),
        ("mlp, sgd", "float64", 5),
    ]


@pytest.mark.parametrize(
    ("model", "baselines"),
    [
        ("vit-narrow", {"vit-narrow, sgd": "torch single", "vit-narrow, adam": "torch single"}),
        ("toy-bn", {"toy-bn, sgd": None, "toy-bn, adam": None}),
    ],
)
def test_replicas_are_one_device_where_one_can_be_them(model, baselines):
    groups = plan_groups(BOTH, ALL, model=model, replicas=[2], precisions=["float64"], quick=False)
    found = {g.described: g.baseline and str(g.baseline).split(" in ")[0] for g in groups if not g.crossed}
    synchronized = {"toy-bn, adam, regularization, synchronized BatchNorm": "torch single", "mlp, sgd": None}
    assert found == baselines | synchronized


def test_small_groups_have_what_is_nobodys_default():
    small = [g for g in quick_plan() if g.workload.model != "efficientnet-b2"]
    assert {(g.workload.image_size, g.workload.seed, g.workload.batchnorm_momentum) for g in small} == {(75, 3, 0.97)}
    assert {contender.accumulate for g in small for contender in g.contenders if contender.mode == "ddp"} == {1, 2}
    (native,) = [g for g in small if g.workload.profile == "native"]
    assert {contender.framework for contender in native.contenders if contender.resumed} == set(BOTH)
    assert native.checkpoint_every == 8


@pytest.mark.parametrize(("compiler", "compiled"), [("sh", ["torch.compile"]), ("no-such-compiler", [])])
def test_the_native_group_is_compiled_where_there_is_a_compiler(monkeypatch, compiler, compiled):
    monkeypatch.setenv("CXX", compiler)
    (native,) = [g for g in quick_plan() if g.workload.profile == "native"]
    tuned = [contender.tune.get("compilation") for contender in native.contenders if contender.framework == "torch"]
    assert [each for each in tuned if each] == compiled * 2  # and resumed
    strict = plan_groups(BOTH, ["single"], model="toy-bn", replicas=[1], precisions=["float64"], quick=True,
                         asked={"profile": "strict"})  # fmt: skip
    assert not any(contender.tune for group in strict for contender in group.contenders)


def test_dp_is_left_out_where_it_cannot_synchronize_batchnorm(install_gpus):
    install_gpus()
    (synchronized,) = [g for g in quick_plan(device="auto") if g.workload.batchnorm == "sync"]
    assert {contender.mode for contender in synchronized.contenders} == {"ddp", "mirrored", "multiworker"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "single,ddpp"], "unknown mode 'ddpp'.*Did you mean 'ddp'"),
        (["--frameworks", "mxnet"], "unknown framework 'mxnet'"),
        (["--model", "resnet"], "unknown model 'resnet'"),
        (["--replicas", "3"], r"--replicas: received 3, .* expected some of 1, 2, 4, 8"),
        (["--replicas", "0"], "--replicas: received 0"),
        (["--replicas", "two"], "received 'two', expected numbers"),
        (["--precision", "float16"], "expected float32 and/or float64"),
        (["--replicas", ","], "--replicas: received none"),
    ],
)
@pytest.mark.torch
@pytest.mark.tensorflow
def test_wrong_requests_are_refused(arguments, message):
    refused = invoke("verify", *arguments)
    assert refused.code == 2
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        raise AssertionError(refused.stderr)


@pytest.mark.parametrize(
    ("frameworks", "modes", "named"),
    [
        (["torch", "tensorflow"], ["single", "ddp"], ["torch ddp"]),
        (["torch", "tensorflow"], ["single", "dp", "ddp"], []),
        (["torch"], ["single", "dp", "ddp"], ["torch single"]),
        (["torch"], ["ddp", "ddp-spawn"], []),
    ],
)
def test_a_mode_that_stands_beside_no_other_is_told(frameworks, modes, named):
    groups = plan_groups(frameworks, modes, model="toy-bn", replicas=[1, 2], precisions=["float64"], quick=True)
    assert [line.split(":")[0] for line in not_compared(groups, frameworks, modes)] == named
    assert all(len(group.to_run) > 1 for group in groups)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--modes", "ddp"], "torch ddp"), (["--frameworks", "torch", "--modes", "dp", "--replicas", "1"], "torch dp")],
)
@pytest.mark.torch
def test_where_nothing_is_compared_nothing_is_shown(arguments, named):
    alone = invoke("verify", "--model", "toy-bn", *arguments)
    assert alone.code == 3
    assert alone.stdout.splitlines()[0] == "nothing was compared"
    assert f"not compared: {named}: no other mode that was asked for can be compared with it" in alone.stdout
    document = json.loads(invoke("verify", "--model", "toy-bn", "--json", *arguments).stdout)
    assert (document["passed"], document["checks"]) == (False, [])
    assert [line.split(":")[0] for line in document["not_compared"]] == [named]


@pytest.mark.parametrize(
    ("arguments", "frameworks", "modes"),
    [
        ([], ["torch", "jax"], ["single", "dp", "ddp", "fsdp", "pipeline", "spmd", "ddp-spawn"]),
        (["--quick"], ["torch"], ["single", "dp", "ddp", "mirrored", "multiworker", "spmd", "multiprocess"]),
        (["--frameworks", "jax"], ["jax"], ["single", "spmd", "multiprocess", "fsdp"]),
        (["--quick", "--modes", "ddp"], ["torch"], ["ddp"]),
    ],
)
def test_verify_takes_all_that_is_installed_unless_quick(monkeypatch, arguments, frameworks, modes):
    planned = []

    def require(framework, python="", environment=None):
        if framework == "tensorflow":
            raise RequestError("tensorflow is not installed")

    monkeypatch.setattr("dpcompare.backends.availability.require_framework", require)
    monkeypatch.setattr(
        "dpcompare.experiments.verify_groups.plan_groups", lambda *named, **_: planned.extend(named) or []
    )
    monkeypatch.setattr("dpcompare.experiments.verify_groups.not_compared", lambda *named: [])
    invoke("verify", *arguments)
    assert planned[0] == frameworks
    assert set(modes) <= set(planned[1])
    assert ("fsdp" in planned[1]) == (arguments in ([], ["--frameworks", "jax"]))


def test_what_trains_a_big_model_seldom_does_so_once():
    modes = ["single", "ddp", "dp", "fsdp", "ddp-spawn"]
    chosen = {"model": "efficientnet-b2", "replicas": [1, 2], "precisions": ["float32", "float64"], "quick": False}
    seldom = [("torch", "fsdp"), ("jax", "single")]
    groups = plan_groups(["torch", "jax"], modes, **chosen, seldom=seldom)
    big = [group for group in groups if group.workload.model == "efficientnet-b2"]
    with_fsdp = [group for group in big if "fsdp" in {each.mode for each in group.contenders}]
    assert [(group.workload.precision, group.workload.optimizer) for group in with_fsdp] == [("float64", "sgd")]
    assert with_fsdp == [group for group in big if any(each.launcher for each in group.contenders)]
    with_jax = [group for group in big if "jax" in {each.framework for each in group.contenders}]
    assert [group.workload.optimizer for group in with_jax] == ["sgd"]
    everywhere = plan_groups(["torch", "jax"], modes, **chosen)
    assert len(everywhere) > len(groups)  # jax single and one of torch
    small = [group for group in groups if group.workload.model == "toy-bn"]
    assert small == [group for group in everywhere if group.workload.model == "toy-bn"]


def test_jax_is_verified_in_more_modes_than_single():
    groups = plan_groups(
        ("torch", "jax"),
        ["single", "dp", "ddp", "spmd", "multiprocess"],
        model="toy-bn",
        replicas=(2,),
        precisions=("float64",),
        quick=True,
    )
    assert {contender.mode for contender in groups[0].contenders} == {"dp", "ddp", "spmd", "multiprocess"}


def test_against_the_cpu_every_mode_runs_on_both():
    modes = ["single", "ddp", "fsdp"]
    chosen = {"model": "toy-bn", "replicas": [1], "precisions": ["float64"], "quick": True}
    (group, *_) = plan_groups(["torch"], modes, against="cpu", **chosen)
    told = ["torch single", "torch ddp on 1 node x 1 device", "torch fsdp on 1 node x 1 device"]
    assert [str(contender) for contender in group.contenders] == [*told, *(f"{name} on the CPU" for name in told)]
    groups = plan_groups(["torch"], modes, against="cpu", **chosen)
    assert not_compared(groups, ["torch"], modes) == []
    assert all(len(each.contenders) % 2 == 0 for each in groups)
    without = plan_groups(["torch"], modes, **chosen)
    assert {contender.mode for each in without for contender in each.contenders} == {"single"}
    alone = plan_groups(["torch"], ["ddp"], against="cpu", **chosen)
    assert [str(contender) for contender in alone[0].contenders] == [told[1], f"{told[1]} on the CPU"]


@pytest.mark.torch
def test_against_the_cpu_only_that_side_runs_there(install_gpus):
    install_gpus()
    chosen = {"model": "toy-bn", "replicas": [1], "precisions": ["float64"], "quick": True}
    (group, *_) = plan_groups(["torch"], ["single"], against="cpu", device="auto", **chosen)
    types = [config_of(each, group.workload, "auto", {}).cluster.device_type for each in group.contenders]
    assert types == ["gpu", "cpu"]


AGAINST_CPU = [
    *("--quick", "--frameworks", "torch", "--modes", "single", "--model", "toy-bn", "--replicas", "1"),
    *("--precision", "float64", "--against", "cpu", "--json"),
]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "first_group")
def test_the_cpu_against_itself_differs_in_nothing():
    shown = invoke("verify", *AGAINST_CPU)
    assert shown.code == 0, shown.stderr
    assert "no GPU is visible here: both sides of every comparison run on the CPU" in shown.stderr
    assert {check["measured"] for check in shown.json["checks"]} == {0.0}
    pairs = {check["pair"] for check in shown.json["checks"] if "/" in check["pair"]}
    assert pairs == {"torch single / torch single on the CPU"}


ON_ONE_SIDE = """
import sys
if any(argument.endswith("/0/1") for argument in sys.argv):
    step = module.TorchBackend.train_step
    module.TorchBackend.train_step = lambda self, batches, learning_rate: step(self, batches, 1.01 * learning_rate)
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("first_group", "warm")
def test_what_differs_on_one_side_alone_is_named(tmp_path, monkeypatch):
    write_sitecustomize(tmp_path, "dpcompare.backends.torch.backend", injected(ON_ONE_SIDE))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    shown = invoke("verify", *AGAINST_CPU)
    assert shown.code == 3
    failed = {check["name"]: check["pair"] for check in shown.json["checks"] if not check["passed"]}
    assert failed["one step of sgd"] == "torch single / torch single on the CPU"
    assert "gradient" not in failed


@pytest.mark.torch
def test_replicas_share_the_only_gpu_or_are_on_the_cpu(install_gpus):
    install_gpus("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)\n")
    modes = ["dp", "ddp", "fsdp", "fabric", "pipeline"]
    chosen = {"model": "toy-bn", "replicas": [2], "precisions": ["float64"], "quick": True}
    (group, *_) = plan_groups(["torch"], modes, device="auto", **chosen)
    assert [str(contender) for contender in group.contenders] == [
        "torch dp on 1 node x 2 devices on the CPU",
        "torch ddp on 2 nodes x 1 device on a shared GPU",
        "torch fsdp on 2 nodes x 1 device on the CPU",
        "torch pipeline on 2 nodes x 2 devices on the CPU in 2 stages",
        "torch fabric on 2 nodes x 1 device on a shared GPU",
    ]
    against = plan_groups(["torch"], ["ddp", "dp"], device="auto", against="cpu", **chosen)[0]
    assert [contender.device for contender in against.contenders] == ["cpu", "shared gpu", "cpu"]  # dp once
    config = config_of(group.contenders[1], group.workload, "auto", {})
    assert (config.cluster.shared, config.cluster.devices) == (True, ("0", "0"))


@pytest.mark.parametrize(("arguments", "is_bare"), [([], True), (["--modes", "single"], False)])
def test_a_quick_verify_names_installed_modes_it_leaves_out(monkeypatch, arguments, is_bare):
    """Whoever names modes knows what is left out."""
    usable = {("torch", "single"), ("torch", "ddp"), ("torch", "fsdp"), ("jax", "spmd")}

    def require(framework, mode, python=None):
        if (framework, mode) not in usable:
            raise RequestError(f"{framework} {mode} is not usable")

    monkeypatch.setattr("dpcompare.backends.availability.require_framework", lambda *_: None)
    monkeypatch.setattr("dpcompare.backends.availability.require_mode", require)
    monkeypatch.setattr("dpcompare.experiments.verify_groups.plan_groups", lambda *named, **options: [])
    monkeypatch.setattr("dpcompare.experiments.verify_groups.not_compared", lambda *named: [])
    document = json.loads(invoke("verify", "--quick", "--json", *arguments).stdout)
    left_out = (
        "torch fsdp, jax spmd: installed here and left out by --quick; add --frameworks torch,tensorflow,jax and "
        "--modes all"
    )
    assert document["not_compared"] == ([left_out] if is_bare else [])
