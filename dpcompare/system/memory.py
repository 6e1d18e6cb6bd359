"""The memory of this machine that processes may still take."""

from __future__ import annotations

import re
from pathlib import Path

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


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
