"""A deadline, by the steady clock of this machine, which nobody sets."""

from __future__ import annotations

import time


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
