"""Signals that are held back, and commands that they end."""

import os
import signal
import subprocess
import threading
import time

import pytest

from dpcompare.system.commands import run_command
from dpcompare.system.signals import signals_held, terminated_as_interrupted


@pytest.fixture(autouse=True)
def _signals_of_a_terminal():
    """Tests may run under nohup or in the background of a shell, where signals are ignored."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_that_come_together_are_one_interruption():
    with signals_held() as signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signals.deliver()
        assert not signals.is_interrupted


def test_a_signal_that_is_sent_again_and_again_gets_through():
    """A full pipe may hold up what is printed while signals are held."""
    with signals_held() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signals.deliver()


def test_a_held_signal_is_handled_where_it_is_delivered():
    with signals_held() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.is_interrupted
        with pytest.raises(KeyboardInterrupt):
            signals.deliver()
        assert not signals.is_interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_nobody_asked_for_is_handled_at_the_end(number):
    steps = []

    def interrupted():
        with terminated_as_interrupted(), signals_held():
            with signals_held():
                signal.raise_signal(number)
            steps.append("the end of the inner context")

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps == ["the end of the inner context"]
    assert signal.getsignal(number) == before


def test_a_handler_of_the_user_is_called_late_and_kept():
    came = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        with signals_held() as signals:
            signal.raise_signal(signal.SIGUSR1)
            assert (came, signals.is_interrupted) == ([], False)
        assert came == [signal.SIGUSR1]
        signal.raise_signal(signal.SIGUSR1)
        assert len(came) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_another_thread_signals_stay_with_the_main_one():
    held = []

    def hold():
        with terminated_as_interrupted(), signals_held() as signals:
            held.append(signals.is_interrupted)

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert held == [False]


@pytest.mark.process
def test_a_command_gets_its_input_and_gives_its_output():
    text = "x" * 1_000_000
    assert run_command(["cat"], seconds=30, text=text).stdout == text
    # A program that takes longer to read than the first look at it lasts.
    assert run_command(["sh", "-c", "sleep 0.3; exec cat"], seconds=30, text=text).stdout == text
    assert run_command(["sh", "-c", "echo wrong >&2; exit 3"], seconds=30).returncode == 3


@pytest.mark.process
def test_a_command_is_killed_at_its_limit_and_by_an_interruption():
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sleep", "60"], seconds=0.1)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_command(["sleep", "60"], seconds=50)
    assert time.monotonic() - start < 30


@pytest.mark.process
def test_a_command_that_cannot_be_killed_is_not_waited_for(monkeypatch):
    """nvidia-smi behaves so if the driver does not answer: its process ends when that does, if ever."""
    left, start = [], time.monotonic()
    monkeypatch.setattr("dpcompare.system.commands.kill_groups", left.extend)
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sleep", "60"], seconds=0.1)
    assert time.monotonic() - start < 30
    left[0].kill()
    left[0].wait()
