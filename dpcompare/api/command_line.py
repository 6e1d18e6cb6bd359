"""Python's arguments as those of a command, so that both follow the same rules and are refused in the same words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, did_you_mean, require_type

DISPLAY_OPTIONS = {"dry_run", "as_json", "junit", "markdown"}
"""Options for what a command prints or writes at its end; in Python, `Report` does that."""


@contextmanager
def read_by(
    command: click.Command,
    arguments: Sequence[str] = (),
    workload: Workload | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[click.Context]:
    """What a command has read from these arguments, and within it the command's own words for what it refuses.

    Args:
        command: of the command line.
        arguments: that are no options.
        workload: gives the options for all of its fields that were set.
        options: name -> value, as Python has them; None is the default.

    Raises:
        RequestError: the command line would refuse them.
    """
    if workload is not None:
        require_type(workload, Workload, "workload")
    fields = {} if workload is None else {name: getattr(workload, name) for name in workload.model_fields_set}
    if twice := sorted(fields.keys() & {name for name, value in (options or {}).items() if value is not None}):
        raise RequestError(f"{', '.join(twice)}: received in the workload and as an option; expected one of them")
    argv = [*arguments, *_typed(command, fields | dict(options or {}))]
    try:
        context = command.make_context(str(command.name), argv)
        with context.scope():
            yield context
    except click.ClickException as error:
        raise RequestError(error.format_message()) from None


def _typed(command: click.Command, values: Mapping[str, Any]) -> Iterator[str]:
    options = [option for option in command.params if isinstance(option, click.Option)]
    known = {str(option.name): option for option in options if option.name not in DISPLAY_OPTIONS}
    for name, value in values.items():
        if value is None:
            continue
        if name in DISPLAY_OPTIONS:
            raise RequestError(
                f"{name}: received by {command.name}, which prints nothing in Python; expected it of a report, such as "
                'study.report().save("report.md", "report.xml")'
            )
        if name not in known:
            raise RequestError(
                f"{name}: received by {command.name}, which has no such option.{did_you_mean(name, known)}"
            )
        option = known[name]
        if option.is_flag:
            yield from _flag(option, value)
            continue
        for text in _texts(value, several=option.multiple):
            yield f"{option.opts[0]}={text}" if option.opts[0].startswith("--") else f"{option.opts[-1]}={text}"


def _flag(option: click.Option, value: Any) -> Iterator[str]:
    if not isinstance(value, bool):
        raise RequestError(f"{option.name}: received {value!r}, expected True or False")
    if value:
        yield option.opts[0]
    elif option.secondary_opts:
        yield option.secondary_opts[0]


def _texts(value: Any, *, several: bool) -> list[str]:
    """A value as it is typed: a list in one option with commas or, where one may be repeated, in several."""
    if isinstance(value, Mapping):
        parts = [f"{key}={text}" for key, text in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [text_of(part) for part in value]
    else:
        return [text_of(value)]
    return parts if several else [",".join(parts)]


def text_of(value: Any) -> str:
    """One value as it is typed."""
    return repr(value) if isinstance(value, float) else str(value)
