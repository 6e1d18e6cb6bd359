"""The checks of `dpcompare verify`: modes run side by side on this machine, and how closely they must agree."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpcompare.config.optimizers import OPTIMIZERS, Tolerances
from dpcompare.config.run import PreparedRun
from dpcompare.errors import RunFailedError
from dpcompare.experiments.checks import (
    ACCURACY,
    EACH_ALONE,
    Difference,
    Side,
    detail_of,
    differences,
    loss_difference,
)
from dpcompare.experiments.contenders import Contender, Group
from dpcompare.experiments.verify_runs import FLOOR_PERTURBATION, Runs, Say, config_of, until_done
from dpcompare.launch.initial_weights import matches_in_words, tensors_in_words, with_matched_layers
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.system.signals import terminated_as_interrupted

# What an honest check may promise on the CPU: precision -> largest difference. Measured with EfficientNet-B2 at 64 px;
# see docs/evidence/fairness.md. None: nothing absolute, see FLOOR_MULTIPLE.
TOLERANCES: dict[str, Tolerances] = {
    "weight round trip": {"float32": 0.0, "float64": 0.0},
    "sample order": {"float32": 0.0, "float64": 0.0},
    "decisions of each step": {"float32": 0.0, "float64": 0.0},
    "equality of replicas": {"float32": 0.0, "float64": 0.0},
    "pixels and augmentation": {"float32": 0.0, "float64": 0.0},
    "regularization": {"float32": 0.0, "float64": 0.0},
    "evaluation logits": {"float32": 1e-5, "float64": 1e-12},
    "training logits": {"float32": 5e-4, "float64": 1e-11},
    "first loss": {"float32": 5e-5, "float64": 1e-12},
    "gradient": {"float32": 2e-4, "float64": 1e-11},
    "gradient of each tensor": {"float32": 5e-2, "float64": 1e-8},
    **{f"one step of {optimizer}": row.verification.one_step for optimizer, row in OPTIMIZERS.items()},
    "losses over 2 steps": {"float32": None, "float64": 1e-10},
    **{f"losses over {optimizer} steps": row.verification.all_steps for optimizer, row in OPTIMIZERS.items()},
    "update of all steps": {"float32": None, "float64": 1e-6},
    "BatchNorm statistics": {"float32": None, "float64": 1e-7},
    "weight average": {"float32": None, "float64": 1e-8},
    ACCURACY: {"float32": 1.0, "float64": 0.0},
    "evaluation loss": {"float32": None, "float64": 1e-8},
    "accumulation = replicas = one batch": {"float32": 1e-4, "float64": 1e-12},
}

FLOOR_MULTIPLE = 10.0
"""float32 training is chaotic: beyond the first step two correct implementations drift apart as far as one drifts from
itself when its weights are disturbed by rounding. That floor is measured in the same run, and this multiple is the
tolerance."""
LEAST_OF_FLOOR = {"float32": 1e-5, "bfloat16": 4e-2}
"""No tolerance is smaller: a small model may not drift at all in so few steps, and one rounding is not a difference."""

BEHIND_KINKS = {
    *("gradient", "gradient of each tensor", ACCURACY),
    *(f"one step of {optimizer}" for optimizer in OPTIMIZERS),
}
"""What one ReLU or max-pooling moves whose inputs differ by a rounding of float32, as a gradient takes another way."""
WIDEST_BEHIND_KINKS = 0.2
"""No floor makes their tolerance wider: a gradient of which a fifth is wrong, or an accuracy by a fifth of the samples,
is not excused."""
KINK_MULTIPLE = 4.0
"""Their tolerance is at least this multiple of the floor. EfficientNet, which is smooth, has a lower floor."""

GPU_TOLERANCES: dict[str, Mapping[str, float]] = {
    "evaluation logits": {"float32": 1e-4, "float64": 1e-11},
    "training logits": {"float32": 2e-3, "float64": 1e-10},
    "first loss": {"float32": 2e-4, "float64": 1e-11},
    "gradient": {"float32": 1e-3, "float64": 1e-10},
    "gradient of each tensor": {"float32": 1e-1, "float64": 1e-7},
    **{f"one step of {optimizer}": row.verification.one_step_on_gpus for optimizer, row in OPTIMIZERS.items()},
    "losses over 2 steps": {"float64": 1e-9},
    **{f"losses over {optimizer} steps": row.verification.all_steps_on_gpus for optimizer, row in OPTIMIZERS.items()},
    "update of all steps": {"float64": 1e-5},
    "BatchNorm statistics": {"float64": 1e-6},
    "weight average": {"float64": 1e-7},
    "evaluation loss": {"float64": 1e-7},
    "accumulation = replicas = one batch": {"float32": 1e-3, "float64": 1e-11},
}
"""In the place of TOLERANCES where a side ran on GPUs; what is not here stays as it is. Reasoned: up to ten
times those of the CPU, since thousands of threads add up in another order and cuDNN may transform a convolution. An
H200 needed at most 0.06 of them in float32 and 0.0012 in float64."""

REPEAT_MULTIPLE = 4.0
"""Not every operation of a GPU has a deterministic kernel. How much two identical runs differ, of the framework that
differs more from itself, is measured in the same run, and no tolerance is smaller than this multiple of it."""
MOST_WIDENING = 20.0
"""How many times wider that may make a tolerance: what is further from itself is broken, and not to be excused."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the table."""

    name: str
    modes: str
    """What was compared."""
    pair: str
    """The two that differ most."""
    workload: str
    precision: str
    measured: float | None
    """The largest difference found; None where a side did not run."""
    tolerance: float
    detail: str = ""
    floor: float | None = None
    """How much two identical runs differ at most; None where that is not measured, as on the CPU."""

    @property
    def passed(self) -> bool:
        return self.measured is not None and self.measured <= self.tolerance


def verify(
    groups: Sequence[Group],
    *,
    device: str = "cpu",
    interpreters: dict[str, str] | None = None,
    say: Say = lambda line: None,
    at_once: int = 1,
) -> Iterator[Check]:
    """Run every contender of every group and yield the checks, group by group.

    Args:
        groups: from `plan_groups`.
        device: `cpu`, or `auto` for the GPUs where there are any.
        interpreters: framework -> interpreter of its environment.
        say: called with a line of progress, from the threads that wait for the runs.
        at_once: runs at the same time, see `runs_at_once`.

    Raises:
        KeyboardInterrupt: it was interrupted; all processes have ended.
    """
    # All of them before the first run: a topology that this machine lacks is refused with nothing started.
    configs = [
        with_matched_layers(
            [
                prepare_inputs(config_of(contender, group.workload, device, interpreters or {}, group.checkpoint_every))
                for contender in group.to_run
            ]
        )
        for group in groups
    ]
    for line in dict.fromkeys(
        line for group in configs for line in (*matches_in_words(group), *tensors_in_words(group))
    ):
        say(line)
    with (
        terminated_as_interrupted(),
        tempfile.TemporaryDirectory(prefix="dpcompare-verify-", ignore_cleanup_errors=True) as name,
        Runs(at_once, say) as runs,
    ):
        folders = [Path(name) / str(number) for number in range(len(groups))]
        begun = deque(
            _begin(runs, group, group_configs, folder)
            for group, group_configs, folder in zip(groups, configs, folders, strict=True)
        )
        for group, folder in zip(groups, folders, strict=True):
            yield from _checks_of(group, begun.popleft())
            shutil.rmtree(folder, ignore_errors=True)  # the tensors of one group can be gigabytes


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """The runs of a group, which continue or have ended."""

    sides: dict[Contender, Future[Side]]
    floor: list[Future[Side]]
    """Sides of the first contender with disturbed weights."""
    again: dict[Contender, Future[Side]]
    """The same once more."""


def _begin(runs: Runs, group: Group, configs: Sequence[PreparedRun], folder: Path) -> _Begun:
    sides: dict[Contender, Future[Side]] = {}
    for contender, config in zip(group.to_run, configs, strict=True):
        title = f"{contender}: {group.described}, {group.workload.precision}"
        whole = replace(contender, resumed=False)
        run_dir = folder / str(group.to_run.index(whole))
        if contender.resumed:
            sides[contender] = runs.resumed(title, contender, sides[whole], run_dir)
        else:
            sides[contender] = runs.side(title, contender, config, run_dir)
    compares = len(group.contenders) > 1
    floor: list[Future[Side]] = []
    if group.kind == "modes" and group.workload.precision in FLOOR_PERTURBATION and compares:
        floor = runs.floor(group.contenders[0], configs[0], folder / "floor")
    again: dict[Contender, Future[Side]] = {}
    if compares and any(config.cluster.device_type == "gpu" for config in configs[: len(group.contenders)]):
        # The first of each framework: their kernels are others, and may differ from themselves by more.
        first = {
            contender.framework: (contender, config)
            for contender, config in reversed(list(zip(group.contenders, configs, strict=False)))
            if config.cluster.device_type == "gpu"
        }
        for framework, (contender, config) in first.items():
            title = f"{contender}: again, to see how much two identical runs differ"
            again[contender] = runs.side(title, contender, config, folder / "again" / framework)
    return _Begun(sides=sides, floor=floor, again=again)


def _checks_of(group: Group, begun: _Begun) -> Iterator[Check]:
    """Wait for the runs of a group and compare what they left."""
    until_done([*begun.sides.values(), *begun.floor, *begun.again.values()])
    left: dict[Contender, Side] = {}
    for contender, future in begun.sides.items():
        try:
            left[contender] = future.result()
        except RunFailedError as error:
            if not contender.resumed or replace(contender, resumed=False) in left:
                yield _did_not_run("run", group, str(contender), str(error))
    baseline = left.pop(group.baseline, None) if group.baseline else None
    sides = list(left.values())
    if not sides:
        return
    floor: dict[str, float] = {}
    reference = left.get(group.contenders[0])
    if reference is not None and len(sides) > 1:
        try:
            floor = _drift(group, reference, [future.result() for future in begun.floor])
        except RunFailedError as error:
            yield _did_not_run(f"floor of {group.workload.precision}", group, str(reference.contender), str(error))
    again: list[tuple[Side, Side]] = []
    for contender, future in begun.again.items():
        if contender in left and len(sides) > 1:
            try:
                again.append((left[contender], future.result()))
            except RunFailedError as error:
                yield _did_not_run("floor of the GPU", group, str(contender), str(error))
    yield from compare_sides(group, sides, floor, again, baseline)


def _drift(group: Group, reference: Side, disturbed_sides: Sequence[Side]) -> dict[str, float]:
    """Check -> how far the reference is at most from itself when its initial weights are disturbed by rounding."""
    return {
        name: float(np.max([difference(reference, other) for other in disturbed_sides]))  # NaN stays NaN
        for name, difference in differences(group.workload).items()
        if disturbed_sides and (name in BEHIND_KINKS or stated_tolerance(name, group.workload.precision) is None)
    }


def _any_on_gpu(sides: Sequence[Side]) -> bool:
    return any(side.config.cluster.device_type == "gpu" for side in sides)


def _did_not_run(name: str, group: Group, pair: str, detail: str) -> Check:
    """A check that failed because a side has nothing to compare."""
    return Check(
        name=name,
        modes=", ".join(map(str, group.contenders)),
        pair=pair,
        workload=group.described,
        precision=group.workload.precision,
        measured=None,
        tolerance=0.0,
        detail=detail.split("\nlogs: ")[0],  # the logs go with the temporary directory
    )


def compare_sides(
    group: Group,
    sides: Sequence[Side],
    floor: dict[str, float],
    again: Sequence[tuple[Side, Side]] = (),
    baseline: Side | None = None,
) -> Iterator[Check]:
    """The checks of a group whose contenders have run.

    Args:
        group: what they ran.
        sides: at least one; the first is the reference. Where only one of several ran, what compares them has failed.
        floor: check -> how far the reference drifts from itself; only in float32 and bfloat16.
        again: a side of each framework, and the same run once more; only on GPUs.
        baseline: what the group's baseline left, where it has one; its losses are compared too.
    """
    checks = (
        {"accumulation = replicas = one batch": loss_difference}
        if group.kind == "accumulation"
        else differences(group.workload)
    )
    losses = ("first loss", "losses over 2 steps", f"losses over {group.workload.optimizer} steps")
    for name, difference in checks.items():
        compared = [*sides, baseline] if baseline and name in losses else sides
        if name not in EACH_ALONE and len(compared) < 2:
            if len(group.contenders) > 1:
                yield _did_not_run(name, group, str(sides[0].contender), "there is no other side to compare with")
            continue
        compares = name not in EACH_ALONE
        repeated = float(np.max([difference(side, same) for side, same in again])) if again and compares else None
        tolerance = tolerance_of(
            name,
            group.workload.precision,
            on_gpu=_any_on_gpu(sides),
            drift=floor.get(name),
            repeated=repeated,
            num_evaluated=sides[0].result.evaluations[-1].count if name == ACCURACY else 1,
        )
        if tolerance is None:
            yield _did_not_run(name, group, str(sides[0].contender), "the floor could not be measured")
            continue
        yield _compared(name, group, compared, difference, tolerance, repeated)


def tolerance_of(
    name: str,
    precision: str,
    *,
    on_gpu: bool,
    drift: float | None,
    repeated: float | None,
    num_evaluated: int = 1,
) -> float | None:
    """The largest difference with which a check passes; None where a floor that it needs is missing or not finite.

    Args:
        name: of the check.
        precision: of the workload.
        on_gpu: whether a side ran on GPUs.
        drift: how far the reference drifts from itself when its weights are disturbed, where that was measured.
        repeated: how much two identical runs differ, where that was measured.
        num_evaluated: the samples of which the check counts some; 1 where it measures a relative difference.
    """
    if not all(np.isfinite(floor) for floor in (drift, repeated) if floor is not None):
        return None  # nothing would exceed it
    tolerance = stated_tolerance(name, precision)
    if tolerance is None:
        if drift is None:
            return None
        tolerance = max(FLOOR_MULTIPLE * drift, LEAST_OF_FLOOR[precision])
    elif on_gpu:
        tolerance = GPU_TOLERANCES.get(name, {}).get(precision, tolerance)
    if name in BEHIND_KINKS and precision == "float32" and drift is not None:
        tolerance = max(tolerance, min(KINK_MULTIPLE * drift, WIDEST_BEHIND_KINKS * num_evaluated))
    if repeated is None:
        return tolerance
    # Of what is counted, such as samples, none may differ by itself, and few of them are no sign of a broken GPU.
    widest = MOST_WIDENING * tolerance or np.inf
    return max(tolerance, min(REPEAT_MULTIPLE * repeated, widest))


def stated_tolerance(name: str, precision: str) -> float | None:
    """What TOLERANCES promises; in bfloat16, which each framework rounds to in other places, only what is exact."""
    exact = TOLERANCES[name]["float32"] == 0.0
    return TOLERANCES[name].get(precision, 0.0 if exact else None)


def _compared(
    name: str,
    group: Group,
    sides: Sequence[Side],
    difference: Difference,
    tolerance: float,
    floor: float | None,
) -> Check:
    """The largest difference of any side from the first; checks of each side alone look at the first too."""
    reference = sides[0]
    measured = [(difference(reference, side), side) for side in (sides if name in EACH_ALONE else sides[1:])]
    # NaN compares false with everything, and must not be taken for agreement.
    value, worst = max(((float("inf") if np.isnan(m) else float(m), side) for m, side in measured), key=lambda m: m[0])
    return Check(
        name=name,
        modes=", ".join(str(side.contender) for side in sides),
        pair=str(worst.contender) if name in EACH_ALONE else f"{reference.contender} / {worst.contender}",
        workload=group.described,
        precision=group.workload.precision,
        measured=value,
        tolerance=tolerance,
        floor=floor,
        detail="" if value <= tolerance else detail_of(name, reference, worst, tolerance),
    )
