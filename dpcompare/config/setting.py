"""What a field of a config declares of itself, and the checks and messages that all configs share."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Flag, auto
from pathlib import PurePath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.python_environment import is_custom
from dpcompare.system.signals import signals_held
from dpcompare.system.type_names import FieldValue, PassedOn


def one_of(what: str, known: Iterable[str], *, or_custom: bool = False) -> Callable[[str], str]:
    """A validator of a name.

    Args:
        what: the kind of thing that is named, for the error.
        known: the names that are accepted.
        or_custom: whether `package.module:NAME` is accepted too.
    """
    names = tuple(known)

    def check(received: str) -> str:
        if received not in names and not (or_custom and is_custom(received)):
            hint = did_you_mean(received, names)
            custom = f", or a custom {what} as package.module:NAME" if or_custom else ""
            raise ValueError(f"unknown {what} {received!r}; expected one of {', '.join(names)}{custom}.{hint}")
        return received

    return check


def raise_problems(problems: list[str]) -> None:
    """Raise one ValueError that names all problems, if there are any."""
    if problems:
        raise ValueError("; ".join(problems))


def in_several_lines(value: Any, name: str) -> Iterator[str]:
    """A problem for every text in a value that has control characters, or is not text in UTF-8.

    Values end up in scripts, manifests and JSON: a line break in one of them would begin a line of its own there.
    """
    if isinstance(value, (str, PurePath)):
        if any(unicodedata.category(character) in _NOT_IN_ONE_LINE for character in str(value)):
            yield f"{name}: received {str(value)!r}; expected text in one line, of characters that can be shown"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from in_several_lines(key, name)
            yield from in_several_lines(each, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from in_several_lines(each, name)


_NOT_IN_ONE_LINE = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, lone surrogates (bytes that are not UTF-8), and separators."""


def require_one_line(path: PurePath, what: str) -> None:
    """Raise RequestError where the name of a file or folder has control characters or is not UTF-8."""
    for problem in in_several_lines(path, what):
        raise RequestError(problem)


class Config(BaseModel):
    """A part of a config: frozen, without unknown fields, and refused as the command line refuses it.

    Raises:
        RequestError: one line per problem, each named by its field.
    """

    # JSON has neither infinity nor NaN: a config with one could never be read again.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, /, **values: FieldValue) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RequestError("\n".join(_describe(each, type(self).model_fields) for each in error.errors())) from None
        except UnicodeEncodeError:  # pydantic cannot say what is wrong with a text that is not UTF-8
            raise RequestError("\n".join(p for name in values for p in in_several_lines(values[name], name))) from None

    # A model that holds this one must not call it, or the places of problems in a document would be lost.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    # Within a serializer written in Python, such as that of a placement, pydantic turns any exception into one of its
    # own: Ctrl-C would end in its traceback, instead of in the sentence that says how to go on.
    def model_dump(self, **options: Any) -> dict[str, Any]:
        """What pydantic's own method returns; signals that come meanwhile are handled afterwards."""
        with signals_held():
            return super().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """What pydantic's own method returns; signals that come meanwhile are handled afterwards."""
        with signals_held():
            return super().model_dump_json(**options)

    def changed(self, **fields: FieldValue) -> Self:
        """A copy with other values for some fields, validated like a new one; a field that was never given stays so."""
        return type(self)(**{name: value for name, value in self if name in self.model_fields_set} | fields)


def _describe(error: Any, known: Iterable[str]) -> str:
    field = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{field} is required"
    if error["type"] == "extra_forbidden":
        return f"{field} is unknown, received {error['input']!r}.{did_you_mean(field, known)}"
    message: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    if not message.startswith(_SHOULD_BE):
        return f"{field}: received {error['input']!r}: {message[0].lower()}{message[1:]}"
    expected = message.removeprefix(_SHOULD_BE)
    for theirs, ours in _BOUNDS.items():
        expected = expected.replace(theirs, ours)
    return f"{field}: received {error['input']!r}, expected {expected}"


_SHOULD_BE = "Input should be "
_BOUNDS = {
    **{"greater than or equal to": "at least", "less than or equal to": "at most"},
    **{"greater than": "a number above", "less than": "a number below"},
}
"""pydantic's words -> shorter ones."""


class Changes(Flag):
    """What may be different in two runs that differ in a setting."""

    NOTHING = 0
    SPEED = auto()
    """How fast a run is, or how that is measured; not what it learns, but for rounding."""
    STEP_TIME = auto()
    """How long a step takes or compiles."""
    BATCHES = auto()
    """The rows that the training step receives, or the rule by which they are digested."""
    FIRST_LOSS = auto()
    """The loss of the first step, and with it all that follows."""
    FIRST_GRADIENT = auto()
    """The norm of the first gradient, and what follows."""
    SECOND_LOSS = auto()
    """The first update, and what follows."""
    LATER_LOSSES = auto()
    """Updates after the first."""
    EVALUATIONS = auto()
    """Every evaluation, and no update."""
    LAST_EVALUATION = auto()
    """The evaluation at the end alone."""
    NORMALISATION = auto()
    """What is learned, only by the images that BatchNorm normalises together."""
    LEARNING = auto()
    """What is learned, in another way than these."""


MODE = "Mode and devices"
TRAINING = "Training"
EVALUATION = "Evaluation"
DATA = "Data"
MEASUREMENT = "Speed and how it is measured"
RECOVERY = "Recovery"
CLUSTERS = "Clusters and networks"
GROUPS = (MODE, TRAINING, EVALUATION, DATA, MEASUREMENT, RECOVERY, CLUSTERS)
"""In which `--help` shows the options of a run, in this order."""

Scope = Literal["run", "study", "arm"]
"""`arm`: for all arms of a study, or for one of them. `study`: for all arms only. `run`: not of a study, which has
several of them."""


@dataclass(frozen=True)
class Option:
    """The option that sets a field; its name and its type are the field's."""

    group: str
    """One of GROUPS."""
    help: str
    """What it is, without its default."""
    _: KW_ONLY
    flags: tuple[str, ...] = ()
    """The flags as on the command line, the usual one first; empty: one made from the name."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    """The choices of a field whose type is not a Literal."""
    default: str | None = None
    """The default as the help shows it where the field's own says less; empty: not at all."""
    on_gpus: str | None = None
    """The default on GPUs, see `dpcompare.config.gpu_defaults`; empty: it has one, which another option's help says."""
    resumable: bool = False
    """Whether a run that is resumed may change it."""
    scope: Scope = "arm"
    in_verify: bool = False
    """Whether `verify` takes it too."""

    def __post_init__(self) -> None:
        if self.group not in GROUPS or not self.help:
            raise TypeError(f"option {self.flags or self.help!r}: expected a help text and one of the groups {GROUPS}")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What dpcompare knows of a field."""

    changes: Changes
    same_training: bool = False
    """Whether a checkpoint may be continued with another value: data and initial weights go by their checksums, and the
    length of a training does not decide what it is so far."""
    option: Option | None = None
    """None: it cannot be typed as it is."""


def setting(
    default: FieldValue = ...,
    *,
    changes: Changes,
    same_training: bool = False,
    option: Option | None = None,
    **constraints: PassedOn,
) -> FieldValue:
    """A field of a config.

    Args:
        default: its value where nothing is given; without one the field is required.
        changes: what two runs that differ in it may differ in.
        same_training: as in Setting.
        option: that sets it.
        constraints: further arguments of pydantic's Field.
    """
    facts = Setting(changes=changes, same_training=same_training, option=option)
    if "default_factory" not in constraints:
        constraints["default"] = default
    # pydantic keeps this with the field and looks at it only when it makes a JSON schema.
    return Field(json_schema_extra={"setting": facts}, **constraints)  # type: ignore[dict-item]


def settings_of(config: type[BaseModel]) -> Mapping[str, Setting]:
    """Name -> what is known of it, of every field of a config.

    Raises:
        TypeError: a field is not made by `setting`; raised when its module is imported.
    """
    found: dict[str, Setting] = {}
    for name, field in config.model_fields.items():
        extra = field.json_schema_extra
        facts = extra.get("setting") if isinstance(extra, dict) else None
        if not isinstance(facts, Setting):
            raise TypeError(f"{config.__name__}.{name}: expected a field made by setting(), which says what it changes")
        found[name] = facts
    return found


def names_that_change(config: type[BaseModel], what: Changes) -> frozenset[str]:
    """The fields of a config that change any of these."""
    return frozenset(name for name, facts in settings_of(config).items() if facts.changes & what)
