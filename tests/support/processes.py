"""Real processes in the place of a run's nodes."""

import sys
import textwrap
import time

from dpcompare.launch import local as launcher
from dpcompare.launch.outcome import Deadlines
from dpcompare.launch.plan import NodeProcess, TrainingProcess


def node(rank, code, **env):
    process = TrainingProcess(process_rank=rank, local_rank=0, devices=(f"cpu:{rank}",))
    argv = (sys.executable, "-c", textwrap.dedent(code))
    return NodeProcess(node_rank=rank, argv=argv, env=env, processes=(process,))


GENEROUS = Deadlines(start=60, progress=60)


def launch(run_dir, *nodes, observe=lambda event: None, deadlines=GENEROUS, **options):
    (run_dir / "logs").mkdir(exist_ok=True)
    return launcher.launch(nodes, run_dir, deadlines, observe, **options)


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


SLEEP_AND_TELL = (
    "import os, pathlib, time; pid_file = pathlib.Path(os.environ['PID_FILE']); "
    "written = pid_file.with_name(pid_file.name + '.part'); written.write_text(str(os.getpid())); "
    "written.replace(pid_file); time.sleep(60)"
)
