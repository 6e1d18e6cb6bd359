"""The engines: which program starts the node processes of a run, and which options it takes.

An engine of another package is an entry point of the group `dpcompare.engines`: its name, and an `EngineRow`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar

from pydantic import model_validator

from dpcompare.config.cluster import Cluster
from dpcompare.config.setting import CLUSTERS, Changes, Config, Option, raise_problems, setting, settings_of
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.terminal_text import pluralize

PLUG_INS = "dpcompare.engines"
"""The group of entry points."""


class EngineOptions(Config):
    """What an engine is asked for in addition to the run; the fields of a subclass are its options."""

    @property
    def leaves_directory(self) -> str:
        """The option by which processes start in another directory than this one, where own code is found; or none."""
        return ""

    def problems(self, cluster: Cluster, workload: Workload) -> Iterator[str]:
        """A line for everything in which the options do not suit a run."""
        yield from ()


class NamespacesOptions(EngineOptions):
    """The options of simulated nodes with a network of their own."""

    link: str | None = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            "rate of each node's link, such as 1gbit.",
            metavar="RATE",
            default="no limit",
            resumable=True,
        ),
    )

    @model_validator(mode="after")
    def _check(self) -> NamespacesOptions:
        if self.link is not None and link_bytes_per_second(self.link) is None:
            raise ValueError(
                f"link: received {self.link!r}; expected a rate in kbit, mbit or gbit per second, such as 1gbit, from "
                "1kbit to 1000gbit"
            )
        return self


class HostsOptions(EngineOptions):
    """The options of plain hosts."""

    hosts: tuple[str, ...] = setting(
        (),
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            "one host per node, in the order of the ranks.",
            metavar="A,B,...",
            resumable=True,
        ),
    )
    ssh: bool = setting(
        False,
        changes=Changes.NOTHING,
        option=Option(CLUSTERS, "start their commands by ssh instead of printing them.", resumable=True),
    )

    @model_validator(mode="after")
    def _check(self) -> HostsOptions:
        if not self.hosts:
            raise ValueError("hosts: received none; expected one per node, such as --hosts a,b")
        if len(set(self.hosts)) != len(self.hosts):
            raise ValueError(f"hosts: received {', '.join(self.hosts)}; expected each once")
        return self

    def problems(self, cluster: Cluster, workload: Workload) -> Iterator[str]:
        if len(self.hosts) != cluster.num_nodes:
            yield f"hosts: received {len(self.hosts)} for {pluralize(cluster.num_nodes, 'node')}; expected one per node"

    @property
    def leaves_directory(self) -> str:
        return "ssh" if self.ssh else ""


class SlurmOptions(EngineOptions):
    """The options of a job of Slurm."""

    partition: str | None = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(CLUSTERS, "its partition.", default="Slurm's", resumable=True),
    )
    time: str | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(CLUSTERS, "the time limit, as sbatch takes it.", metavar="LIMIT", resumable=True),
    )
    account: str | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(CLUSTERS, "the account to charge.", resumable=True),
    )
    gres: str | None = setting(
        None,
        pattern=r"^gpu(:[\w.-]+)?$",
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            "GPUs are asked for as --gres=GRES:COUNT, such as gpu:a100, not by --gpus-per-node.",
            resumable=True,
        ),
    )
    sbatch: tuple[str, ...] = setting(
        (),
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            "one more option of sbatch, such as --qos=high.",
            metavar="OPTION",
            resumable=True,
        ),
    )


class KubernetesOptions(EngineOptions):
    """The options of pods."""

    _needed: ClassVar[Mapping[str, str]] = {
        "image": "a container image with dpcompare, such as registry/dpcompare:1",
        "volume_claim": "the claim of a volume that all pods can write",
    }
    image: str | None = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(CLUSTERS, "the container image of all pods.", resumable=True),
    )
    volume_claim: str | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(CLUSTERS, "the claim of a volume that all pods can write.", resumable=True),
    )

    @model_validator(mode="after")
    def _check(self) -> KubernetesOptions:
        raise_problems(
            [
                f"--{name.replace('_', '-')}: received none with engine kubernetes; expected {what}"
                for name, what in self._needed.items()
                if not getattr(self, name)
            ]
        )
        return self


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """One row of ENGINES."""

    summary: str
    """What its nodes are, for `--help`."""
    simulated: bool
    """Whether the nodes share this machine."""
    engine: str | None = None
    """`module:CLASS` of its `dpcompare.launch.engines.Engine`; None: `dpcompare.launch.local`."""
    options: type[EngineOptions] = EngineOptions
    is_elsewhere: bool = False
    """Whether this machine may have other devices than the nodes, so that it cannot choose between CPU and GPUs."""
    plan_formats: Mapping[str, str] = field(default_factory=dict)
    """Name in `plan --format` -> what that prints; an engine of another package has `text` and `json` alone."""

    def __post_init__(self) -> None:
        settings_of(self.options)  # every option says what it changes


ENGINES: dict[str, EngineRow] = {
    "local": EngineRow(
        summary="simulated nodes of this machine",
        simulated=True,
        plan_formats={"sh": "a bash script that does the same when it is run"},
    ),
    "namespaces": EngineRow(
        summary="simulated nodes with a network of their own",
        simulated=True,
        engine="dpcompare.launch.engines.namespaces:Namespaces",
        options=NamespacesOptions,
    ),
    "hosts": EngineRow(
        summary="named machines",
        simulated=False,
        engine="dpcompare.launch.engines.hosts:Hosts",
        options=HostsOptions,
    ),
    "slurm": EngineRow(
        summary="machines of a job",
        simulated=False,
        engine="dpcompare.launch.engines.slurm:Slurm",
        options=SlurmOptions,
        is_elsewhere=True,
        plan_formats={"slurm": "what would be submitted"},
    ),
    "kubernetes": EngineRow(
        summary="pods, only with `plan`",
        simulated=False,
        engine="dpcompare.launch.engines.kubernetes:Kubernetes",
        options=KubernetesOptions,
        is_elsewhere=True,
        plan_formats={"kubernetes": "what to hand to kubectl"},
    ),
}


@cache
def _plug_ins() -> dict[str, EntryPoint]:
    """Name -> entry point of the engines of other packages; none is imported."""
    return {point.name: point for point in entry_points(group=PLUG_INS) if point.name not in ENGINES}


def engine_names() -> list[str]:
    """Those of dpcompare, and those of other packages."""
    return [*ENGINES, *_plug_ins()]


@cache
def engine_row(name: str) -> EngineRow:
    """The row of an engine.

    Raises:
        RequestError: there is none of that name, or the package that has it cannot be imported.
    """
    if name in ENGINES:
        return ENGINES[name]
    point = _plug_ins().get(name)
    if point is None:
        known = engine_names()
        raise RequestError(f"unknown engine {name!r}; expected one of {', '.join(known)}.{did_you_mean(name, known)}")
    try:
        row = point.load()
        if not isinstance(row, EngineRow):
            raise TypeError(f"it is of type {type(row).__name__}, expected an EngineRow")
        if row.engine is None:
            raise TypeError('its row names no class, expected engine="module:CLASS"')
    except Exception as error:  # whatever another package's code does
        raise RequestError(
            f"engine {name!r} of {point.value!r} cannot be loaded ({type(error).__name__}: {error}); fix or "
            f"uninstall that package; {', '.join(ENGINES)} work without it"
        ) from None
    return row


def engines_with(option: str) -> list[str]:
    """Names of dpcompare's engines that have an option."""
    return [name for name, row in ENGINES.items() if option in row.options.model_fields]


def link_bytes_per_second(text: str) -> float | None:
    """The rate of a link, in bytes per second, that `tc` can limit it to; None of anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text, re.ASCII)
    bits = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] if found else 0.0
    return bits / 8 if 1e3 <= bits <= 1e12 else None
