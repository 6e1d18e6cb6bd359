"""Engines: who starts the node processes of a run, here or elsewhere.

`local` is `dpcompare.launch.local`, for nodes that share this machine and its network. Any other has
`python -m dpcompare.launch.node RUN_DIR` run once per node. An engine knows no framework, and no backend knows it.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dpcompare.config.engines import ENGINES, EngineOptions, engine_row
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.outcome import Report
from dpcompare.launch.rendezvous import Rendezvous


@dataclass(frozen=True, kw_only=True)
class NodesEnded:
    """The statement of an engine that no node is running any more."""

    why: str
    is_cause: bool = False
    """Whether they were ended from outside, as at a scheduler's time limit: what they say themselves only follows."""


PollExit = Callable[[], NodesEnded | None]
"""Returns None while nodes may be running. None in its place: the engine never hears how they end."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What an engine would start."""

    text: str
    """The text that a person, or the program that submits it, reads."""
    fields: Mapping[str, Any]
    """The same in the document of `plan --json`."""
    is_whole: bool = False
    """Whether the fields alone are that document, because another program reads it."""


class Engine(ABC):
    """How nodes are started elsewhere; every node runs `python -m dpcompare.launch.node RUN_DIR`.

    What the machines share is the run directory, and the files that the config names.
    """

    may_queue: ClassVar[bool] = False
    """Whether nodes may start much later than they were asked for, as in the queue of a scheduler."""

    @abstractmethod
    def check(self, config: RunConfig) -> None:
        """Raise RequestError where the request cannot be carried out from here."""

    @abstractmethod
    def started(
        self, config: RunConfig, run_dir: Path, rendezvous: Rendezvous, report: Report
    ) -> AbstractContextManager[PollExit | None]:
        """Start every node, or report how to; nodes that still run at the end of the context, long after they were
        stopped, are killed."""

    @abstractmethod
    def node_identity(self, config: RunConfig, node_rank: int | None) -> tuple[int, str]:
        """The rank of the node that this machine is, and the address by which the others reach it."""

    def cores_per_node(self, options: EngineOptions) -> int | None:
        """CPU cores that each node has for a run; None: those of this machine."""
        return None

    def run_name(self, config: RunConfig) -> str | None:
        """A name for the directory of a run that was given none; None: any will do."""
        return None

    def planned(self, config: RunConfig, run_dir: Path) -> Planned:
        """What would be started; addresses and ports are only known there."""
        names = config.placement.hosts or tuple(f"node {node.rank}" for node in config.cluster.nodes)
        commands = dict(zip(names, node_commands(config, run_dir), strict=True))
        return Planned(
            text="".join(f"# on {host}\n{command}\n" for host, command in commands.items()),
            fields={"commands": commands},
        )


def node_commands(config: RunConfig, run_dir: Path, attempt: str | None = None) -> list[str]:
    """The command of each node, for a shell."""
    only = ["--attempt", attempt] if attempt else []
    return [
        shlex.join([config.python, "-P", "-m", "dpcompare.launch.node", str(run_dir), "--node-rank", str(rank), *only])
        for rank in range(config.cluster.num_nodes)
    ]


def load_engine(name: str) -> Engine:
    """An engine other than local.

    Raises:
        RequestError: it is of another package, which cannot be imported.
    """
    engine = engine_row(name).engine
    assert engine is not None
    module, _, kind = engine.partition(":")
    try:
        found: Engine = getattr(import_module(module), kind)()
    except Exception as error:
        if name in ENGINES:
            raise
        raise RequestError(
            f"engine {name!r} cannot be loaded from {engine} ({type(error).__name__}: {error})"
        ) from None
    return found


Options = TypeVar("Options", bound=EngineOptions)


def options_of(config: RunConfig, kind: type[Options]) -> Options:
    """The options of the engine of a run, which are of this kind."""
    options = config.placement.options
    assert isinstance(options, kind)
    return options
