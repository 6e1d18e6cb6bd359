"""What is printed: results on stdout and the rest on stderr, and files that are written."""

from __future__ import annotations

import errno
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from dpcompare.cli.option_values import NumberWithin
from dpcompare.errors import RequestError
from dpcompare.system.terminal_text import give_up_stdout, printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from dpcompare.report.charts import Plot

Callback = TypeVar("Callback", bound=Callable[..., Any])

WIDTH_WHEN_PIPED = 200

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_NEGATIVE = 3
"""Finished, and the answer is no: a check failed, a condition held, something would break a run."""
EXIT_UNDECIDED = 4
"""Finished without an answer."""
EXIT_INTERRUPTED = 130


def stdout_console() -> Console:
    """For tables; a pipe gets them unfolded instead of cut to 80 columns."""
    return _console(width=None if sys.stdout.isatty() else WIDTH_WHEN_PIPED)


def stderr_console() -> Console:
    """For progress. Animated only on a terminal: FORCE_COLOR makes rich animate into a pipe otherwise."""
    return _console(stderr=True, force_interactive=is_animated())


def _console(**options: Any) -> Console:
    """A console that shows control characters instead of obeying them, in every text, cell and title it is given."""
    from rich.console import Console

    class PlainConsole(Console):
        def render_str(self, text: str, **style: Any) -> Text:
            return super().render_str(printable_lines(text), **style)

        def on_broken_pipe(self) -> None:  # rich would end the process with exit code 1
            raise BrokenPipeError(errno.EPIPE, "no process reads this output")

    return PlainConsole(highlight=False, markup=False, emoji=False, **options)


@contextmanager
def if_anybody_reads() -> Iterator[None]:
    """Within this context stdout may be lost: what was done stays done, and the exit code stays the same.

    A reader that has gone, as in `dpcompare compare | head -1`, has what it wanted; any other loss is reported.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        give_up_stdout()
        if not isinstance(error, BrokenPipeError):
            click.echo(f"could not write the output: {error.strerror}", err=True)


def is_animated() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def print_lines(text: str, bold: str = "") -> None:
    """Finished lines of the result; on a terminal with verdicts in colour, unless NO_COLOR forbids it.

    Args:
        text: one or several lines.
        bold: the part of them that is bold.
    """
    if not sys.stdout.isatty():
        click.echo(text)
        return
    from dpcompare.cli.emphasis import emphasised

    stdout_console().print(emphasised(text, bold), soft_wrap=True)


def print_sentence(text: str, indent: int = 0) -> None:
    """A line of the result: on a terminal in as many lines as it takes, words kept whole; in a pipe in one.

    Args:
        text: one line.
        indent: of the further lines.
    """
    text = printable(text)
    if sys.stdout.isatty():
        width = stdout_console().width
        text = textwrap.fill(
            text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
    print_lines(text)


def print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=2, allow_nan=False))


def fail(code: int, message: str, *, as_json: bool, usage: str | None = None, **context: str) -> NoReturn:
    """Say on stderr what went wrong (with --json also as one object on stdout) and exit."""
    message = printable_lines(message)
    if as_json:
        try:
            print_json({"error": {"code": code, "message": message, **context}})
        except OSError:  # a terminal that has gone, say: the exit code still shows it
            give_up_stdout()
    click.echo("".join(f"{line}\n" for line in (usage, f"error: {message}") if line), nl=False, err=True)
    sys.exit(code)


json_file = click.option(
    "--json",
    "as_json",
    metavar="FILE",
    is_flag=False,
    flag_value="-",
    help="All figures; - or, as the last option, no FILE is stdout.",
)


def _is_no_file(context: click.Context, parameter: click.Parameter, target: str | None) -> str | None:
    if target is not None and Path(target).is_file():
        raise click.BadParameter(f"received {target!r}, which is a file; expected a directory", context, parameter)
    return target


def directory_option(flag: str, help_text: str, metavar: str = "DIR") -> Callable[[Callback], Callback]:
    """An option for a directory to write to; a file is refused before anything is read."""
    return click.option(flag, metavar=metavar, callback=_is_no_file, help=help_text)


_plots_dir = directory_option("--plots", "Every plot as PDF, SVG and PNG.")
_plot_width = click.option(
    "--plot-width",
    type=NumberWithin(2, 40),
    metavar="INCHES",
    help="With --plots: how wide they are, such as 3.3 for a column of a paper.  [default: 6.5]",
)
_plot_text = click.option(
    "--plot-text",
    type=NumberWithin(4, 40),
    metavar="POINTS",
    help="With --plots: the size of their text.  [default: 9]",
)


def plot_options(command: Callback) -> Callback:
    """The options of files with plots."""
    return _plots_dir(_plot_width(_plot_text(command)))


def write_plots(target: str | None, plots: Callable[[], list[Plot]], width: float | None, text: float | None) -> None:
    """Write the files that `plot_options` ask for.

    Args:
        target: their directory; None: none are asked for.
        plots: makes what is to be drawn.
        width: in inches; None: as usual.
        text: in points; None: as usual.

    Raises:
        RequestError: it cannot be written, or sizes are given of nothing.
    """
    if target is None:
        if width is not None or text is not None:
            raise RequestError(
                "--plot-width and --plot-text: received without --plots; give the directory of the plots"
            )
        return
    from dpcompare.report.charts import Paper, write_files

    drawn = plots()
    given = {"width_inches": width, "text_points": text}
    paper = Paper(**{name: value for name, value in given.items() if value is not None})
    with writable(target):
        write_files(drawn, Path(target), paper)


def write(target: str, content: str | bytes) -> None:
    """Write to a file, or to stdout where it is called -.

    Raises:
        RequestError: it cannot be written.
    """
    if target == "-":
        click.echo(content, nl=isinstance(content, str) and not content.endswith("\n"))
        return
    with writable(target):
        Path(target).write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def writable(target: str) -> Iterator[None]:
    """Say that a target was written, or that it cannot be."""
    try:
        yield
    except OSError as error:
        raise RequestError(f"{target!r} cannot be written ({error.strerror}); choose another name") from None
    click.echo(f"wrote {target}", err=True)
