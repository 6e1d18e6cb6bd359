"""A config as the command that one types, and what to do next."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpcompare.cli.option_table import OptionRow
from dpcompare.cli.option_values import interpreters
from dpcompare.cli.options import OPTIONS, is_given
from dpcompare.config.engines import ENGINES
from dpcompare.config.modes import MODES
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import RunFields
from dpcompare.config.setting import Config
from dpcompare.config.tuning import tuning_options
from dpcompare.config.workload import Workload
from dpcompare.models.libraries import library_of
from dpcompare.system.terminal_text import hint, pluralize

if TYPE_CHECKING:
    from dpcompare.experiments.comparison import Comparison
    from dpcompare.results.result import RunResult


def command_of(config: RunConfig, changes: Mapping[str, str]) -> str:
    """`dpcompare run` with the options that differ from the defaults, some of them changed.

    Args:
        config: of the run.
        changes: name of an option -> what it is to be instead. Another framework has another interpreter, and other
            settings.
    """
    options = dict(changes)
    framework, mode = options.pop("framework", config.framework), options.pop("mode", config.mode)
    left_out = ("python", "env", "tune", "backend") if framework != config.framework else ()
    kept = {name: values for name, values in _options(config) if name not in left_out}
    return hint("run", f"{framework}:{mode}", *_arguments(kept | {name: [value] for name, value in options.items()}))


def autotune_command_of(config: RunConfig) -> str | None:
    """`dpcompare compare --autotune` of the native profile of a run; None where that has no settings to try."""
    settings = tuning_options(config.framework, config.mode, config.cluster.device_type, config.workload)
    if all(setting.changes_precision for setting in settings.values()):
        return None
    rows = {row.name for row in OPTIONS if row.scope != "run"} | {"nodes", "devices_per_node"}
    given = {name: values for name, values in _options(config) if name in rows - {"profile", "tune"}}
    arm = f"{config.framework}:{config.mode},profile=native{_own(config)}"
    return hint("compare", "--arm", arm, *_arguments(given), "--autotune")


def _own(config: RunConfig) -> str:
    """The end of an arm that has an environment of its own."""
    return f",env={config.environment.name}" if config.environment else ""


def _arguments(given: Mapping[str, list[str]]) -> Iterator[str]:
    rows: dict[str, OptionRow] = {row.name: row for row in OPTIONS}
    for name, values in given.items():
        row = rows[name]
        on, _, off = row.flags[0].partition("/")
        if off or row.settings.get("is_flag"):
            yield off if values == [str(False)] else on
        else:
            for value in values:
                yield from (row.flags[0], value)


def _options(config: RunConfig) -> Iterator[tuple[str, list[str]]]:
    """Name -> values of what a run was asked for, in addition to framework and mode."""
    cluster = config.cluster
    on_gpus = cluster.device_type == "gpu"
    if config.mode_row.multi_device:
        yield "nodes", [str(cluster.num_nodes)]
        yield "devices_per_node", [str(cluster.devices_per_node)]
    yield "device", [cluster.device_type]
    if on_gpus and cluster.simulated:
        yield "gpus", [",".join(dict.fromkeys(cluster.devices))]
    if cluster.shared:
        yield "share_gpu", []
    if not cluster.simulated:
        yield "cores_per_node", [str(cluster.nodes[0].num_cores)]
    if own := config.environment:
        yield "env", own.typed(config.python)
    elif config.python != sys.executable:
        yield "python", [f"{config.framework}={config.python}"]
    placement = config.placement
    parts: dict[type[Config], Config] = {Workload: config.workload, RunFields: config, Placement: placement}
    parts[type(placement.options)] = placement.options
    if placement.engine not in ENGINES:
        yield (
            "engine_option",
            [
                f"{name}={each}"
                for name, value in placement.options
                if value != type(placement.options).model_fields[name].get_default(call_default_factory=True)
                for each in (value if isinstance(value, tuple) else (value,))
            ],
        )
    for row in OPTIONS:
        if row.part not in parts:
            continue
        value = getattr(parts[row.part], row.name)
        if value is None:
            continue
        is_default = value == row.part.model_fields[row.name].get_default(call_default_factory=True)
        if not is_default or (on_gpus and row.otherwise_on_gpus):
            yield row.name, _typed(row, value)


def _typed(row: OptionRow, value: Any) -> list[str]:
    """A value as one types it."""
    if isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    if not isinstance(value, tuple):
        return [str(value)]
    if row.name == "profile_steps":
        return [":".join(map(str, value))]
    return [*value] if row.settings.get("multiple") else [",".join(value) or "none"]


_OF_ONE_FRAMEWORK = frozenset({"tune", "launcher", "stages", "pipeline_schedule", "backend"})
"""Options of a mode that no mode of another framework has."""


def next_steps(context: click.Context, config: RunConfig, result: RunResult, run_dir: Path) -> Iterator[str]:
    """The speed of a run, and the commands that one types after it.

    Args:
        context: of the command, which knows the options that were given.
        config: of the run.
        result: of the run.
        run_dir: of the run.
    """
    if result.compared_speed is not None:
        devices = pluralize(len(result.device_names), "device")
        yield f"{result.framework} {result.mode} on {devices}: {result.compared_speed:.1f} images/s"
    # A resumed run has the workload of its first command, which is not known here.
    other = None if is_given(context, "resume") else _counterpart(config)
    if other and config.placement.engine == "local" and not any(is_given(context, name) for name in _OF_ONE_FRAMEWORK):
        framework, mode = other
        from dpcompare.backends.availability import is_usable

        python = interpreters(context.params.get("python") or ()).get(framework, sys.executable)
        if is_usable(framework, python):
            arms = ("--arm", f"{config.framework}:{config.mode}{_own(config)}", "--arm", f"{framework}:{mode}")
            yield f"next: {hint('compare', *arms, *_devices(config), *_as_given(context))}   (against {framework})"
        else:
            yield f"next: {hint('setup', '--frameworks', framework)}   (to compare with {framework})"
    if config.cluster.shared:
        yield f"next: {hint('verify', '--like', run_dir, '--against', 'cpu')}   (against the CPU)"
    yield f"next: {hint('report', run_dir, '--html', 'report.html')}   (a page of this run)"


def _counterpart(config: RunConfig) -> tuple[str, str] | None:
    """The usual mode of another framework on the same devices, which is not emulated there."""
    cluster = config.cluster
    library = library_of(config.workload.model)
    if cluster.shared:  # never ranked
        return None
    found = [
        (framework, name)
        for (framework, name), mode in MODES.items()
        if framework != config.framework
        and (library is None or framework in library.frameworks)
        and mode.by_default
        and mode.multi_device == config.mode_row.multi_device
        and (mode.multi_node or cluster.num_nodes == 1)
        and cluster.device_type in mode.device_types - mode.emulated_on
    ]
    # A process per device is what PyTorch recommends.
    return min(found, key=lambda each: MODES[each].process_per != "device", default=None)


def _devices(config: RunConfig) -> tuple[str, ...]:
    if not config.mode_row.multi_device:
        return ()
    return "--nodes", str(config.cluster.num_nodes), "--devices-per-node", str(config.cluster.devices_per_node)


def _as_given(context: click.Context) -> Iterator[str]:
    """The options of a run that a study has too, as they were given."""
    for row in OPTIONS:
        if row.scope == "run" or not is_given(context, row.name):
            continue
        value = context.params[row.name]
        flag, _, off = row.flags[0].partition("/")
        if off:
            yield flag if value else off
        elif row.settings.get("is_flag"):
            yield from [flag] if value else []
        else:
            for each in value if row.settings.get("multiple") else [value]:
                yield from (flag, str(each))


def steps_after_study(comparison: Comparison, out: Path) -> Iterator[str]:
    """What one does with a study, with the command for it.

    Args:
        comparison: of its runs.
        out: its directory.
    """
    for step in comparison.next_steps:
        minutes = "" if step.seconds is None else f"   ({step.minutes_in_words})"
        yield f"{step.name:<12}{step.command}{minutes}"
    yield _step("page", "report", out, "--html", "report.html")
    if len(comparison.arms) > 1:
        yield _step("details", "report", out, "--full")


def steps_after_report(comparison: Comparison, paths: Sequence[Path]) -> Iterator[str]:
    """What one does after a report of studies and runs."""
    from dpcompare.experiments.study import is_study

    if len(paths) == 1 and is_study(paths[0]):
        yield from steps_after_study(comparison, paths[0])
    else:
        yield _step("page", "report", *paths, "--html", "report.html")
        yield _step("details", "report", *paths, "--full")


def _step(name: str, command: str, *arguments: object) -> str:
    return f"{name:<12}{hint(command, *arguments)}"
