"""The runs of a study, round by round: those that are missing, those that were disturbed, and rounds that are added."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.errors import OtherFormatError, RequestError, RunFailedError
from dpcompare.experiments.made_runs import note
from dpcompare.experiments.study import Arm, Study
from dpcompare.launch.inputs import restored
from dpcompare.launch.run import run
from dpcompare.results.events import Event
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import RESULT_FILE

DISTURBED = "disturbed"
"""Part of the name of a run that was repeated."""
LARGEST_REPEATED = 0.25
"""Part of a study's runs that may be repeated since something has disturbed them; but always one."""


def finished_run(run_dir: Path) -> RunResult | None:
    """The result of a run that completed or failed; None where it was interrupted or its result cannot be read."""
    try:
        result = RunResult.load(run_dir)
    except OtherFormatError:  # not to be run again as if it were not there
        raise
    except RequestError:
        return None
    return None if result.status == "interrupted" else result


class Watcher:
    """The observer of a study in progress; override the methods of interest."""

    def run_begins(self, number: int, arm: Arm, run_dir: Path) -> Callable[[Event], None]:
        """Returns what is called with the events of the run."""
        return lambda event: None

    def run_says(self, line: str) -> None:
        """An engine reports something about the run, such as what to start on its hosts."""

    def run_remarks(self, line: str) -> None:
        """What is allowed but hardly meant, said before a run starts; other runs may say the same."""

    def run_ended(self, number: int, arm: Arm, result: RunResult) -> None:
        """A run has completed or failed."""

    def run_left_out(self, number: int, arm: Arm, reason: str) -> None:
        """A run is not made: it was made before, or its arm has failed."""


def run_study(study: Study, study_dir: Path, watcher: Watcher, *, report_from: int = 1) -> None:
    """Make the runs that are missing, round by round.

    A run that fails is reported, and its arm is left out of the later rounds; the others continue. What an interrupted
    run left behind is kept next to the new one. A run that was disturbed is repeated, see `_undisturbed`. Rounds
    before `report_from` were reported earlier and are not again.
    """
    failed: set[str] = set()
    for number in range(1, study.repeats + 1):
        for arm in study.order(number):
            run_dir = study.run_dir(study_dir, number, arm)
            if result := finished_run(run_dir):
                if result.status == "failed":
                    failed.add(arm.name)
                if number >= report_from:
                    watcher.run_left_out(number, arm, f"made before: {result.status}")
            elif arm.name in failed:
                if number >= report_from:
                    watcher.run_left_out(number, arm, "its arm has failed")
            else:
                _set_aside(run_dir, "interrupted")
                result = _undisturbed(study, study_dir, number, arm, watcher)
                watcher.run_ended(number, arm, result)
                if result.status == "failed":
                    failed.add(arm.name)


def _undisturbed(study: Study, study_dir: Path, number: int, arm: Arm, watcher: Watcher) -> RunResult:
    """Make a run, and once more where something has disturbed it: its stalls, its clock, or others on its cores.

    That is judged by the run alone, before anything is compared, and the second one counts, whatever it shows: to
    choose between the two would be to choose a speed. The first one is kept next to it.
    """
    run_dir = study.run_dir(study_dir, number, arm)
    largest_batch = max(each.config.workload.global_batch_size for each in study.arms)
    config = restored(study.config_of(number, arm), largest_batch=largest_batch)

    def made() -> RunResult:
        note(study_dir, number, arm.name, None)
        result = _run(study, config, run_dir, watcher.run_begins(number, arm, run_dir), watcher)
        note(study_dir, number, arm.name, result)
        return result

    result = made()
    repeated = sum(len(_disturbed(study, study_dir, at, each)) for at in study.rounds for each in study.arms)
    most = max(1, int(LARGEST_REPEATED * len(study.arms) * study.repeats))
    if result.status != "completed" or result.disturbed_by is None or repeated >= most:
        return result
    if _disturbed(study, study_dir, number, arm):  # repeated before, and interrupted
        return result
    watcher.run_says(f"round {number}: {arm.name}: run again, {result.disturbed_by}")
    _set_aside(run_dir, DISTURBED)
    return made()


def _disturbed(study: Study, study_dir: Path, number: int, arm: Arm) -> list[Path]:
    """The directories of a run that was repeated since something had disturbed it; there is one at most."""
    run_dir = study.run_dir(study_dir, number, arm)
    return sorted(run_dir.parent.glob(f"{run_dir.name}.{DISTURBED}-*"))


def disturbances(study: Study, study_dir: Path, number: int, arm: Arm) -> list[str]:
    """Why a run was repeated."""
    found = map(finished_run, _disturbed(study, study_dir, number, arm))
    return [result.disturbed_by or "the result is of another version" for result in found if result]


def add_rounds(
    study: Study,
    study_dir: Path,
    watcher: Watcher,
    *,
    wide: Callable[[Path], float | None],
    until: float,
    budget_seconds: float,
) -> Study:
    """Run a study, then add rounds until its intervals are narrow enough or the time is up.

    Whether rounds are added depends on how wide the intervals are and not on where they lie, so it counts as one look
    at the claims; until it has ended, nothing is claimed.

    Args:
        study: with enough rounds for an interval.
        study_dir: where it is.
        watcher: called with what runs.
        wide: the largest half width of an interval of the study in a directory; None where more rounds would add none.
        until: half width to reach, relative to the ratio: 0.02 is plus or minus 2%.
        budget_seconds: no round starts after this time, counted from now, not even one that an interval needs.

    Returns:
        the study as it was run, with `stopped_by`.
    """
    started_at = time.monotonic()
    asked_for = study.repeats
    made_before = max((number for _, number, result in results(study, study_dir) if result), default=0)
    if made_before < asked_for:
        study = study.changed(adding=True)
    made_before = max(1, made_before)
    for number in range(made_before, asked_for + 1):
        if number > made_before and time.monotonic() - started_at >= budget_seconds:
            break
        study = study.changed(repeats=number)
        study.save(study_dir)
        run_study(study, study_dir, watcher, report_from=1 if number == made_before else number)
    while (reason := _why_no_more(wide(study_dir), started_at, until, budget_seconds)) is None:
        more = study if study.adding else study.extended(study.repeats)
        study = more.changed(repeats=study.repeats + 1, adding=True)
        study.save(study_dir)
        run_study(study, study_dir, watcher, report_from=study.repeats)
    study = study.changed(adding=False, stopped_by=reason)
    study.save(study_dir)
    return study


def _why_no_more(width: float | None, started_at: float, until: float, budget_seconds: float) -> str | None:
    """Why no more rounds are added to a study with this widest interval; None where one more is."""
    spent = time.monotonic() - started_at
    if width is None:
        return "there was nothing to wait for: no two arms that run are comparable"
    if width <= until:
        return f"every interval is within {width:.1%} ({until:.1%} asked for)"
    if spent < budget_seconds:
        return None
    reached = f"the widest interval is {width:.1%}" if width < math.inf else "there are too few for an interval"
    return f"the time is up ({spent / 60:.0f} min); {reached} ({until:.1%} asked for)"


def _run(
    study: Study, config: RunConfig, run_dir: Path, observe: Callable[[Event], None], watcher: Watcher
) -> RunResult:
    try:
        return run(
            config,
            run_dir,
            observe=observe,
            report=watcher.run_says,
            remark=watcher.run_remarks,
            interpreter_of=study.interpreter_of,
        )
    except RunFailedError:
        if not (run_dir / RESULT_FILE).is_file():  # it could not be written
            raise
        return RunResult.load(run_dir)


def set_failed_aside(study: Study, study_dir: Path) -> None:
    """Move the failed runs of a study out of the way, so that they are repeated; what they left is kept."""
    for arm, number, result in results(study, study_dir):
        if result is not None and result.status == "failed":
            _set_aside(study.run_dir(study_dir, number, arm), "failed")


def _set_aside(run_dir: Path, why: str) -> None:
    """Rename what a run left behind, so that it can be repeated."""
    if run_dir.exists() and any(run_dir.iterdir()):
        number = 1
        while (other := run_dir.with_name(f"{run_dir.name}.{why}-{number}")).exists():
            number += 1
        run_dir.rename(other)


def results(study: Study, study_dir: Path) -> list[tuple[Arm, int, RunResult | None]]:
    """(arm, round, result) of every run; None where it has not ended."""
    return [
        (arm, number, finished_run(study.run_dir(study_dir, number, arm)))
        for number in range(1, study.repeats + 1)
        for arm in study.arms
    ]
