"""The last steps of a run against the same steps repeated: what rounding explains, and what it does not."""

import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.launch.late_step import _judged
from dpcompare.models.state import TrainingState
from dpcompare.results import late_step
from dpcompare.results.late_step import LateStep, compared, state_of, statistics_are_alike, tensors_of, why_not
from dpcompare.training.late_step import LateStepFiles
from tests.support.numpy_backend import NumpyBackend
from tests.support.results import result

SHAPES = {"conv.weight": (64, 9), "conv.bias": (64,), "shift.bias": (64,), "classifier.weight": (10, 64)}
RATE, NOISE_OF_A_GRADIENT = 1e-3, 1e-6


def adam_step(state, gradients, dtype):
    """A step of Adam, as far as it matters here: without the correction of its bias."""
    moved = dict(state)
    for name, gradient in gradients.items():
        first = 0.9 * state[f"optimizer.exp_avg.{name}"] + 0.1 * gradient
        second = 0.999 * state[f"optimizer.exp_avg_sq.{name}"] + 0.001 * gradient**2
        moved[f"optimizer.exp_avg.{name}"], moved[f"optimizer.exp_avg_sq.{name}"] = first, second
        moved[f"model.{name}"] = state[f"model.{name}"] - RATE * first / (np.sqrt(second) + 1e-7)
    return {name: tensor.astype(dtype) for name, tensor in moved.items()}


def files(*, noise=1e-6, fault=lambda name, gradient: gradient, stored=np.float32):
    """The tensors before two steps and after them, and the same repeated; noise is that of the run's gradients."""
    rng = np.random.default_rng(0)
    scale = dict.fromkeys(SHAPES, 1.0) | {"shift.bias": 0.0}  # whose gradient is rounding alone
    before = {f"model.{name}": rng.normal(0, 0.1, shape) for name, shape in SHAPES.items()}
    for name, shape in SHAPES.items():
        typical = scale[name] + NOISE_OF_A_GRADIENT
        before[f"optimizer.exp_avg.{name}"] = rng.normal(0, 0.1 * typical, shape)
        before[f"optimizer.exp_avg_sq.{name}"] = np.full(shape, typical**2)
    before = {name: tensor.astype(stored) for name, tensor in before.items()}
    run, again = before, {name: tensor.astype(np.float64) for name, tensor in before.items()}
    for _ in range(2):
        gradients = {name: rng.normal(0, scale[name], shape) for name, shape in SHAPES.items()}
        rounded = {
            name: fault(name, gradient + rng.normal(0, noise, gradient.shape)) for name, gradient in gradients.items()
        }
        run, again = adam_step(run, rounded, stored), adam_step(again, gradients, np.float64)
    return before, run, again | {"losses": np.array([0.5, 0.4])}


def difference(tensors, *, losses=(0.5, 0.4), arithmetic="float32", with_statistics=True):
    return compared(*tensors, losses, arithmetic=arithmetic, first_step=29, with_statistics=with_statistics)


def test_rounding_is_explained():
    part, _ = difference(files())
    assert 0 < part < 0.5


def test_a_gradient_that_is_rounding_alone_is_no_difference():
    _, run, again = tensors = files()
    update = run["model.shift.bias"] - tensors[0]["model.shift.bias"]
    other = again["model.shift.bias"] - tensors[0]["model.shift.bias"]
    assert np.linalg.norm(update - other) > 0.5 * np.linalg.norm(other)  # Adam makes an update of full size of it
    assert difference(tensors)[0] < 1


FAULTS = {
    "half of the gradient": (lambda name, gradient: gradient / 2, "exp_avg"),
    "no gradient": (lambda name, gradient: gradient * 0, "exp_avg"),
    "one tensor's gradient with another sign": (
        lambda name, gradient: -gradient if name == "conv.bias" else gradient,
        "exp_avg of conv.bias",
    ),
    "5% more": (lambda name, gradient: gradient * 1.05, "exp_avg_sq"),
}


@pytest.mark.parametrize(("fault", "largest"), FAULTS.values(), ids=FAULTS)
def test_what_rounding_does_not_explain_is_named(fault, largest):
    part, what = difference(files(fault=fault))
    assert part > 1
    assert what.startswith(largest)


def test_bfloat16_explains_more_than_float32():
    tensors = files(noise=3e-2)
    assert difference(tensors)[0] > 1
    assert difference(tensors, arithmetic="bfloat16")[0] < 1


def test_weights_that_are_stored_in_fewer_bits_show_in_bfloat16():
    before, run, again = files(noise=3e-3)
    coarse = {
        name: np.round(tensor * 256) / 256 if name.startswith("model.") else tensor for name, tensor in run.items()
    }
    assert difference((before, run, again), arithmetic="bfloat16")[0] < 1
    assert difference((before, coarse, again), arithmetic="bfloat16")[0] > 1


def test_a_rate_shows_in_the_update_alone():
    before, run, again = files()
    slower = {
        name: before[name] + (tensor - before[name]) * 0.9 if name.startswith("model.") else tensor
        for name, tensor in run.items()
    }
    part, what = difference((before, slower, again))
    assert part > 1
    assert what.startswith("update of")


def test_a_loss_is_named_by_its_step():
    assert difference(files(), losses=(0.5, 0.41)) == (pytest.approx(10), "loss of step 30")
    assert difference(files(), losses=(float("nan"), 0.4)) == (math.inf, "loss of step 29")


def with_batchnorm(*, momentum=0.9, noise=1e-6):
    """The tensors of `files`, and a BatchNorm whose running statistics move by this momentum."""
    before, run, again = files()
    rng = np.random.default_rng(1)
    for name in ("model.norm.running_mean", "model.norm.running_var"):
        old = np.abs(rng.normal(1, 0.1, 16)).astype(np.float32)
        ours, theirs = old, old.astype(np.float64)
        for _ in range(2):
            of_batch = rng.normal(1, 0.3, 16)
            ours = (momentum * ours + (1 - momentum) * (of_batch + rng.normal(0, noise, 16))).astype(np.float32)
            theirs = 0.9 * theirs + 0.1 * of_batch
        before, run, again = before | {name: old}, run | {name: ours}, again | {name: theirs}
    return before, run, again


def test_running_statistics_may_round():
    assert difference(with_batchnorm())[0] < 1
    assert difference(with_batchnorm(noise=3e-2), arithmetic="bfloat16")[0] < 1


def test_running_statistics_of_another_momentum_are_named():
    faulty = with_batchnorm(momentum=0.99)
    part, what = difference(faulty)
    assert part > 1
    assert what.startswith(("running mean of ", "running var of "))
    assert difference(faulty, arithmetic="bfloat16")[0] > 1
    assert difference(faulty, with_statistics=False)[0] < 1


def test_statistics_of_a_replica_alone_are_not_compared():
    assert statistics_are_alike(config("single", nodes=1))
    assert statistics_are_alike(config(workload={"batchnorm": "sync"}))
    assert not statistics_are_alike(config())


def test_what_is_not_a_number_or_missing_does_not_pass():
    before, run, again = files()
    assert difference((before, run | {"model.conv.bias": run["model.conv.bias"] * np.nan}, again))[0] == math.inf
    del again["model.conv.bias"]
    assert difference((before, run, again)) == (math.inf, "update of other tensors")


def test_a_slot_that_does_not_change_may_round():
    before, run, again = files()
    zero = {"optimizer.exp_avg.shift.bias": np.zeros(64)}
    rounded = {"optimizer.exp_avg.shift.bias": np.full(64, 1e-9, np.float32)}
    assert difference((before | zero, run | rounded, again | zero))[0] < 1


def test_native_bfloat16_is_not_judged_as_tf32():
    settings = {"tf32": True}
    assert [result(precision=name, settings=settings).arithmetic for name in ("float32", "bfloat16", "float64")] == [
        "TF32",
        "bfloat16",
        "float64",
    ]
    assert result(precision="float32").arithmetic == "float32"


def test_a_difference_without_a_number_is_a_problem(tmp_path):
    before, run, again = files()
    run = run | {"model.conv.bias": run["model.conv.bias"] * np.nan}
    for name, tensors in (("before", before), ("after", run), ("again", again)):
        save_file(tensors, tmp_path / f"{name}.safetensors")
    judged = _judged(result(train_loss=[0.5, 0.4]), config(), config("single", nodes=1, framework="jax"), tmp_path)
    assert judged.part_of_tolerance == 1e18
    assert "update of" in judged.problem
    assert LateStep.model_validate_json(judged.model_dump_json()) == judged


def test_states_that_memory_may_not_hold_are_left_out(monkeypatch):
    monkeypatch.setattr(late_step, "MOST_STATE_BYTES", 1e4)
    assert "GB in all processes" in why_not(config())


def test_a_full_disk_leaves_the_late_step_out(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpcompare.training.late_step.save_file", full)
    backend = NumpyBackend(config("single", nodes=1, workload={"model": "mlp"}).changed(late_step=True))
    backend.setup()
    kept = LateStepFiles(backend, tmp_path, 10)
    assert [step for step in range(11) if kept.keeps(step)] == [8, 10]
    kept.keep(8)
    assert not list((tmp_path / "late-step").iterdir())


def test_a_state_survives_its_file_in_float64():
    state = TrainingState(
        model={"conv.weight": np.ones((2, 2), np.float32)},
        optimizer={"exp_avg.conv.weight": np.zeros(2, np.float32)},
        step=7,
    )
    again = state_of(tensors_of(state), 7)
    assert (again.step, again.model["conv.weight"].dtype) == (7, np.float64)
    assert list(again.optimizer) == ["exp_avg.conv.weight"]


def config(mode="ddp", *, nodes=2, framework="torch", workload=None, **fields):
    cluster = Cluster.partition(nodes, device="cpu", num_cores=2)
    asked = {"model": "toy-bn", "dataset": "synthetic-mini", "global_batch_size": 8, "steps": 10} | (workload or {})
    return prepare_inputs(
        RunConfig(framework=framework, mode=mode, cluster=cluster, workload=Workload(**asked), **fields)
    )


LEFT_OUT = {
    "few steps": ({"workload": {"steps": 2, "warmup_steps": 1}}, "a run of 2 steps is too short for it"),
    "a target": ({"target_accuracy": 0.5, "stop_at_target": True}, "it may end at its target"),
    "no gradient sync": ({"sync_gradients": False}, "each of its replicas trains a model of its own"),
    "one batch": ({"reuse_batch": True}, "it trains one batch over and over"),
    "micro-batches of all replicas": (
        {"workload": {"batchnorm": "sync", "accumulate": 2}},
        "no other device normalises by micro-batches of all replicas",
    ),
}


@pytest.mark.parametrize(("fields", "reason"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_why_a_late_step_is_left_out(fields, reason):
    assert why_not(config(**fields)).startswith(reason)


def test_a_usual_run_has_a_late_step():
    assert why_not(config()) is None
    assert why_not(config("single", nodes=1, workload={"accumulate": 2})) is None


def test_a_late_step_in_words():
    good = LateStep(framework="jax", first=29, last=30, part_of_tolerance=0.25, largest="loss of step 30")
    assert (good.problem, good.in_words) == (None, "confirmed by jax, 0.25 of what rounding explains")
    bad = good.model_copy(update={"part_of_tolerance": 12.5, "largest": "update of conv.bias"})
    assert bad.in_words == bad.problem
    assert bad.problem.endswith(
        "a different step from the same state: update of conv.bias is off by 12.5 times what rounding explains"
    )
    left_out = LateStep(left_out="a run of 2 steps is too short for it")
    assert left_out.in_words == "left out: a run of 2 steps is too short for it"
