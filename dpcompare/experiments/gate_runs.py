"""The runs of a gate: rounds are added until a look at them decides, or the time is up."""

from __future__ import annotations

import time
from pathlib import Path

from dpcompare.errors import RunFailedError
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.claim_rows import GateRow
from dpcompare.experiments.collection import collect
from dpcompare.experiments.gate import LOOKS
from dpcompare.experiments.study import Study, is_study
from dpcompare.experiments.study_runs import Watcher, results, run_study
from dpcompare.system.terminal_text import in_one_line


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
    number, was_readable = study.repeats, not study.adding  # of one that had ended, a report has made claims
    report_from = 1
    while True:
        study = study.changed(repeats=number, adding=True)
        study.save(study_dir)
        run_study(study, study_dir, watcher, report_from=report_from)
        if failed := _failures(study, study_dir):
            study.changed(adding=False, stopped_by="a run failed").save(study_dir)
            raise RunFailedError("; ".join(failed), str(study_dir))
        # Reading all runs again takes seconds; after the first round, since two arms may be no pair.
        row = _row(study_dir) if number in (1, *LOOKS) or report_from == 1 else None
        reason = _why_it_ends(row, study, time.monotonic() - started_at, budget_seconds)
        if reason is not None:
            study = study.changed(adding=False, stopped_by=reason)
            study.save(study_dir)
            return study
        if row and number in LOOKS:
            watcher.run_says(row.sentence)
        if number in LOOKS or was_readable:  # the claims that a report makes of these rounds are looks, too
            study = study.extended(number + 1)
        was_readable = False
        number += 1
        report_from = number


def is_decided(study_dir: Path) -> bool:
    """Whether a directory has a gate that more rounds cannot change."""
    if not is_study(study_dir):
        return False
    study = Study.load(study_dir)
    has_runs = any(result for _, _, result in results(study, study_dir))
    return not study.adding and has_runs and not _failures(study, study_dir) and _row(study_dir).is_final


def _failures(study: Study, study_dir: Path) -> list[str]:
    """Why runs failed, with their arms and rounds."""
    return [
        f"{arm.name}: round {number}: {in_one_line(result.error)}"
        for arm, number, result in results(study, study_dir)
        if result and result.status == "failed"
    ]


def _row(study_dir: Path) -> GateRow:
    """What the gate says by now."""
    row = analyse(collect([study_dir])).gate
    assert row is not None  # the study has `allowed_loss`
    return row


def _why_it_ends(row: GateRow | None, study: Study, spent_seconds: float, budget_seconds: float) -> str | None:
    """Why no more rounds are made, None where one more is; `row` is None of rounds that were not looked at."""
    if row and row.outcome != "undecided":
        return "the gate was decided"
    if study.repeats >= LOOKS[-1]:
        return f"there were {LOOKS[-1]}"
    if row and row.is_final:
        return "it was clear that more would not decide"
    return f"the time was up ({spent_seconds / 60:.0f} min)" if spent_seconds >= budget_seconds else None
