"""Whether a run gets a network of its own, and what is said before it starts where it gets none."""

from __future__ import annotations

from dpcompare.config.run import RunConfig
from dpcompare.system.network_namespace import why_not_permitted


def is_isolated(config: RunConfig) -> bool:
    """Whether the processes of a run get a network of their own: where that is asked for, or needed and possible."""
    if config.isolate is not None:
        return config.isolate
    return _can_be(config) and config.serves_files and why_not_permitted() is None


def exposure(config: RunConfig) -> str | None:
    """Who can do what while a run lasts, where that is more than to spoil the run; None where it was accepted."""
    if not config.serves_files or config.isolate is not None or is_isolated(config):
        return None
    if config.placement.engine == "namespaces":  # each node has a network of its own, which ends here
        return None
    if not _can_be(config):
        why, whom = "the nodes have to reach each other", "whoever reaches their ports"
        remedy = "use a network that only people whom you trust can reach (docs/security.md)"
    else:
        why = f"this machine permits no network of its own ({why_not_permitted()})"
        whom = "every user of this machine, and whoever reaches its ports,"
        remedy = "run it as root or allow unprivileged user namespaces"
    return (
        f"{config.framework} {config.mode}: {why}, so while it lasts {whom} can read and write files as you, through "
        f"TensorFlow's servers; {remedy}, or accept that with --no-isolate"
    )


def _can_be(config: RunConfig) -> bool:
    """Whether all processes are on this machine and in one network."""
    return config.placement.engine == "local"
