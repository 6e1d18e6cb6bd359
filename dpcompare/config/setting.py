"""What a field of a config declares of itself: what it changes, and the option of the command line that sets it.

Which settings may differ between arms, be changed when a run is resumed, or be ignored where only the time of a step
counts, follows from these declarations; there are no lists of names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Flag, auto
from typing import Any, Literal

from pydantic import BaseModel, Field


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
    """As on the command line, the usual one first; empty: one made from the name."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    """Of a field whose type is not a Literal."""
    default: str | None = None
    """As the help shows it where the field's own says less; empty: not at all."""
    on_gpus: str | None = None
    """The default on GPUs, see `dpcompare.config.gpu_defaults`; empty: it has one, which another option's help says."""
    resumable: bool = False
    """Whether a run that is resumed may change it."""
    scope: Scope = "arm"
    of_verify: bool = False
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
    default: Any = ...,
    *,
    changes: Changes,
    same_training: bool = False,
    option: Option | None = None,
    **constraints: Any,
) -> Any:
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
