"""The plan of `dpcompare verify`: which modes train the same workload side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dpcompare.backends.availability import require_compiler
from dpcompare.config.cluster import topology_in_words
from dpcompare.config.modes import MODES
from dpcompare.config.optimizers import OPTIMIZERS, optimizers_for
from dpcompare.config.workload import Workload
from dpcompare.data.names import AUGMENTATIONS
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.models.architectures import model_of
from dpcompare.system.devices import installed_gpus, visible_gpus
from dpcompare.system.python_environment import is_custom
from dpcompare.system.type_names import FieldValue

BATCH = 16
"""Images per step of everything that is verified."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One mode on one topology, whose results are compared with those of others."""

    framework: str
    mode: str
    num_nodes: int
    devices_per_node: int
    accumulate: int = 1
    stages: int = 1
    launcher: Literal["torchrun", "spawn"] | None = None
    pipeline_schedule: Literal["gpipe", "1f1b"] | None = None
    tune: Mapping[str, str] = field(default_factory=dict, hash=False)
    device: Literal["cpu", "shared gpu"] | None = None
    """Where it runs; None: on the devices that are verified, one for each replica."""
    resumed: bool = False
    """Whether it is the same contender without this, resumed from a checkpoint that it wrote on its way."""

    @property
    def compared_as(self) -> tuple[str, str, str | None, bool]:
        """What is compared with others: a mode, run in one of its ways."""
        return self.framework, self.mode, self.launcher, self.stages > 1

    def __str__(self) -> str:
        topology = "" if self.mode == "single" else f" on {topology_in_words(self.num_nodes, self.devices_per_node)}"
        stages = f" in {self.stages} stages" if self.stages > 1 else ""
        launcher = f" by {self.launcher}" if self.launcher else ""
        parts = f" in {self.accumulate} micro-batches" if self.accumulate > 1 else ""
        device = {None: "", "cpu": " on the CPU", "shared gpu": " on a shared GPU"}[self.device]
        resumed = " resumed" if self.resumed else ""
        return f"{self.framework} {self.mode}{topology}{device}{stages}{launcher}{parts}{resumed}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Contenders that must compute the same; the first one is the reference of the others."""

    workload: Workload
    contenders: tuple[Contender, ...]
    kind: Literal["modes", "accumulation"] = "modes"
    """`modes`: every check. `accumulation`: only losses, over contenders that divide the batch differently."""
    baseline: Contender | None = None
    """One device in the place of the replicas of `modes`: it has their losses, and not all else."""

    @property
    def to_run(self) -> tuple[Contender, ...]:
        """All contenders, the baseline last."""
        return self.contenders if self.baseline is None else (*self.contenders, self.baseline)

    @property
    def described(self) -> str:
        workload = self.workload
        has = {
            "regularization": workload.regularization == "shared",
            "synchronized BatchNorm": workload.batchnorm == "sync",
            "native": workload.profile == "native",
        }
        return ", ".join([workload.model, workload.optimizer, *(name for name, value in has.items() if value)])

    @property
    def checkpoint_every(self) -> int | None:
        """Steps, such that the first checkpoint is in the middle of an epoch; None if no contender is resumed."""
        assert self.workload.steps is not None
        return self.workload.steps * 2 // 5 if any(contender.resumed for contender in self.contenders) else None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A mode run in another way, which must compute the same."""

    mode: str
    stages: int = 1
    launcher: Literal["torchrun", "spawn"] | None = None

    @property
    def compared_as(self) -> tuple[str, str | None, bool]:
        """What it is compared as: as for a Contender, without its framework."""
        return self.mode, self.launcher, self.stages > 1


VARIANTS = {"ddp-spawn": Variant(mode="ddp", launcher="spawn"), "ddp-stages": Variant(mode="ddp", stages=2)}
"""What `verify --modes` knows in addition to the modes themselves."""


def known_modes(model: str) -> list[str]:
    """All that can be verified with a model; a custom one cannot be split into stages."""
    unsplit_only = is_custom(model)
    modes = [
        mode for (_, mode), row in MODES.items() if not row.unverifiable and not (unsplit_only and row.is_pipeline)
    ]
    variants = [name for name, variant in VARIANTS.items() if not (unsplit_only and variant.stages > 1)]
    return [*dict.fromkeys(modes), *variants]


def plan_groups(
    frameworks: Sequence[str],
    modes: Sequence[str],
    *,
    model: str,
    replicas: Sequence[int],
    precisions: Sequence[str],
    quick: bool,
    device: str = "cpu",
    against: Literal["cpu"] | None = None,
    asked: dict[str, FieldValue] | None = None,
) -> list[Group]:
    """What to run. Quick: `model` on one device only and few steps; tiny models on several replicas.

    Regularization is checked where differences show, in float64, with Adam: `model` on one device, toy-bn elsewhere.
    What else a workload can have is spread over the groups of small models, since it takes no group of its own.

    Args:
        device: as for `verify`.
        against: where each contender runs once more. On one replica, modes of several take part then: what they start
            and compute on one GPU is compared with what they do on the CPU.
        asked: fields of a workload, which all groups take.

    Raises:
        RequestError: see `check_request`.
    """
    asked = asked or {}
    accumulate = asked.get("accumulate", 1)
    check_request(modes, replicas, accumulate)
    groups: list[Group] = []
    for precision in precisions:
        for num_replicas in replicas:
            usable = usable_contenders(frameworks, modes, num_replicas, alone=against is not None)
            if contenders := tuple(replace(contender, accumulate=accumulate) for contender in usable):
                groups += _groups(contenders, model, num_replicas, precision, quick=quick, device=device, asked=asked)
        if precision == "float64" or not quick:
            accumulation = _accumulation(frameworks, modes, replicas, precision, asked, quick=quick)
            groups += [accumulation] if len(accumulation.contenders) > 1 else []
    groups = groups if against is None else [with_each_on(against, group) for group in groups]
    groups = [on_one_gpu(group) for group in groups] if device == "auto" and has_one_gpu() else groups
    return [group for group in groups if len(group.to_run) > 1]


def with_each_on(device: Literal["cpu"], group: Group) -> Group:
    """The group with each contender once more, on another type of device."""
    elsewhere = (replace(contender, device=device) for contender in group.contenders)
    return replace(group, contenders=(*group.contenders, *elsewhere))


def has_one_gpu() -> bool:
    """Whether replicas of which each has a GPU to itself cannot be had here, and one of several can."""
    return len(visible_gpus(installed_gpus())) == 1


def on_one_gpu(group: Group) -> Group:
    """The group where there is one GPU: several replicas share it or, in modes that cannot, are on the CPU."""

    def placed(contender: Contender) -> Contender:
        if contender.device is not None or contender.num_nodes * contender.devices_per_node == 1:
            return contender
        shares = MODES[contender.framework, contender.mode].shares_gpu and contender.stages == 1
        return replace(contender, device="shared gpu" if shares else "cpu")

    contenders = dict.fromkeys(map(placed, group.contenders))  # what the CPU took may have been there already
    return replace(
        group, contenders=tuple(contenders), baseline=None if group.baseline is None else placed(group.baseline)
    )


def not_compared(groups: Sequence[Group], frameworks: Sequence[str], modes: Sequence[str]) -> list[str]:
    """The modes and variants that were asked for and are compared with no other one, with what to do about it."""
    compared = {
        contender.compared_as
        for group in groups
        if group.kind == "modes" and len({(each.compared_as, each.device) for each in group.to_run}) > 1
        for contender in group.to_run
    }
    return [
        f"{framework} {name}: no other mode that was asked for can be compared with it at these numbers of replicas; "
        "add a mode to --modes, or a number to --replicas"
        for framework, name, variant in _variants()
        if framework in frameworks and name in modes and (framework, *variant.compared_as) not in compared
    ]


def check_request(modes: Sequence[str], replicas: Sequence[int], accumulate: int = 1) -> None:
    """Refuse what cannot be verified.

    Raises:
        RequestError: an unknown mode, one that cannot be verified, or a number of replicas or of their micro-batches
            that does not divide BATCH.
    """
    known = [*dict.fromkeys(mode for _, mode in MODES), *VARIANTS]
    if unknown := [mode for mode in modes if mode not in known]:
        raise RequestError(
            f"unknown mode {unknown[0]!r}; expected some of {', '.join(known)}.{did_you_mean(unknown[0], known)}"
        )
    if not replicas:
        raise RequestError("--replicas: received none, expected numbers such as 1,2,4")
    divisors = [count for count in range(1, BATCH // 2 + 1) if BATCH % (2 * count) == 0]
    if accumulate not in divisors:
        raise RequestError(
            f"--accumulate: received {accumulate}, but the batch of {BATCH} images must divide into micro-batches with "
            f"at least 2 each; expected one of {', '.join(map(str, divisors))}"
        )
    possible = [count for count in divisors if count * accumulate in divisors]
    if impossible := [count for count in replicas if count not in possible]:
        raise RequestError(
            f"--replicas: received {', '.join(map(str, impossible))}, but the batch of {BATCH} images must divide "
            "among the replicas and their micro-batches with at least 2 each; expected some of "
            f"{', '.join(map(str, possible))}"
        )
    reasons = [f"{mode}: {row.unverifiable}" for (_, mode), row in MODES.items() if mode in modes and row.unverifiable]
    if reasons:
        raise RequestError(
            f"--modes: received what cannot be verified: {'; '.join(reasons)}; expected modes without these"
        )


def usable_contenders(
    frameworks: Sequence[str], modes: Sequence[str], num_replicas: int, *, alone: bool = False
) -> tuple[Contender, ...]:
    """The chosen modes and variants that can have this many replicas, in the order of MODES.

    Modes of several replicas do with one only where `alone`.
    """
    chosen = (
        _contender(framework, variant, num_replicas, alone=alone)
        for framework, name, variant in _variants()
        if framework in frameworks and name in modes
    )
    return tuple(contender for contender in chosen if contender is not None)


def _variants() -> Iterator[tuple[str, str, Variant]]:
    """Framework and name of each mode and variant; a mode itself is the variant that has the mode's name."""
    for (framework, mode), row in MODES.items():
        yield framework, mode, Variant(mode=mode, stages=row.default_stages)
        for name, variant in VARIANTS.items():
            if variant.mode == mode:
                yield framework, name, variant


def _contender(framework: str, variant: Variant, num_replicas: int, *, alone: bool) -> Contender | None:
    """A variant with this many replicas, on two nodes where that is possible; None where it cannot have this many."""
    row = MODES[framework, variant.mode]
    if row.nodes_without_replica:
        if num_replicas > 1:  # one alone computes what replicas of other modes do, several never twice the same
            return None
        num_nodes = row.nodes_without_replica + 1
        devices_per_node = 1
    else:
        if variant.stages == 1 and row.multi_device != (num_replicas > 1) and not (alone and num_replicas == 1):
            return None
        num_nodes = 2 if row.multi_node and variant.launcher is None and num_replicas % 2 == 0 else 1
        devices_per_node = num_replicas // num_nodes * variant.stages
    return Contender(
        framework=framework,
        mode=variant.mode,
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        stages=variant.stages,
        launcher=variant.launcher,
    )


BIG_MODEL_REPLICAS = {"quick": 1, "full": 2}
"""The most replicas with which a big model is trained."""


WIDENED = {
    **{"image_size": 75, "seed": 3, "batchnorm_momentum": 0.97, "batchnorm_recompute": 2, "label_smoothing": 0.1},
    **{"weight_decay": 0.05, "weight_average": 0.8},
}
"""Values for small models: an odd size, which pads otherwise than an even one, and values that are no default."""


def _groups(
    contenders: tuple[Contender, ...],
    model: str,
    num_replicas: int,
    precision: str,
    *,
    quick: bool,
    device: str,
    asked: dict[str, FieldValue],
) -> Iterator[Group]:
    """What the modes train with this many replicas."""
    few = num_replicas <= BIG_MODEL_REPLICAS["quick" if quick else "full"]
    trained = model if few or not model_of(model).is_big else "toy-bn"
    size = "tiny" if not model_of(trained).is_big else "big, quick" if quick else "big"
    optimizers = optimizers_for(size, precision)
    if quick and num_replicas > 1:
        optimizers = optimizers[:1]  # the group with synchronized BatchNorm has Adam
    for optimizer in optimizers:
        yield Group(workload=_workload(trained, optimizer, precision, quick=quick, asked=asked), contenders=contenders)
    if precision != "float64":
        return
    if num_replicas > 1:
        widened = {"regularization": "shared", "batchnorm": "sync"} | asked
        able = tuple(contender for contender in contenders if "batchnorm" in asked or _synchronizes(contender, device))
        yield Group(workload=_workload("toy-bn", "adam", precision, quick=quick, asked=widened), contenders=able)
        return
    small = "toy-bn" if model_of(model).is_big else model
    if not model_of(small).drops:
        return
    widened = {"regularization": "shared"} | asked
    singles = tuple(contender for contender in contenders if contender.mode == "single")
    if model_of(model).is_big and not quick:
        yield Group(workload=_workload(model, "adam", precision, quick=quick, asked=widened), contenders=contenders)
    elif len(singles) < len(contenders):
        yield Group(workload=_workload(small, "adam", precision, quick=quick, asked=widened), contenders=contenders)
    if singles:
        native = _workload(small, "adam", precision, quick=quick, asked={"profile": "native"} | widened)
        tune = _compiled_here() if native.profile == "native" else {}  # unless another profile was asked for
        compiled = tuple(replace(one, tune=tune if one.framework == "torch" else {}) for one in singles)
        resumed = tuple(replace(contender, resumed=True) for contender in compiled)
        yield Group(workload=native, contenders=(*compiled, *resumed))


def _synchronizes(contender: Contender, device: str) -> bool:
    """Whether a mode has BatchNorm over all replicas on these devices."""
    on_gpus = device == "auto" and visible_gpus(installed_gpus())
    return ("gpu" if on_gpus else "cpu") in MODES[contender.framework, contender.mode].sync_batchnorm_on


def _compiled_here() -> dict[str, str]:
    """Settings of torch in the native group, so that what is compiled is proved too, where there is a C++ compiler."""
    compiled = {"compilation": "torch.compile"}
    try:
        require_compiler(compiled)
    except RequestError:
        return {}
    return compiled


def _workload(
    model: str, optimizer: str, precision: str, *, quick: bool, asked: Mapping[str, FieldValue] = {}
) -> Workload:
    # The 5th step is the last of the first epoch and half empty, so that padding rows must not count.
    how = OPTIMIZERS[optimizer].verification
    fields: dict[str, Any] = {
        "model": model,
        "dataset": "synthetic-mini",
        "image_size": 64,
        "global_batch_size": BATCH,
        "steps": min(how.num_steps, 6) if quick and model_of(model).is_big else how.num_steps,
        "warmup_steps": 0,
        "optimizer": optimizer,
        "schedule": how.schedule,
        "learning_rate": how.learning_rate,
        "precision": precision,
        "augment": AUGMENTATIONS,
    }
    if is_custom(model):  # which may need its own size, and has its own BatchNorm
        fields["seed"] = WIDENED["seed"]
    elif not model_of(model).is_big:
        fields |= WIDENED | {"clip_norm": model_of(model).clip_norm_of_verify}
    return Workload(**{**fields, **asked})


def _accumulation(
    frameworks: Sequence[str],
    modes: Sequence[str],
    replicas: Sequence[int],
    precision: str,
    asked: dict[str, FieldValue],
    *,
    quick: bool,
) -> Group:
    """One batch, the same in 2 micro-batches, and on 2 replicas in 2 each, with a model without BatchNorm.

    Quick: one mode with the whole batch, and in micro-batches those on 2 replicas, where there are any.
    """
    asked = {name: value for name, value in asked.items() if name not in ("accumulate", "batchnorm")}
    workload = _workload("mlp", "sgd", precision, quick=False, asked=asked)
    singles = usable_contenders(frameworks, modes, 1)
    accumulating = [one for one in singles if "accumulate" not in MODES[one.framework, one.mode].supported_values]
    several = usable_contenders(frameworks, modes, 2) if 2 in replicas else ()
    whole = singles[:1] if quick else singles
    in_parts = tuple(
        replace(one, accumulate=2) for one in (several if quick and several else (*accumulating, *several))
    )
    return Group(workload=workload, contenders=(*whole, *in_parts), kind="accumulation")
