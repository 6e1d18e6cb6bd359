"""Signals that end a process, held back or turned into an interruption."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within this context signals that end a process wait; afterwards one that came raises KeyboardInterrupt."""
    came: list[int] = []
    try:
        with _handled_by(lambda number, frame: came.append(number), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            yield
    finally:  # also where what waited has failed
        if came:
            raise KeyboardInterrupt


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Within this context SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; ignored ones (nohup) stay so."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(interrupt, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Handle signals in this context; those that are ignored stay so."""
    wanted = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    try:
        previous = {number: signal.signal(number, handler) for number in wanted}
    except ValueError:  # not the main thread, which alone may set handlers; its owner deals with signals
        previous = {}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
