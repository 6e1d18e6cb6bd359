"""What is said while nothing happens: a line after some seconds, a spinner on a terminal, and never a word too many."""

import io
import sys
import time

import pytest

from dpcompare.cli import waiting as module
from dpcompare.cli.output import stderr_console
from dpcompare.cli.progress import RunProgress
from dpcompare.cli.waiting import Waiting
from tests.support.events import ready, started, trained
from tests.support.studies import arm


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "SECONDS_OF_SILENCE", 0.05)


def stderr_of(monkeypatch):
    """Not a fixture: pytest puts a stream of its own in its place between the two."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_what_takes_long_is_said_once_and_what_does_not_is_not(monkeypatch):
    stderr = stderr_of(monkeypatch)
    with Waiting(stderr_console()) as waiting:
        waiting.begin("at once")
        waiting.begin("for a while\x1b[31m")
        time.sleep(0.4)
        waiting.begin("at once again")
    time.sleep(0.2)
    assert stderr.getvalue() == "for a while\\x1b[31m ...\n"


def test_a_terminal_gets_a_spinner_that_leaves_nothing_behind(monkeypatch, capsys):
    stderr = stderr_of(monkeypatch)
    monkeypatch.setattr(stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with Waiting(stderr_console()) as waiting:
        waiting.begin("for a while")
        time.sleep(0.3)
        print("the result")
    assert "for a while" in stderr.getvalue()
    assert stderr.getvalue().endswith("\x1b[2K")
    assert capsys.readouterr().out == "the result\n"


def test_a_run_that_is_restarted_has_one_live_display_at_a_time(monkeypatch, tmp_path):
    stderr = stderr_of(monkeypatch)
    monkeypatch.setattr(stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    begun = []

    def set_live(console, live):
        """A live display that refuses a second one, like rich's before 14.1, which is admitted."""
        assert console._live_stack == []
        console._live_stack.append(live)
        begun.append(live)
        return True

    monkeypatch.setattr("rich.console.Console.set_live", set_live)
    with RunProgress(arm().config, tmp_path) as progress:
        for _ in range(2):
            for event in (started(), ready(steps=2), trained([8.0], step=1)):
                progress.observe(event)
    assert len(begun) == 5  # preparing; then importing, and the bar, of each attempt


def test_a_run_says_what_it_waits_for_from_its_first_moment(monkeypatch, tmp_path):
    stderr = stderr_of(monkeypatch)
    with RunProgress(arm().config, tmp_path) as progress:
        for event in (None, started(), ready(steps=1), trained([8.0], step=1)):
            if event:
                progress.observe(event)
            time.sleep(0.2)
    said = [line for line in stderr.getvalue().splitlines() if line.endswith(" ...")]
    assert said == [
        "preparing torch single: data, initial weights, processes ...",
        "importing torch and building the model ...",
        "in the first step, which takes longest ...",
        "evaluating, and ending the processes ...",
    ]
