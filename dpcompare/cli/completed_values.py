"""The values that a shell completes: frameworks, modes, models, datasets, directories of runs and studies.

Click calls a completer with (context, parameter, what was typed so far). None imports a framework.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES
from dpcompare.experiments import STUDY_FILE
from dpcompare.results.run_dir import CONFIG_FILE

Items = list[CompletionItem]


def starting_with(typed: str, values: Iterable[str]) -> Items:
    """Those of some values that begin with what was typed."""
    return [CompletionItem(value) for value in values if value.startswith(typed)]


def frameworks(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Those of the table."""
    return starting_with(typed, FRAMEWORKS)


def engines(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Those of the table, and of other packages."""
    from dpcompare.config.engines import engine_names

    return starting_with(typed, engine_names())


def modes(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Of the framework that was given, or of all, with what they are."""
    given = context.params.get("framework")
    return [
        CompletionItem(mode, help=row.summary)
        for (framework, mode), row in MODES.items()
        if mode.startswith(typed) and given in (None, framework)
    ]


def named_modes(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """`torch:ddp`, as `run` takes it."""
    return [
        CompletionItem(name, help=row.summary)
        for (framework, mode), row in MODES.items()
        if (name := f"{framework}:{mode}").startswith(typed)
    ]


def models(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Those that are built in."""
    from dpcompare.models.architectures import MODELS

    return starting_with(typed, MODELS)


def datasets(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Those that are built in, and folders."""
    from dpcompare.data.built_in import BUILT_IN

    return starting_with(typed, BUILT_IN) + _folders(typed, lambda folder: True)


def runs(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """The directories of runs, also those below runs/."""
    return _folders(typed, _is_run, "runs")


def studies(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """The directories of studies, also those below studies/."""
    return _folders(typed, _is_study, "studies")


def runs_and_studies(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Both."""
    return _folders(typed, lambda folder: _is_run(folder) or _is_study(folder), "runs", "studies")


def _is_run(folder: Path) -> bool:
    return os.path.isfile(folder / CONFIG_FILE)  # noqa: PTH113 (pathlib raises in a folder that may not be read)


def _is_study(folder: Path) -> bool:
    return os.path.isfile(folder / STUDY_FILE)  # noqa: PTH113 (the same)


def _folders(typed: str, suits: Callable[[Path], bool], *usual: str) -> Items:
    """The folders that suit and begin as typed, and those in the usual places; where there are none, any folder."""
    parent = Path(typed if typed.endswith("/") else Path(typed).parent)
    places = dict.fromkeys([parent, *map(Path, usual)])
    found = {
        str(folder)
        for place in places
        if place.is_dir() and os.access(place, os.R_OK | os.X_OK)
        for folder in place.iterdir()
        if str(folder).startswith(typed) and folder.is_dir() and suits(folder)
    }
    return [CompletionItem(name) for name in sorted(found)] or [CompletionItem(typed, type="dir")]
