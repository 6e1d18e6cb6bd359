"""Rows of options, from which Click's decorators are made: of fields of the config, and of dataclasses of others."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dpcompare.cli.option_values import Names, Number
from dpcompare.config.setting import Config, Option, Scope, settings_of
from dpcompare.system.type_names import FieldValue, PassedOn

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Command = TypeVar("Command", bound=Callable[..., Any])
Options = TypeVar("Options", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True)
class OptionRow:
    """One option: what Click shows, where the value goes, and where else it may be given."""

    name: str
    """In a TOML file, in DPCOMPARE_<NAME>, and of the field of its part."""
    flags: tuple[str, ...]
    """The flags as on the command line, the usual one first."""
    group: str
    """In which `--help` shows it; empty: among the command's own."""
    settings: Mapping[str, Any]
    """Further arguments of click.option."""
    part: type[Config] | None = None
    """The part of the config that has a field of this name; None: the builder derives other fields from it."""
    parse: Callable[[Any], Any] | None = None
    """From what was given to the value of that field; None: they are the same."""
    resumable: bool = False
    """Whether a run that is resumed may change it."""
    scope: Scope = "arm"
    in_verify: bool = False
    """Whether `verify` takes it too."""
    otherwise_on_gpus: bool = False
    """Whether its default depends on the devices; see `dpcompare.config.gpu_defaults`."""


def option(
    *,
    flags: tuple[str, ...] = (),
    group: str = "",
    resumable: bool = False,
    scope: Scope = "arm",
    **settings: PassedOn,
) -> FieldValue:
    """A field of a dataclass of options that are not fields of the config, with its row.

    Args:
        flags: default: one made from the name of the field.
        group: as in OptionRow.
        resumable: as in OptionRow.
        scope: as in OptionRow.
        settings: further arguments of click.option.
    """
    absent = () if settings.get("multiple") else False if settings.get("is_flag") else None
    row = {"flags": flags, "group": group, "resumable": resumable, "scope": scope, "settings": settings}
    return dataclasses.field(default=settings.get("default", absent), metadata=row)


def rows_of(options: type[DataclassInstance]) -> tuple[OptionRow, ...]:
    """The rows of a dataclass of options, in the order of its fields."""
    return tuple(
        OptionRow(**{**field.metadata, "name": field.name, "flags": field.metadata["flags"] or (flag_of(field.name),)})
        for field in dataclasses.fields(options)
        if field.metadata
    )


def separated(options: type[Options], values: Mapping[str, FieldValue]) -> tuple[Options, dict[str, FieldValue]]:
    """The values of a command that are fields of a dataclass of options, as that dataclass, and all others."""
    own = {field.name for field in dataclasses.fields(options)}
    return (
        options(**{name: value for name, value in values.items() if name in own}),
        {name: value for name, value in values.items() if name not in own},
    )


@dataclass(frozen=True, kw_only=True)
class Typed:
    """How a field is typed whose type alone does not say so."""

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """In the place of those that follow from the field's type."""
    parse: Callable[[Any], Any] | None = None


def rows_of_fields(part: type[Config], typed: Mapping[str, Typed], prefix: str = "") -> Iterator[OptionRow]:
    """The options that set the fields of a part of the config, in their order.

    Args:
        part: of the config.
        typed: field -> how it is typed, where its type does not say so.
        prefix: of every help text.
    """
    for name, facts in settings_of(part).items():
        if (option := facts.option) is None:
            continue
        info, how = part.model_fields[name], typed.get(name, Typed())
        yield OptionRow(
            name=name,
            flags=option.flags or (flag_of(name),),
            group=option.group,
            settings={
                "help": prefix + _help(option, info),
                "metavar": option.metavar,
                **_of_type(option, info),
                **how.settings,
            },
            part=part,
            parse=how.parse,
            resumable=option.resumable,
            scope=option.scope,
            in_verify=option.in_verify,
            otherwise_on_gpus=option.on_gpus is not None,
        )


def flag_of(name: str) -> str:
    """`--learning-rate` of `learning_rate`, as Click does it the other way round."""
    return "--" + name.replace("_", "-")


def _help(option: Option, field: FieldInfo) -> str:
    """What it is, and its default."""
    default = option.default
    if default is None and not any(field.default is unset for unset in (None, False, (), PydanticUndefined)):
        default = str(field.default)
    parts = [default, f"on GPUs {option.on_gpus}" if option.on_gpus else None]
    shown = "; ".join(part for part in parts if part)
    return f"{option.help}  [default: {shown}]" if shown else option.help


def _of_type(option: Option, field: FieldInfo) -> dict[str, Any]:
    """Arguments of click.option that follow from the type of a field."""
    kinds = [_bare(kind) for kind in _alternatives(field.annotation) if kind is not type(None)]
    kind = kinds[0]
    if option.choices:
        return {"type": Names(option.choices)}
    if get_origin(kind) is Literal:
        return {"type": Names(get_args(kind))}
    if kind is bool:
        return {"default": None} if "/" in "".join(option.flags) else {"is_flag": True}
    if get_origin(kind) in (tuple, dict):
        return {"multiple": True}
    by_type: dict[Any, dict[str, Any]] = {int: {"type": int}, float: {"type": Number()}}
    return by_type.get(kind, {})


def is_list(field: FieldInfo) -> bool:
    """Whether a field holds several values."""
    return any(get_origin(kind) is tuple for kind in _alternatives(field.annotation))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def add_options(rows: Sequence[OptionRow], *, from_environment: bool = False) -> Callable[[Command], Command]:
    """A decorator that gives a command the options of a table."""

    def decorate(command: Command) -> Command:
        for row in reversed(rows):
            variable = f"DPCOMPARE_{row.name.upper()}" if from_environment else None
            command = click.option(*row.flags, row.name, envvar=variable, **row.settings)(command)
        return command

    return decorate
