"""Which cores are near a GPU, by an imitated /sys, and that a process is bound to them with all its threads."""

import os
import threading
from pathlib import Path

import pytest

from dpcompare.system.cores import bind, near_cores

TWO_NODES = {0: "0-3,8-11\n", 1: "4-7,12-15\n"}


@pytest.fixture
def numa_nodes(tmp_path):
    def put(cpulists):
        for number, cpulist in cpulists.items():
            (tmp_path / f"node{number}").mkdir()
            (tmp_path / f"node{number}" / "cpulist").write_text(cpulist)
        return tmp_path

    return put


def test_each_process_gets_the_cores_near_its_gpus(numa_nodes):
    usable = set(range(16))
    near = near_cores([[{0}], [{0}], [{1}], [{1}]], 4, usable, numa_nodes(TWO_NODES))
    assert near == [{0, 1, 2, 3, 8, 9, 10, 11}] * 2 + [{4, 5, 6, 7, 12, 13, 14, 15}] * 2


def test_two_processes_of_two_gpus_each(numa_nodes):
    near = near_cores([[{0}, {0}], [{1}, {1}]], 8, set(range(16)), numa_nodes(TWO_NODES))
    assert [len(cores) for cores in near] == [8, 8]
    assert not near[0] & near[1]


def test_cores_that_a_scheduler_kept_back_stay_with_it(numa_nodes):
    usable = set(range(2, 8))
    assert near_cores([[{0}], [{1}]], 2, usable, numa_nodes(TWO_NODES)) == [{2, 3}, {4, 5, 6, 7}]


@pytest.mark.parametrize(
    ("gpus_of_processes", "cores_each", "usable", "cpulists"),
    [
        ([[{0}], [{0}]], 8, range(16), {0: "0-15\n"}),
        ([[{0}, {1}]], 16, range(16), TWO_NODES),
        ([[{0, 1}], [{0, 1}]], 8, range(16), TWO_NODES),
        ([[{0}], [set()]], 8, range(16), TWO_NODES),
        ([[{0}, set()]], 8, range(16), TWO_NODES),
        ([[{0}]] * 3 + [[{1}]], 4, range(16), TWO_NODES),
        ([[{1}]], 16, range(16), TWO_NODES),
        ([[{0}]], 4, range(4), TWO_NODES),
        ([[{0}], [{1}]], 3, (0, 1, 2, 3, 4, 5), TWO_NODES),
        ([[{2}]], 1, range(16), TWO_NODES),
        ([[{1}]], 1, range(16), {0: "0-15\n", 1: "\n"}),
    ],
    ids=[
        "one NUMA node", "a process over both", "GPUs near both", "an unknown GPU", "an unknown GPU and another",
        "more processes than its cores are for", "one process, which has all cores", "a scheduler bound it already",
        "a scheduler left one node too few", "a node that is not there", "a node of memory only",
    ],
)  # fmt: skip
def test_processes_are_left_alone(numa_nodes, gpus_of_processes, cores_each, usable, cpulists):
    assert near_cores(gpus_of_processes, cores_each, set(usable), numa_nodes(cpulists)) == []


def test_binding_reaches_present_and_future_threads():
    usable, done = os.sched_getaffinity(0), threading.Event()
    before = threading.Thread(target=done.wait)
    before.start()
    try:
        bind({min(usable)})
        after = threading.Thread(target=done.wait)
        after.start()
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        assert {before.native_id, after.native_id} <= set(tasks)
        assert {frozenset(os.sched_getaffinity(task)) for task in tasks} == {frozenset({min(usable)})}
    finally:
        done.set()
        before.join()
        after.join()
        bind(usable)
