"""What a command says where nothing else is said for seconds: a spinner on a terminal, a line elsewhere."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dpcompare.cli.output import is_animated
from dpcompare.system.terminal_text import printable

SECONDS_OF_SILENCE = 3.0


class Waiting:
    """What is waited for, on stderr; use as a context manager, which ends it."""

    def __init__(self, console: Console) -> None:
        """`console` is that of stderr: what else it prints stands above the spinner."""
        self._console = console
        self._spinner: Progress | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Waiting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def begin(self, what: str) -> None:
        """Wait for `what` from now on, and for nothing else."""
        self.end()
        if is_animated():
            # Streams are left alone: a line of the result would go to stderr.
            self._spinner = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._spinner.add_task(printable(what), total=None)
            self._spinner.start()
        else:
            self._timer = threading.Timer(SECONDS_OF_SILENCE, self._say, [what])
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Say no more of it: it has come, or something else is shown."""
        if self._spinner:
            self._spinner.stop()
        if self._timer:
            self._timer.cancel()
        self._spinner = self._timer = None

    def _say(self, what: str) -> None:
        self._console.print(printable(f"{what} ..."), soft_wrap=True)
