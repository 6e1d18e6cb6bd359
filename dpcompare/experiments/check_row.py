"""One check of the fairness sheet: where its value is found, what it changes, and between which arms it may differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Flag, auto
from typing import Any

from dpcompare.config.setting import Changes
from dpcompare.config.workload import WORKLOAD_SETTINGS
from dpcompare.experiments import sheet_values as values
from dpcompare.experiments.agreement import Comparator
from dpcompare.experiments.sheet_values import Read


class Differs(Flag):
    """Between which arms a check differs by nature, so that this is not a reason against comparing them."""

    NEVER = 0
    SEEDS = auto()
    """Rounds that have seeds of their own; within a round it is the same."""
    DEVICES = auto()
    """Several devices and one."""
    SPLIT_BATCH = auto()
    """More devices that share one global batch."""
    EMULATION = auto()
    """A mode that is imitated, and one device, which needs no imitation."""
    GLOBAL_BATCH = auto()
    """A global batch that grows with the devices."""
    CLUSTERS = auto()
    """Clusters of other machines and networks."""
    MODELS = auto()
    """Models of other layers."""


@dataclass(frozen=True)
class FairnessCheck:
    """One check of the fairness sheet."""

    read: Read
    """Its value in a result; None: it was not recorded."""
    changes: Changes
    """What two runs that differ in it may differ in. What a profile or a device makes of the arithmetic is compared by
    the checks of that."""
    fix: str = ""
    """What to do about a difference; empty where it is a property of the framework or mode that is being compared."""
    _: KW_ONLY
    differs: Differs = Differs.NEVER
    compare: Comparator | None = None
    """Its own rule, where values may differ as asked for, or by rounding; None: they must be equal."""
    depends_on: Changes = Changes.NOTHING
    """The checks that change these must be equal for `compare` to expect equal values."""
    over_rounds: bool = False
    """Whether `compare` takes rounds of different seeds together, since no seed makes its values."""
    shown: Callable[[Sequence[Any]], list[Any]] | None = None
    """What the sheet shows of the values of several results, where all of each would be too much."""
    field: str = ""
    """Of the workload, and the option that sets it; empty where it is another check."""


def workload_check(
    name: str,
    read: Read | None = None,
    *,
    off: str | None = None,
    compare: Comparator | None = None,
    differs: Differs = Differs.NEVER,
) -> FairnessCheck:
    """The check of a field of the workload, which says itself what it changes.

    Args:
        name: of the field, and of the option that sets it.
        read: where what was used is recorded; default: what was asked for.
        off: its value where it is off, as results from before it was there have it too.
        compare: as in FairnessCheck.
        differs: as in FairnessCheck.
    """
    asked = read or values.workload_value(name)
    return FairnessCheck(
        (lambda result: asked(result) or off) if off else asked,
        WORKLOAD_SETTINGS[name].changes,
        f"use the same --{name.replace('_', '-')}",
        compare=compare,
        differs=differs,
        field=name,
    )
