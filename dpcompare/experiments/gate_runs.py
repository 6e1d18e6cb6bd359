"""The runs of a gate: rounds are added until a look at them decides, or the time is up."""

from __future__ import annotations

import time
from pathlib import Path

from dpcompare.errors import RunFailedError
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.comparison import GateRow
from dpcompare.experiments.gate import LOOKS
from dpcompare.experiments.study import Study
from dpcompare.experiments.study_runs import Watcher, run_study


def run_gate(study: Study, study_dir: Path, watcher: Watcher, *, budget_seconds: float) -> Study:
    """Make rounds until a look decides, the last look is over, or the time is up.

    Args:
        study: of a gate, as `open_study` returns it.
        study_dir: where it is.
        watcher: called with what runs.
        budget_seconds: no round starts after this time, counted from now.

    Returns:
        the study as it was run, with `stopped_by`.

    Raises:
        RunFailedError: a run failed, so that no more rounds can be paired.
    """
    started_at = time.monotonic()
    number = study.repeats
    while True:
        study = study.changed(repeats=number, adding=True)
        study.save(study_dir)
        run_study(study, study_dir, watcher, report_from=number)
        row = _row(study_dir)
        reason = _why_it_ends(row, study, time.monotonic() - started_at, budget_seconds)
        if reason is not None:
            study = study.changed(adding=False, stopped_by=reason)
            study.save(study_dir)
            return study
        if number in LOOKS:  # the claims that a report makes of these rounds are looks, too
            watcher.run_says(row.sentence)
            study = study.extended(number + 1)
        number += 1


def _row(study_dir: Path) -> GateRow:
    """What the gate says by now.

    Raises:
        RunFailedError: a run failed, so that no more rounds can be paired.
    """
    comparison = analyse(collect([study_dir]))
    if failures := [f"{row.name}: {failure}" for row in comparison.arms for failure in row.failures]:
        raise RunFailedError("; ".join(failures), str(study_dir))
    assert comparison.gate is not None  # the study has `allowed_loss`
    return comparison.gate


def _why_it_ends(row: GateRow, study: Study, spent_seconds: float, budget_seconds: float) -> str | None:
    """Why no more rounds are made; None where one more is."""
    if row.outcome != "undecided":
        return "the gate was decided"
    if row.is_final:
        return "it was clear that more would not decide"
    if study.repeats >= LOOKS[-1]:
        return f"there were {LOOKS[-1]}"
    return f"the time was up ({spent_seconds / 60:.0f} min)" if spent_seconds >= budget_seconds else None
