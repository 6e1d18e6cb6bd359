"""Whether a run gets a network of its own, and what is said before it starts where it gets none."""

from __future__ import annotations

import os
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.system.network_namespace import why_not_permitted

UNIFIED_MEMORY = Path("/dev/nvidia-uvm")
"""The device that CUDA makes where it is missing, by a program that is root, which nobody is in a user namespace."""


def is_isolated(config: RunConfig) -> bool:
    """Whether the processes of a run get a network of their own: where that is asked for, or needed and possible."""
    if config.isolate is not None:
        return config.isolate
    return config.serves_files and config.placement.engine == "local" and _why_impossible(config) is None


def exposure(config: RunConfig) -> str | None:
    """Who can do what while a run lasts, where that is more than to spoil the run; None where it was accepted."""
    if not config.serves_files or config.isolate is not None or is_isolated(config):
        return None
    engine = config.placement.engine
    if engine == "namespaces":  # each node has a network of its own, which ends on this machine
        return None
    if engine == "local":
        why = f"it cannot get a network of its own ({_why_impossible(config)})"
        whom = "every user of this machine, and whoever reaches its ports,"
        remedy = "run it as root, or allow what is missing"
    else:
        why, whom = "its nodes have to reach each other", "whoever reaches their ports"
        remedy = "use a network that only people whom you trust can reach (docs/security.md)"
    return (
        f"{config.framework} {config.mode}: {why}, so while it lasts {whom} can read and write files as you, through "
        f"TensorFlow's servers; {remedy}, or accept that with --no-isolate"
    )


def _why_impossible(config: RunConfig) -> str | None:
    """Why this machine gives a run no network of its own; None where it does."""
    if config.cluster.device_type == "gpu" and os.geteuid() != 0 and not UNIFIED_MEMORY.exists():
        return f"{UNIFIED_MEMORY} is missing, which nobody but root can make: `nvidia-modprobe -u -c=0`"
    return why_not_permitted()
