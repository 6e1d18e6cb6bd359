"""Processes and their memory: ended with their parent, and watched."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from dpcompare.system.signals import Deadline, HeldSignals

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
OOM_SECONDS = 10.0
"""How long a process may take to end after the kernel has chosen it: a large one has much memory to give back."""


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes, as the kernel estimates them, or what the limit of a container leaves where that is less."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", (proc / "meminfo").read_text(), re.MULTILINE)
    bounds = [int(found[1]) * 1024] if found else [0]
    try:
        limit, used, parts = (
            (cgroup / name).read_text().strip() for name in ("memory.max", "memory.current", "memory.stat")
        )
    except OSError:  # the root group of a machine has no limit, and version 1 of control groups has other files
        return bounds[0]
    if limit != "max":  # the kernel gives the cache of files back to whoever needs memory
        cached = sum(int(number) for number in re.findall(r"^(?:in)?active_file (\d+)$", parts, re.MULTILINE))
        bounds.append(int(limit) - int(used) + cached)
    return min(bounds)


class MemoryPeak:
    """The most memory that this process has had resident, but for what it has left out.

    Not ru_maxrss, which a child inherits from whoever started it. Where the kernel keeps no peak (gVisor), what is
    resident when it is asked.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._process = proc / "self"
        self._before = 0

    @property
    def num_bytes(self) -> int:
        lines = (line.split() for line in (self._process / "status").read_text().splitlines())
        kibibytes = {words[0]: int(words[1]) for words in lines if words and words[0] in ("VmHWM:", "VmRSS:")}
        return max(self._before, 1024 * kibibytes.get("VmHWM:", kibibytes["VmRSS:"]))

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What is held within this context alone does not count."""
        self._before = self.num_bytes
        yield
        with suppress(OSError):  # a sandbox may forbid it: then it counts
            (self._process / "clear_refs").write_text("5")  # resets VmHWM to what is resident now; see proc(5)


def oom_kills(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Processes that the kernel has killed for want of memory: of our control group where it counts, or of all."""
    for counters in (*_counters_of_group(proc, cgroup), proc / "vmstat"):
        with suppress(OSError):  # a group has none without the controller of memory, nor one outside our container
            if found := re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def _counters_of_group(proc: Path, cgroup: Path) -> Iterator[Path]:
    """The counters of the control group of this process, by either version of control groups (cgroups(7))."""
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


PROCESS_POLL_SECONDS = 0.05
"""How often a child process is asked whether it has ended."""
KILL_SECONDS = 10.0
"""How long a killed process may take to end: one that waits for a device ends only after that."""

AGENT_PID = "DPCOMPARE_AGENT_PID"
"""Set by our torchrun agents for their training processes, which start them much later than they are started."""

SIGNALED = 128
"""What our torchrun agents add to the number of the signal that ended a training process, for their own exit status."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
"""Loaded before any fork: in its child the lock of the loader may be held forever, by a thread that is not there."""


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux).

    The setting belongs to one process only: it is cleared by fork, so every child asks for itself. Where the pid of the
    parent is given, a parent that ended before this was asked for is noticed too.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group that `pid` leads; nothing happens when it is gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


Child: TypeAlias = subprocess.Popen[Any]
"""A child process, whatever its pipes carry."""


def wait_for_exit(processes: Sequence[Child], seconds: float, signals: HeldSignals) -> bool:
    """Wait until child processes have ended; returns False after `seconds`, or at another Ctrl-C."""
    deadline = Deadline(seconds)
    while any(process.poll() is None for process in processes):
        if signals.is_interrupted or deadline.passed:
            return False
        time.sleep(PROCESS_POLL_SECONDS)
    return True


def kill_groups(processes: Sequence[Child]) -> None:
    """Kill the process groups that child processes lead, or led, and wait until the children have ended."""
    for process in processes:
        signal_group(process.pid, signal.SIGKILL)
    deadline = Deadline(KILL_SECONDS)
    while any(process.poll() is None for process in processes) and not deadline.passed:
        time.sleep(PROCESS_POLL_SECONDS)


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended (a zombie has)."""
    return _state(pid) not in ("", "Z", "X")


def process_state(pid: int | None) -> str:
    """What a process is doing, in words."""
    words = {"R": "running", "S": "waiting", "D": "waiting for a device", "T": "stopped by a signal", "t": "traced"}
    return "not started" if pid is None else words.get(_state(pid), "ended")


def _state(pid: int) -> str:
    """The letter of proc(5); empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
