"""Signals, and deadlines: what ends a wait."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Deadline:
    """A moment some seconds after it was made or restarted."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.restart()

    def restart(self) -> None:
        """Have it `seconds` from now."""
        self._at = time.monotonic() + self.seconds

    def bring_forward(self, seconds: float) -> None:
        """Have it at most that many seconds from now."""
        self._at = min(self._at, time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return time.monotonic() >= self._at


Handler = Callable[[int, FrameType | None], Any] | int | None

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process by default."""

MOST_HELD = 3
"""Signals of one kind: whoever sends that many sees that nothing happens, as where a full pipe holds our output up."""


class HeldSignals:
    """Signals that came while they were held back."""

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers = handlers
        self._noted: list[int] = []

    def note(self, number: int, frame: FrameType | None) -> None:
        """Be the handler of a signal: keep it for later, but for one that is sent again and again."""
        self._noted.append(number)
        if number in ENDING and self._noted.count(number) >= MOST_HELD:
            raise KeyboardInterrupt

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal that ends a process waits to be delivered."""
        return any(number in ENDING for number in self._noted)

    def deliver(self) -> None:
        """Call the handlers of the signals that came.

        Raises:
            KeyboardInterrupt, for all signals that end a process and came until now; or whatever else a handler raises.
        """
        while self._noted:
            number = self._noted.pop(0)
            handler = self._handlers[number]
            try:
                if not callable(handler):  # the default: without a trace, and without an end for child processes
                    raise KeyboardInterrupt
                handler(number, None)
            except KeyboardInterrupt:  # those that came together are one interruption, not one of its clean-up too
                self._noted = [each for each in self._noted if each not in ENDING]
                raise


_held: HeldSignals | None = None
"""The signals held by the main thread, which alone handles signals."""


@contextmanager
def signals_held() -> Iterator[HeldSignals]:
    """Within this context a signal is only noted: it is handled where `deliver` is called, at the latest at the end.

    An exception from a signal handler can come between any two instructions, also within the standard library: after
    `Popen.poll` has taken its lock and before it would release it, so that the next wait lasts forever; or in a hook
    of a fork, where it is printed and lost. So processes are started, polled and waited for in this context only.

    Contexts may be nested: the outermost delivers. Outside the main thread, where no handler runs, nothing comes.
    """
    global _held
    if threading.current_thread() is not threading.main_thread():
        yield HeldSignals({})
    elif _held is not None:
        yield _held
    else:
        handlers = _handlers_to_replace()
        _held = held = HeldSignals(handlers)
        try:
            with _handling(dict.fromkeys(handlers, held.note)):
                yield held
        finally:
            _held = None
            held.deliver()


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Within this context SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; ignored ones (nohup) stay so."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # whose owner deals with signals
        yield
        return
    with _handling({number: interrupt for number in _handlers_to_replace() if number in ENDING[1:]}):
        yield


def _handlers_to_replace() -> dict[int, Handler]:
    """Each handler that may raise, and the default where it ends the process; ignored signals are left alone."""
    handlers: dict[int, Handler] = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {
        number: handler
        for number, handler in handlers.items()
        if callable(handler) or (number in ENDING and handler == signal.SIG_DFL)
    }


@contextmanager
def _handling(handlers: Mapping[int, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    previous = {number: signal.getsignal(number) for number in handlers}
    try:
        _set(handlers)
        yield
    finally:
        try:
            _set(previous)
        finally:  # once more: a handler that was restored first may have raised before the others were
            _set(previous)


def _set(handlers: Mapping[int, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
