"""The comparisons of two sides that did the same work: one function for each check of `dpcompare verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.run import PreparedRun
from dpcompare.config.workload import Workload
from dpcompare.data.order import OrderDigest, training_batches
from dpcompare.data.store import open_store
from dpcompare.experiments.agreement import where_decisions_differ
from dpcompare.experiments.contenders import Contender
from dpcompare.models.architectures import model_of
from dpcompare.models.sealed import read_weights
from dpcompare.models.state import is_statistic
from dpcompare.results.predictions import Arrays
from dpcompare.results.result import RunResult
from dpcompare.training.schedule import training_reader


@dataclass
class Side:
    """What one contender left behind."""

    contender: Contender
    config: PreparedRun
    result: RunResult
    arrays: Arrays = field(repr=False)


Difference = Callable[[Side, Side], float]


EACH_ALONE = ("weight round trip", "sample order", "equality of replicas", "pixels and augmentation", "regularization")
"""Checks of each side against the files and rules, not against another side."""


ACCURACY = "accuracy (samples)"


def differences(workload: Workload) -> dict[str, Difference]:
    """The checks of a group of modes, by name."""
    optimizer, spec = workload.optimizer, OPTIMIZERS[workload.optimizer]
    found: dict[str, Difference] = {
        "weight round trip": lambda _, side: float(len(_weights_off_file(side))),
        "sample order": _order_against_plan,
        "decisions of each step": lambda a, b: float(len(_decisions_that_differ(a, b))),
        "equality of replicas": lambda _, side: float(_replica_difference(side) is not None),
        "pixels and augmentation": lambda _, side: _rows_against_host(side, "images", "labels", "weights"),
        "evaluation logits": _largest("evaluation_logits"),
        "training logits": _largest("training_logits"),
        "first loss": lambda a, b: abs(_losses(a)[0] - _losses(b)[0]),
    }
    if workload.regularization == "shared":
        found["regularization"] = lambda _, side: _rows_against_host(side, "drop_masks")
    if spec.first_moment_factor == 1.0:  # after one step it is the gradient
        slot = spec.slots[0]
        found["gradient"] = lambda a, b: _relative(_slots(a, slot), _slots(b, slot))
        found["gradient of each tensor"] = lambda a, b: _gradient_of_each_tensor(a, b, slot)
    found[f"one step of {optimizer}"] = lambda a, b: _relative(_update(a), _update(b))
    found["losses over 2 steps"] = lambda a, b: loss_difference(a, b, 2)
    found[f"losses over {optimizer} steps"] = loss_difference
    found["update of all steps"] = lambda a, b: _relative(_update(a, "trained"), _update(b, "trained"))
    found["BatchNorm statistics"] = _statistics
    if workload.weight_average is not None:
        found["weight average"] = lambda a, b: _relative(_tensors(a, "averaged"), _tensors(b, "averaged"))
    found[ACCURACY] = lambda a, b: abs(_correct(a) - _correct(b))
    found["evaluation loss"] = lambda a, b: abs(_evaluation_loss(a) - _evaluation_loss(b))
    return found


def _losses(side: Side) -> npt.NDArray[np.float64]:
    return np.array(side.result.train_loss, np.float64)


def loss_difference(a: Side, b: Side, num_steps: int | None = None) -> float:
    """The largest difference of the loss of one of the first steps, or of any."""
    return float(np.abs(_losses(a) - _losses(b))[:num_steps].max())


def _evaluation_loss(side: Side) -> float:
    loss = side.result.evaluations[-1].loss
    return float("nan") if loss is None else loss


def _correct(side: Side) -> float:
    """Validation samples classified correctly; that each was counted once is a condition of every run."""
    evaluation = side.result.evaluations[-1]
    return round(evaluation.accuracy * evaluation.count)


def _weights_off_file(side: Side) -> list[str]:
    """The tensors that differ from the file of initial weights in any bit, or are on one side alone."""
    expected = read_weights(side.config.inputs.weights)
    loaded = _tensors(side, "initial")
    if others := sorted(loaded.keys() ^ expected.keys()):
        return others
    return [name for name in expected if not np.array_equal(loaded[name], expected[name].astype(loaded[name].dtype))]


def _order_against_plan(_: Side, side: Side) -> float:
    """1 where the samples were trained in another order than (seed, epoch) says."""
    workload = side.config.workload
    digest = OrderDigest()
    for batch in training_batches(
        side.config.inputs.num_train,
        workload.global_batch_size,
        seed=workload.seed,
        num_steps=len(side.result.train_loss),
    ):
        digest.update(batch)
    return float(digest.hexdigest() != side.result.sample_order_sha256)


def _decisions_that_differ(a: Side, b: Side) -> list[str]:
    """A sentence for each of the host's decisions, the rows of evaluations included, that differ in a step of both."""
    results = [a.result, b.result]
    kinds = dict.fromkeys(what for result in results if result.decisions for what in result.decisions.digests)
    sentences = [f"{what} of each step {at}" for what in kinds if (at := where_decisions_differ(what, results))]
    first, second = ({row.step: row.rows for row in result.evaluations if row.rows} for result in results)
    if step := next((step for step in first if second.get(step, first[step]) != first[step]), None):
        sentences.append(f"rows of the evaluation after step {step} differ")
    return sentences


def _replica_difference(side: Side) -> str | None:
    return side.result.computed.replica_difference if side.result.computed else None


def detail_of(name: str, a: Side, b: Side, tolerance: float) -> str:
    """What leads to the cause where a check of two sides has failed; empty where nothing is known."""
    if name == "decisions of each step":
        return "; ".join(_decisions_that_differ(a, b))
    if name == "equality of replicas":
        return _replica_difference(b) or ""
    if name == "weight round trip":
        return f"tensors that differ from those in the file: {_first_names(_weights_off_file(b))}"
    if name in EACH_ALONE:
        return ""
    return first_layer_that_differs(a, b) or (_first_late_loss(a, b, tolerance) if name.startswith("losses") else "")


def _first_names(tensors: Sequence[str], most: int = 4) -> str:
    others = len(tensors) - most
    return ", ".join(tensors[:most]) + (f" and {others} more" if others > 0 else "")


def _first_late_loss(a: Side, b: Side, tolerance: float) -> str:
    """Which step's loss is the first that differs, in words; empty where it is the first of all."""
    late = np.flatnonzero(~(np.abs(_losses(a) - _losses(b)) <= tolerance))  # a NaN differs
    if not len(late) or not late[0]:
        return ""
    step = int(late[0])
    return f"the first loss that differs is that of step {step + 1}, after the update of step {step}"


def _rows_against_host(side: Side, *names: str) -> float:
    """How many rows of the first batch reached the devices with other bytes than the store and the rules say."""
    workload = side.config.workload
    split = open_store(side.config.inputs.store).split("train")
    reader = training_reader(workload, split, side.config.drops, data_parallel_rank=0, data_parallel_size=1)
    order = training_batches(len(split), workload.global_batch_size, seed=workload.seed, num_steps=1)
    (batch,) = reader.read(order)
    expected = {name: getattr(batch, name) for name in names}
    received = {name: side.arrays.get(f"rows.{name}", np.empty(0)) for name in names}
    if any(received[name].shape != expected[name].shape for name in names):
        return float(workload.global_batch_size)
    same = [
        all(np.array_equal(received[name][row], expected[name][row].astype(received[name].dtype)) for name in names)
        for row in range(workload.global_batch_size)
    ]
    return float(len(same) - sum(same))


def _largest(name: str) -> Difference:
    """The largest difference of an array, relative to its largest value."""

    def difference(a: Side, b: Side) -> float:
        if a.arrays[name].shape != b.arrays[name].shape:
            return float("inf")
        return float(np.abs(a.arrays[name] - b.arrays[name]).max() / np.abs(a.arrays[name]).max())

    return difference


LAYER_DIFFERS = {"float64": 1e-3, "float32": 1e-3, "bfloat16": 1e-1}
"""Precision -> relative difference from which a layer's features are called different; float32 rounding is a hundredth
of it, and bfloat16's, which grows from layer to layer, a twentieth."""


def first_layer_that_differs(a: Side, b: Side) -> str:
    """In words, in the order of the first side's layers; empty where all are the same."""
    first, second = _activations(a), _activations(b)
    known = {name.rpartition(".")[0] for name in _tensors(b, "initial")}
    unknown: list[str] = []
    for name, features in first.items():
        if name not in second and name in known:  # a layer that keeps its features to itself
            unknown.append(name)
            continue
        besides = f"; not compared before it: {', '.join(unknown)}" if unknown else ""
        if name not in second:
            return f"{name} is in {a.contender} alone; {b.contender} has {', '.join(second)}"
        if features.shape != second[name].shape:
            shapes = f"{features.shape} in {a.contender}, {second[name].shape} in {b.contender}"
            return f"the first layer that differs is {name}: {shapes}{besides}"
        difference = float(np.abs(features - second[name]).max() / (np.abs(features).max() or 1))
        if not difference < LAYER_DIFFERS[a.config.workload.precision]:
            return f"the first layer that differs is {name}: by {difference:.1e} of its largest value{besides}"
    return ""


def _activations(side: Side) -> Arrays:
    """Layer -> features, in the order of the layers."""
    numbered = sorted(name for name in side.arrays if name.startswith("activation."))
    return {name.split(".", 2)[2]: side.arrays[name] for name in numbered}


def _tensors(side: Side, when: str) -> Arrays:
    prefix = f"{when}."
    return {name.removeprefix(prefix): array for name, array in side.arrays.items() if name.startswith(prefix)}


def _slots(side: Side, slot: str) -> Arrays:
    return _tensors(side, f"slots.{slot}")


def _update(side: Side, until: str = "stepped") -> Arrays:
    """What the first step changed in the trained tensors, or `until` they were `trained`, all steps."""
    initial, changed = _tensors(side, "initial"), _tensors(side, until)
    return {name: changed[name] - initial[name] for name in initial if not is_statistic(name)}


RESIDUE = {8: 1e-12, 4: 1e-5}
"""Bytes of a number -> what rounding may leave of a gradient that is 0, as a part of the gradient of all tensors."""


def _norm(arrays: Arrays) -> float:
    return float(np.sqrt(sum(float(np.square(array.astype(np.float64)).sum()) for array in arrays.values())))


def _relative(a: Arrays, b: Arrays) -> float:
    """||b - a|| / ||a|| over all tensors together; infinite where they are not the same tensors."""
    if not _same_tensors(a, b):
        return float("inf")
    difference = np.sqrt(sum(float(np.square((b[name] - a[name]).astype(np.float64)).sum()) for name in a))
    norm = _norm(a)
    return float(difference / norm) if norm else float(difference)


def _same_tensors(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(a[name].shape == b[name].shape for name in a)


def _gradient_of_each_tensor(a: Side, b: Side, slot: str) -> float:
    """The worst relative difference of a single tensor's gradient, but for those that are 0 but for rounding.

    Such as that of a bias before BatchNorm, which takes it off again: of two residues of rounding none is wrong.
    """
    first, second = _slots(a, slot), _slots(b, slot)
    if not _same_tensors(first, second):
        return float("inf")
    zero = model_of(a.config.workload.model).zero_gradients(first)
    least = RESIDUE[next(iter(first.values())).dtype.itemsize] * min(map(_norm, (first, second)))
    zero |= {name for name in first if max(_norm({name: each[name]}) for each in (first, second)) <= least}
    return _worst(_relative({name: first[name]}, {name: second[name]}) for name in first if name not in zero)


def _statistics(a: Side, b: Side) -> float:
    """The largest difference of a running statistic, relative to 1 plus its size; 0 for a model without BatchNorm."""
    first, second = _tensors(a, "trained"), _tensors(b, "trained")
    if not _same_tensors(first, second):
        return float("inf")
    return _worst(
        float((np.abs(second[name] - value) / (1 + np.abs(value))).max())
        for name, value in first.items()
        if is_statistic(name)
    )


def _worst(values: Iterable[float]) -> float:
    """The largest value, NaN if any is; 0 for none. (Python's max() passes over a NaN.)"""
    return float(np.max([0.0, *values]))
