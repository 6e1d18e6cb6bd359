"""NUMA: processes bound to the cores that are near their GPUs, in machines whose memory is in several places."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path

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
        numa_nodes: where the kernel tells the cores of each.
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
    """Of a NUMA node; none where the kernel knows no such node, or one of memory only."""
    listed = numa_node / "cpulist"
    ranges = listed.read_text().strip().split(",") if listed.is_file() else []
    ends = [part.split("-") for part in ranges if part]
    return {core for end in ends for core in range(int(end[0]), int(end[-1]) + 1)}


def bind(cores: Set[int]) -> None:
    """Have this process run on these cores, with the threads that it has and those that they start."""
    for task in TASKS.iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended
            os.sched_setaffinity(int(task.name), cores)
