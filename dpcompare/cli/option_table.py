"""Tables of options: dataclasses whose fields are rows, from which Click's decorators are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

Part = Literal["workload", "placement", "run"]
Scope = Literal["run", "study", "arm"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One row of a table of options: what Click shows, where the value goes, and where else it may be given."""

    name: str
    """In a TOML file, in DPCOMPARE_<NAME>, and of the field of its part."""
    flags: tuple[str, ...]
    """As on the command line, the usual one first."""
    settings: Mapping[str, Any]
    """Further arguments of click.option."""
    part: Part | None
    """The part of the config that has a field of this name; None: the builder derives other fields from it."""
    parse: Callable[[Any], Any] | None
    """From what was given to the value of that field; None: they are the same."""
    resumable: bool
    """Whether a run that is resumed may change it."""
    scope: Scope
    """`arm`: for all arms of a study, or for one of them. `study`: for all arms only. `run`: not of a study, which has
    several of them."""


def option(
    *,
    flags: tuple[str, ...] = (),
    part: Part | None = None,
    parse: Callable[[Any], Any] | None = None,
    resumable: bool = False,
    scope: Scope = "arm",
    **settings: Any,
) -> Any:
    """A field of a dataclass of options, with its row of the table.

    Args:
        flags: default: one made from the name of the field.
        settings: further arguments of click.option.
    """
    absent = () if settings.get("multiple") else False if settings.get("is_flag") else None
    row = {"flags": flags, "part": part, "parse": parse, "resumable": resumable, "scope": scope, "settings": settings}
    return dataclasses.field(default=settings.get("default", absent), metadata=row)


def rows_of(options: type[Any]) -> tuple[Option, ...]:
    """The table of a dataclass of options, in the order of its fields."""
    return tuple(
        Option(**{**field.metadata, "name": field.name, "flags": field.metadata["flags"] or (_flag(field.name),)})
        for field in dataclasses.fields(options)
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")  # as Click does it the other way round


def add_options(rows: Sequence[Option], *, from_environment: bool = False) -> Callable[[Command], Command]:
    """A decorator that gives a command the options of a table."""

    def decorate(command: Command) -> Command:
        for row in reversed(rows):
            variable = f"DPCOMPARE_{row.name.upper()}" if from_environment else None
            command = click.option(*row.flags, row.name, envvar=variable, **row.settings)(command)
        return command

    return decorate
