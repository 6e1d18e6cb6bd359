"""Engines: who starts the node processes of a run, here or elsewhere.

`local` is `dpcompare.launch.local`, for nodes that share this machine and its network. Any other has
`python -m dpcompare.launch.node RUN_DIR` run once per node. An engine knows no framework, and no backend knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from dpcompare.config.engines import ENGINES

if TYPE_CHECKING:
    from dpcompare.config.run import RunConfig
    from dpcompare.launch.outcome import Report
    from dpcompare.launch.rendezvous import Rendezvous


@dataclass(frozen=True, kw_only=True)
class NodesEnded:
    """That no node is running any more, as its engine knows it."""

    why: str
    is_cause: bool = False
    """Whether they were ended from outside, as at a scheduler's time limit: what they say themselves only follows."""


PollExit = Callable[[], NodesEnded | None]
"""Returns None while nodes may be running. None in its place: the engine never hears how they end."""


class Engine(Protocol):
    """The interface of an engine's module."""

    MAY_QUEUE: bool
    """Whether nodes may start much later than they were asked for, as in the queue of a scheduler."""

    def check(self, config: RunConfig) -> None:
        """Raise RequestError where the request cannot be carried out from here."""

    def started(
        self, config: RunConfig, run_dir: Path, rendezvous: Rendezvous, report: Report
    ) -> AbstractContextManager[PollExit | None]:
        """Start every node, or report how to; nodes that still run at the end of the context, long after they were
        stopped, are killed."""

    def node_identity(self, config: RunConfig, node_rank: int | None) -> tuple[int, str]:
        """The rank of the node that this machine is, and the address by which the others reach it."""


def load_engine(name: str) -> Engine:
    """The module of an engine other than local."""
    module = ENGINES[name].module
    assert module is not None
    return cast(Engine, import_module(module))
