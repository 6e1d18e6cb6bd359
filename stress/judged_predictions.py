"""Whether predictions of steps are as near to what was measured after them as they are to be, term by term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.evidence import Table, number, table, text

MOST_DIFFERENT = 0.10
LARGEST_ERROR, LARGEST_MEDIAN_ERROR = 0.15, 0.05
LEAST_CELLS = 12
MODEL = "the model"
Cell = tuple[str, int, str]
"""Mode, number of nodes, link."""


@dataclass(frozen=True, kw_only=True)
class JudgedRound:
    """What was predicted of a cell in one round, and what was measured of it."""

    predicted: dict[str, float]
    """Seconds, by the model and by each of its variants."""
    as_measured_after: float
    """Seconds that the model gives with the inputs of the next round."""
    seconds: float
    computing: tuple[float, float]
    """Seconds without exchange, before and after."""

    @property
    def is_valid(self) -> bool:
        """Whether the machine was as fast after it as before it."""
        before, after = self.computing
        return abs(after / before - 1) <= MOST_DIFFERENT

    def error(self, variant: str) -> float:
        """Relative to what was measured."""
        return self.predicted[variant] / self.seconds - 1

    @property
    def error_as_measured_after(self) -> float:
        return self.as_measured_after / self.seconds - 1


def is_valid(rounds: Sequence[JudgedRound]) -> bool:
    """Whether a cell is: in more than half of its rounds the machine kept its speed."""
    return 2 * sum(each.is_valid for each in rounds) > len(rounds)


def error_of(rounds: Sequence[JudgedRound], variant: str) -> float:
    """Of a cell: the median of its valid rounds if it is valid, else of all."""
    judged_by = [each for each in rounds if each.is_valid] if is_valid(rounds) else rounds
    return median(each.error(variant) for each in judged_by)


def errors_of(found: Mapping[Cell, list[JudgedRound]], variant: str) -> list[float]:
    """Of all valid cells, without sign."""
    return [abs(error_of(rounds, variant)) for rounds in found.values() if is_valid(rounds)]


def table_of_cells(found: Mapping[Cell, list[JudgedRound]], verdict: str) -> Table:
    columns = [
        *text("mode"),
        number("nodes"),
        *text("link"),
        number("s without exchange, before and after / of each round"),
        number("predicted s"),
        number("measured s"),
        number("error", "+.1%"),
        number("valid rounds"),
        number("error with what was measured after", "+.1%"),
    ]
    rows = [
        (
            *place,
            " / ".join(f"{before:.3f}, {after:.3f}" for before, after in (each.computing for each in rounds)),
            " / ".join(f"{each.predicted[MODEL]:.3f}" for each in rounds),
            " / ".join(f"{each.seconds:.3f}" for each in rounds),
            error_of(rounds, MODEL),
            f"{sum(each.is_valid for each in rounds)} of {len(rounds)}",
            median(each.error_as_measured_after for each in rounds),
        )
        for place, rounds in found.items()
    ]
    return table(columns, rows, verdict)


def table_of_variants(found: Mapping[Cell, list[JudgedRound]]) -> Table:
    """What the model is worth without each of its terms, on the valid cells, of which there must be one."""
    names = next(rounds[0].predicted for rounds in found.values())
    errors = {name: errors_of(found, name) for name in names}
    columns = [*text("on the valid cells"), number("median error", ".1%"), number("largest error", ".1%")]
    return table(columns, [(name, median(each), max(each)) for name, each in errors.items()])


def figures_of(found: Mapping[Cell, list[JudgedRound]]) -> dict[str, str | int]:
    """The same ones where nothing was measured yet."""
    errors = errors_of(found, MODEL)
    return {
        "cells": len(found),
        "valid_cells": len(errors),
        "median_error": f"{median(errors):.1%}" if errors else "-",
        "largest_error": f"{max(errors):.1%}" if errors else "-",
    }


def judged(found: Mapping[Cell, list[JudgedRound]], disturbed: str = "") -> tuple[str, bool]:
    """The verdict as a sentence, and whether predictions are as near as they are to be.

    Args:
        found: cells with their rounds.
        disturbed: what is to be said of runs that others disturbed.
    """
    errors = errors_of(found, MODEL)
    passed = len(errors) >= LEAST_CELLS and max(errors) <= LARGEST_ERROR and median(errors) <= LARGEST_MEDIAN_ERROR
    summary = [f"{len(errors)} of {len(found)} cells are valid", *([disturbed] if disturbed else [])]
    summary += [f"median error {median(errors):.1%}, largest {max(errors):.1%}"] if errors else []
    after = [abs(median(each.error_as_measured_after for each in rounds)) for rounds in found.values()]
    summary.append(f"with what was measured after, over all cells {median(after):.1%} and {max(after):.1%}")
    return f"{'PASSED' if passed else 'FAILED'}: {', '.join(summary)}.", passed
