"""`dpcompare verify`: which modes run side by side on this machine, and how closely they must agree."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load_file, save_file

from dpcompare.backends.availability import require_mode
from dpcompare.config.cluster import Cluster
from dpcompare.config.modes import MODES
from dpcompare.config.run import RunConfig
from dpcompare.config.validation import request
from dpcompare.config.workload import Workload
from dpcompare.data.augmentation import AUGMENTATIONS
from dpcompare.errors import RequestError, RunFailedError, did_you_mean
from dpcompare.experiments.checks import (
    EACH_ALONE,
    Arm,
    Difference,
    Side,
    differences,
    first_layer_that_differs,
    loss_difference,
)
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.launch.run import run
from dpcompare.models.architectures import model_of
from dpcompare.results import arrays
from dpcompare.system.import_path import is_custom

# What an honest check may promise on the CPU: precision -> largest difference. Measured with EfficientNet-B2 at 64 px;
# see docs/fairness.md. None: nothing absolute, see FLOOR_MULTIPLE.
TOLERANCES: dict[str, dict[str, float | None]] = {
    "weight round trip": {"float32": 0.0, "float64": 0.0},
    "sample order": {"float32": 0.0, "float64": 0.0},
    "pixels and augmentation": {"float32": 0.0, "float64": 0.0},
    "regularization": {"float32": 0.0, "float64": 0.0},
    "evaluation logits": {"float32": 1e-5, "float64": 1e-12},
    "training logits": {"float32": 5e-4, "float64": 1e-11},
    "first loss": {"float32": 5e-5, "float64": 1e-12},
    "gradient": {"float32": 2e-4, "float64": 1e-11},
    "gradient of each tensor": {"float32": 5e-2, "float64": 1e-8},
    "one step of sgd": {"float32": 2e-4, "float64": 1e-11},
    "one step of adam": {"float32": 5e-3, "float64": 1e-9},
    "losses over 2 steps": {"float32": None, "float64": 1e-10},
    "losses over sgd steps": {"float32": None, "float64": 1e-7},
    "losses over adam steps": {"float32": None, "float64": 1e-8},
    "BatchNorm statistics": {"float32": None, "float64": 1e-8},
    "accuracy (samples)": {"float32": 1.0, "float64": 0.0},
    "evaluation loss": {"float32": None, "float64": 1e-8},
    "accumulation = replicas = one batch": {"float32": 1e-4, "float64": 1e-12},
}

FLOOR_MULTIPLE = 10.0
"""float32 training is chaotic: beyond the first step two correct implementations drift apart as far as one drifts from
itself when its weights are disturbed by rounding. That floor is measured in the same run, and this multiple promised."""
FLOOR_SEEDS = 3
FLOOR_PERTURBATION = 1e-7
"""Relative size of the disturbance: about the rounding of a float32 (6e-8)."""
LEAST_OF_FLOOR = 1e-5
"""No tolerance is smaller: a small model may not drift at all in so few steps, and one rounding is no difference."""

CHECKED_WITH_FLOOR = ("losses over 2 steps", "losses over {optimizer} steps", "BatchNorm statistics", "evaluation loss")


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

    @property
    def passed(self) -> bool:
        return self.measured is not None and self.measured <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Group:
    """Arms that must compute the same; the first one is the reference of the others."""

    workload: Workload
    arms: tuple[Arm, ...]
    kind: str = "modes"
    """`modes`: every check. `accumulation`: only losses, over arms that cut the batch differently."""

    @property
    def described(self) -> str:
        regularized = ", regularization" if self.workload.regularization == "shared" else ""
        return f"{self.workload.model}, {self.workload.optimizer}{regularized}"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A mode run in another way, which must compute the same."""

    mode: str
    stages: int = 1
    launcher: Literal["torchrun", "spawn"] | None = None


VARIANTS = {"ddp-spawn": Variant(mode="ddp", launcher="spawn"), "ddp-stages": Variant(mode="ddp", stages=2)}
"""What `verify --modes` knows beside the modes themselves."""


def known_modes(model: str) -> list[str]:
    """All that can be verified with a model; one of the user's own cannot be split."""
    whole = is_custom(model)
    modes = [
        mode
        for (_, mode), row in MODES.items()
        if not row.unverifiable and not (whole and row.is_pipeline)
    ]
    return [*dict.fromkeys(modes), *(name for name, variant in VARIANTS.items() if not (whole and variant.stages > 1))]


def usable_arms(frameworks: Sequence[str], modes: Sequence[str], num_replicas: int) -> tuple[Arm, ...]:
    """The chosen modes that can have this many replicas; several nodes where a mode can have them."""
    arms = []
    for (framework, mode), row in MODES.items():
        plain = Variant(mode=mode, stages=2 if row.is_pipeline else 1)
        for name, variant in {mode: plain, **VARIANTS}.items():
            if framework not in frameworks or name not in modes or variant.mode != mode:
                continue
            if row.roles:  # asynchronous: one worker alone computes what others do
                if num_replicas == 1:
                    arms.append(Arm(framework=framework, mode=mode, num_nodes=len(row.roles) + 1, devices_per_node=1))
                continue
            if variant.stages == 1 and row.multi_device != (num_replicas > 1):
                continue
            num_nodes = 2 if row.multi_node and variant.launcher is None and num_replicas % 2 == 0 else 1
            arms.append(
                Arm(
                    framework=framework,
                    mode=mode,
                    num_nodes=num_nodes,
                    devices_per_node=num_replicas // num_nodes * variant.stages,
                    stages=variant.stages,
                    launcher=variant.launcher,
                )
            )
    return tuple(arms)


def plan_groups(
    frameworks: Sequence[str],
    modes: Sequence[str],
    *,
    model: str,
    replicas: Sequence[int],
    precisions: Sequence[str],
    quick: bool,
) -> list[Group]:
    """What to run. Quick: `model` on one device only and few steps; tiny models on several replicas.

    Regularization is checked where differences show, in float64, with Adam: `model` on one device, toy-bn elsewhere.

    Raises:
        RequestError: an unknown mode, or a number of replicas that the batches do not divide by.
    """
    known = [*dict.fromkeys(mode for _, mode in MODES), *VARIANTS]
    for mode in modes:
        if mode not in known:
            raise RequestError(
                f"unknown mode {mode!r}; expected some of {', '.join(known)}.{did_you_mean(mode, known)}"
            )
    batch = 16
    if not replicas:
        raise RequestError("--replicas: received none, expected numbers such as 1,2,4")
    if bad := [count for count in replicas if count < 1 or batch % (2 * count)]:
        raise RequestError(
            f"--replicas: received {', '.join(map(str, bad))}, but the batch of {batch} images must divide among the replicas "
            f"with at least 2 each; expected some of {', '.join(str(n) for n in range(1, batch // 2 + 1) if batch % (2 * n) == 0)}"
        )
    reasons = [f"{mode}: {row.unverifiable}" for (_, mode), row in MODES.items() if mode in modes and row.unverifiable]
    if reasons:
        raise RequestError(
            f"--modes: received what cannot be verified: {'; '.join(reasons)}; expected modes without these"
        )
    groups = []
    for precision in precisions:
        for count in replicas:
            arms = usable_arms(frameworks, modes, count)
            if not arms:
                continue
            big = count == 1 or (not quick and count == 2)
            chosen = model if big or model not in _BIG else "toy-bn"
            for optimizer in _optimizers(chosen, precision, quick=quick):
                groups.append(Group(workload=_workload(chosen, optimizer, precision, batch, quick=quick), arms=arms))
            if precision == "float64":
                regularized = chosen if count == 1 and not (quick and model in _BIG) else "toy-bn"
                if model_of(regularized).drops:
                    workload = _workload(regularized, "adam", precision, batch, quick=quick, regularization="shared")
                    groups.append(Group(workload=workload, arms=arms))
        if precision == "float64" or not quick:
            groups.append(_accumulation(frameworks, modes, replicas, precision, batch))
    return [group for group in groups if group.kind == "modes" or len(group.arms) > 1]


_BIG = tuple(f"efficientnet-b{scale}" for scale in range(8))


def _optimizers(model: str, precision: str, *, quick: bool) -> list[str]:
    """Both, but for a quick run of a big model, and for tiny models in float32: there Adam, which divides by the root of
    the second moment, makes updates of full size out of the rounding of gradients that are nearly zero."""
    if model not in _BIG:
        return ["sgd"] if precision == "float32" else ["sgd", "adam"]
    if quick:
        return ["adam"] if precision == "float32" else ["sgd"]
    return ["sgd", "adam"]


def _workload(
    model: str, optimizer: str, precision: str, batch: int, *, quick: bool, regularization: str = "off"
) -> Workload:
    # The 5th step is the last of the first epoch and half empty, so that what fills it up must not count.
    steps = {"sgd": 6, "adam": 20}[optimizer]
    workload: Workload = request(
        Workload,
        model=model,
        dataset="synthetic-mini",
        image_size=64,
        global_batch_size=batch,
        steps=min(steps, 6) if quick and model in _BIG else steps,
        warmup_steps=0,
        optimizer=optimizer,
        schedule={"sgd": "cosine", "adam": "constant"}[optimizer],
        learning_rate={"sgd": 0.01, "adam": 1e-3}[optimizer],
        precision=precision,
        augment=AUGMENTATIONS,
        regularization=regularization,
    )
    return workload


def _accumulation(
    frameworks: Sequence[str], modes: Sequence[str], replicas: Sequence[int], precision: str, batch: int
) -> Group:
    """One batch, the same in 2 micro-batches, and on 2 replicas, with a model without BatchNorm."""
    workload = _workload("mlp", "sgd", precision, batch, quick=False)
    singles = usable_arms(frameworks, modes, 1)
    accumulating = [arm for arm in singles if "accumulate" not in MODES[arm.framework, arm.mode].supported_values]
    in_parts = tuple(replace(arm, accumulate=2) for arm in accumulating)
    several = usable_arms(frameworks, modes, 2) if 2 in replicas else ()
    return Group(workload=workload, arms=(*singles, *in_parts, *several), kind="accumulation")


def verify(
    groups: Sequence[Group],
    *,
    device: str = "cpu",
    interpreters: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Check]:
    """Run every arm of every group and yield the checks, group by group.

    Args:
        groups: from `plan_groups`.
        device: `cpu`, or `auto` for the GPUs where there are any.
        interpreters: framework -> interpreter of its environment.
        say: called with a line of progress.
    """
    # All of them before the first run: a topology that this machine lacks is refused with nothing started.
    configs = [[config_of(arm, group.workload, device, interpreters or {}) for arm in group.arms] for group in groups]
    folder = Path(tempfile.mkdtemp(prefix="dpcompare-verify-"))
    try:
        for number, (group, of_group) in enumerate(zip(groups, configs, strict=True)):
            yield from _verify_group(group, of_group, folder / str(number), say)
            shutil.rmtree(folder / str(number), ignore_errors=True)  # the tensors of one group can be gigabytes
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _verify_group(
    group: Group, configs: Sequence[RunConfig], folder: Path, say: Callable[[str], None]
) -> Iterator[Check]:
    sides: list[Side] = []
    for number, (arm, config) in enumerate(zip(group.arms, configs, strict=True)):
        say(f"{arm}: {group.described}, {group.workload.precision}")
        try:
            sides.append(run_side(arm, config, folder / str(number)))
        except RunFailedError as error:
            yield _did_not_run("run", group, str(arm), str(error))
    if not sides:
        return
    floor: dict[str, float] = {}
    if group.kind == "modes" and group.workload.precision == "float32" and len(sides) > 1:
        try:
            floor = _floor(group, sides[0], folder / "floor", say)
        except RunFailedError as error:
            yield _did_not_run("floor of float32", group, str(sides[0].arm), str(error))
    yield from compare_sides(group, sides, floor)


def _did_not_run(name: str, group: Group, pair: str, detail: str) -> Check:
    """A check that failed because a side has nothing to compare."""
    return Check(
        name=name,
        modes=", ".join(map(str, group.arms)),
        pair=pair,
        workload=group.described,
        precision=group.workload.precision,
        measured=None,
        tolerance=0.0,
        detail=detail.split("\nlogs: ")[0],  # the logs go with the temporary directory
    )


def compare_sides(group: Group, sides: Sequence[Side], floor: dict[str, float]) -> Iterator[Check]:
    """The checks of a group whose arms have run.

    Args:
        group: what they ran.
        sides: at least one; the first is the reference. Where only one of several ran, what compares them has failed.
        floor: check -> how far the reference drifts from itself; only needed in float32.
    """
    checks = (
        {"accumulation = replicas = one batch": loss_difference}
        if group.kind == "accumulation"
        else differences(group.workload)
    )
    for name, difference in checks.items():
        tolerance = TOLERANCES[name][group.workload.precision]
        if name not in EACH_ALONE and len(sides) < 2:
            if len(group.arms) > 1:
                yield _did_not_run(name, group, str(sides[0].arm), "there is no other side to compare with")
            continue
        if tolerance is None:
            if name not in floor:
                yield _did_not_run(name, group, str(sides[0].arm), "the floor could not be measured")
                continue
            tolerance = max(FLOOR_MULTIPLE * floor[name], LEAST_OF_FLOOR)
        yield _compared(name, group, sides, difference, tolerance)


def config_of(arm: Arm, workload: Workload, device: str, interpreters: dict[str, str]) -> RunConfig:
    """The run of one arm."""
    chosen: dict[str, Any] = {"python": interpreters[arm.framework]} if arm.framework in interpreters else {}
    config: RunConfig = request(
        RunConfig,
        framework=arm.framework,
        mode=arm.mode,
        workload=workload.model_copy(update={"accumulate": arm.accumulate}),
        cluster=Cluster.partition(arm.num_nodes, arm.devices_per_node, device=device),  # type: ignore[arg-type]
        task="probe",
        stages=arm.stages,
        launcher=arm.launcher,
        **chosen,
    )
    require_mode(config.framework, config.mode, config.python)
    return config


def run_side(arm: Arm, config: RunConfig, run_dir: Path) -> Side:
    """Run one arm and gather what it left."""
    config = prepare_inputs(config)
    result = run(config, run_dir)
    return Side(arm=arm, config=config, result=result, arrays=arrays.load(run_dir, config.num_trainers))


def _floor(group: Group, reference: Side, folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    """How far the reference drifts from itself when its initial weights are disturbed by rounding."""
    assert reference.config.inputs is not None
    weights = load_file(reference.config.inputs.weights)
    largest: dict[str, float] = {}
    for seed in range(FLOOR_SEEDS):
        say(f"{reference.arm}: floor of float32, weights disturbed by {FLOOR_PERTURBATION:g} (seed {seed})")
        generator = np.random.default_rng(seed)
        disturbed = {
            name: (array * (1 + FLOOR_PERTURBATION * generator.standard_normal(array.shape))).astype(np.float32)
            for name, array in weights.items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"disturbed-{seed}.safetensors"
        save_file(disturbed, path)
        inputs = reference.config.inputs.model_copy(update={"weights": path})
        config = reference.config.model_copy(update={"inputs": inputs})
        other = run_side(reference.arm, config, folder / str(seed))
        found = differences(group.workload)
        for template in CHECKED_WITH_FLOOR:
            name = template.format(optimizer=group.workload.optimizer)
            largest[name] = max(largest.get(name, 0.0), found[name](reference, other))
    return largest


def _compared(name: str, group: Group, sides: Sequence[Side], difference: Difference, tolerance: float) -> Check:
    """The largest difference of any side from the first; checks of each side alone look at the first too."""
    reference = sides[0]
    measured = [(difference(reference, side), side) for side in (sides if name in EACH_ALONE else sides[1:])]
    # NaN compares false with everything, and must not be taken for agreement.
    value, worst = max(((float("inf") if np.isnan(m) else float(m), side) for m, side in measured), key=lambda m: m[0])
    return Check(
        name=name,
        modes=", ".join(str(side.arm) for side in sides),
        pair=str(worst.arm) if name in EACH_ALONE else f"{reference.arm} / {worst.arm}",
        workload=group.described,
        precision=group.workload.precision,
        measured=value,
        tolerance=tolerance,
        detail="" if value <= tolerance or name in EACH_ALONE else first_layer_that_differs(reference, worst),
    )
