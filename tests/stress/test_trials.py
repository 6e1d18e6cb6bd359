"""The trials of faults themselves: each kind of failure must fail a trial."""

import os
import random
import socket
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from stress import trials
from stress.fault_matrix import ALL_FAULTS, parser_of_options, take_a_machine_of_its_own, tasks_of
from stress.trials import Fault, described, ports_listening, shared_memory, temporary_files, trial_of

ACTED = "import pathlib; pathlib.Path({folder!r}, 'acted').touch()"
RESULT = (
    "import json, os; os.makedirs({folder!r} + '/disk/run/logs');"
    "open({folder!r} + '/disk/run/result.json', 'w').write(json.dumps({{'status': 'failed'}}))"
)
CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True)"
LISTEN = "import socket, time; s = socket.socket(); s.bind(('127.0.0.77', 0)); s.listen(); time.sleep(60)"
SHARED = Path(f"/dev/shm/dpcompare-trial-{os.getpid()}")
SHARE = f"import pathlib; pathlib.Path('{SHARED}').touch()"
OURS = ("port 4D00007F:", f"shared memory {SHARED}")
"""Beginnings of what these tests leave; the address is 127.0.0.77, as /proc/net/tcp writes it."""
END = "import sys; print('process 0 broke', file=sys.stderr); sys.exit(1)"
GOOD = [ACTED, RESULT, END]


@pytest.fixture(autouse=True)
def nothing_shared():
    yield
    SHARED.unlink(missing_ok=True)


def problems(monkeypatch, *code, within=5.0, code_expected=1, says="process RANK broke"):
    """The outcome of a trial whose command runs this code."""

    def stub(framework, mode, *options):
        folder = options[-1].removesuffix("/disk/run")
        return [sys.executable, "-c", "\n".join(line.format(folder=folder) for line in code)]

    monkeypatch.setattr(trials, "command", stub)
    for look in (ports_listening, shared_memory):  # both see what tests alongside these do, too
        monkeypatch.setattr(trials, look.__name__, lambda look=look: {each for each in look() if each.startswith(OURS)})
    fault = Fault(code=code_expected, says=says, within=within, inject=lambda trial: ("nothing", ""))
    with trial_of(fault, "torch", "single", random.Random(0)) as trial:
        return trial.problems


@pytest.mark.process
def test_a_trial_in_which_all_is_well_has_no_problem(monkeypatch):
    assert problems(monkeypatch, *GOOD) == []


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "changes", "says"),
    [
        ([RESULT, END], {}, "the fault did not act"),
        (GOOD, {"code_expected": 130}, "exit code 1, expected 130"),
        (GOOD, {"says": "process 1 broke"}, "it does not say 'process 1 broke'"),
        ([ACTED, END], {}, "no logs"),
        ([ACTED, END], {}, "no result.json"),
        ([ACTED, RESULT.replace("'failed'", "'completed'"), END], {}, "result.json says completed"),
        ([ACTED, RESULT, CHILD.format(code="import time; time.sleep(60)"), END], {"within": 1.0}, "left: process"),
        ([ACTED, RESULT, CHILD.format(code=LISTEN), END], {"within": 1.0}, "left: port"),
        ([ACTED, RESULT, SHARE, END], {"within": 1.0}, "left: shared memory"),
        ([ACTED, RESULT, "import tempfile; tempfile.mkdtemp()", END], {}, "left: /"),
        ([ACTED, RESULT, "raise ValueError"], {"says": ""}, "a traceback of the command itself"),
    ],
)  # fmt: skip
def test_what_goes_wrong_fails_a_trial(monkeypatch, code, changes, says):
    assert any(problem.startswith(says) for problem in problems(monkeypatch, *code, **changes))


@pytest.mark.process
def test_a_command_that_does_not_end_is_a_hang(monkeypatch):
    monkeypatch.setattr(trials, "LONGEST", 1.0)
    found = problems(monkeypatch, ACTED, RESULT, "import time; time.sleep(60)", within=0.1)
    assert "HANG" in found


def listen_and_share(listening, looked):
    """In one process: be what a trial leaves, until another has looked."""
    with socket.create_server(("127.0.0.1", 0)), Path("/dev/shm/dpcompare-test").open("w"):
        assert len(ports_listening()) == len(shared_memory()) == 1
        listening.set()
        assert looked.wait(600)


def look(listening, looked):
    assert listening.wait(600)
    seen = ports_listening() | shared_memory()
    looked.set()
    return seen


@pytest.mark.root
def test_trials_side_by_side_do_not_see_what_others_leave():
    with get_context("fork").Manager() as manager:
        events = manager.Event(), manager.Event()
        with ProcessPoolExecutor(2, get_context("fork"), take_a_machine_of_its_own) as pool:
            left = pool.submit(listen_and_share, *events)
            assert pool.submit(look, *events).result(timeout=600) == set()
            left.result(timeout=600)
    assert not Path("/dev/shm/dpcompare-test").exists()


def tasks(*options, there=frozenset()):
    return tasks_of(parser_of_options().parse_args(options), there)


def test_nine_of_ten_parallel_trials_are_isolated():
    parallel = tasks("--trials", "400", "--jobs", "3")
    for task in parallel:
        fault = ALL_FAULTS[task.fault]
        assert task.isolated == (task.number % 10 != 0 and not fault.alone and not fault.on_the_machine)
    assert {task.isolated for task in parallel} == {True, False}
    assert not any(task.isolated for task in tasks("--trials", "400"))
    assert {task.number for task in tasks("--trials", "5", there={2, 3})} == {1, 4, 5}


def test_what_a_run_has_left_is_described(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("of somebody")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "within").touch()
    (tmp_path / "torchinductor_me").mkdir()
    assert {path.name: described(path) for path in temporary_files(tmp_path)} == {
        "pipe": "no regular file, or gone",
        "file": "11 bytes that begin with b'of somebody'",
        "folder": "a folder of ['within']",
    }


@pytest.mark.torch
@pytest.mark.root
@pytest.mark.long
def test_trials_are_kept_and_not_made_again(tmp_path):
    command = [sys.executable, "-m", "stress.fault_matrix", "--fault", "SIGINT", "--mode", "torch:ddp"]
    command += ["--trials", "2", "--jobs", "2", "--patience", "20", "--out", str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 of 2 trials, 0 failed" in done.stdout
    assert "[1]" not in done.stderr
