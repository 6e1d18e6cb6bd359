"""The contenders of `dpcompare verify`: modes, each in its ways and on its topology, and the groups that they form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dpcompare.config.cluster import topology_in_words
from dpcompare.config.environment import Environment
from dpcompare.config.modes import MODES
from dpcompare.config.run import lacks_local_batchnorm
from dpcompare.config.workload import Workload
from dpcompare.models.architectures import may_have_batchnorm
from dpcompare.system.devices import installed_gpus, visible_gpus
from dpcompare.system.python_environment import is_custom


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
    backend: str | None = None
    """A user's own, `package.module:CLASS`; None: that of the mode."""
    tune: Mapping[str, str] = field(default_factory=dict, hash=False)
    device: Literal["cpu", "shared gpu"] | None = None
    """Where it runs; None: on the devices that are verified, one for each replica."""
    environment: Environment | None = field(default=None, hash=False)
    """Its own; None: the usual one of its framework."""
    python: str | None = None
    """The interpreter of that."""
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
        own = f" by {self.backend}" if self.backend else ""
        parts = f" in {self.accumulate} micro-batches" if self.accumulate > 1 else ""
        device = {None: "", "cpu": " on the CPU", "shared gpu": " on a shared GPU"}[self.device]
        environment = f" in env={self.environment.name}" if self.environment else ""
        resumed = " resumed" if self.resumed else ""
        return f"{self.framework} {self.mode}{topology}{device}{stages}{launcher}{own}{environment}{parts}{resumed}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Contenders that must compute the same; the first one is the reference of the others."""

    workload: Workload
    contenders: tuple[Contender, ...]
    kind: Literal["modes", "accumulation"] = "modes"
    """`modes`: every check. `accumulation`: only losses, over contenders that divide the batch differently."""
    crossed: tuple[str, ...] = ()
    """In words, what else its workload has in the place of a default; see `dpcompare.experiments.crossed_groups`."""
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
        return ", ".join(
            [workload.model, workload.optimizer, *(name for name, value in has.items() if value), *self.crossed]
        )

    @property
    def checkpoint_every(self) -> int | None:
        """Steps, such that the first checkpoint is in the middle of an epoch; None if no contender is resumed."""
        assert self.workload.steps is not None
        return self.workload.steps * 2 // 5 if any(contender.resumed for contender in self.contenders) else None


def one_device(of: Contender, workload: Workload, num_replicas: int) -> Contender | None:
    """One device that normalises by the same images as replicas of a contender.

    Returns:
        None where there is but one replica, or where no single device can normalise so.
    """
    parts = num_replicas * workload.accumulate
    if workload.batchnorm == "sync" and may_have_batchnorm(workload.model):
        if workload.accumulate > 1:  # a micro-batch of all replicas is not a part of consecutive images
            return None
        parts = 1
    if num_replicas == 1:
        return None
    return Contender(
        framework=of.framework,
        mode="single",
        num_nodes=1,
        devices_per_node=1,
        accumulate=parts,
        environment=of.environment,
        python=of.python,
    )


def in_environments(
    contenders: Sequence[Contender], environments: Sequence[tuple[Environment | None, str | None]]
) -> tuple[Contender, ...]:
    """Each contender in each environment.

    Args:
        contenders: to repeat.
        environments: with their interpreters; None and None: the usual one.
    """
    return tuple(
        replace(contender, environment=environment, python=python)
        for contender in contenders
        for environment, python in environments
    )


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


def usable_contenders(
    frameworks: Sequence[str], modes: Sequence[str], num_replicas: int, *, alone: bool = False
) -> tuple[Contender, ...]:
    """The chosen modes and variants that can have this many replicas, in the order of MODES.

    Modes of several replicas do with one only where `alone`.
    """
    chosen = (
        _contender(framework, variant, num_replicas, alone=alone)
        for framework, name, variant in variants()
        if framework in frameworks and name in modes
    )
    return tuple(contender for contender in chosen if contender is not None)


def variants() -> Iterator[tuple[str, str, Variant]]:
    """Framework and name of each mode and variant; a mode itself is the variant that has the mode's name."""
    for (framework, mode), row in MODES.items():
        yield framework, mode, Variant(mode=mode, stages=row.default_stages)
        for name, variant in VARIANTS.items():
            if variant.mode == mode:
                yield framework, name, variant


def _contender(framework: str, variant: Variant, num_replicas: int, *, alone: bool) -> Contender | None:
    """A variant with this many replicas, on two nodes where that is possible, or on a node for each of an odd number;
    None where it cannot have this many."""
    row = MODES[framework, variant.mode]
    if row.nodes_without_replica:
        if num_replicas > 1:  # one alone computes what replicas of other modes do, several never twice the same
            return None
        num_nodes = row.nodes_without_replica + 1
        devices_per_node = 1
    else:
        if variant.stages == 1 and row.multi_device != (num_replicas > 1) and not (alone and num_replicas == 1):
            return None
        num_nodes = 1
        if row.multi_node and variant.launcher is None:
            num_nodes = 2 if num_replicas % 2 == 0 else num_replicas
        devices_per_node = num_replicas // num_nodes * variant.stages
    return Contender(
        framework=framework,
        mode=variant.mode,
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        stages=variant.stages,
        launcher=variant.launcher,
    )


def has_local_batchnorm(contender: Contender, model: str) -> bool:
    """Whether a mode can have a model's BatchNorm of each replica, or the model has none."""
    row = MODES[contender.framework, contender.mode]
    num_replicas = contender.num_nodes * contender.devices_per_node // contender.stages
    return not lacks_local_batchnorm(row, num_replicas, model)


def synchronizes(contender: Contender, device: str) -> bool:
    """Whether a mode has BatchNorm over all replicas on these devices."""
    on_gpus = device == "auto" and visible_gpus(installed_gpus())
    return ("gpu" if on_gpus else "cpu") in MODES[contender.framework, contender.mode].sync_batchnorm_on
