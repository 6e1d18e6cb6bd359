"""Whether predictions of steps are as near to what was measured after them as they are to be, term by term."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

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


def judged(cells: dict[Cell, list[JudgedRound]], disturbed: str = "") -> tuple[list[str], bool]:
    """The tables, and whether predictions are as near as they are to be.

    Args:
        cells: with their rounds.
        disturbed: what is to be said of runs that others disturbed.
    """
    rows, valid_rounds, errors_beside = [], [], []
    for place, rounds in cells.items():
        valid = [each for each in rounds if each.is_valid]
        counts = 2 * len(valid) > len(rounds)
        valid_rounds += [valid] if counts else []
        errors_beside.append(median(each.error_as_measured_after for each in rounds))
        judged_by = valid if counts else rounds
        computing = " / ".join(f"{before:.3f}, {after:.3f}" for before, after in (each.computing for each in rounds))
        figures = [
            " / ".join(f"{each.predicted[MODEL]:.3f}" for each in rounds),
            " / ".join(f"{each.seconds:.3f}" for each in rounds),
        ]
        error = median(each.error(MODEL) for each in judged_by)
        rows.append(
            f"| {' | '.join(map(str, place))} | {computing} | {' | '.join(figures)} | {error:+.1%} | "
            f"{len(valid)} of {len(rounds)} | {errors_beside[-1]:+.1%} |"
        )

    def errors(variant: str) -> list[float]:
        return [abs(median(each.error(variant) for each in rounds)) for rounds in valid_rounds]

    summary = [f"{len(valid_rounds)} of {len(rows)} cells are valid"]
    summary += [disturbed] if disturbed else []
    passed = len(valid_rounds) >= LEAST_CELLS
    lines = [
        "| mode | nodes | link | s without exchange, before and after / of each round | predicted s | measured s "
        "| error | valid rounds | error with what was measured after |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]
    if valid_rounds:
        found = errors(MODEL)
        passed = passed and max(found) <= LARGEST_ERROR and median(found) <= LARGEST_MEDIAN_ERROR
        summary.append(f"median error {median(found):.1%}, largest {max(found):.1%}")
        lines += ["", "| on the valid cells | median error | largest error |", "|---|--:|--:|"]
        names = list(valid_rounds[0][0].predicted)
        lines += [f"| {name} | {median(errors(name)):.1%} | {max(errors(name)):.1%} |" for name in names]
    of_all = [abs(error) for error in errors_beside]
    summary.append(f"with what was measured after, over all cells {median(of_all):.1%} and {max(of_all):.1%}")
    verdict = "PASSED" if passed else "FAILED"
    return [f"{verdict}: {', '.join(summary)}.", "", *lines], passed
