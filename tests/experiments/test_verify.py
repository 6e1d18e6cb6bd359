"""verify: that it passes, and that each of its checks can fail."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dpcompare.config.run import RunConfig
from dpcompare.errors import RunFailedError
from dpcompare.experiments.checks import Side, first_layer_that_differs
from dpcompare.experiments.contenders import Group, has_local_batchnorm, usable_contenders
from dpcompare.experiments.fairness import compare
from dpcompare.experiments.verify import (
    FLOOR_MULTIPLE,
    GPU_TOLERANCES,
    KINK_MULTIPLE,
    LEAST_OF_FLOOR,
    MOST_WIDENING,
    REPEAT_MULTIPLE,
    TOLERANCES,
    WIDEST_BEHIND_KINKS,
    Check,
    compare_sides,
    tolerance_of,
    verify,
)
from dpcompare.experiments.verify_groups import plan_groups
from dpcompare.experiments.verify_runs import config_of, resume_side, run_side
from dpcompare.experiments.verify_workloads import verified_workload
from dpcompare.models.architectures import MODELS
from dpcompare.results import predictions as arrays
from dpcompare.results.run_dir import CONFIG_FILE
from tests.support.command import invoke
from tests.support.contenders import ALL, BOTH
from tests.support.faults import FAULTS
from tests.support.model_traps import RESNET, TRAPS, VGG, VIT

REGULARIZED = {"regularization": "shared"}
SYNCHRONIZED = REGULARIZED | {"batchnorm": "sync"}


def group(replicas=1, optimizer="sgd", modes=ALL, frameworks=BOTH, **asked):
    """A group of a small model; with `accumulate`, which needs one without BatchNorm, compared with one device."""
    asked = {"image_size": 35, "steps": 10} | asked
    accumulate = asked.pop("accumulate", 1)
    workload = verified_workload(asked.pop("model", "toy-bn"), optimizer, "float64", quick=False, asked=asked)
    contenders = usable_contenders(frameworks, modes, replicas)
    if workload.batchnorm == "local":
        contenders = tuple(each for each in contenders if has_local_batchnorm(each, workload.model))
    if accumulate == 1:
        return Group(workload=workload, contenders=contenders)
    in_parts = [replace(contender, accumulate=accumulate) for contender in contenders]
    return Group(
        workload=workload, contenders=(*usable_contenders(frameworks, modes, 1), *in_parts), kind="accumulation"
    )


@pytest.fixture
def healthy(train_once):
    """The sides of a group, each run once."""

    def side(replicas, optimizer, number, **asked):
        chosen = group(replicas, optimizer, **asked)
        contender = chosen.contenders[number]
        result, run_dir = train_once(config_of(contender, chosen.workload, "cpu", {}))
        config = RunConfig.load(run_dir / CONFIG_FILE)
        return Side(
            contender=contender, config=config, result=result, arrays=arrays.load(run_dir, config.topology.trainers)
        )

    return side


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "modes", "batchnorm"),
    [
        pytest.param(1, ("single",), "local", marks=pytest.mark.long),
        (2, ("ddp", "spmd", "multiprocess"), "local"),
        (2, ("ddp", "jit"), "sync"),
    ],
)
def test_the_modes_of_jax_pass_every_check_beside_torch(healthy, replicas, modes, batchnorm):
    """Their other options are in the groups of test_crossed_groups.py."""
    asked = {"frameworks": ("torch", "jax"), "modes": modes, "batchnorm": batchnorm}
    chosen = group(replicas, "sgd", **asked)
    sides = [healthy(replicas, "sgd", number, **asked) for number in range(len(chosen.contenders))]
    assert {side.contender.mode for side in sides} == set(modes)
    assert {side.contender.framework for side in sides} == {"torch", "jax"}
    assert [check.name for check in compare_sides(chosen, sides, {}) if not check.passed] == []


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("replicas", "optimizer", "asked"),
    [
        (1, "sgd", {}),
        pytest.param(2, "adam", SYNCHRONIZED, marks=pytest.mark.slow),
        pytest.param(1, "adam", {}, marks=pytest.mark.slow),
        pytest.param(2, "sgd", {}, marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(1, "adam", REGULARIZED, marks=pytest.mark.slow),
    ],
)
def test_all_modes_pass_every_check(healthy, replicas, optimizer, asked):
    """The control of the faults below: the same sides, unbroken."""
    chosen = group(replicas, optimizer, **asked)
    sides = [healthy(replicas, optimizer, number, **asked) for number in range(len(chosen.contenders))]
    checks = list(compare_sides(chosen, sides, {}))
    assert [check.name for check in checks if not check.passed] == []
    assert ("regularization" in {check.name for check in checks}) == ("regularization" in asked)
    assert {check.name for check in checks} <= set(TOLERANCES)


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "model"),
    [
        pytest.param("adam", VIT | REGULARIZED, id="vit regularized"),
        pytest.param("sgd", VIT, marks=pytest.mark.long, id="vit"),
        pytest.param("sgd", RESNET, id="narrow resnet50"),
        pytest.param("sgd", RESNET | {"model": "resnet18"}, marks=pytest.mark.long, id="resnet18"),
        pytest.param("adam", VGG | REGULARIZED, id="narrow vgg16 regularized"),
        pytest.param("sgd", {"model": "toy-cnn", "steps": 2}, marks=pytest.mark.long, id="toy-cnn"),
        pytest.param("sgd", {"model": "mlp", "steps": 2}, marks=pytest.mark.long, id="mlp"),
    ],
)
def test_models_pass_every_check_layer_by_layer(healthy, optimizer, model):
    """The control of `TRAPS`, and of the layer that is named where two frameworks part."""
    asked = {"frameworks": ("torch", "tensorflow", "jax"), "modes": ("single",), **model}
    chosen = group(1, optimizer, **asked)
    sides = [healthy(1, optimizer, number, **asked) for number in range(3)]
    assert [side.contender.framework for side in sides] == ["torch", "tensorflow", "jax"]
    assert [check for check in compare_sides(chosen, sides, {}) if not check.passed] == []
    assert {first_layer_that_differs(sides[0], side) for side in sides} == {""}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pipeline", "fsdp"])
def test_a_model_with_tensors_of_its_own_is_split(healthy, mode):
    """ViT's class token and positions belong to no layer."""
    replicas = 1 if mode == "pipeline" else 2
    asked = {"frameworks": ("torch",), "modes": ("single", "ddp", mode), **VIT}
    chosen = group(replicas, "sgd", **asked)
    numbers = range(len(chosen.contenders))
    assert mode in {contender.mode for contender in chosen.contenders}
    checks = list(compare_sides(chosen, [healthy(replicas, "sgd", number, **asked) for number in numbers], {}))
    assert [check for check in checks if not check.passed] == []


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.slow
def test_vit_in_bfloat16_keeps_its_tokens_in_float32(healthy):
    """With tokens in bfloat16 a framework would be ten times further from torch than here."""
    asked = {
        "frameworks": ("torch", "tensorflow", "jax"),
        "modes": ("single",),
        **VIT,
        "steps": 1,
        "precision": "bfloat16",
    }
    reference, *others = (healthy(1, "sgd", number, **asked).arrays["evaluation_logits"] for number in range(3))
    for logits in others:
        assert np.abs(logits - reference).max() < 0.02 * np.abs(reference).max()


OTHERS = ("single", "ddp", "pipeline", "ddp-stages", "fsdp", "fabric", "accelerate", "parameter-server")
"""Modes that are compared only where they are asked for, with one that is always."""
ON_ONE_REPLICA = [
    "tensorflow parameter-server on 3 nodes x 1 device",
    "tensorflow single",
    "torch ddp on 1 node x 2 devices in 2 stages",
    "torch pipeline on 1 node x 2 devices in 2 stages",
    "torch single",
]
ON_TWO = [
    "torch accelerate on 2 nodes x 1 device",
    "torch ddp on 2 nodes x 1 device",
    "torch ddp on 2 nodes x 2 devices in 2 stages",
    "torch fabric on 2 nodes x 1 device",
    "torch fsdp on 2 nodes x 1 device",
    "torch pipeline on 2 nodes x 2 devices in 2 stages",
]


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "optimizer", "asked", "expected"),
    [
        (1, "sgd", {}, ON_ONE_REPLICA),
        pytest.param(2, "sgd", {}, ON_TWO, marks=pytest.mark.long),
        (2, "adam", SYNCHRONIZED, ON_TWO),
    ],
)
def test_the_other_modes_pass_every_check(healthy, replicas, optimizer, asked, expected):
    chosen = group(replicas, optimizer, modes=OTHERS, **asked)
    assert sorted(map(str, chosen.contenders)) == expected
    sides = [healthy(replicas, optimizer, number, modes=OTHERS, **asked) for number in range(len(expected))]
    assert [check.name for check in compare_sides(chosen, sides, {}) if not check.passed] == []


def changed(side, *, losses=None, accuracy=None, **arrays):
    """A copy of a side with other losses, another accuracy or a change to some of its arrays."""
    result = side.result
    if losses is not None:
        result = result.model_copy(update={"train_loss": losses})
    if accuracy is not None:
        evaluation = result.evaluations[-1].model_copy(update={"accuracy": accuracy})
        result = result.model_copy(update={"evaluations": [evaluation]})
    return replace(side, result=result, arrays=side.arrays | arrays)


NAN = {
    "losses over sgd steps": lambda side: changed(side, losses=[*side.result.train_loss[:-1], None]),
    "gradient of each tensor": lambda side: changed(
        side, **{"slots.momentum.classifier.bias": side.arrays["slots.momentum.classifier.bias"] * np.nan}
    ),
    "BatchNorm statistics": lambda side: changed(
        side, **{"trained.bn2.running_var": side.arrays["trained.bn2.running_var"] * np.nan}
    ),
    "training logits": lambda side: changed(side, training_logits=side.arrays["training_logits"] * np.nan),
}


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", NAN)
def test_what_is_not_a_number_does_not_pass(healthy, name):
    sides = [healthy(1, "sgd", 0), NAN[name](healthy(1, "sgd", 1))]
    failed = {check.name: check.measured for check in compare_sides(group(), sides, {}) if not check.passed}
    assert failed[name] == np.inf


# What no fault below shows first: check -> a side in which just that is off.
SMALL_CHANGES = {
    "first loss": lambda side: changed(side, losses=[side.result.train_loss[0] + 1e-9, *side.result.train_loss[1:]]),
    "training logits": lambda side: changed(side, training_logits=side.arrays["training_logits"] * (1 + 1e-9)),
    "losses over 2 steps": lambda side: changed(
        side, losses=[side.result.train_loss[0], side.result.train_loss[1] + 1e-9, *side.result.train_loss[2:]]
    ),
    "gradient": lambda side: changed(
        side, **{name: a * (1 + 1e-9) for name, a in side.arrays.items() if name.startswith("slots.")}
    ),
    "gradient of each tensor": lambda side: changed(
        side, **{"slots.momentum.bn2.bias": side.arrays["slots.momentum.bn2.bias"] * (1 + 1e-6)}
    ),
    "update of all steps": lambda side: changed(
        side, **{"trained.classifier.bias": side.arrays["trained.classifier.bias"] * (1 + 1e-4)}
    ),
    "one step of sgd": lambda side: changed(
        side, **{"stepped.classifier.bias": side.arrays["stepped.classifier.bias"] * (1 + 1e-6)}
    ),
    "accuracy (samples)": lambda side: changed(side, accuracy=side.result.evaluations[-1].accuracy + 1 / 41),
}


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", SMALL_CHANGES)
def test_a_small_change_is_caught_by_the_check_of_its_name(healthy, name):
    sides = [healthy(1, "sgd", 0), SMALL_CHANGES[name](healthy(1, "sgd", 1))]
    assert name in {check.name for check in compare_sides(group(), sides, {}) if not check.passed}


@pytest.mark.torch
@pytest.mark.tensorflow
def test_every_arm_of_an_accumulation_counts(healthy):
    (chosen,) = [
        g
        for g in plan_groups(BOTH, ALL, model="toy-bn", replicas=[2], precisions=["float64"], quick=False)
        if g.kind == "accumulation"
    ]
    assert len(set(chosen.contenders)) == len(chosen.contenders) == 8
    side = healthy(1, "sgd", 0)
    for position in range(1, len(chosen.contenders)):
        sides = [replace(side, contender=contender) for contender in chosen.contenders]
        sides[position] = changed(sides[position], losses=[loss + 1 for loss in side.result.train_loss])
        (check,) = compare_sides(chosen, sides, {})
        assert not check.passed
        assert check.pair.endswith(str(chosen.contenders[position]))


@pytest.mark.torch
@pytest.mark.tensorflow
def test_where_one_side_ran_alone_what_compares_it_has_failed(healthy):
    checks = list(compare_sides(group(), [healthy(1, "sgd", 0)], {}))
    assert {check.name for check in checks if check.passed} == {
        "weight round trip",
        "sample order",
        "equality of replicas",
        "pixels and augmentation",
    }


@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_on_the_cpu_tolerances_are_those_of_its_table(name, precision):
    stated = TOLERANCES[name][precision]
    expected = max(FLOOR_MULTIPLE * 3e-5, LEAST_OF_FLOOR[precision]) if stated is None else stated
    assert tolerance_of(name, precision, on_gpu=False, drift=3e-5, repeated=None) == expected


@pytest.mark.parametrize(
    ("name", "precision", "drift", "expected"),
    [
        ("gradient", "float32", 1e-5, TOLERANCES["gradient"]["float32"]),
        ("gradient", "float32", 3e-3, KINK_MULTIPLE * 3e-3),
        ("one step of adam", "float32", 3e-2, KINK_MULTIPLE * 3e-2),
        ("one step of adam", "float32", 1.0, WIDEST_BEHIND_KINKS),
        ("accuracy (samples)", "float32", 0.0, 1.0),
        ("accuracy (samples)", "float32", 1.0, KINK_MULTIPLE),
        ("accuracy (samples)", "float32", 5.0, WIDEST_BEHIND_KINKS * 41),
        ("accuracy (samples)", "float64", 1.0, 0.0),
        ("gradient", "float64", 3e-3, TOLERANCES["gradient"]["float64"]),
        ("training logits", "float32", 3e-3, TOLERANCES["training logits"]["float32"]),
    ],
)
def test_rounding_may_flip_a_relu_in_float32_alone(name, precision, drift, expected):
    num_evaluated = 41 if name == "accuracy (samples)" else 1
    found = tolerance_of(name, precision, on_gpu=False, drift=drift, repeated=None, num_evaluated=num_evaluated)
    assert found == expected


@pytest.mark.parametrize(
    ("name", "precision", "floors", "expected"),
    [
        ("training logits", "float32", (None, 0.0), GPU_TOLERANCES["training logits"]["float32"]),
        ("training logits", "float32", (None, 3e-3), REPEAT_MULTIPLE * 3e-3),
        ("training logits", "float32", (None, 1.0), MOST_WIDENING * GPU_TOLERANCES["training logits"]["float32"]),
        ("training logits", "float64", (None, None), GPU_TOLERANCES["training logits"]["float64"]),
        ("pixels and augmentation", "float32", (None, None), 0.0),
        ("accuracy (samples)", "float64", (None, 0.0), 0.0),
        ("accuracy (samples)", "float64", (None, 1.0), REPEAT_MULTIPLE),
        ("evaluation loss", "float32", (1e-3, 0.0), FLOOR_MULTIPLE * 1e-3),
        ("evaluation loss", "float32", (1e-3, 2e-2), REPEAT_MULTIPLE * 2e-2),
        ("evaluation loss", "float32", (None, 0.0), None),
        ("evaluation loss", "float32", (np.inf, 0.0), None),
        ("training logits", "float32", (None, np.inf), None),
        ("training logits", "float32", (None, np.nan), None),
    ],
)
def test_a_gpu_that_differs_from_itself_widens_a_tolerance(name, precision, floors, expected):
    drift, repeated = floors
    assert tolerance_of(name, precision, on_gpu=True, drift=drift, repeated=repeated) == expected


def test_tolerances_of_gpus_are_at_most_ten_times_wider():
    for name, of_precision in GPU_TOLERANCES.items():
        for precision, tolerance in of_precision.items():
            assert TOLERANCES[name][precision] < tolerance <= TOLERANCES[name][precision] * 10.01
    exact = {name for name, of_precision in TOLERANCES.items() if of_precision["float32"] == 0.0}
    assert not exact & set(GPU_TOLERANCES)


DRIFTS = {"torch": 1e-12, "tensorflow": 1e-10}
"""How far two runs of a framework on the imitated GPUs are from each other."""


@pytest.fixture
def on_gpus(healthy, install_gpus, monkeypatch):
    """Has verify take what ran on the CPU for what a group on GPUs left; gives the group and what was run."""
    install_gpus()
    chosen, ran = group(), []
    left = [healthy(1, "sgd", number) for number in range(len(chosen.contenders))]

    def run_side(contender, config, folder, stopped_by):
        ran.append((contender, config.cluster.device_type))
        side = left[chosen.contenders.index(contender)]
        if folder.parent.name == "again":
            drift = DRIFTS[contender.framework]
            side = changed(side, training_logits=side.arrays["training_logits"] * (1 + drift))
        gpu = side.config.model_copy(update={"cluster": config.cluster})
        return replace(side, config=gpu)

    monkeypatch.setattr("dpcompare.experiments.verify_runs.run_side", run_side)
    return chosen, ran, left


@pytest.mark.torch
@pytest.mark.tensorflow
def test_on_gpus_the_floor_is_shown_of_one_that_runs_twice(on_gpus):
    chosen, ran, _ = on_gpus
    again = {contender.framework: contender for contender in reversed(chosen.contenders)}
    assert set(again) == {"torch", "tensorflow"}
    checks = {check.name: check for check in verify([chosen], device="auto")}
    assert ran == [(contender, "gpu") for contender in (*chosen.contenders, *again.values())]
    assert checks["training logits"].floor == pytest.approx(1e-10, rel=1e-3)
    assert checks["training logits"].tolerance == REPEAT_MULTIPLE * checks["training logits"].floor
    assert checks["evaluation logits"].floor == 0.0
    assert checks["evaluation logits"].tolerance == GPU_TOLERANCES["evaluation logits"]["float64"]
    assert checks["pixels and augmentation"].floor is None
    assert all(check.passed for check in checks.values())


@pytest.mark.torch
@pytest.mark.tensorflow
def test_on_the_cpu_nothing_runs_twice(on_gpus):
    chosen, ran, left = on_gpus
    checks = list(verify([chosen], device="cpu"))
    assert ran == [(contender, "cpu") for contender in chosen.contenders]
    assert checks == list(compare_sides(chosen, left, {}))
    assert {check.floor for check in checks} == {None}


@pytest.mark.torch
@pytest.mark.tensorflow
def test_a_fault_far_above_the_floor_of_a_gpu_is_caught(on_gpus):
    chosen, _, left = on_gpus
    left[1] = changed(left[1], training_logits=left[1].arrays["training_logits"] * (1 + 1e-4))
    failed = {check.name for check in verify([chosen], device="auto") if not check.passed}
    assert failed == {"training logits"}


@pytest.mark.torch
@pytest.mark.tensorflow
def test_the_floor_of_a_gpu_is_a_column_and_a_key(on_gpus, monkeypatch):
    monkeypatch.setattr("dpcompare.experiments.verify_groups.plan_groups", lambda *_, **__: [on_gpus[0]])
    as_json = invoke("verify", "--device", "auto", "--json")
    assert as_json.code == 0, as_json.stderr
    floors = {check["name"]: check["floor"] for check in as_json.json["checks"]}
    assert floors["training logits"] == pytest.approx(1e-10, rel=1e-3)
    assert floors["weight round trip"] is None
    assert "floor" in invoke("verify", "--device", "auto").stdout
    assert "floor" not in invoke("verify").stdout


@pytest.mark.torch
def test_an_interrupted_verify_tells_what_it_has_found(monkeypatch):
    made = Check(
        name="gradient", modes="a, b", pair="a / b", workload="mlp", precision="float64", measured=0.0, tolerance=1e-11
    )

    def interrupted_after_one(groups, **settings):
        yield made
        raise KeyboardInterrupt

    monkeypatch.setattr("dpcompare.experiments.verify.verify", interrupted_after_one)
    asked = ("verify", "--frameworks", "torch", "--model", "mlp")
    ended = invoke(*asked, "--json")
    told = ended.json
    assert (ended.code, told["interrupted"], told["passed"]) == (130, True, False)
    assert [check["name"] for check in told["checks"]] == ["gradient"]
    as_text = invoke(*asked).stdout
    assert "1 of 1 checks passed\n" in as_text
    assert "gradient" not in as_text
    assert "  pass  gradient  0.0e+00 of 1.0e-11  a / b\n" in invoke(*asked, "--full").stdout
    assert as_text.endswith("\ninterrupted: the other checks were not made\n")


@pytest.mark.parametrize(("scale", "first_stage"), [("b0", 1), ("b2", 2), ("b5", 3)])
def test_the_zero_gradients_of_every_efficientnet(scale, first_stage):
    model = MODELS[f"efficientnet-{scale}"]
    names = model.shapes(64, 10)
    zero = model.zero_gradients(names)
    blocks = {
        name.rsplit(".", 3)[0] for name in names if name.startswith("blocks.") and name.endswith("conv_dw.weight")
    }
    num_blocks = sum(1 for name in names if name.endswith("conv_dw.weight"))
    assert blocks
    assert len(zero) == num_blocks - first_stage + 1
    assert f"blocks.0.{first_stage - 1}.bn2.bias" in zero


def test_every_check_has_a_fault_or_a_change_that_it_catches():
    shown = {fault.caught_by for fault in FAULTS.values()} | set(SMALL_CHANGES) | set(NAN)
    assert set(TOLERANCES) <= shown


def test_every_fault_that_changes_numbers_is_caught_by_verify():
    for name, fault in FAULTS.items():
        assert (fault.caught_by is not None) == fault.changes_numbers, name


OTHER_BY_INTENT = ("profile", "TF32", "checkpoints", "measured steps", "other environment variables")
"""Settings in which the reference may be other than the side that is broken."""


IN_JAX = ", in JAX"


def is_repeated_in_jax(name, fault):
    """Whether another framework has the same fault, which the same check catches."""
    other = FAULTS.get(name.removesuffix(IN_JAX))
    return name.endswith(IN_JAX) and other is not None and other.caught_by == fault.caught_by


LIKE_OTHER_TRAPS = (
    "BatchNorm's epsilon of Keras's ResNet50, 1.001e-5",
    "biased convolutions before BatchNorm",
    "TensorFlow's padding of strided convolutions",
)
"""Differences of ResNet-50 that fail the checks which others of it fail."""
SEVERAL_REPLICAS = {"torch": "ddp", "tensorflow": "mirrored", "jax": "spmd"}
"""The mode of a framework that is broken, or the reference of what is, where there are several replicas."""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.jax if fault.framework == "jax" else pytest.mark.tensorflow,
                *([pytest.mark.long] if is_repeated_in_jax(name, fault) or name in LIKE_OTHER_TRAPS else []),
            ],
        )
        for name, fault in (FAULTS | TRAPS).items()
    ],
)
@pytest.mark.usefixtures("warm")
def test_each_broken_alignment_is_caught_and_named(healthy, name, tmp_path, monkeypatch, capsys):
    fault = (FAULTS | TRAPS)[name]
    asked = dict(fault.workload)
    if fault.framework == "jax":
        asked |= {"frameworks": ("torch", "jax"), "modes": ("single", "ddp", "spmd")}
    chosen = group(fault.replicas, fault.optimizer, **asked)
    modes = SEVERAL_REPLICAS if fault.replicas > 1 else dict.fromkeys(SEVERAL_REPLICAS, "single")
    places = {one.framework: n for n, one in enumerate(chosen.contenders) if one.mode == modes[one.framework]}
    contender = chosen.contenders[places.pop(fault.framework)]
    (other,) = places.values()
    # The native profile computes what the strict one does, which need not be compiled.
    reference = healthy(fault.replicas, fault.optimizer, other, **(asked | {"profile": "strict"}))
    fault.install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    for variable, value in fault.environment.items():
        monkeypatch.setenv(variable, value)
    config = config_of(contender, chosen.workload, "cpu", {}, 8 if fault.resumed else None)
    if fault.caught_by == "run":
        with pytest.raises(RunFailedError, match="each of the 41 validation samples once"):
            run_side(contender, config, tmp_path / "run")
        return
    broken = run_side(contender, config, tmp_path / "run")
    if fault.resumed:
        assert [check.name for check in compare_sides(chosen, [reference, broken], {}) if not check.passed] == []
        broken = resume_side(replace(contender, resumed=True), broken, tmp_path / "run")
    checks = list(compare_sides(chosen, [reference, broken], {}))
    failed = {check.name: check for check in checks if not check.passed}
    sheet = compare([reference.result, broken.result], subject=OTHER_BY_INTENT)
    named = {row.setting for row in sheet.rows if row.reason}
    with capsys.disabled():
        caught = failed.get(fault.caught_by)
        figures = f"{caught.measured:.1e} against {caught.tolerance:.0e}" if caught else "not caught"
        columns = (name, fault.framework, str(fault.caught_by), figures, ", ".join(failed), ", ".join(sorted(named)))
        print(f"\n| {' | '.join(columns)} |")
    assert fault.caught_by in failed if fault.changes_numbers else not failed
    if not fault.is_near_the_limit:
        assert set(fault.on_sheet) <= named
        assert bool(fault.on_sheet) == bool(named)


ONE_DEVICE = [
    "--model",
    "toy-bn",
    "--replicas",
    "1",
    "--precision",
    "float64",
    "--profile",
    "strict",
    "--quick",
    "--json",
]


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "first_group")
def test_a_side_that_crashes_fails_its_check_and_the_command(tmp_path, monkeypatch):
    FAULTS["a sample dropped in evaluation"].install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = invoke("verify", "--modes", "single", *ONE_DEVICE)
    assert done.code == 3
    failed = {check["name"]: check for check in done.json["checks"] if not check["passed"]}
    assert all(f"FAILED {name}" in done.stderr for name in failed)
    assert "each of the 41 validation samples once" in failed["run"]["detail"]
    assert failed["training logits"]["measured"] is None


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "first_group")
def test_one_framework_alone_passes_and_the_other_is_named(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    done = invoke("verify", *ONE_DEVICE, DPCOMPARE_TENSORFLOW_PYTHON=python)
    assert done.code == 0, done.stderr
    assert done.json["passed"] is True
    assert {"name", "modes", "precision", "measured", "tolerance", "passed"} <= set(done.json["checks"][0])
    assert "not compared: tensorflow is not usable" in done.stderr
    assert "tensorflow is not usable" in done.json["not_compared"][0]
    assert {check["pair"].split()[0] for check in done.json["checks"]} == {"torch"}
