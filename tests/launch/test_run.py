"""Whole runs that go wrong: what is said, and what stays on disk."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpcompare import Cluster, RunConfig, RunFailedError, Workload, run
from dpcompare.config.placement import Placement
from dpcompare.errors import RequestError
from dpcompare.launch.engines import NodesEnded
from dpcompare.launch.outcome import NodeOutcome
from dpcompare.launch.plan import Endpoints, num_ports, plan, shell_script
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.launch.run import _lost_a_port, prepare_run
from dpcompare.results.events import Failed, Started, StepsTrained, Stopped, read_events
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import log_path
from dpcompare.system.ports import free_ports
from stress.injection import write_sitecustomize
from tests.support.processes import node

WORKLOAD = Workload(model="toy-cnn", image_size=32, steps=8, warmup_steps=2)


def config(framework="torch", mode="ddp", nodes=2, devices=1, **workload):
    return RunConfig(
        framework=framework,
        mode=mode,
        workload=WORKLOAD.model_copy(update=workload),
        cluster=Cluster.partition(nodes, devices, device="cpu"),
    )


@pytest.mark.parametrize(
    "said",
    [
        "DistNetworkError: The server socket has failed to listen on any local network address. port: 1, EADDRINUSE",
        "UnknownError: Could not start gRPC server",
        "add_port.cc:83] Failed to add port to server: No address added out of total 1 resolved for '127.0.0.1:1'",
    ],
    ids=["torch", "tensorflow", "jax"],
)
def test_a_port_lost_before_training_fails_no_run(said):
    result = SimpleNamespace(error=f"process 0 ended\n{said}", train_loss=[], first_step=0)
    assert _lost_a_port(result)
    assert not _lost_a_port(SimpleNamespace(error=result.error, train_loss=[2.3], first_step=0))
    assert not _lost_a_port(SimpleNamespace(error="it crashed", train_loss=[], first_step=0))


MULTI_NODE = [
    pytest.param("torch", "ddp", marks=pytest.mark.torch, id="ddp"),
    pytest.param("tensorflow", "multiworker", marks=pytest.mark.tensorflow, id="multiworker"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "mode"), MULTI_NODE)
def test_a_process_that_raises_ends_the_run_with_its_traceback(tmp_path, framework, mode):
    """Process 1 finds its store truncated when it has joined the others; process 0 waits for it in an exchange."""

    def truncate(event):
        if isinstance(event, Started) and event.process_rank == 1:
            labels = Path(json.loads((tmp_path / "run" / "config.json").read_text())["inputs"]["store"])
            (labels / "train-labels.npy").write_bytes(b"")

    request = config(framework, mode, image_size=33)
    with pytest.raises(RunFailedError) as failed:
        run(request, tmp_path / "run", observe=truncate)
    message = str(failed.value)
    assert "Traceback (most recent call last)" in message
    assert "is damaged" in message
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "is damaged" in result["error"]


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "mode"), MULTI_NODE)
def test_a_killed_process_ends_the_run_and_figures_stay(tmp_path, framework, mode):
    pids = {}

    def kill_second(event):
        if isinstance(event, Started):
            pids[event.process_rank] = event.pid
        if isinstance(event, StepsTrained) and event.process_rank == 1:
            os.kill(pids[1], signal.SIGKILL)

    with pytest.raises(RunFailedError, match=r"process 1 \(node 1, local rank 0\) ended without a message \(SIGKILL\)"):
        run(config(framework, mode, steps=100_000), tmp_path / "run", observe=kill_second)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["train_loss"]
    assert result["error"].startswith("process 1 (node 1")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


RAISE = """
def inject(module):
    import os
    rate = module.learning_rate
    def raising(workload, step, num_steps):
        if step == 3 and os.environ["RANK"] == "1":
            raise OSError("no disk in process 1")
        return rate(workload, step, num_steps)
    module.learning_rate = raising
"""


@pytest.mark.torch
@pytest.mark.slow
def test_of_spawned_processes_the_one_that_raised_is_named(tmp_path, monkeypatch):
    """torch then ends the others, which say that they were stopped."""
    write_sitecustomize(tmp_path / "fault", "dpcompare.training.loop", RAISE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fault"))
    spawned = config(nodes=1, devices=2).model_copy(update={"launcher": "spawn"})
    with pytest.raises(RunFailedError, match="no disk in process 1"):
        run(spawned, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["error"].startswith("process 1 (node 0, local rank 1,")
    assert "ended without a message" not in result["error"]
    # Or it finds first that the other end of its connection is closed.
    assert isinstance(read_events(tmp_path / "run", 1)[-1], Stopped | Failed)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "nodes"), [("single", 1), pytest.param("ddp", 2, marks=pytest.mark.long)])
def test_a_native_crash_is_told_with_its_signal_and_place(tmp_path, mode, nodes):
    """A prepared store that is cut short while it is read does so."""
    pids = {}

    def crash_first(event):
        if isinstance(event, Started):
            pids[event.process_rank] = event.pid
        if isinstance(event, StepsTrained) and event.process_rank == 0 and 0 in pids:
            os.kill(pids.pop(0), signal.SIGBUS)  # once: a second one would end it while it writes what the first is

    with pytest.raises(RunFailedError) as failed:
        run(config("torch", mode, nodes=nodes, steps=100_000), tmp_path / "run", observe=crash_first)
    message = str(failed.value)
    assert (
        "process 0 (node 0, local rank 0) ended without a message (SIGBUS): most likely a file that it reads" in message
    )
    assert "Fatal Python error: Bus error" in log_path(tmp_path / "run", 0, 0).read_text()


@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_a_run_directory_is_used_once(tmp_path):
    run(config(mode="single", nodes=1), tmp_path / "run")
    with pytest.raises(RequestError, match="already holds a run"):
        run(config(mode="single", nodes=1), tmp_path / "run")


@pytest.mark.torch
@pytest.mark.slow
def test_folders_named_like_a_framework_are_not_taken_for_it(tmp_path):
    for name in ("torch", "timm", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not the real one')")
    assert run(config(mode="single", nodes=1)).status == "completed"


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_can_be_started_outside_the_main_thread(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(config(mode="single", nodes=1), tmp_path / "run")))
    thread.start()
    thread.join(120)
    assert [result.status for result in results] == ["completed"]


@pytest.mark.torch
@pytest.mark.slow
def test_another_interpreter_can_hold_the_framework(tmp_path):
    """An environment of its own, made by a link to this one's packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join([*paths, str(Path(__file__).parents[2])]))
    python = str(tmp_path / "env" / "bin" / "python")
    other = config(mode="single", nodes=1).model_copy(update={"python": python})
    assert run(other, tmp_path / "run").status == "completed"


@pytest.mark.parametrize(
    ("framework", "mode"),
    [
        pytest.param("torch", "ddp", marks=[pytest.mark.torch, pytest.mark.long], id="ddp"),
        pytest.param("tensorflow", "multiworker", marks=pytest.mark.tensorflow, id="multiworker"),
    ],
)
@pytest.mark.slow
def test_the_shell_script_of_a_plan_does_the_same(tmp_path, framework, mode, train_once):
    run_dir = tmp_path / "run with spaces"
    request = config(framework, mode)
    node_processes = plan(request, run_dir, Endpoints(free_ports(num_ports(request))))
    script = shell_script(request, run_dir, node_processes)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    scripted = json.loads((run_dir / "result.json").read_text())
    assert scripted["train_loss"] == train_once(request)[0].train_loss
    assert scripted["status"] == "completed"


@pytest.mark.torch
@pytest.mark.slow
def test_an_interrupted_script_stops_its_processes(tmp_path):
    run_dir = tmp_path / "it's a run"
    request = config(steps=100_000)
    (tmp_path / "plan.sh").write_text(shell_script(request, run_dir, plan(request, run_dir, Endpoints(free_ports(1)))))
    script = subprocess.Popen(["bash", tmp_path / "plan.sh"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 600
    while len([path for path in run_dir.glob("events/*") if '"train"' in path.read_text()]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    script.terminate()
    stderr = script.communicate(timeout=600)[1]
    assert script.returncode == 130, stderr
    result = json.loads((run_dir / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert result["train_loss"]


@pytest.mark.process
@pytest.mark.parametrize(("second", "status"), [("true", "completed"), ("false", "failed")])
def test_the_shell_script_counts_nodes_that_end_at_once(tmp_path, second, status):
    """`wait -n` of bash forgets one of two jobs that have ended when it looks."""
    request = config()
    script = shell_script(request, tmp_path, plan(request, tmp_path, Endpoints(free_ports(1))))
    waiting = script[script.index("status=completed") : script.rindex("\n", 0, -1)]
    jobs = f"true & nodes=($!); {second} & nodes+=($!); stop_all() {{ :; }}; sleep() {{ :; }}; command sleep 0.5"
    done = subprocess.run(
        ["bash", "-c", f"{jobs}\n{waiting}\necho $status"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"{status}\n"
    assert not done.stderr


@pytest.mark.torch
@pytest.mark.slow
def test_the_shell_script_fails_when_a_process_fails(tmp_path):
    request = config()
    script = shell_script(request, tmp_path / "run", plan(request, tmp_path / "run", Endpoints(free_ports(1))))
    broken = script.replace("--node-rank 1\n", "--node-rank 9\n").replace("--node-rank 1 \\\n", "--node-rank 9 \\\n")
    assert broken != script
    done = subprocess.run(["bash", "-c", broken], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"


def test_a_run_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="run directory"):
        prepare_run(config(), tmp_path / "file")


@pytest.mark.process
@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "replaced"])
def test_a_run_directory_that_vanishes_ends_the_run_at_once(tmp_path, monkeypatch, replaced):
    """Processes go on for long without it: their files are open."""
    run_dir, began = tmp_path / "run", time.monotonic()
    sleeping = node(0, "import time; time.sleep(60)")
    monkeypatch.setattr("dpcompare.launch.attempt.plan", lambda *arguments: [sleeping])
    monkeypatch.setattr("dpcompare.launch.run.require_machine", lambda config: None)

    def remove():
        if not (tmp_path / "elsewhere").exists():
            run_dir.rename(tmp_path / "elsewhere")
            if replaced:
                run_dir.mkdir()

    with pytest.raises(RunFailedError, match="is another folder" if replaced else "is gone: it was removed") as failed:
        run(config(mode="single", nodes=1, model="mlp", image_size=8), run_dir, stopped_by=remove)
    assert "result.json cannot be written" in str(failed.value)
    assert time.monotonic() - began < 30
    assert not run_dir.exists() or not list(run_dir.iterdir())


@pytest.mark.process
def test_an_observer_that_fails_does_not_end_the_run(tmp_path, monkeypatch):
    code = f"""
    from pathlib import Path
    from dpcompare.results.events import EventLog, Stopped
    log = EventLog(Path({str(tmp_path / "run")!r}), 0)
    log.append(Stopped())
    log.append(Stopped())
    raise SystemExit(7)
    """
    monkeypatch.setattr("dpcompare.launch.attempt.plan", lambda *arguments: [node(0, code)])
    monkeypatch.setattr("dpcompare.launch.run.require_machine", lambda config: None)
    seen = []

    def fail(event):
        seen.append(event)
        raise ValueError("it cannot be shown")

    with pytest.raises(RunFailedError, match=r"process 0 .* was ended by SIGTERM"):
        run(config(mode="single", nodes=1, model="mlp", image_size=8), tmp_path / "run", observe=fail)
    assert len(seen) == 1


def placed_on_hosts(monkeypatch, engine):
    monkeypatch.setattr("dpcompare.launch.supervise.load_engine", lambda name: engine)
    monkeypatch.setattr("dpcompare.launch.supervise.LAST_WRITE_SECONDS", 0.1)
    monkeypatch.setattr("dpcompare.launch.run.require_machine", lambda config: None)
    return RunConfig(
        framework="torch",
        mode="ddp",
        workload=WORKLOAD.model_copy(update={"model": "mlp", "image_size": 8}),
        cluster=Cluster.of_machines(2, 1, device_type="cpu", num_cores=1),
        placement=Placement(engine="hosts", hosts=("a", "b")),
    )


def test_a_run_directory_that_vanishes_elsewhere_is_the_cause(tmp_path, monkeypatch):
    class Removing:
        may_queue = False

        @contextmanager
        def started(self, config, run_dir, rendezvous, report):
            run_dir.rename(tmp_path / "elsewhere")
            yield lambda: None

    placed = placed_on_hosts(monkeypatch, Removing())
    with pytest.raises(RunFailedError, match="is gone: it was removed"):
        run(placed, tmp_path / "run")


@pytest.mark.parametrize("is_written", [True, False], ids=["result written", "no result"])
def test_a_full_disk_here_is_the_cause_and_no_interruption(tmp_path, monkeypatch, is_written):
    class Idle:
        may_queue = False

        @contextmanager
        def started(self, config, run_dir, rendezvous, report):
            monkeypatch.setattr(Rendezvous, "beat", full)
            yield lambda: None

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    placed = placed_on_hosts(monkeypatch, Idle())
    monkeypatch.setattr("dpcompare.launch.rendezvous.BEAT_SECONDS", 0.1)
    if not is_written:
        monkeypatch.setattr(RunResult, "save", full)
    with pytest.raises(OSError if is_written else RunFailedError, match="No space left on device"):
        run(placed, tmp_path / "run")
    if is_written:  # a study makes it again
        ended = RunResult.load(tmp_path / "run")
        assert (ended.status, ended.error) == ("interrupted", "OSError: [Errno 28] No space left on device")


@pytest.mark.seconds
@pytest.mark.slow
def test_nodes_hear_of_a_launcher_whose_output_is_held_up(tmp_path, monkeypatch):
    """A terminal in which a user has pressed Ctrl-S does so."""
    beats = []

    class HeldUp:
        may_queue = False

        @contextmanager
        def started(self, config, run_dir, rendezvous, report):
            def poll_exit():
                for _ in range(2):
                    beats.append(next(run_dir.glob("nodes/*/alive")).stat().st_mtime_ns)
                    time.sleep(1)
                return NodesEnded(why="its output was held up")

            yield poll_exit

    monkeypatch.setattr("dpcompare.launch.rendezvous.BEAT_SECONDS", 0.1)
    with pytest.raises(RunFailedError, match="its output was held up"):
        run(placed_on_hosts(monkeypatch, HeldUp()), tmp_path / "run")
    assert beats[0] < beats[1]


@pytest.mark.seconds
@pytest.mark.slow
def test_the_result_is_written_before_an_engine_cleans_up(tmp_path, monkeypatch):
    """Which takes minutes where a scheduler does not answer; they are no part of the run either."""
    there = []

    class SlowEngine:
        may_queue = False

        @contextmanager
        def started(self, config, run_dir, rendezvous, report):
            rendezvous.write_outcome(NodeOutcome(node_rank=0, host="here", time=time.time(), status=7))
            rendezvous.write_outcome(NodeOutcome(node_rank=1, host="there", time=time.time(), status=None))
            yield lambda: None
            there.append((run_dir / "result.json").is_file())
            time.sleep(2)

    placed = placed_on_hosts(monkeypatch, SlowEngine())
    with pytest.raises(RunFailedError):
        run(placed, tmp_path / "run")
    assert there == [True]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["wall_seconds"] < 2
