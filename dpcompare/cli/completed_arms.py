"""The arms of a study that a shell completes: modes, and the options that an arm may have for itself."""

from __future__ import annotations

import click

from dpcompare.cli.completion import Items, named_modes, starting_with
from dpcompare.cli.options import OPTIONS


def arms(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """`torch:ddp`, then behind a comma the options that are an arm's own, and their values where there are few."""
    head, comma, change = typed.rpartition(",")
    if not comma:
        return named_modes(context, parameter, typed)
    names = {row.name: row for row in OPTIONS if row.scope == "arm"}
    name, separator, _ = change.partition("=")
    if not separator:
        return starting_with(typed, (f"{head},{name}=" for name in names))
    kind = names[name].settings.get("type") if name in names else None
    choices = kind.choices if isinstance(kind, click.Choice) else ()
    return starting_with(typed, (f"{head},{name}={choice}" for choice in choices))
