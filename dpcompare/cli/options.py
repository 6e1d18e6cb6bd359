"""The table of the options of a run, and commands whose help shows them in groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from dpcompare.cli import completion
from dpcompare.cli.config_file import read_config_file
from dpcompare.cli.option_table import Command, Typed, add_options, is_list, option, rows_of, rows_of_fields
from dpcompare.cli.option_values import (
    Names,
    Percentage,
    WarmupSteps,
    listed,
    parse_augmentations,
    parse_steps,
    parse_tuning,
)
from dpcompare.config.cluster import DeviceChoice
from dpcompare.config.engines import ENGINES, EngineOptions, engine_row
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.placement import Placement
from dpcompare.config.run_fields import RunFields
from dpcompare.config.setting import CLUSTERS, GROUPS, MODE, Config
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.type_names import FieldValue


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run as they were given; None where one was not given and has no default here."""

    framework: str | None = option(
        flags=("--framework", "-f"),
        group=MODE,
        resumable=True,
        scope="run",
        shell_complete=completion.frameworks,
        help=f"One of {', '.join(FRAMEWORKS)}.",
    )
    mode: str | None = option(
        flags=("--mode", "-m"),
        group=MODE,
        resumable=True,
        scope="run",
        shell_complete=completion.modes,
        help="Such as ddp or mirrored; `dpcompare modes` lists them.",
    )
    nodes: int | None = option(
        type=int,
        group=MODE,
        resumable=True,
        scope="run",
        help="How many nodes to simulate.  [default: 1; on the CPU as many as 2 replicas need]",
    )
    devices_per_node: int | None = option(
        type=int,
        group=MODE,
        resumable=True,
        scope="run",
        help="Default: the visible GPUs shared out evenly; on the CPU 1, or 2 without --nodes in a mode of one node.",
    )
    device: DeviceChoice = option(
        type=Names(get_args(DeviceChoice)),
        default="auto",
        group=MODE,
        resumable=True,
        help="auto: GPUs where there are any. cpu: simulated devices.  [default: auto]",
    )
    cores_per_node: int | None = option(
        type=int,
        group=CLUSTERS,
        resumable=True,
        help="Cores of each machine.  [default: those of the partition, or of this machine]",
    )
    gpus: str | None = option(
        metavar="0,1,...",
        group=MODE,
        resumable=True,
        scope="study",
        help="The GPUs to use; with `plan` they need not exist here.",
    )
    share_gpu: bool = option(
        is_flag=True,
        group=MODE,
        resumable=True,
        help="Put several replicas of ddp, fabric or accelerate on one GPU, over gloo: emulated, never ranked.",
    )
    engine_option: tuple[str, ...] = option(
        flags=("-o", "--engine-option"),
        multiple=True,
        metavar="NAME=VALUE",
        group=CLUSTERS,
        resumable=True,
        help="An option of the engine, such as partition=gpu; also of an engine of another package.",
    )
    python: tuple[str, ...] = option(
        multiple=True,
        metavar="FRAMEWORK=PATH",
        group=MODE,
        resumable=True,
        scope="study",
        help="Interpreter of the environment that holds a framework; also DPCOMPARE_TORCH_PYTHON and the like.",
    )
    env: tuple[str, ...] = option(
        multiple=True,
        metavar="NAME=PYTHON|NAME=VARIABLE=VALUE",
        group=MODE,
        resumable=True,
        scope="study",
        help="An environment by its name: an interpreter, variables, or both (once for each); NAME alone: one that "
        "`dpcompare setup --env` made. Arms choose it with env=NAME.",
    )
    run_dir: Path | None = option(
        type=click.Path(path_type=Path), scope="run", help="A new directory for the run.  [default: below runs/]"
    )
    environment: str | None = None
    """The name of the environment that was chosen; None: the usual one of the framework."""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Name -> value of the options that set fields of the config."""

    @property
    def stages(self) -> int | None:
        """Devices over which each replica's model is split, where that was asked for."""
        return self.fields.get("stages")

    @classmethod
    def of(cls, values: Mapping[str, FieldValue]) -> RunOptions:
        """All values of a command, by the names of its options."""
        own = {name: value for name, value in values.items() if name in _OWN}
        return cls(**own, fields={name: value for name, value in values.items() if name not in _OWN})

    def changed(self, **values: FieldValue) -> RunOptions:
        """The same with other values of some options."""
        own = {name: value for name, value in values.items() if name in _OWN}
        fields = {name: value for name, value in values.items() if name not in _OWN}
        return dataclasses.replace(self, **own, fields={**self.fields, **fields})


_OWN = frozenset(field.name for field in dataclasses.fields(RunOptions) if field.name != "fields")

TYPED: Mapping[str, Typed] = {
    "model": Typed(settings={"shell_complete": completion.models}),
    "dataset": Typed(settings={"shell_complete": completion.datasets}),
    "engine": Typed(settings={"shell_complete": completion.engines}),
    "warmup_steps": Typed(settings={"type": WarmupSteps()}),
    "target_accuracy": Typed(settings={"type": Percentage()}),
    "augment": Typed(settings={"multiple": False}, parse=parse_augmentations),
    "hosts": Typed(settings={"multiple": False}, parse=listed),
    "profile_steps": Typed(settings={"multiple": False}, parse=parse_steps),
    "tune": Typed(parse=parse_tuning),
}
"""Field -> how it is typed and completed, where its type does not say so."""

_ENGINE_OPTIONS = {row.options: name for name, row in ENGINES.items() if row.options is not EngineOptions}
"""The options of an engine -> its name."""

_PARTS: tuple[type[Config], ...] = (Workload, RunFields, Placement)

OPTIONS = (
    *rows_of(RunOptions),
    *(row for part in _PARTS for row in rows_of_fields(part, TYPED)),
    *(row for part, name in _ENGINE_OPTIONS.items() for row in rows_of_fields(part, TYPED, f"With --engine {name}: ")),
)


def values_of(part: type[Config], options: RunOptions, given: Container[str] | None = None) -> dict[str, FieldValue]:
    """Field -> value of a part of the config.

    Args:
        part: Workload, RunFields, Placement, or the options of an engine.
        options: as they were given.
        given: names of the options to take; default: all that have a value.

    Raises:
        RequestError: a value cannot be parsed.
    """
    values = {}
    for row in OPTIONS:
        value = options.fields.get(row.name)
        if row.part is part and value is not None and (given is None or row.name in given):
            values[row.name] = row.parse(value) if row.parse else value
    return values


def placement_values(
    options: RunOptions, given: Container[str] | None = None, *, engine: str = "local"
) -> dict[str, FieldValue]:
    """What Placement takes: the engine and its options, those of `-o NAME=VALUE` included.

    Args:
        options: as they were given.
        given: as for `values_of`.
        engine: whose options these are where none is given.

    Raises:
        RequestError: a value cannot be parsed, is given twice, or is not an option of the engine.
    """
    values = values_of(Placement, options, given)
    for part in _ENGINE_OPTIONS:
        engine_values = values_of(part, options, given)
        values |= engine_values if given else {name: value for name, value in engine_values.items() if value}
    if given is None or "engine_option" in given:
        engine = values.get("engine", engine)
        for name, texts in _by_name(options.engine_option).items():
            if name in values:
                raise RequestError(f"-o: received {name}={texts[0]}, but --{name} was given too; expected one of them")
            values[name] = _of_type(texts, engine, name)
    return values


def engine_option_names(options: RunOptions) -> frozenset[str]:
    """The names in `-o NAME=VALUE`."""
    return frozenset(_by_name(options.engine_option))


def _by_name(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Name -> what was typed, once or several times."""
    found: dict[str, list[str]] = {}
    for text in pairs:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise RequestError(f"-o: received {text!r}, expected NAME=VALUE such as partition=gpu")
        found.setdefault(name.replace("-", "_"), []).append(value)
    return found


def _of_type(texts: list[str], engine: str, name: str) -> Any:
    """What was typed, as a field of this name takes it: pydantic reads all but lists from text."""
    fields = engine_row(engine).options.model_fields
    if name not in fields:
        expected = f"expected one of {', '.join(fields)}" if fields else "expected none"
        raise RequestError(
            f"-o: received {name}={texts[0]} with engine {engine}, which has no such option; {expected}."
            f"{did_you_mean(name, fields)}"
        )
    if (how := TYPED.get(name)) and how.parse:
        return how.parse(",".join(texts))
    if is_list(fields[name]):
        return tuple(texts)
    if len(texts) > 1:
        raise RequestError(f"-o: received {name}={texts[0]} and {name}={texts[1]}; expected one value")
    return texts[0]


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option stands on the command line, or in the file of --config."""
    return context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def run_options(command: Command) -> Command:
    """All options of a run; each is also read from DPCOMPARE_<NAME> and from the file given by --config."""
    command = add_options(OPTIONS, from_environment=True)(command)
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="DPCOMPARE_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=read_config_file,
        help="TOML file with options by their names, such as global_batch_size = 32.",
    )(command)


def study_options(command: Command) -> Command:
    """The options of a run that a study gives to all of its arms."""
    return add_options([row for row in OPTIONS if row.scope != "run"], from_environment=True)(command)


OPTION_GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(row.name for row in OPTIONS if row.group == group) for group in GROUPS
}
"""Title -> names of options, both in the order in which they are shown."""


ROWS_OF_ARMS = tuple(row for row in OPTIONS if row.scope != "run" or row.name in ("nodes", "devices_per_node"))
"""Options of a run that a command has whose arguments are one or two arms."""
AS_TYPED = "dpcompare.typed"
"""Where the context of a GroupedCommand has its arguments as they were typed."""


class GroupedCommand(click.Command):
    """A command whose help shows its own options first, and those of a run in groups."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, and keep them as they were typed."""
        context.meta[AS_TYPED] = tuple(args)
        return super().parse_args(context, args)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help."""
        records = {
            parameter.name: record
            for parameter in self.get_params(context)
            if isinstance(parameter, click.Option)  # arguments are in the usage, with what the docstring says of them
            and (record := parameter.get_help_record(context)) is not None
        }
        grouped = {
            title: [records.pop(name) for name in names if name in records] for title, names in OPTION_GROUPS.items()
        }
        for title, lines in {"Options": list(records.values()), **grouped}.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
