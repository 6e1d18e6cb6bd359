"""The builder of arms from the words of a command line or of a file, such as `torch:ddp,precision=bfloat16`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from dpcompare.cli import completion
from dpcompare.cli.build_config import build_config
from dpcompare.cli.config_file import names_like, read_config_file
from dpcompare.cli.option_values import interpreters, refuse_own_backend
from dpcompare.cli.options import OPTIONS, RunOptions
from dpcompare.config.modes import MODES
from dpcompare.errors import RequestError

if TYPE_CHECKING:
    from dpcompare.experiments.arms import ArmRequest
    from dpcompare.experiments.study import Arm


def completed_arms(context: click.Context, parameter: click.Parameter, typed: str) -> completion.Items:
    """`torch:ddp`, then behind a comma the options that are an arm's own, and their values where there are few."""
    head, comma, change = typed.rpartition(",")
    if not comma:
        return completion.named_modes(context, parameter, typed)
    names = {row.name: row for row in OPTIONS if row.scope == "arm" or row.name in (*OWN_TOPOLOGY, ENVIRONMENT)}
    name, separator, _ = change.partition("=")
    if not separator:
        return completion.starting_with(typed, (f"{head},{name}=" for name in names))
    kind = names[name].settings.get("type") if name in names else None
    choices = kind.choices if isinstance(kind, click.Choice) else ()
    return completion.starting_with(typed, (f"{head},{name}={choice}" for choice in choices))


OWN_TOPOLOGY = ("nodes", "devices_per_node")
"""Options of a run that an arm may have for itself, although they stand in its name as its topology."""
ENVIRONMENT = "env"
"""Names the environment of an arm, which the option of that name defines for all."""

WORDS = "dpcompare.words"
"""Key of a context's `meta`: the arms that stand on the command line without --arm, and the file of a study."""


def _completed_words(context: click.Context, parameter: click.Parameter, typed: str) -> completion.Items:
    return completed_arms(context, parameter, typed) or [CompletionItem(typed, type="file")]


def _is_arm(word: str) -> bool:
    return ":" in word and not word.endswith(".toml")


def _read_words(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> None:
    """Keep the words, and make the values of a study's file the defaults of the options."""
    context.meta[WORDS] = words
    files = [word for word in words if not _is_arm(word)]
    unlike = [word for word in files if not word.endswith(".toml") and not Path(word).exists()]
    if unlike or len(files) > 1:
        expected = ":".join(unlike) if tuple(unlike) in MODES else "arms such as torch:ddp, or one STUDY.toml"
        raise click.UsageError(f"received {', '.join(unlike or files)}; expected {expected}", context)
    read_config_file(context, parameter, Path(files[0]) if files else None)


arms_or_study_file = click.argument(
    "arms_or_study_file",
    nargs=-1,
    is_eager=True,
    expose_value=False,
    callback=_read_words,
    shell_complete=_completed_words,
    metavar="[ARM...] [STUDY.toml]",
)
"""The arguments of `compare`: arms, as for --arm, and the file of a study."""


def named_arms(context: click.Context, by_option: tuple[str, ...]) -> tuple[str, ...]:
    """All arms of a command line; those of a study's file where there is none.

    Args:
        context: of the command.
        by_option: the arms behind --arm, or in the file.
    """
    alone = tuple(filter(_is_arm, context.meta[WORDS]))
    is_of_file = context.get_parameter_source("arm") is ParameterSource.DEFAULT_MAP
    return alone if alone and is_of_file else (*alone, *by_option)


def arms_on_one_topology(requests: Sequence[ArmRequest], options: RunOptions) -> tuple[Arm, ...]:
    """The arms of a command that names each of them, on the topology of its options.

    Raises:
        RequestError: one of them cannot run here.
    """
    from dpcompare.experiments.arms import expand_arms, reasons_of

    nodes, devices = ([] if value is None else [value] for value in (options.nodes, options.devices_per_node))
    arms, refusals = expand_arms(requests, nodes or None, devices or None, interpreters(options.python))
    if refusals:
        raise RequestError("\n".join(reasons_of(refusals)))
    return arms


def arm_request(text: str, run_options: RunOptions, named_by: str = "--arm") -> ArmRequest:
    """`torch:ddp,precision=bfloat16`, with the options of all arms."""
    from dpcompare.experiments.arms import ArmRequest

    head, *own = text.split(",")
    framework, separator, mode = head.strip().partition(":")
    if not separator or not mode:
        raise RequestError(
            f"{named_by}: received {text!r}, expected FRAMEWORK:MODE[,OPTION=VALUE...] such as torch:ddp"
        )
    refuse_own_backend(head.strip(), f"{named_by}: received {text!r}", "torch:ddp,backend={}")
    parsed = [_parse_change(change, text, named_by) for change in own]
    overrides = dict(parsed)
    if len(overrides) < len(parsed):
        names = [name for name, _ in parsed]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"{named_by}: received {twice} twice in {text!r}; expected it once")
    topology = {name: overrides.pop(name) for name in OWN_TOPOLOGY if name in overrides}
    changes = _in_name(overrides)
    environment = overrides.pop(ENVIRONMENT, run_options.environment)
    options = run_options.changed(framework=framework, mode=mode, environment=environment, **overrides)
    return ArmRequest(
        text=text,
        framework=framework,
        mode=mode,
        changes=changes,
        environment=environment,
        device=options.device,
        devices_per_replica=options.stages,
        **topology,
        build=lambda nodes, devices, arms: build_config(options.changed(nodes=nodes, devices_per_node=devices), arms),
    )


def _in_name(overrides: Mapping[str, Any]) -> str:
    """What the name of an arm says of the options that are its own."""
    return "".join(
        f" {name}={'+'.join(value) if isinstance(value, tuple) else value}" for name, value in overrides.items()
    )


def option_of(typed: str) -> str:
    """The name of the option that has this flag, without its dashes; `lr` is the learning rate."""
    named = (row.name for row in OPTIONS if f"--{typed}" in row.flags)
    return next(named, typed.replace("-", "_"))


def _parse_change(change: str, text: str, named_by: str) -> tuple[str, Any]:
    """`precision=bfloat16` of an arm as the name of an option and its value."""
    key, _, value = (part.strip() for part in change.partition("="))
    name = option_of(key.replace("_", "-"))
    allowed = sorted([*(row.name for row in OPTIONS if row.scope == "arm"), *OWN_TOPOLOGY, ENVIRONMENT])
    if name == ENVIRONMENT and value:
        return name, value
    if shared := next((row for row in OPTIONS if row.name == name != ENVIRONMENT and row.scope == "study"), None):
        raise RequestError(
            f"{named_by}: received {change!r} in {text!r}, which all arms of a study share; expected {shared.flags[0]} "
            "next to the arms"
        )
    if name not in allowed:
        raise RequestError(f"{named_by}: received {change!r} in {text!r}; {names_like(name, allowed)}")
    if not value:
        raise RequestError(
            f"{named_by}: received {change!r} in {text!r}, expected OPTION=VALUE such as precision=bfloat16"
        )
    if name in OWN_TOPOLOGY:
        if not re.fullmatch("[1-9][0-9]{0,5}", value):
            raise RequestError(f"{named_by}: received {change!r} in {text!r}; expected a number such as {name}=2")
        return name, int(value)
    if next(row for row in OPTIONS if row.name == name).settings.get("multiple"):
        return name, tuple(value.split("+"))  # in the place of those for all
    if name == "augment":
        value = value.replace("+", ",")  # commas separate the options of an arm
    context = click.get_current_context()
    parameter = next(parameter for parameter in context.command.params if parameter.name == name)
    try:
        return name, parameter.type.convert(value, parameter, context)
    except click.BadParameter as error:
        raise RequestError(f"{named_by}: {text!r}: {name}: {error.message}") from None
