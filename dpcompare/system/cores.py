"""The cores that processes may use, and the memory that is near them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from dpcompare.system.json_files import Count, Integer

Number = TypeVar("Number", int, float)

PROC, CPUS = Path("/proc"), Path("/sys/devices/system/cpu")


class CoresUsed(BaseModel):
    """Seconds of the cores that a process may use, between two moments."""

    model_config = ConfigDict(frozen=True)

    seconds: float
    """Between the two moments."""
    cores: Count
    """The cores that the process may run on."""
    own_seconds: float
    """Taken by this process, all its threads together."""
    busy_seconds: float
    """Taken by all processes of the machine."""
    stolen_seconds: float
    """In which a virtual machine wanted to run and its host let others run."""
    waiting_seconds: float | None
    """In which some process of the machine waited for a core, from /proc/pressure; None where the kernel has none."""
    heat_throttles: Integer | None
    """Times that a core or a package became too hot; None where the kernel does not count them."""


class CoresMeter:
    """Reads the counters after some calls of `count_step`, and again at each `used`."""

    def __init__(self, after_steps: int, proc: Path = PROC, cpus: Path = CPUS) -> None:
        self._steps_left = after_steps
        self._proc, self._cpus = proc, cpus
        self._before = self._read() if after_steps == 0 else None

    def count_step(self) -> None:
        """A step has been made."""
        self._steps_left -= 1
        if self._steps_left == 0:
            self._before = self._read()

    def used(self) -> CoresUsed | None:
        """Since those steps; None if there were not as many, or the kernel does not report it."""
        before, after = self._before, self._read()
        if before is None or after is None:
            return None
        return CoresUsed(
            seconds=after.time - before.time,
            cores=len(os.sched_getaffinity(0)),
            own_seconds=after.own - before.own,
            busy_seconds=after.busy - before.busy,
            stolen_seconds=after.stolen - before.stolen,
            waiting_seconds=_difference(after.waiting, before.waiting),
            heat_throttles=_difference(after.throttles, before.throttles),
        )

    def _read(self) -> _Counters | None:
        taken = _taken(self._proc / "stat")
        if taken is None:
            return None
        busy, stolen = taken
        return _Counters(
            time=time.monotonic(),
            own=time.process_time(),
            busy=busy,
            stolen=stolen,
            waiting=_waiting(self._proc / "pressure" / "cpu"),
            throttles=_throttles(self._cpus),
        )


@dataclass(frozen=True)
class _Counters:
    """All in seconds since some moment, but for the throttles."""

    time: float
    own: float
    busy: float
    stolen: float
    waiting: float | None
    throttles: int | None


def _difference(after: Number | None, before: Number | None) -> Number | None:
    return None if after is None or before is None else after - before


def _taken(stat: Path) -> tuple[float, float] | None:
    """Seconds that the cores of this process have worked, and that were stolen from them.

    None where the kernel lists other cores, as in some containers.
    """
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
    except OSError:
        return None
    ticks_by_core = {line[0]: [int(count) for count in line[1:9]] for line in lines if re.fullmatch(r"cpu\d+", line[0])}
    names = [f"cpu{core}" for core in os.sched_getaffinity(0)]
    if not all(len(ticks_by_core.get(name, ())) == 8 for name in names):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    # proc(5): user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user. Interrupts are left out:
    # those of a run's own network are charged to no process.
    busy = sum(sum(ticks_by_core[name][:3]) for name in names)
    return busy / ticks, sum(ticks_by_core[name][7] for name in names) / ticks


def _waiting(pressure: Path) -> float | None:
    try:
        found = re.search(r"^some .*total=(\d+)", pressure.read_text(), re.MULTILINE)
    except OSError:  # the kernel was built, or started, without it
        return None
    return int(found[1]) / 1e6 if found else None


def _throttles(cpus: Path) -> int | None:
    """Throttlings of the cores, and once per package."""
    counts = {}
    for file in cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"):
        try:
            package = (file.parents[1] / "topology" / "physical_package_id").read_text()
            counts[file if file.name.startswith("core") else package] = int(file.read_text())
        except (OSError, ValueError):  # a core that was switched off meanwhile
            continue
    return sum(counts.values()) if counts else None


NUMA_NODES = Path("/sys/devices/system/node")
TASKS = Path("/proc/self/task")


def near_cores(
    gpus_of_processes: Sequence[Sequence[Set[int]]], cores_each: int, usable: Set[int], numa_nodes: Path = NUMA_NODES
) -> list[Set[int]]:
    """The usable cores near the GPUs of each process; none at all where the processes are better left alone.

    All are, where one of them has GPUs near several NUMA nodes, or near an unknown one; where the processes of a NUMA
    node would get fewer cores than without binding; and where all usable cores are near anyway.

    Args:
        gpus_of_processes: of every process of this machine, the NUMA nodes near each of its GPUs.
        cores_each: the share of a process in the cores of the machine.
        usable: the cores that the processes may use.
        numa_nodes: where the kernel lists the cores of each.
    """
    near: list[Set[int]] = []
    for gpus in gpus_of_processes:
        nodes = set(map(frozenset, gpus))
        if len(nodes) != 1 or len(node := min(nodes)) != 1:
            return []
        near.append(_cores(numa_nodes / f"node{min(node)}") & usable)
    has_room = all(near.count(cores) * cores_each <= len(cores) for cores in near)
    return near if has_room and any(cores != usable for cores in near) else []


def _cores(numa_node: Path) -> set[int]:
    """The cores of a NUMA node; none if the kernel knows no such node, or one of memory only."""
    listed = numa_node / "cpulist"
    ranges = listed.read_text().strip().split(",") if listed.is_file() else []
    ends = [part.split("-") for part in ranges if part]
    return {core for end in ends for core in range(int(end[0]), int(end[-1]) + 1)}


def bind(cores: Set[int]) -> None:
    """Have this process run on these cores, with the threads that it has and those that they start."""
    for task in TASKS.iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended
            os.sched_setaffinity(int(task.name), cores)
