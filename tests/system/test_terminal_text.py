"""Text from outside: shown without what a terminal would obey, and in short."""

import pytest

from dpcompare.system.terminal_text import in_one_line, printable

TRACEBACK = """process 1 (node 1, local rank 0, runs/a/logs/node-1-process-0.log):
last steps: process 0: 4, process 1: 3
Traceback (most recent call last):
  File "worker.py", line 1, in <module>
    raise ValueError("too large")
ValueError: too large
what process 0 wrote is damaged from some point on: its event file"""
KILLED = """process 0 (node 0, local rank 0) was killed by SIGKILL
last steps: process 0: 4
  the end of its log:
    2026-11-22 I tensorflow: oneDNN is on"""


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (TRACEBACK, "ValueError: too large"),
        (KILLED, "process 0 (node 0, local rank 0) was killed by SIGKILL"),
        ("process 0 (log):\nlast steps: process 0: 4", "process 0 (log):"),
        ("OSError: no space", "OSError: no space"),
        (None, ""),
    ],
    ids=["traceback", "signal", "nothing more", "one line", "none"],
)
def test_an_error_in_one_line_is_its_cause(error, short):
    assert in_one_line(error) == short


def test_control_characters_are_shown():
    assert printable("a\x1b[31mb\n") == "a\\x1b[31mb\\n"
