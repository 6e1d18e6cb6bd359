"""What has to be known about single runs, as a grid of arms and rounds, and in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dpcompare.experiments.comparison import ArmRow, Comparison

MARKS: Mapping[str, tuple[str, str]] = {
    "FAILED": ("F", "the run failed and does not count"),
    "CLOCK": ("C", "the clock of the run contradicts that of its launcher, or leaves out much of the time"),
    "STALLED": ("S", "some steps were far slower than the others"),
    "RECOMPILED": ("R", "a framework compiled something while the run was measured"),
    "NOT WARM": ("W", "the first measured steps were slower than those after them"),
    "DISTURBED": ("D", "other processes took of the cores that the run was to have"),
    "SLOWED DOWN": ("H", "heat or the supply of power slowed the devices down"),
    "LATE STEP": ("L", "the last steps, repeated in another framework, differ"),
    "RUN AGAIN": ("A", "run again, because something had disturbed the first run"),
    "OUTLIERS": ("O", "outliers: a few samples make much of the evaluation loss"),
}
"""Kind of a remark -> its letter in the grid, and what it says."""
_ROUND = re.compile(r"(?:without gradient sync, )?round (\d+): ")


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One remark on an arm."""

    arm: str
    kind: str
    sentence: str

    @property
    def round(self) -> int | None:
        """The round that it is about; None if it is about several."""
        found = _ROUND.match(self.sentence)
        return int(found[1]) if found else None


@dataclass(frozen=True, kw_only=True)
class Notices:
    """All remarks on the runs of a study."""

    all: list[Notice]
    arms: list[str]
    rounds: list[int | None]
    """The columns of the grid; None is for remarks about several rounds."""

    def at(self, arm: str, number: int | None) -> list[Notice]:
        """The remarks in a cell of the grid, one of each kind."""
        found = {each.kind: each for each in self.all if (each.arm, each.round) == (arm, number)}
        return list(found.values())

    @property
    def kinds(self) -> list[str]:
        present = {each.kind for each in self.all}
        return [kind for kind in MARKS if kind in present]


def remarks_of(comparison: Comparison) -> Notices:
    """The remarks of all arms, in their order."""
    found = [Notice(arm=row.name, kind=kind, sentence=said) for row in comparison.arms for kind, said in _of_arm(row)]
    numbers = sorted({shown.number for row in comparison.arms for shown in row.rounds_shown})
    several: list[int | None] = [None] if any(each.round not in numbers for each in found) else []
    return Notices(all=found, arms=[row.name for row in comparison.arms], rounds=[*numbers, *several])


def _of_arm(row: ArmRow) -> Iterator[tuple[str, str]]:
    yield from (("FAILED", failure) for failure in row.all_failures)
    yield from ((warning.kind, warning.sentence) for warning in row.warnings)
    yield from (("RUN AGAIN", why) for why in row.repeated)
    yield from (("OUTLIERS", outlier) for outlier in row.outliers)
