"""What a run that has ended says last: its speed, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpcompare.cli.option_values import interpreters
from dpcompare.cli.options import OPTIONS, is_given
from dpcompare.cli.output import hint
from dpcompare.config.modes import MODES
from dpcompare.errors import RequestError
from dpcompare.system.terminal_text import counted

if TYPE_CHECKING:
    from dpcompare.config.run import RunConfig
    from dpcompare.results.result import RunResult

_OF_ONE_FRAMEWORK = frozenset({"tune", "launcher", "stages", "pipeline_schedule"})
"""Options of a mode that no mode of another framework has."""


def what_next(context: click.Context, config: RunConfig, result: RunResult, run_dir: Path) -> Iterator[str]:
    """The speed of a run, and the commands that one types after it.

    Args:
        context: of the command, which knows the options that were given.
        config: of the run.
        result: of the run.
        run_dir: of the run.
    """
    if result.images_per_second is not None:
        devices = counted(len(result.device_names), "device")
        yield f"{result.framework} {result.mode} on {devices}: {result.images_per_second:.1f} images/s"
    # A resumed run has the workload of its first command, which is not known here.
    other = None if is_given(context, "resume") else _counterpart(config)
    if other and config.placement.engine == "local" and not any(is_given(context, name) for name in _OF_ONE_FRAMEWORK):
        framework, mode = other
        if _is_usable(framework, context.params.get("python") or ()):
            arms = ("--arm", f"{config.framework}:{config.mode}", "--arm", f"{framework}:{mode}")
            yield f"next: {hint('compare', *arms, *_devices(config), *_as_given(context))}   (against {framework})"
        else:
            yield f"next: {hint('setup', '--frameworks', framework)}   (to compare with {framework})"
    if config.cluster.shared:
        yield f"next: {hint('verify', '--like', run_dir, '--against', 'cpu')}   (against the CPU)"
    yield f"next: {hint('report', run_dir, '--html', 'report.html')}   (a page of this run)"


def _counterpart(config: RunConfig) -> tuple[str, str] | None:
    """The usual mode of another framework on the same devices, which is not emulated there."""
    cluster = config.cluster
    if cluster.shared:  # which is never ranked
        return None
    found = [
        (framework, name)
        for (framework, name), mode in MODES.items()
        if framework != config.framework
        and mode.by_default
        and mode.multi_device == config.mode_row.multi_device
        and (mode.multi_node or cluster.num_nodes == 1)
        and cluster.device_type in mode.device_types - mode.emulated_on
    ]
    # A process per device is what PyTorch recommends.
    return min(found, key=lambda each: MODES[each].process_per != "device", default=None)


def _is_usable(framework: str, pythons: tuple[str, ...]) -> bool:
    from dpcompare.backends.availability import require_framework

    chosen = interpreters(pythons)
    try:
        require_framework(framework, **({"python": chosen[framework]} if framework in chosen else {}))
    except RequestError:
        return False
    return True


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
