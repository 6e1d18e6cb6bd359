"""The late step of a run: its last steps repeated in float64 by another framework, from the run's own state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from dpcompare.config.optimizers import FIRST_MOMENTS
from dpcompare.config.run import PreparedRun
from dpcompare.models.architectures import may_have_batchnorm
from dpcompare.models.state import State, TrainingState, is_statistic
from dpcompare.system.json_files import Count, Measured
from dpcompare.system.terminal_text import pluralize
from dpcompare.system.type_names import Array

Norms = npt.NDArray[np.float64]

LATE_STEPS = 2
"""How many of the last steps are repeated: two, so that what is left out of every second one shows as well."""

LOSS_TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "TF32": 5e-3, "bfloat16": 3e-2}
"""Arithmetic -> the largest difference of a loss, relative to a loss above 1. EfficientNet-B2 in float32 needed up to
2.7e-5 after 44 steps."""
CHANGE_TOLERANCES = {"float64": 1e-6, "float32": 1e-2, "TF32": 1e-1, "bfloat16": 4e-1}
"""Arithmetic -> the largest difference of what the steps changed in all tensors of a kind, relative to the change."""
MOST_STATE_BYTES = 16e9
"""The most bytes of memory that the states of a run and of the same steps may take, all processes together."""
TENSOR_FACTOR = 4.0
"""How many times as much a single tensor may differ: many small ones have a gradient that is mostly rounding."""
NOISE = {"float64": 1e-9, "float32": 1e-4, "TF32": 1e-2, "bfloat16": 1e-1}
"""Arithmetic -> the part of the root mean square of all changes of a kind below which a tensor's change is rounding."""
STORED_BITS = {"float64": 2.0**-52, "float32": 2.0**-23}
"""What a stored number is rounded by, relative to it; weights and the optimizer's memory are float32 or float64."""


class LateStep(BaseModel):
    """late_step in result.json."""

    model_config = ConfigDict(frozen=True)

    left_out: str | None = None
    """Why it was not made; None where it was."""
    framework: str | None = None
    """By which it was repeated, with one device in float64."""
    first: Count | None = None
    """The first of the steps that were repeated."""
    last: Count | None = None
    part_of_tolerance: Measured | None = None
    """The largest difference, as a part of what rounding explains; above 1 the run did something else."""
    largest: str | None = None
    """Which difference that is, in words."""
    seconds: Measured | None = None
    """How long it took, after the run."""

    @property
    def in_words(self) -> str:
        """What came of it."""
        if self.left_out is not None:
            return f"left out: {self.left_out}"
        return self.problem or f"confirmed by {self.framework}, {self.part_of_tolerance:.2g} of what rounding explains"

    @property
    def problem(self) -> str | None:
        """A sentence about a step that another framework does not confirm; None where it does, or was not asked."""
        if self.part_of_tolerance is None or self.part_of_tolerance <= 1:
            return None
        return (
            f"{self.framework} in float64 takes a different step from the same state: {self.largest} is off by "
            f"{self.part_of_tolerance:.3g} times what rounding explains"
        )


def why_not(config: PreparedRun) -> str | None:
    """Why the last steps of a run cannot be repeated by one device; None where they can."""
    workload, replicas, processes = config.workload, config.topology.num_replicas, config.topology.num_processes
    # Of a file of float32: parameters and two slots in each process, then before, after, and both in float64.
    state_bytes = config.inputs.weights.stat().st_size * (3 * processes + 12)
    num_steps = workload.total_steps(config.inputs.num_train)
    reasons = {
        f"a run of {pluralize(num_steps, 'step')} is too short for it": num_steps <= LATE_STEPS,
        f"its state would take {state_bytes / 1e9:.0f} GB in all processes": state_bytes > MOST_STATE_BYTES,
        "it may end at its target before its last step": config.stop_at_target,
        "each of its replicas trains a model of its own": not config.sync_gradients,
        "it trains one batch over and over": config.reuse_batch,
        "its workers are asynchronous": not config.mode_row.steps_together and replicas > 1,
        "no other device normalises by micro-batches of all replicas": (
            may_have_batchnorm(workload.model)
            and workload.batchnorm == "sync"
            and workload.accumulate > 1
            and replicas > 1
        ),
        f"{config.mode}: {config.mode_row.inexact}": bool(config.mode_row.inexact),
        f"its nodes are other machines (engine {config.placement.engine})": config.placement.engine != "local",
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def statistics_are_alike(config: PreparedRun) -> bool:
    """Whether one device has the running statistics of the run: those of its first replica are of other batches."""
    return config.topology.num_replicas == 1 or config.workload.batchnorm == "sync"


def tensors_of(state: TrainingState) -> State:
    """The tensors of a state as one mapping, as a file has them."""
    model = {f"model.{name}": tensor for name, tensor in state.model.items()}
    return model | {f"optimizer.{name}": tensor for name, tensor in state.optimizer.items()}


def state_of(tensors: Mapping[str, Array], step: int) -> TrainingState:
    """The state in a file, in float64.

    Args:
        tensors: as `tensors_of` returned them.
        step: steps that were made before it.
    """
    parts: dict[str, State] = {"model": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part in parts:
            parts[part][rest] = tensor.astype(np.float64)
    return TrainingState(model=parts["model"], optimizer=parts["optimizer"], step=step)


def compared(
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    again: Mapping[str, Array],
    losses: Sequence[float],
    *,
    arithmetic: str,
    first_step: int,
    with_statistics: bool,
) -> tuple[float, str]:
    """The largest difference between the last steps of a run and the same repeated.

    Args:
        before: the tensors of the run before these steps; see `tensors_of`.
        after: the same after them.
        again: what the other framework has after them, and its `losses`.
        losses: of the run.
        arithmetic: of the run: a precision, or TF32.
        first_step: the first of these steps, from 1.
        with_statistics: whether the running statistics are compared too; see `statistics_are_alike`.

    Returns:
        it as a part of what rounding explains, and which one it is, in words.
    """
    differences = [
        (abs(loss - other) / (LOSS_TOLERANCES[arithmetic] * max(1.0, abs(other))), f"loss of step {step}")
        for step, (loss, other) in enumerate(zip(losses, again["losses"].tolist(), strict=True), start=first_step)
    ]
    names: dict[str, list[str]] = {}
    for name in before:
        if with_statistics or not is_statistic(name):
            names.setdefault(_kind_of(name), []).append(name)
    for kind, tensors in names.items():
        if any(again.get(name, np.empty(0)).shape != after[name].shape for name in tensors):
            return math.inf, f"{kind} of other tensors"
    kinds = {kind: _Kind.of(tensors, before, after, again) for kind, tensors in names.items()}
    first_moment = next((kinds[slot] for slot in FIRST_MOMENTS if slot in kinds), None)
    for kind, norms in kinds.items():
        # An optimizer may make an update of usual size out of a gradient that is rounding alone.
        noise = norms.noise(NOISE[arithmetic])
        if kind == "update" and first_moment:
            noise = np.maximum(noise, norms.changes * first_moment.part_of_noise(NOISE[arithmetic]))
        differences += _of_kind(kind, norms, noise, CHANGE_TOLERANCES[arithmetic])
    return max((math.inf if math.isnan(part) else part, what) for part, what in differences)


def _kind_of(name: str) -> str:
    """What tensors are judged together: parameters, a slot of the optimizer, and each of BatchNorm's two statistics."""
    part, _, rest = name.partition(".")
    if part == "optimizer":
        return rest.partition(".")[0]
    return rest.rpartition(".")[2].replace("_", " ") if is_statistic(name) else "update"


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Norms of the tensors of a kind, as `_kind_of` calls it; each array has one for a tensor."""

    names: Sequence[str]
    """The parameters."""
    sizes: Norms
    changes: Norms
    """Of what the steps change, by the framework that made them again."""
    errors: Norms
    """Of the difference of the run from that."""
    roundings: Norms
    """The largest that numbers are off which are stored in the run's format."""

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        before: Mapping[str, Array],
        after: Mapping[str, Array],
        again: Mapping[str, Array],
    ) -> _Kind:
        stored = STORED_BITS[str(after[names[0]].dtype)]
        expected = [again[name].astype(np.float64) for name in names]
        return cls(
            names=[name.split(".", 1 if name.startswith("model.") else 2)[-1] for name in names],
            sizes=np.array([float(tensor.size) for tensor in expected]),
            changes=_norms(tensor - before[name] for name, tensor in zip(names, expected, strict=True)),
            errors=_norms(after[name] - tensor for name, tensor in zip(names, expected, strict=True)),
            roundings=LATE_STEPS * stored * _norms(expected),
        )

    def noise(self, part: float) -> Norms:
        """The norm of what of each tensor's change is rounding.

        Args:
            part: of the root mean square of all changes that is rounding.
        """
        usual = part * np.linalg.norm(self.changes) / math.sqrt(self.sizes.sum())
        noise: Norms = usual * np.sqrt(self.sizes)
        return noise

    def part_of_noise(self, part: float) -> Norms:
        """The same as a part of the tensor's change; 1e9 where that is nothing."""
        noise: Norms = np.minimum(self.noise(part) / np.maximum(self.changes, np.finfo(float).tiny), 1e9)
        return noise


def _norms(tensors: Iterable[Array]) -> Norms:
    return np.array([np.linalg.norm(tensor.astype(np.float64)) for tensor in tensors])


def _of_kind(kind: str, norms: _Kind, noise: Norms, tolerance: float) -> Iterator[tuple[float, str]]:
    """The differences of all tensors of a kind together, and of the worst: parts of what rounding explains."""
    least = np.finfo(float).tiny
    explained = tolerance * norms.changes + noise
    whole = np.linalg.norm(explained) + np.linalg.norm(norms.roundings)
    yield float(np.linalg.norm(norms.errors) / max(whole, least)), f"{kind} of all tensors"
    parts = norms.errors / np.maximum(TENSOR_FACTOR * explained + norms.roundings, least)
    worst = int(np.argmax(np.where(np.isnan(parts), np.inf, parts)))
    yield float(parts[worst]), f"{kind} of {norms.names[worst]}"
