"""The commands of a run as one types them, from its config."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from dpcompare.cli.option_table import OptionRow
from dpcompare.cli.options import OPTIONS
from dpcompare.cli.output import hint
from dpcompare.config.engines import ENGINES
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import RunFields
from dpcompare.config.tuning import tuning_options
from dpcompare.config.validation import Config
from dpcompare.config.workload import Workload


def command_of(config: RunConfig, changes: Mapping[str, str]) -> str:
    """`dpcompare run` with the options that differ from the defaults, some of them changed.

    Args:
        config: of the run.
        changes: name of an option -> what it is to be instead. Another framework has another interpreter, and other
            settings.
    """
    options = dict(changes)
    framework, mode = options.pop("framework", config.framework), options.pop("mode", config.mode)
    left_out = ("python", "tune") if framework != config.framework else ()
    kept = {name: values for name, values in _options(config) if name not in left_out}
    return hint("run", f"{framework}:{mode}", *_arguments(kept | {name: [value] for name, value in options.items()}))


def autotune_command_of(config: RunConfig) -> str | None:
    """`dpcompare compare --autotune` of the native profile of a run; None where that has no settings to try."""
    settings = tuning_options(config.framework, config.mode, config.cluster.device_type, config.workload)
    if all(setting.changes_precision for setting in settings.values()):
        return None
    rows = {row.name for row in OPTIONS if row.scope != "run"} | {"nodes", "devices_per_node"}
    given = {name: values for name, values in _options(config) if name in rows - {"profile", "tune"}}
    arm = f"{config.framework}:{config.mode},profile=native"
    return hint("compare", "--arm", arm, *_arguments(given), "--autotune")


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
    """Name -> values of what a run was asked for, beside framework and mode."""
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
    if config.python != sys.executable:
        yield "python", [f"{config.framework}={config.python}"]
    placement = config.placement
    parts: dict[type[Config], Config] = {Workload: config.workload, RunFields: config, Placement: placement}
    parts[type(placement.options)] = placement.options
    if placement.engine not in ENGINES:
        yield "engine_option", [f"{name}={value}" for name, value in placement.options]
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
    return [*value] if row.settings.get("multiple") else [",".join(value) or "none"]
