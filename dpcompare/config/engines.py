"""The table of engines: who can start the node processes of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """One row of ENGINES."""

    simulated: bool
    """Whether the nodes share this machine."""
    module: str | None = None
    """What has the functions of `Engine`."""


ENGINES = {
    "local": EngineRow(simulated=True),
    "namespaces": EngineRow(simulated=True, module="dpcompare.launch.engines.namespaces"),
    "hosts": EngineRow(simulated=False, module="dpcompare.launch.engines.hosts"),
    "slurm": EngineRow(simulated=False, module="dpcompare.launch.engines.slurm"),
    "kubernetes": EngineRow(simulated=False, module="dpcompare.launch.engines.kubernetes"),
}
