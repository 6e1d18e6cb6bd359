"""The plan of `dpcompare verify`: which modes train the same workload side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpcompare.config.cluster import topology_in_words
from dpcompare.config.modes import MODES
from dpcompare.config.workload import Workload
from dpcompare.data.augmentation import AUGMENTATIONS
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.models.architectures import model_of
from dpcompare.system.import_path import is_custom

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

    def __str__(self) -> str:
        topology = "" if self.mode == "single" else f" on {topology_in_words(self.num_nodes, self.devices_per_node)}"
        stages = f" in {self.stages} stages" if self.stages > 1 else ""
        launcher = f" by {self.launcher}" if self.launcher else ""
        parts = f" in {self.accumulate} micro-batches" if self.accumulate > 1 else ""
        return f"{self.framework} {self.mode}{topology}{stages}{launcher}{parts}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Contenders that must compute the same; the first one is the reference of the others."""

    workload: Workload
    contenders: tuple[Contender, ...]
    kind: Literal["modes", "accumulation"] = "modes"
    """`modes`: every check. `accumulation`: only losses, over contenders that divide the batch differently."""

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
) -> list[Group]:
    """What to run. Quick: `model` on one device only and few steps; tiny models on several replicas.

    Regularization is checked where differences show, in float64, with Adam: `model` on one device, toy-bn elsewhere.

    Raises:
        RequestError: see `check_request`.
    """
    check_request(modes, replicas)
    groups: list[Group] = []
    for precision in precisions:
        groups += [
            Group(workload=workload, contenders=contenders)
            for num_replicas in replicas
            if (contenders := usable_contenders(frameworks, modes, num_replicas))
            for workload in _workloads(model, num_replicas, precision, quick=quick)
        ]
        if precision == "float64" or not quick:
            accumulation = _accumulation(frameworks, modes, replicas, precision)
            groups += [accumulation] if len(accumulation.contenders) > 1 else []
    return groups


def check_request(modes: Sequence[str], replicas: Sequence[int]) -> None:
    """Refuse what cannot be verified.

    Raises:
        RequestError: an unknown mode, one that cannot be verified, or a number of replicas that does not divide BATCH.
    """
    known = [*dict.fromkeys(mode for _, mode in MODES), *VARIANTS]
    if unknown := [mode for mode in modes if mode not in known]:
        raise RequestError(
            f"unknown mode {unknown[0]!r}; expected some of {', '.join(known)}.{did_you_mean(unknown[0], known)}"
        )
    if not replicas:
        raise RequestError("--replicas: received none, expected numbers such as 1,2,4")
    possible = [count for count in range(1, BATCH // 2 + 1) if BATCH % (2 * count) == 0]
    if impossible := [count for count in replicas if count not in possible]:
        raise RequestError(
            f"--replicas: received {', '.join(map(str, impossible))}, but the batch of {BATCH} images must divide "
            f"among the replicas with at least 2 each; expected some of {', '.join(map(str, possible))}"
        )
    reasons = [f"{mode}: {row.unverifiable}" for (_, mode), row in MODES.items() if mode in modes and row.unverifiable]
    if reasons:
        raise RequestError(
            f"--modes: received what cannot be verified: {'; '.join(reasons)}; expected modes without these"
        )


def usable_contenders(frameworks: Sequence[str], modes: Sequence[str], num_replicas: int) -> tuple[Contender, ...]:
    """The chosen modes and variants that can have this many replicas, in the order of MODES."""
    chosen = (
        _contender(framework, variant, num_replicas)
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


def _contender(framework: str, variant: Variant, num_replicas: int) -> Contender | None:
    """A variant with this many replicas, on two nodes where that is possible; None where it cannot have this many."""
    row = MODES[framework, variant.mode]
    if row.roles:
        if num_replicas > 1:  # asynchronous: one worker alone computes what others do
            return None
        num_nodes = len(row.roles) + 1
        devices_per_node = 1
    else:
        if variant.stages == 1 and row.multi_device != (num_replicas > 1):
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


BIG_MODELS = tuple(f"efficientnet-b{scale}" for scale in range(8))
"""Too slow to be trained at every number of replicas; toy-bn takes their place."""

BIG_MODEL_REPLICAS = {"quick": 1, "full": 2}
"""The most replicas with which a big model is trained."""

OPTIMIZERS = {
    ("big, quick", "float32"): ("adam",),
    ("big, quick", "float64"): ("sgd",),
    ("big", "float32"): ("sgd", "adam"),
    ("big", "float64"): ("sgd", "adam"),
    # Adam divides by the root of the second moment: with a tiny model it makes updates of full size out of the rounding
    # of gradients that are nearly zero.
    ("tiny", "float32"): ("sgd",),
    ("tiny", "float64"): ("sgd", "adam"),
}
"""Size of the model and precision -> what it is trained with, one group each."""


def _workloads(model: str, num_replicas: int, precision: str, *, quick: bool) -> Iterator[Workload]:
    """What the modes train with this many replicas."""
    few = num_replicas <= BIG_MODEL_REPLICAS["quick" if quick else "full"]
    trained = model if few or model not in BIG_MODELS else "toy-bn"
    size = "tiny" if trained not in BIG_MODELS else "big, quick" if quick else "big"
    for optimizer in OPTIMIZERS[size, precision]:
        yield _workload(trained, optimizer, precision, quick=quick)
    regularized = model if num_replicas == 1 and not (quick and model in BIG_MODELS) else "toy-bn"
    if precision == "float64" and model_of(regularized).drops:
        yield _workload(regularized, "adam", precision, quick=quick, regularization="shared")


def _workload(model: str, optimizer: str, precision: str, *, quick: bool, regularization: str = "off") -> Workload:
    # The 5th step is the last of the first epoch and half empty, so that padding rows must not count.
    steps = {"sgd": 6, "adam": 20}[optimizer]
    fields: dict[str, Any] = {
        "model": model,
        "dataset": "synthetic-mini",
        "image_size": 64,
        "global_batch_size": BATCH,
        "steps": min(steps, 6) if quick and model in BIG_MODELS else steps,
        "warmup_steps": 0,
        "optimizer": optimizer,
        "schedule": {"sgd": "cosine", "adam": "constant"}[optimizer],
        "learning_rate": {"sgd": 0.01, "adam": 1e-3}[optimizer],
        "precision": precision,
        "augment": AUGMENTATIONS,
        "regularization": regularization,
    }
    return Workload(**fields)


def _accumulation(frameworks: Sequence[str], modes: Sequence[str], replicas: Sequence[int], precision: str) -> Group:
    """One batch, the same in 2 micro-batches, and on 2 replicas, with a model without BatchNorm."""
    workload = _workload("mlp", "sgd", precision, quick=False)
    singles = usable_contenders(frameworks, modes, 1)
    accumulating = [one for one in singles if "accumulate" not in MODES[one.framework, one.mode].supported_values]
    in_parts = tuple(replace(one, accumulate=2) for one in accumulating)
    several = usable_contenders(frameworks, modes, 2) if 2 in replicas else ()
    return Group(workload=workload, contenders=(*singles, *in_parts, *several), kind="accumulation")
