"""The trials of faults themselves: each kind of failure must fail a trial."""

import random
import sys

import pytest

from stress import trials
from stress.trials import Fault, trial_of

ACTED = "import pathlib; pathlib.Path({folder!r}, 'acted').touch()"
RESULT = (
    "import json, os; os.makedirs({folder!r} + '/disk/run/logs');"
    "open({folder!r} + '/disk/run/result.json', 'w').write(json.dumps({{'status': 'failed'}}))"
)
CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True)"
LISTEN = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); time.sleep(60)"
END = "import sys; print('process 0 broke', file=sys.stderr); sys.exit(1)"
GOOD = [ACTED, RESULT, END]


def problems(monkeypatch, *code, within=5.0, code_expected=1, says="process RANK broke"):
    """Of a trial whose command runs this code."""

    def stub(framework, mode, *options):
        folder = options[-1].removesuffix("/disk/run")
        return [sys.executable, "-c", "\n".join(line.format(folder=folder) for line in code)]

    monkeypatch.setattr(trials, "command", stub)
    fault = Fault(code=code_expected, says=says, within=within, inject=lambda trial: ("nothing", ""))
    with trial_of(fault, "torch", "single", random.Random(0)) as trial:
        return trial.problems


def test_a_trial_in_which_all_is_well_has_no_problem(monkeypatch):
    assert problems(monkeypatch, *GOOD) == []


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
        ([ACTED, RESULT, "import tempfile; tempfile.mkdtemp()", END], {}, "left: /"),
        ([ACTED, RESULT, "raise ValueError"], {"says": ""}, "a traceback of the command itself"),
    ],
)  # fmt: skip
def test_what_goes_wrong_fails_a_trial(monkeypatch, code, changes, says):
    assert any(problem.startswith(says) for problem in problems(monkeypatch, *code, **changes))


def test_a_command_that_does_not_end_is_a_hang(monkeypatch):
    monkeypatch.setattr(trials, "LONGEST", 1.0)
    found = problems(monkeypatch, ACTED, RESULT, "import time; time.sleep(60)", within=0.1)
    assert "HANG" in found
