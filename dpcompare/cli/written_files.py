"""The files that `report` and `project` write, and the options that name them alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dpcompare.errors import RequestError

json_file = click.option(
    "--json",
    "as_json",
    metavar="FILE",
    is_flag=False,
    flag_value="-",
    help="All figures; - or, as the last option, no FILE is stdout.",
)
plots_dir = click.option("--plots", metavar="DIR", help="Every plot as PNG and SVG.")


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
