"""The memory of this machine: what processes may still take of it, and those that are killed for want of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dpcompare.system.deadline import Deadline

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
OOM_SECONDS = 10.0
"""How long a process may take to end after the kernel has chosen it: a large one has much memory to give back."""


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes, as the kernel estimates them, or what the limit of a container leaves where that is less."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", (proc / "meminfo").read_text(), re.MULTILINE)
    bounds = [int(found[1]) * 1024] if found else [0]
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:  # the root group of a machine has no limit, and version 1 of control groups has other files
        return bounds[0]
    if limit != "max":
        bounds.append(int(limit) - int(used))
    return min(bounds)


def oom_kills(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Processes that the kernel has killed for want of memory: of our control group where it counts, or of all."""
    for counters in (*_counters_of_group(proc, cgroup), proc / "vmstat"):
        with suppress(OSError):  # a group has none without the controller of memory, nor one outside our container
            if found := re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def _counters_of_group(proc: Path, cgroup: Path) -> Iterator[Path]:
    """Of the control group of this process, by either version of control groups (cgroups(7))."""
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield cgroup / group.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield cgroup / "memory" / group.lstrip("/") / "memory.oom_control"


class OomWatch:
    """A watch on the processes that the kernel kills for want of memory: those of long ago explain no death of now."""

    def __init__(self) -> None:
        self._before = self._lately = oom_kills()
        self._renewal = Deadline(OOM_SECONDS)

    def look(self) -> None:
        """Forget what is older than twice OOM_SECONDS; to be called now and then."""
        if self._renewal.passed:
            self._before, self._lately = self._lately, oom_kills()
            self._renewal.restart()

    def has_just_killed(self) -> bool:
        """Whether one was killed within OOM_SECONDS, or not long before."""
        return oom_kills() > self._before
