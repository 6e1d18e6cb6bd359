"""Starting, watching and stopping real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpcompare.launch import local as launcher
from dpcompare.launch.outcome import Deadlines, LaunchOutcome
from dpcompare.results.events import Started, StepsTrained
from dpcompare.system.ports import free_ports
from dpcompare.system.signals import terminated_as_interrupted
from tests.support.command import with_default_signals
from tests.support.processes import SLEEP_AND_TELL, launch, node, wait_until


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.process
def test_all_nodes_end_with_their_own_environment_and_log(tmp_path):
    code = "import os; print('node', os.environ['NAME'])"
    outcome = launch(tmp_path, node(0, code, NAME="zero"), node(1, code, NAME="one"))
    assert outcome.nodes == {0: 0, 1: 0}
    assert not outcome.failed
    assert (tmp_path / "logs" / "node1.log").read_text() == "node one\n"


@pytest.mark.process
def test_the_first_failure_stops_the_others(tmp_path):
    start = time.monotonic()
    pid_file = tmp_path / "pid"
    sleeper = node(0, SLEEP_AND_TELL, PID_FILE=str(pid_file))
    failing = node(
        1, f"import os, sys, time\nwhile not os.path.exists({str(pid_file)!r}): time.sleep(.01)\nsys.exit(7)"
    )
    assert launch(tmp_path, sleeper, failing).nodes == {1: 7}
    assert time.monotonic() - start < 30
    assert not is_running(int(pid_file.read_text()))


INTERRUPTED_IN_A_FORK = """
import os, signal, sys
from pathlib import Path
from dpcompare.launch import local as launcher
from tests.support.processes import GENEROUS, SLEEP_AND_TELL, launch, node
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
try:
    launch(Path.cwd(), *(node(rank, SLEEP_AND_TELL, PID_FILE=f"pid{rank}") for rank in range(2)))
except KeyboardInterrupt:
    sys.exit("interrupted")
"""


@pytest.mark.process
def test_a_signal_that_comes_during_a_fork_is_not_lost(tmp_path):
    """The trap: Python calls its hooks of a fork, and what a signal raises in one is printed and thrown away."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_A_FORK],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=with_default_signals,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stderr == "interrupted\n"
    assert not (tmp_path / "pid1").exists()


INTERRUPTED_IN_POLL = """
import signal, sys, threading
from pathlib import Path
from dpcompare.launch import local as launcher
from dpcompare.system.signals import terminated_as_interrupted
from tests.support.processes import SLEEP_AND_TELL, launch, node

class InterruptingLock:
    '''Popen's, which gets a signal between its return from `acquire` and the `try` that would release it.'''
    def __init__(self):
        self.lock = threading.Lock()
        self.release = self.lock.release
    def acquire(self, *arguments):
        got = self.lock.acquire(*arguments)
        if got and Path("pid").exists() and not Path("sent").exists():
            Path("sent").touch()
            signal.raise_signal(signal.Signals[sys.argv[1]])
        return got
    def __enter__(self):
        return self.lock.__enter__()
    def __exit__(self, *error):
        self.lock.release()

start = launcher._start

def start_with_lock(*arguments):
    process = start(*arguments)
    process._waitpid_lock = InterruptingLock()
    return process

def expired(number, frame):
    raise TimeoutError

launcher._start = start_with_lock
signal.signal(signal.SIGALRM, expired)
try:
    with terminated_as_interrupted():
        launch(Path.cwd(), node(0, SLEEP_AND_TELL, PID_FILE="pid"))
except (KeyboardInterrupt, TimeoutError) as error:
    sys.exit(type(error).__name__)
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGALRM"])
def test_a_signal_within_poll_does_not_leave_its_lock_taken(tmp_path, name):
    """The trap: what a handler raises there makes the next wait for that process last forever."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_POLL, name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=with_default_signals,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stderr == ("TimeoutError\n" if name == "SIGALRM" else "KeyboardInterrupt\n")
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.process
def test_a_process_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "SIGTERM_SECONDS", 0.3)
    ready = tmp_path / "ready"
    deaf = node(
        0,
        f"""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open({str(ready)!r}, 'w')
        time.sleep(60)
        """,
    )
    failing = node(1, f"import os, sys, time\nwhile not os.path.exists({str(ready)!r}): time.sleep(.01)\nsys.exit(1)")
    assert launch(tmp_path, deaf, failing).nodes == {1: 1}


@pytest.mark.process
def test_children_of_a_node_process_end_with_it(tmp_path):
    pid_file = tmp_path / "pid"
    parent = node(
        0,
        f"""
        import os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", {SLEEP_AND_TELL!r}])
        while not os.path.exists({str(pid_file)!r}): time.sleep(.01)
        os._exit(3)
        """,
        PID_FILE=str(pid_file),
    )
    assert launch(tmp_path, parent).nodes == {0: 3}
    wait_until(lambda: not is_running(int(pid_file.read_text())))


@pytest.mark.process
def test_variables_of_an_outer_launcher_do_not_get_through(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("LOCAL_RANK", "3")
    launch(tmp_path, node(0, "import os; print('TF_CONFIG' in os.environ, 'LOCAL_RANK' in os.environ)"))
    assert (tmp_path / "logs" / "node0.log").read_text() == "False False\n"


STARTED = 'Started(pid=os.getpid(), host="here", node_rank=0, local_rank=0, devices=["cpu:0"])'


@pytest.mark.process
def test_events_reach_the_observer(tmp_path):
    code = f"""
    import os
    from pathlib import Path
    from dpcompare.results.events import EventLog, Started
    log = EventLog(Path({str(tmp_path)!r}), 0)
    log.append({STARTED})
    """
    seen = []
    launch(tmp_path, node(0, code), observe=seen.append)
    assert [type(event) for event in seen] == [Started]


@pytest.mark.process
@pytest.mark.parametrize(
    ("last_word", "vanished"), [('Failed(message="", traceback="")', []), ("Stopped()", []), (None, [0])]
)
def test_a_process_that_ends_without_a_last_word_is_named(tmp_path, last_word, vanished):
    code = f"""
    import os, time
    from pathlib import Path
    from dpcompare.results.events import EventLog, Failed, Started, Stopped
    log = EventLog(Path({str(tmp_path)!r}), 0)
    log.append({STARTED})
    time.sleep(0.3)
    if {last_word is not None}:
        log.append({last_word})
    os._exit(1)
    """
    assert launch(tmp_path, node(0, code)).vanished == vanished


@pytest.mark.process
def test_a_reason_from_outside_stops_the_launch(tmp_path):
    outcome = launch(tmp_path, node(0, "import time; time.sleep(60)"), stopped_by=lambda: "no end after 3 s")
    assert (outcome.nodes, outcome.reasons, outcome.failed) == ({}, ["no end after 3 s"], True)


SLOW_AGENT = """
import os, signal, sys, time
from pathlib import Path
from dpcompare.results.events import EventLog, Started
child = os.fork()
if not child:
    EventLog(Path({folder!r}), 0).append({started})
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
Path({folder!r}, "killed").touch()
time.sleep(0.5)
sys.exit(128 + signal.SIGKILL)
"""


@pytest.mark.process
def test_who_is_interrupted_still_knows_what_has_happened(tmp_path):
    """Slurm ends such a node, since a process of another failed by the end of one here."""

    def interrupt():
        if (tmp_path / "killed").exists():
            raise KeyboardInterrupt

    outcome = LaunchOutcome()
    with pytest.raises(KeyboardInterrupt):
        launch(
            tmp_path,
            node(0, SLOW_AGENT.format(folder=str(tmp_path), started=STARTED)),
            stopped_by=interrupt,
            outcome=outcome,
        )
    assert (outcome.vanished, outcome.nodes) == ([0], {0: 128 + signal.SIGKILL})


SILENT = """
import os, time
from pathlib import Path
from dpcompare.results.events import Alive, EventLog, Started, StepsTrained
log = EventLog(Path({folder!r}), 0)
log.append({started})
if {steps}:
    seconds = dict.fromkeys(("step_seconds", "data_seconds", "host_overhead_seconds"), [1.0])
    log.append(StepsTrained(step={steps}, losses=[1.0], global_counts=[1], **seconds))
for _ in range({half_seconds}):
    time.sleep(0.5)
    if {alive}:
        log.append(Alive())
"""


def silent(folder, *, steps, alive, half_seconds=4):
    return SILENT.format(folder=str(folder), started=STARTED, steps=steps, alive=alive, half_seconds=half_seconds)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "alive", "half_seconds", "deadlines", "stalls"),
    [
        # Signs of life are no step. The time of the start counts, which is seconds on a busy machine.
        (0, True, 60, {"start": 6, "progress": 60}, True),
        (3, False, 60, {"start": 60, "progress": 1.2}, True),
        (3, True, 8, {"start": 60, "progress": 3}, False),
        (0, False, 4, {"start": 60, "progress": 0.1}, False),
    ],
)
def test_a_silent_process_is_stopped_at_its_deadline(tmp_path, steps, alive, half_seconds, deadlines, stalls):
    code = silent(tmp_path, steps=steps, alive=alive, half_seconds=half_seconds)
    outcome = launch(tmp_path, node(0, code), deadlines=Deadlines(**deadlines))
    assert [(stall.process_rank, stall.state) for stall in outcome.stalled] == ([(0, "waiting")] if stalls else [])
    assert outcome.failed == stalls


@pytest.mark.process
@pytest.mark.slow
def test_a_node_process_that_outlives_the_work_is_told(tmp_path):
    last = "from dpcompare.results.events import Ended\nlog.append(Ended())\ntime.sleep(60)\n"
    code = silent(tmp_path, steps=3, alive=False, half_seconds=1) + last
    outcome = launch(tmp_path, node(0, code), deadlines=Deadlines(start=60, progress=2.5))
    assert [stall.state for stall in outcome.stalled] == ["done, but its node process had not exited"]


@pytest.mark.process
@pytest.mark.slow
def test_a_process_is_not_silent_while_its_observer_is_held_up(tmp_path):
    """A terminal in which a user has pressed Ctrl-S does so."""
    code = silent(tmp_path, steps=3, alive=True)

    def hold_up(event):
        if isinstance(event, StepsTrained):
            time.sleep(2)

    outcome = launch(tmp_path, node(0, code), observe=hold_up, deadlines=Deadlines(start=60, progress=1.2))
    assert (outcome.stalled, outcome.nodes) == ([], {0: 0})


@pytest.mark.process
@pytest.mark.slow
def test_a_stopped_process_is_told_and_ended(tmp_path):
    code = silent(tmp_path, steps=3, alive=True)
    pids = []

    def stop(event):
        if isinstance(event, StepsTrained):
            os.kill(pids[0], signal.SIGSTOP)
        elif isinstance(event, Started):
            pids.append(event.pid)

    outcome = launch(tmp_path, node(0, code), observe=stop, deadlines=Deadlines(start=60, progress=2))
    assert [stall.state for stall in outcome.stalled] == ["stopped by a signal"]
    assert not is_running(pids[0])


LAUNCH_A_SLEEPER = """
import os, sys
from pathlib import Path
from dpcompare.launch import local as launcher
from dpcompare.launch.outcome import Deadlines
from dpcompare.launch.plan import NodeProcess, TrainingProcess
run_dir = Path(sys.argv[1])
(run_dir / "logs").mkdir()
process = TrainingProcess(process_rank=0, local_rank=0, devices=("cpu:0",))
node = NodeProcess(node_rank=0, argv=(sys.executable, "-c", sys.argv[2]), env={}, processes=(process,))
launcher.launch([node], run_dir, Deadlines(start=60, progress=60))
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_child_outlives_its_launcher(tmp_path, number):
    pid_file = tmp_path / "pid"
    environment = os.environ | {"PID_FILE": str(pid_file)}
    parent = subprocess.Popen(
        [sys.executable, "-c", LAUNCH_A_SLEEPER, str(tmp_path), SLEEP_AND_TELL],
        env=environment,
        stderr=subprocess.DEVNULL,
        preexec_fn=with_default_signals,
    )
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    parent.send_signal(number)
    parent.wait(600)
    wait_until(lambda: not is_running(int(pid_file.read_text())))


def test_a_signal_that_is_ignored_stays_ignored():
    """`nohup dpcompare run` goes on when its terminal closes."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminated_as_interrupted():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_free_ports_are_distinct():
    ports = free_ports(50)
    assert len(set(ports)) == 50
