"""The diagnosis of a failed run: what is said of what its processes left behind."""

import signal
from types import SimpleNamespace

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.launch.failures import why_it_failed
from dpcompare.launch.outcome import LaunchOutcome, NodeOutcome, merge_outcomes
from dpcompare.results.events import EventLog, Failed
from dpcompare.results.run_dir import log_path, node_log_path

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.27 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.04 GiB is free."
)
TENSORFLOW = (
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\nDetected at node ...\n"
    "OOM when allocating tensor with shape[512,96,130,130] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
)
ABORTED = "E0000 failed to allocate 2.00GiB (2147483648 bytes) from device: RESOURCE_EXHAUSTED: : out of memory"
TRIED_AGAIN = (
    "W0000 Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.27GiB with freed_by_count=0. The caller "
    "indicates that this is not a failure, but this may mean that there could be performance gains if more memory were "
    "available."
)
REMEDY = "a GPU had too little memory: use --accumulate 2, or a smaller --global-batch-size or --image-size"


def config(mode=("torch", "ddp"), device="gpu", **workload):
    cluster = Cluster.partition(1, 2, gpus=["0", "1"]) if device == "gpu" else Cluster.partition(1, 2, device="cpu")
    return RunConfig(framework=mode[0], mode=mode[1], workload=Workload(**workload), cluster=cluster)


def raised(run_dir, config, *tracebacks):
    """What is said where each process, in this order, ended with an exception."""
    for rank, traceback in enumerate(tracebacks):
        log = EventLog(run_dir, rank)
        log.append(Failed(message="", traceback=traceback))
        log.close()
    return why_it_failed(config, run_dir, LaunchOutcome(nodes={0: 1})).splitlines()


@pytest.mark.parametrize(
    "tracebacks",
    [(TORCH,), (TENSORFLOW,), ("DistBackendError: a peer has ended", TORCH)],
    ids=["torch", "tensorflow", "after another"],
)
def test_a_gpu_without_memory_is_told_with_what_needs_less(tmp_path, tracebacks):
    cause, *_, last = raised(tmp_path, config(), *tracebacks)
    assert cause.startswith("process 0 (node 0, local rank 0")
    assert last == REMEDY


@pytest.mark.process
@pytest.mark.parametrize(("line", "is_told"), [(ABORTED, True), (TRIED_AGAIN, False), ("Segmentation fault", False)])
def test_a_process_that_crashed_is_judged_by_its_log(tmp_path, line, is_told):
    log = log_path(tmp_path, 0, 0)
    log.parent.mkdir()
    log.write_text(f"before\n{line}\nafter\n")
    outcome = LaunchOutcome(nodes={0: -signal.SIGABRT}, vanished=[0])
    said = why_it_failed(config(mode=("tensorflow", "multiworker")), tmp_path, outcome)
    assert line in said
    assert said.endswith(REMEDY) == is_told
    assert ("too little memory" in said) == is_told


NO_MORE_THREADS = [
    "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource temporarily unavailable",
    "RuntimeError: can't start new thread",
    "F0000 Check failed: ret == 0 (11 vs. 0)Thread tf_Compute creation via pthread_create() failed.",
    "fork: retry: Resource temporarily unavailable",
]


@pytest.mark.parametrize("line", NO_MORE_THREADS)
@pytest.mark.parametrize("vanished", [[], [0]], ids=["before it started", "as it trained"])
def test_refused_threads_are_told_from_anywhere_in_the_log(tmp_path, line, vanished):
    """OpenBLAS raises SIGINT, of which Python writes a traceback."""
    log = log_path(tmp_path, 0, 0) if vanished else node_log_path(tmp_path, 0)
    log.parent.mkdir(exist_ok=True)
    log.write_text("\n".join([line, *["File ..."] * 300, "KeyboardInterrupt"]))
    outcome = LaunchOutcome(nodes={0: -signal.SIGINT}, vanished=vanished)
    said = why_it_failed(config(mode=("tensorflow", "multiworker")), tmp_path, outcome).splitlines()[0]
    assert f"(SIGINT): the system refused to start another thread ({line}); raise its limit on processes" in said


def test_a_missing_thread_is_told_with_the_limit_to_raise(tmp_path):
    *_, last = raised(tmp_path / "thread", config(), f"Traceback\n  thread.start()\n{NO_MORE_THREADS[1]}")
    assert last == (
        "the system refused to start another thread (RuntimeError: can't start new thread); raise its limit on "
        "processes (ulimit -u, or the container's pids limit)"
    )
    *_, last = raised(tmp_path / "other", config(), "Traceback\nRuntimeError: another")
    assert "thread" not in last


def test_gpus_behind_an_idle_switch_are_told_what_is_missing(tmp_path):
    error = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
    *_, last = raised(tmp_path / "switch", config(), f"Traceback\n{error}")
    assert "systemctl start nvidia-fabricmanager" in last
    *_, last = raised(tmp_path / "other", config(), "Traceback\nRuntimeError: CUDA error: 700")
    assert "fabric" not in last


def test_the_limit_on_threads_is_told_once(tmp_path):
    log = log_path(tmp_path, 0, 0)
    log.parent.mkdir()
    log.write_text(NO_MORE_THREADS[0])
    events = EventLog(tmp_path, 1)
    events.append(Failed(message="", traceback=NO_MORE_THREADS[1]))
    events.close()
    outcome = LaunchOutcome(nodes={0: -signal.SIGINT, 1: 1}, vanished=[0])
    nodes = {"cluster": Cluster.partition(2, 1, device="cpu")}
    two = config(mode=("tensorflow", "multiworker")).model_copy(update=nodes)
    assert why_it_failed(two, tmp_path, outcome).count("raise its limit on processes") == 1


def test_a_killed_process_did_not_end_for_want_of_a_thread(tmp_path):
    """A library may do with fewer than it asked for."""
    log = log_path(tmp_path, 0, 0)
    log.parent.mkdir()
    log.write_text(NO_MORE_THREADS[0])
    outcome = LaunchOutcome(nodes={0: -signal.SIGKILL}, vanished=[0])
    said = why_it_failed(config(mode=("tensorflow", "multiworker")), tmp_path, outcome).splitlines()[0]
    assert "it was killed (by a signal" in said


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (-signal.SIGKILL, "memory ran out"),
        (0, "memory ran out"),  # of an agent that does not say
        (-signal.SIGBUS, "most likely a file that it reads"),
        (-signal.SIGSEGV, "it was killed (by a signal"),
    ],
)
def test_memory_is_the_cause_where_the_kernel_may_have_killed(tmp_path, status, cause):
    outcome = LaunchOutcome(nodes={0: status}, vanished=[0], out_of_memory={0})
    said = why_it_failed(config(mode=("tensorflow", "multiworker")), tmp_path, outcome)
    assert f": {cause}" in said.splitlines()[0]


def test_memory_that_ran_out_on_another_machine_is_not_the_cause(tmp_path):
    outcomes = [
        NodeOutcome(
            node_rank=rank, host=f"host{rank}", time=rank, status=-signal.SIGKILL, vanished=[rank],
            out_of_memory=rank == 1,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    of_two = config(mode=("tensorflow", "multiworker")).model_copy(
        update={"cluster": Cluster.partition(2, 1, device="cpu")}
    )
    said = why_it_failed(of_two, tmp_path, merge_outcomes(outcomes)).splitlines()
    first, second = (line for line in said if "ended without a message" in line)
    assert "node 0" in first
    assert "it was killed (by a signal" in first
    assert "node 1" in second
    assert "memory ran out" in second


def test_what_ended_machines_comes_before_what_processes_say(tmp_path):
    outcome = LaunchOutcome(nodes={0: 1}, vanished=[0], cause="Slurm job 7 was preempted")
    said = why_it_failed(config(device="cpu"), tmp_path, outcome)
    assert said.startswith("Slurm job 7 was preempted\nlast steps:")
    assert "ended without a message" in said


@pytest.mark.parametrize("left", [{"f_bavail": 0}, {"f_favail": 0}], ids=["space", "files"])
def test_a_disk_is_full_where_all_that_is_left_is_for_root(tmp_path, monkeypatch, left):
    disk = {"f_blocks": 10_000, "f_bfree": 500, "f_bavail": 500, "f_files": 10_000, "f_ffree": 500, "f_favail": 500}
    monkeypatch.setattr("os.statvfs", lambda folder: SimpleNamespace(**disk | left))
    said = why_it_failed(config(device="cpu"), tmp_path, LaunchOutcome(nodes={0: 1}, vanished=[0]))
    assert "no space left on the disk" in said


@pytest.mark.parametrize(
    ("changes", "use"),
    [
        ({"accumulate": 2}, "use --accumulate 4, or a smaller"),
        ({"accumulate": 16}, "use a smaller"),  # one image per replica and micro-batch already
        ({"mode": ("tensorflow", "keras-fit")}, "use a smaller"),
    ],
    ids=["more", "not divisible", "not of the mode"],
)
def test_only_what_the_run_could_have_is_advised(tmp_path, changes, use):
    assert use in raised(tmp_path, config(**changes), TORCH)[-1]


def test_on_the_cpu_it_is_no_gpu_that_lacks_memory(tmp_path):
    assert raised(tmp_path, config(device="cpu"), TENSORFLOW.replace("GPU", "CPU"))[-1].startswith("OOM when")
