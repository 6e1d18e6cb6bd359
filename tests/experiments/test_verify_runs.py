"""The runs of verify: several at the same time, each group's own, and none left when it is interrupted."""

import os
import signal
import threading
import time

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RunFailedError
from dpcompare.experiments import verify_runs
from dpcompare.experiments.verify import verify
from dpcompare.experiments.verify_groups import plan_groups
from dpcompare.experiments.verify_runs import Runs, runs_at_once, until_done

GROUPS = plan_groups(
    ["torch", "tensorflow"], ["single"], model="toy-bn", replicas=[1], precisions=["float64"], quick=True
)


@pytest.fixture
def slow_runs(monkeypatch):
    """Runs of half a second in the place of real ones, unless stopped; gives how many went on, and how they wait."""
    going_on, counts, lock = set(), [], threading.Lock()
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)

    def run_side(contender, config, run_dir, stopped_by):
        with lock:
            going_on.add(contender)
            counts.append((len(going_on), os.environ.get("OMP_WAIT_POLICY")))
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not stopped_by():
            time.sleep(0.01)
        with lock:
            going_on.remove(contender)
        raise RunFailedError("the run was planned to fail", str(run_dir))

    monkeypatch.setattr(verify_runs, "run_side", run_side)
    return counts


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize(("at_once", "wait"), [(1, None), (2, "PASSIVE")])
def test_as_many_runs_as_asked_for_go_on_together(slow_runs, at_once, wait):
    checks = list(verify(GROUPS[:1], at_once=at_once))
    assert max(slow_runs) == (at_once, wait)
    assert "OMP_WAIT_POLICY" not in os.environ
    assert [(check.name, check.passed) for check in checks] == [("run", False), ("run", False)]


@pytest.fixture
def interruptible():
    """SIGINT as Python has it: tests may run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_ends_all_of_them(interruptible, slow_runs, tmp_path):
    cluster = Cluster.partition(device="cpu")
    config = RunConfig(framework="torch", mode="single", workload=Workload(model="mlp"), cluster=cluster)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Runs(1, lambda line: None) as runs:
        until_done([runs.side("first", None, config, tmp_path), *[runs.side("next", None, config, tmp_path)] * 9])
    assert time.monotonic() - begin < 0.45
    assert len(slow_runs) == 1


@pytest.mark.parametrize(
    ("device", "cores", "gigabytes", "expected"),
    [("cpu", 2, 24, 2), ("cpu", 64, 500, 8), ("cpu", 8, 17, 2), ("cpu", 2, 3, 1), ("auto", 64, 500, 8)],
)
def test_cores_and_memory_bound_the_runs_at_the_same_time(monkeypatch, device, cores, gigabytes, expected):
    monkeypatch.setattr(verify_runs.os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(verify_runs, "available_memory", lambda: gigabytes * 1e9)
    assert runs_at_once(device) == expected


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [(140e9, 140e9, 8), (80e9, 80e9, 6), (40e9, 80e9, 1), (24e9, 24e9, 2), (None, None, 1)],
)
def test_the_memory_of_gpus_bounds_them_too(monkeypatch, install_gpus, free, total, expected):
    """Together they take less than the half of which a run is refused the rest."""
    install_gpus()
    monkeypatch.setattr(verify_runs.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(verify_runs, "available_memory", lambda: 128e9)
    monkeypatch.setattr(verify_runs, "free_gpu_memory", lambda gpus: free)
    monkeypatch.setattr(verify_runs, "gpu_memory", lambda gpus: total)
    assert runs_at_once("auto") == expected
    assert runs_at_once("cpu") == 8
