"""Processes that end with their parent, the traps of the kernel's PR_SET_PDEATHSIG (prctl(2)), and locked folders."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from dpcompare.errors import RequestError
from dpcompare.system.cache import exclusive_lock, is_held
from dpcompare.system.processes import die_with_parent, is_alive
from tests.support.processes import launch, node, wait_until

SLEEP = "import time; time.sleep(60)"


def sleeper():
    return subprocess.Popen([sys.executable, "-c", SLEEP], preexec_fn=die_with_parent)


@pytest.mark.process
def test_it_is_bound_to_the_thread_that_started_the_process():
    """The trap: that thread ends, and the kernel kills a process whose parent is well."""
    started = []
    thread = threading.Thread(target=lambda: started.append(sleeper()))
    thread.start()
    thread.join()
    assert started[0].wait(600) == -signal.SIGKILL


@pytest.mark.process
def test_a_launch_in_a_thread_of_its_own_is_whole(tmp_path):
    """A launch waits in the thread that started its processes, so that thread outlives them."""
    ended = []
    code = "import time; time.sleep(0.5)"
    thread = threading.Thread(target=lambda: ended.append(launch(tmp_path, node(0, code), node(1, code))))
    thread.start()
    thread.join()
    assert ended[0].nodes == {0: 0, 1: 0}


PARENT_AND_CHILD = """
import os, sys, time
from dpcompare.system.processes import die_with_parent
child = os.fork()
if child == 0:
    if sys.argv[1] == "asks":
        die_with_parent()
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""


@pytest.mark.process
def test_a_command_ends_with_who_runs_it():
    """An installer is such a process, under which another would begin."""
    code = "from dpcompare.system.commands import run_command; run_command(['sh', '-c', 'echo $$ >&2; exec sleep 60'], "
    parent = subprocess.Popen(
        [sys.executable, "-c", f"{code}seconds=60, shown=True)"], stderr=subprocess.PIPE, text=True
    )
    pid = int(parent.stderr.readline())
    parent.kill()
    parent.wait()
    parent.stderr.close()
    wait_until(lambda: not is_alive(pid))


def killed_parent(asks):
    """Start a process that asked to die with its parent and has forked; kill it; returns the pid of its child."""
    argv = [sys.executable, "-c", textwrap.dedent(PARENT_AND_CHILD), asks]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
    with parent:
        child = int(parent.stdout.readline())
        wait_until(lambda: "S" in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0])
        parent.kill()
    return child


@pytest.mark.process
def test_it_is_cleared_by_fork():
    """The trap: a grandchild that did not ask lives on; hence every training process asks for itself."""
    forgotten = killed_parent("does not ask")
    assert is_alive(forgotten)
    os.kill(forgotten, signal.SIGKILL)
    asked = killed_parent("asks")
    wait_until(lambda: not is_alive(asked))


@pytest.mark.process
def test_a_parent_that_was_gone_before_is_noticed():
    """The trap: the parent ends between fork and the request, and the kernel tells of no death that was before it."""
    code = (
        "import sys; from dpcompare.system.processes import die_with_parent; die_with_parent(int(sys.argv[1])); "
        "print('alive')"
    )
    for parent, alive in ((os.getpid(), True), (1 << 22, False)):
        done = subprocess.run([sys.executable, "-c", code, str(parent)], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == ("alive" in done.stdout) == alive


def test_a_folder_that_cannot_be_locked_is_not_said_to_be_in_use(tmp_path, monkeypatch):
    """A network file system without locks, of which there is none here, answers so."""

    def flock(lock, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with (
        pytest.raises(RequestError, match="cannot be locked \\(No locks available\\)"),
        exclusive_lock(tmp_path, "in use"),
    ):
        pass
    assert not is_held(tmp_path)
