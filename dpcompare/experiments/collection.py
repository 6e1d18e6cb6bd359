"""Gathers the runs that are compared, from one study or many, by arm and round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from dpcompare._version import __version__
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.experiments import fairness
from dpcompare.experiments.study import Study, finished_run, is_study
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import RESULT_FILE
from dpcompare.system.terminal_text import in_one_line, printable


@dataclass
class ArmRuns:
    """One arm and its run of every round."""

    name: str
    config: RunConfig
    source: str = ""
    """The study that it was measured in; rounds of different studies are not paired."""
    subject: tuple[str, ...] = ()
    """What that study is about."""
    runs: list[RunResult | None] = field(default_factory=list)
    """Per round; None where it did not complete."""
    run_dirs: list[str] = field(default_factory=list)
    """Per round; empty where it was not made."""
    positions: list[int] = field(default_factory=list)
    """Per round, when it ran among the arms, from 1."""
    failures: list[str] = field(default_factory=list)
    ablation_failures: list[str] = field(default_factory=list)
    without_exchange: list[RunResult | None] = field(default_factory=list)
    """Per round, the same arm without the exchange of gradients, where the study has it."""

    @property
    def completed(self) -> list[RunResult]:
        return [run for run in self.runs if run is not None]

    @property
    def whole_rounds(self) -> int:
        """Rounds of which everything is there that has not failed."""
        whole = len(self.completed)
        if self.without_exchange and not self.ablation_failures:
            whole = min(whole, sum(run is not None for run in self.without_exchange))
        return whole

    @property
    def speeds(self) -> list[float | None]:
        return [run.images_per_second if run else None for run in self.runs]


@dataclass
class Collection:
    """The arms that are compared, wherever their runs came from."""

    arms: list[ArmRuns]
    repeats: int
    subject: tuple[str, ...] = ()
    """Knobs that may differ between all arms, beside those of their study."""
    order_seed: int | None = None
    stopped_by: str | None = None

    def subject_of(self, arms: Sequence[ArmRuns]) -> tuple[str, ...]:
        """Knobs in which these arms may differ."""
        own = [knob for knob in arms[0].subject if all(knob in arm.subject for arm in arms)]
        return tuple(dict.fromkeys((*self.subject, *own)))


def collect(paths: Sequence[Path], subject: Sequence[str] = ()) -> Collection:
    """Gather study and run directories; several of them are merged, and a run directory is an arm of one round.

    Raises:
        RequestError: one of them is neither.
    """
    arms: list[ArmRuns] = []
    repeats = 1
    studies: list[Study] = []
    for path, prefix in zip(paths, _prefixes(paths), strict=True):
        if is_study(path):
            study = Study.load(path)
            found = _of_study(study, path)
            repeats = max(repeats, study.repeats)
            studies.append(study)
        elif (path / RESULT_FILE).is_file():
            result = RunResult.load(path)
            config = _config_of(result, path)
            found = [ArmRuns(name=_name(result), config=config, runs=[None], run_dirs=[str(path)], positions=[1])]
            if result.status == "completed":
                found[0].runs = [result]
            else:
                found[0].failures = [f"round 1: {result.status}: {in_one_line(result.error)}"]
        else:
            raise RequestError(
                f"{str(path)!r} is neither a study nor a run that has ended; expected a directory with study.json or "
                f"{RESULT_FILE}"
            )
        for arm in found:
            # Single runs have one round in any case, of which nothing is claimed.
            arm.name, arm.source = prefix + arm.name, str(path) if is_study(path) else ""
        arms += found
    if not any(arm.completed for arm in arms):
        failures = "; ".join(printable(f"{arm.name}: {failure}") for arm in arms for failure in arm.failures)
        raise RequestError(f"none of the runs has completed, so there is nothing to report. {failures}".rstrip())
    if unknown := {*subject, *(knob for study in studies for knob in study.subject)} - set(fairness.KNOBS):
        raise RequestError(
            f"unknown subject {', '.join(sorted(unknown))}; expected knobs of the fairness sheet: "
            f"{', '.join(fairness.KNOBS)}"
        )
    alone = studies[0] if len(paths) == len(studies) == 1 else None
    return Collection(
        arms=arms,
        repeats=repeats,
        subject=tuple(subject),
        order_seed=alone.order_seed if alone else None,
        stopped_by=alone.stopped_by if alone else None,
    )


def _prefixes(paths: Sequence[Path]) -> list[str]:
    """What tells the arms of several directories apart: as much of the end of each path as is needed."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise RequestError("the same directory was given twice; expected each study and run once")
    if len(paths) == 1:
        return [""]
    length = next(n for n in range(1, 1 + max(map(len, parts))) if len({part[-n:] for part in parts}) == len(parts))
    return [f"{'/'.join(part[-length:])}: " for part in parts]


def _config_of(result: RunResult, path: Path) -> RunConfig:
    try:
        return RunConfig.model_validate(result.config)
    except ValidationError as error:
        raise RequestError(
            f"{str(path)!r} was made by dpcompare {result.dpcompare_version} with settings that {__version__} "
            f"does not know ({error.error_count()} of them); report it with the dpcompare that made it"
        ) from None


def _name(result: RunResult) -> str:
    return f"{result.framework} {result.mode} {result.num_nodes}x{result.devices_per_node}"


def _of_study(study: Study, study_dir: Path) -> list[ArmRuns]:
    arms = {arm.name: ArmRuns(name=arm.name, config=arm.config, subject=study.subject) for arm in study.arms}
    for number in range(1, study.repeats + 1):
        for position, arm in enumerate(study.order(number), start=1):
            run_dir = study.run_dir(study_dir, number, arm)
            result = finished_run(run_dir)
            of_arm = arms[arm.name]
            of_arm.runs.append(result if result and result.status == "completed" else None)
            of_arm.run_dirs.append(str(run_dir) if result else "")
            of_arm.positions.append(position)
            if result and result.status == "failed":
                of_arm.failures.append(f"round {number}: {in_one_line(result.error)}")
    for arm in study.arms:
        if arm.ablation_of in arms:
            without = arms.pop(arm.name)
            arms[arm.ablation_of].without_exchange = without.runs
            arms[arm.ablation_of].ablation_failures = without.failures
    return list(arms.values())
