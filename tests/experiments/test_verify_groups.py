"""The groups of verify: which modes it trains side by side, with what, and what it refuses."""

import json

import pytest

from dpcompare.cli.verify import verify as verify_command
from dpcompare.experiments.verify_groups import not_compared, plan_groups
from tests.experiments.test_verify import ALL, BOTH
from tests.support.command import invoke


def test_a_plan_covers_every_mode_at_every_number_of_replicas():
    groups = plan_groups(BOTH, ALL, model="efficientnet-b2", replicas=[1, 2, 4], precisions=["float64"], quick=False)
    assert [(g.described, len(g.contenders), g.kind) for g in groups] == [
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


def test_a_quick_plan_has_the_big_model_on_one_device_only_and_says_nothing_twice():
    assert [(g.described, g.workload.precision, len(g.to_run)) for g in quick_plan()] == [
        ("efficientnet-b2, adam", "float32", 2),
        ("toy-bn, sgd", "float32", 4),
        ("efficientnet-b2, sgd", "float64", 2),
        ("toy-bn, adam, regularization, native", "float64", 4),
        ("toy-bn, sgd", "float64", 4),
        ("toy-bn, adam, regularization, synchronized BatchNorm", "float64", 4),
        ("mlp, sgd", "float64", 5),
    ]


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


def test_all_data_parallel_modes_of_the_named_frameworks_are_verified_by_default():
    """Of JAX it was `single` alone."""
    (modes,) = (option.default for option in verify_command.params if option.name == "modes")
    assert modes == "single,dp,ddp,mirrored,multiworker,spmd,multiprocess"
    groups = plan_groups(
        ("torch", "jax"), modes.split(","), model="toy-bn", replicas=(2,), precisions=("float64",), quick=True
    )
    assert {contender.mode for contender in groups[0].contenders} == {"dp", "ddp", "spmd", "multiprocess"}
