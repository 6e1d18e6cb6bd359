"""What a training process sees of itself, before and after it has trained."""

import gc
import os
import threading

import pytest

from dpcompare.backends.description import Description
from dpcompare.backends.other_variables import KEY_FILE, make_key
from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.training.observer import Observer, is_bound_by_openmp, variables_of
from tests.support.numpy_backend import NumpyBackend


def config(steps=12, *, input_threads=1, **changes):
    workload = Workload(model="mlp", image_size=8, steps=steps, warmup_steps=2, **changes)
    cluster = Cluster.partition(1, 1, device="cpu", num_cores=2)
    return prepare_inputs(
        RunConfig(framework="torch", mode="single", workload=workload, cluster=cluster, input_threads=input_threads)
    )


def described(threads=2, asked=2, **changes):
    fields = {"settings": {}, "devices": [], "peak_device_memory_bytes": None, "collective": "none"}
    return Description(**fields, threads=threads, threads_asked=asked, **changes)


def observed(planned, *, steps=2, each_step=int, **description):
    """What is seen of a process that feeds itself and has made some steps."""
    observer = Observer(planned)
    for step in range(1, steps + 1):
        each_step()
        observer.after_step(step)
    return observer.observed(NumpyBackend(planned), described(**description))


@pytest.fixture
def reading():
    """Starts as many threads of the name of those that read."""
    done, threads = threading.Event(), []

    def start(count):
        for _ in range(count):
            threads.append(threading.Thread(target=done.wait, name="prefetch", daemon=True))
            threads[-1].start()

    yield start
    done.set()
    for thread in threads:
        thread.join()


def test_a_process_that_does_as_it_was_asked(reading):
    reading(1)
    seen = observed(config())
    assert (seen.threads, seen.threads_asked) == (2, 2)
    assert (seen.input_threads, seen.input_threads_asked) == (1, 1)
    assert seen.cores_at_start == seen.cores_at_end
    assert seen.niceness == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize("count", [0, 3])
def test_threads_that_read_are_counted(reading, count):
    reading(count)
    assert observed(config()).input_threads == count


def test_threads_that_may_have_read_all_are_not_counted():
    assert observed(config(steps=5)).input_threads is None
    assert observed(config(), steps=1).input_threads is None  # the warm-up has not ended


def test_a_process_that_binds_itself_is_seen(monkeypatch):
    cores = iter([{0, 1, 2}, {1}])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: next(cores))
    seen = observed(config())
    assert (seen.cores_at_start, seen.cores_at_end) == ("0-2", "1")


def test_switches_are_those_of_the_framework_and_of_python(monkeypatch):
    assert observed(config()).switches == []
    monkeypatch.setattr("sys.getprofile", lambda: print)  # what pytest-cov and debuggers set would be there too
    assert observed(config(), switches=("profiler of torch on",)).switches == [
        "profiler of torch on",
        "a function that traces Python",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "is_seen"), [(40, True), (8, False)])
def test_garbage_that_is_collected_in_each_step_is_seen(steps, is_seen):
    gc.freeze()  # what the process of the tests has loaded would be looked through in each step
    try:
        seen = observed(config(steps=40), steps=steps, each_step=gc.collect)
    finally:
        gc.unfreeze()
    assert ("garbage collected in most steps" in seen.switches) is is_seen


@pytest.mark.parametrize(
    ("variables", "is_bound"),
    [
        ({}, False),
        ({"OMP_PROC_BIND": "false", "KMP_AFFINITY": "disabled"}, False),
        ({"OMP_PROC_BIND": "close"}, True),
        ({"GOMP_CPU_AFFINITY": "0-1"}, True),
    ],
)
def test_what_openmp_binds_is_no_change(monkeypatch, variables, is_bound):
    assert is_bound_by_openmp(variables) is is_bound
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (observed(config()).cores_at_end is None) is is_bound


def test_variables_are_seen_where_the_run_has_a_key(tmp_path):
    assert variables_of(tmp_path, {"LD_PRELOAD": "x"}) is None
    make_key(tmp_path)
    seen, other = (variables_of(tmp_path, {"LD_PRELOAD": value, "PWD": "/"}) for value in "xy")
    assert list(seen.digests) == ["LD_PRELOAD"]
    assert seen.key == other.key
    assert seen.digests != other.digests
    assert (tmp_path / KEY_FILE).read_text() not in seen.model_dump_json()
