"""What has to be known about single runs: as a grid of arms and rounds, in words, and in a few lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.experiments.comparison import Comparison
from dpcompare.system.terminal_text import pluralize

MARKS: Mapping[str, tuple[str, str]] = {
    "FAILED": ("F", "the run failed and does not count"),
    "SUSPICIOUS": ("E", "the efficiency is above 105%"),
    "CLOCK": ("C", "the clock contradicts that of the launcher, or misses much of the time"),
    "LATE STEP": ("L", "another framework computes other values in the last steps"),
    "DISTURBED": ("D", "other processes used cores that the run was given"),
    "SLOWED DOWN": ("H", "heat or the power limit slowed the devices down"),
    "STALLED": ("S", "some steps were far slower than the others"),
    "NOT WARM": ("W", "the first measured steps were slower than those after them"),
    "RECOMPILED": ("R", "a framework compiled something while the run was measured"),
    "REPEATED": ("A", "the run replaces one that was disturbed"),
    "OUTLIERS": ("O", "a few samples make up much of the evaluation loss"),
}
"""Kind of a remark -> its letter in the grid, and what it says; those that cast most doubt on the figures first."""
MOST_REMARKS = 3
"""Lines of a short report."""
_ROUND = re.compile(r"(?:without gradient sync, )?round (\d+): ")


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One remark on an arm."""

    arm: str
    kind: str
    sentence: str

    @property
    def line(self) -> str:
        return f"{self.kind} {self.arm}: {self.sentence}"

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
    """The remarks of all arms, in the order of MARKS."""
    found = [Notice(arm=row.name, kind=kind, sentence=said) for row in comparison.arms for kind, said in _of_arm(row)]
    found.sort(key=lambda notice: list(MARKS).index(notice.kind))
    numbers = sorted({shown.number for row in comparison.arms for shown in row.rounds_shown})
    several: list[int | None] = [None] if any(each.round not in numbers for each in found) else []
    return Notices(all=found, arms=[row.name for row in comparison.arms], rounds=[*numbers, *several])


def _of_arm(row: ArmRow) -> Iterator[tuple[str, str]]:
    yield from (("FAILED", failure) for failure in row.all_failures)
    if row.scaling and row.scaling.suspicious:
        yield "SUSPICIOUS", f"an efficiency of {row.scaling.efficiency:.0%}"
    yield from ((warning.kind, warning.sentence) for warning in row.warnings)
    yield from (("REPEATED", why) for why in row.repeated)
    yield from (("OUTLIERS", outlier) for outlier in row.outliers)


def all_remarks(comparison: Comparison) -> list[str]:
    """A line for each, but for failures, which are never among those that are only counted."""
    return [each.line for each in _of_completed_runs(comparison)]


def short_remarks(comparison: Comparison, width: int | None) -> list[str]:
    """A line for each kind but failures, MOST_REMARKS at most, then a line that counts the others.

    Args:
        comparison: any.
        width: characters of a line, at which a remark is cut; None: it is not.
    """
    by_kind: dict[str, list[Notice]] = {}
    for notice in _of_completed_runs(comparison):
        by_kind.setdefault(notice.kind, []).append(notice)
    lines = []
    for kind, found in list(by_kind.items())[:MOST_REMARKS]:
        line = found[0].line
        if len(found) > 1:
            line = f"{kind} {pluralize(len(found), 'time')}, such as {found[0].arm}: {found[0].sentence}"
        lines.append(line if width is None else textwrap.shorten(line, width, placeholder=" ..."))
    if others := {kind: len(found) for kind, found in list(by_kind.items())[MOST_REMARKS:]}:
        counted = ", ".join(f"{kind} {count}" for kind, count in others.items())
        lines.append(f"{pluralize(sum(others.values()), 'more remark')} ({counted}), see --full")
    return lines


def _of_completed_runs(comparison: Comparison) -> list[Notice]:
    return [notice for notice in remarks_of(comparison).all if notice.kind != "FAILED"]
