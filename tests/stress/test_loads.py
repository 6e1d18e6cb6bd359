"""The loads that runs are made under: they are there, and end with the script whatever ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpcompare.system.processes import is_alive
from stress.loads import BUSY, LARGEST_ARRAY, LOADS, Load, LoadEndedError, array_bytes, loaded
from tests.support.processes import wait_until

SECONDS = 60


def children():
    return list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", LOADS)
def test_a_load_is_there_within_its_context_and_not_after(name):
    cores = os.sched_getaffinity(0)
    before = children()
    with loaded(LOADS[name], seconds=SECONDS):
        processes = [pid for pid in children() if pid not in before]
        assert len(processes) == LOADS[name].processes(len(cores))
        assert all(map(is_alive, processes))
        if LOADS[name].pinned:
            assert sorted(os.sched_getaffinity(pid) for pid in processes) == sorted({core} for core in cores)
    assert not any(map(is_alive, processes))


@pytest.mark.process
def test_a_load_ends_where_the_runs_fail():
    before, processes = children(), []

    def run():
        processes.extend(pid for pid in children() if pid not in before)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), loaded(LOADS["one-loop"], seconds=SECONDS):
        run()
    assert processes
    assert not any(map(is_alive, processes))


@pytest.mark.process
def test_runs_whose_load_has_ended_are_not_made_under_it():
    ended = pytest.raises(LoadEndedError, match="ended before the runs did, after at most 1 s")
    with ended, loaded(LOADS["one-loop"], seconds=1):
        time.sleep(1.5)


@pytest.mark.process
def test_a_load_that_cannot_start_is_an_error():
    broken = Load(about="broken", code="\nraise SystemExit(1)", processes=lambda cores: 1)
    with pytest.raises(LoadEndedError, match="'broken' did not start"), loaded(broken, seconds=SECONDS):
        pytest.fail("it is there")


@pytest.mark.process
def test_a_load_ends_when_its_script_is_killed():
    code = (
        "import time; from stress.loads import LOADS, loaded\n"
        f"with loaded(LOADS['two-loops'], seconds={SECONDS}):\n"
        "    print(open(f'/proc/self/task/{__import__(\"os\").getpid()}/children').read(), flush=True); time.sleep(60)"
    )
    script = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = list(map(int, script.stdout.readline().split()))
    assert len(pids) == 2
    script.send_signal(signal.SIGKILL)
    script.communicate()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_a_load_of_too_many_processes_is_refused():
    many = Load(about="many", code=BUSY, processes=lambda cores: 1000)
    refused = pytest.raises(ValueError, match="received 1000 processes, expected at most 256")
    with refused, loaded(many, seconds=SECONDS):
        pytest.fail("it is there")


def test_an_array_is_larger_than_the_largest_cache(tmp_path):
    for index, size in enumerate(["32K", "512K", "8M"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert array_bytes(1, tmp_path) == 32 << 20
    assert array_bytes(1_000_000, tmp_path) < 1 << 20  # as much as memory has for so many
    (tmp_path / "index2" / "size").write_text("4G\n")
    assert array_bytes(1, tmp_path) <= LARGEST_ARRAY
