"""A collection of the runs that are compared, from one study or many, by arm and round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from pydantic import ValidationError

from dpcompare._version import __version__
from dpcompare.config.run import RunConfig
from dpcompare.errors import OtherFormatError, RequestError
from dpcompare.experiments import STUDY_FILE, fairness
from dpcompare.experiments.accuracy_statistics import DEFAULT_MARGIN
from dpcompare.experiments.made_runs import attempts_of, replaced
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM, Plan
from dpcompare.experiments.study import Study, is_by_model, is_study
from dpcompare.experiments.study_runs import disturbances
from dpcompare.results.predictions import Predictions, load_predictions
from dpcompare.results.recompute import contradictions
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import RESULT_FILE
from dpcompare.system.files import reject_links
from dpcompare.system.terminal_text import in_one_line, printable


@dataclass(eq=False)
class ArmRuns:
    """One arm and its run of every round."""

    name: str
    config: RunConfig
    source: str = ""
    """The study that it was measured in; rounds of different studies are not paired."""
    subject: tuple[str, ...] = ()
    """What that study is about."""
    plan: Plan = field(default_factory=Plan)
    """When that study may claim something."""
    varies_seed: bool = False
    """Whether each round of that study has a seed of its own."""
    margin: float = DEFAULT_MARGIN
    """Points of accuracy within which that study takes two arms for equally accurate."""
    is_named: bool | None = None
    """Whether it is one of the two that the study named beforehand; None where it named none."""
    runs: list[RunResult | None] = field(default_factory=list)
    """Per round; None where it did not complete."""
    run_dirs: list[str] = field(default_factory=list)
    """Per round; empty where it was not run."""
    positions: list[int] = field(default_factory=list)
    """Per round, when it ran among the arms, from 1."""
    failures: list[str] = field(default_factory=list)
    ablation_failures: list[str] = field(default_factory=list)
    num_unchecked: int = 0
    """Completed runs without events, whose figures are as result.json has them."""
    repeated: list[str] = field(default_factory=list)
    """Why runs were repeated that something had disturbed."""
    predictions: list[Predictions | None] = field(default_factory=list)
    """Per round; None where it kept none."""
    without_sync: list[RunResult | None] = field(default_factory=list)
    """Per round, the same arm without gradient sync, where the study has it."""
    without_sync_dirs: list[str] = field(default_factory=list)
    """Per round, where that ran."""

    @property
    def completed(self) -> list[RunResult]:
        return [run for run in self.runs if run is not None]

    def failure_of(self, number: int) -> str | None:
        """Why the run of a round, counted from 1, does not count; None where it does, or was not made."""
        start = _in_round(number, "")
        return next((failure.removeprefix(start) for failure in self.failures if failure.startswith(start)), None)

    @property
    def completed_rounds(self) -> list[int]:
        """The number of each completed round, from 1."""
        return [number for number, run in enumerate(self.runs, start=1) if run is not None]

    @property
    def complete_rounds(self) -> int:
        """Rounds whose runs are all there, other than those that failed."""
        complete = len(self.completed)
        if self.without_sync and not self.ablation_failures:
            complete = min(complete, sum(run is not None for run in self.without_sync))
        return complete

    @property
    def steady_speeds(self) -> list[float | None]:
        """The speeds by which arms are compared."""
        return [run.compared_speed if run else None for run in self.runs]


def _in_round(number: int, what: str) -> str:
    return f"round {number}: {what}"


def rounds_of_seeds(arms: Sequence[ArmRuns]) -> list[int] | None:
    """The round of each completed run, arm after arm, where rounds have seeds of their own; None where they do not."""
    return [number for arm in arms for number in arm.completed_rounds] if all(arm.varies_seed for arm in arms) else None


def pairs_within(sets: Iterable[Sequence[ArmRuns]]) -> list[tuple[ArmRuns, ArmRuns]]:
    """The pairs that are judged: those of arms of one set."""
    return [pair for arms in sets for pair in combinations(arms, 2)]


def label_of(arms: Sequence[ArmRuns]) -> str:
    """What a set of arms is called where there are several: by its model, or its study where that is about models."""
    models = {arm.config.workload.model for arm in arms}
    return printable(models.pop() if len(models) == 1 else arms[0].source)


def of_each_set(sets: Sequence[Sequence[ArmRuns]], sentence: Callable[[Sequence[ArmRuns]], str | None]) -> str:
    """What a study says: a sentence on the arms of each set that has one, after its label where there are several."""
    said = [(arms, sentence(arms)) for arms in sets]
    return " ".join(f"{label_of(arms)}: {text}" if len(sets) > 1 else text for arms, text in said if text)


def is_pair_elsewhere(arms: Sequence[ArmRuns]) -> bool:
    """Whether a pair was named beforehand of which neither arm is among these."""
    return all(arm.is_named is False for arm in arms)


ANOTHER_PAIR = "exploratory, since a pair of another model was named beforehand."


def is_exploratory(first: ArmRuns, second: ArmRuns) -> bool:
    """Whether their study named another pair beforehand, so that nothing is claimed of these two."""
    return False in (first.is_named, second.is_named)


@dataclass
class Collection:
    """The arms that are compared, wherever their runs came from."""

    arms: list[ArmRuns]
    repeats: int
    subject: tuple[str, ...] = ()
    """Settings that may differ between all arms, in addition to those of their study."""
    order_seed: int | None = None
    stopped_by: str | None = None
    alone: tuple[Study, Path] | None = None
    """The study and its directory, where the arms are those of one study and of nothing else."""

    def subject_of(self, arms: Sequence[ArmRuns]) -> tuple[str, ...]:
        """Settings in which these arms may differ."""
        common = [setting for setting in arms[0].subject if all(setting in arm.subject for arm in arms)]
        return tuple(dict.fromkeys((*self.subject, *common)))

    def judged_together(self, arms: Sequence[ArmRuns]) -> list[list[ArmRuns]]:
        """Arms in the sets within which pairs are judged: those of one model, if a study has several arms of one.

        Of two models none is the faster or the better trained one, unless the study is about that. What has run so far
        or failed plays no part.
        """
        if not any(map(self._has_arms_by_model, {arm.source for arm in self.arms})):
            return [list(arms)]
        sets: dict[tuple[str, str], list[ArmRuns]] = {}
        for arm in arms:
            about_models = "model" in (*self.subject, *arm.subject)
            key = ("study", arm.source) if about_models else ("model", arm.config.workload.model)
            sets.setdefault(key, []).append(arm)
        return list(sets.values())

    def _has_arms_by_model(self, source: str) -> bool:
        arms = [arm for arm in self.arms if arm.source == source]
        subject = {*self.subject, *(setting for arm in arms for setting in arm.subject)}
        return is_by_model((arm.config for arm in arms), subject)


def collect(paths: Sequence[Path], subject: Sequence[str] = ()) -> Collection:
    """Collect study and run directories; several of them are merged, and a run directory is an arm of one round.

    Raises:
        RequestError: one of them is neither, none of the runs has completed, or a subject is not a check.
    """
    for path in paths:
        reject_links(path, "what is reported")
    studies = {path: Study.load(path) for path in paths if is_study(path)}
    arms: list[ArmRuns] = []
    for path, prefix in zip(paths, _prefixes(paths), strict=True):
        found = _of_study(studies[path], path) if path in studies else [_of_run(path)]
        for arm in found:
            arm.name = prefix + arm.name
        arms += found
    _check(arms, {*subject, *(setting for study in studies.values() for setting in study.subject)})
    alone = next(iter(studies.values())) if len(paths) == len(studies) == 1 else None
    return Collection(
        arms=arms,
        repeats=max((study.repeats for study in studies.values()), default=1),
        subject=fairness.checks_named(subject),
        order_seed=alone.order_seed if alone else None,
        stopped_by=alone.stopped_by if alone else None,
        alone=(alone, paths[0]) if alone else None,
    )


def _check(arms: Sequence[ArmRuns], subject: set[str]) -> None:
    if not any(arm.completed for arm in arms):
        failures = "; ".join(printable(f"{arm.name}: {failure}") for arm in arms for failure in arm.failures)
        raise RequestError(f"none of the runs has completed, so there is nothing to report. {failures}".rstrip())
    fairness.checks_named(subject)


def _prefixes(paths: Sequence[Path]) -> list[str]:
    """The prefixes that distinguish arms of several directories: as much of the end of each path as is needed."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise RequestError("the same directory was given twice; expected each study and run once")
    if len(paths) == 1:
        return [""]
    length = next(n for n in range(1, 1 + max(map(len, parts))) if len({part[-n:] for part in parts}) == len(parts))
    return [f"{'/'.join(part[-length:])}: " for part in parts]


def _of_run(path: Path) -> ArmRuns:
    """A run as an arm of one round, of which nothing is claimed."""
    if path.is_file() and path.name in (RESULT_FILE, STUDY_FILE):
        raise RequestError(f"{str(path)!r} is a file; expected its directory: {str(path.parent)!r}")
    if not (path / RESULT_FILE).is_file():
        raise RequestError(
            f"{str(path)!r} is neither a study nor a run that has ended; expected a directory with study.json or "
            f"{RESULT_FILE}"
        )
    result = RunResult.load(path)
    config = _config_of(result, path)
    failure, is_checked = _checked_failure(result, path)
    return ArmRuns(
        name=_name(result),
        config=config,
        runs=[None if failure else result],
        run_dirs=[str(path)],
        positions=[1],
        failures=[_in_round(1, failure)] if failure else [],
        num_unchecked=0 if failure or is_checked else 1,
        predictions=[None if failure else load_predictions(path)],
    )


def _checked_failure(result: RunResult, run_dir: Path) -> tuple[str | None, bool]:
    """Why a run that has ended does not count, if so, and whether its figures were computed again."""
    if result.status != "completed":
        return f"{result.status}: {in_one_line(result.error)}", False
    different = contradictions(result, _config_of(result, run_dir), run_dir)
    if different:
        return f"{RESULT_FILE} does not match the events next to it: {'; '.join(different)}", True
    return None, different is not None


def _config_of(result: RunResult, path: Path) -> RunConfig:
    try:
        return RunConfig.model_validate(result.config)
    except ValidationError as error:
        raise RequestError(
            f"{str(path)!r} was made by dpcompare {result.dpcompare_version} with settings that {__version__} "
            f"does not know ({error.error_count()} of them); report it with the dpcompare that made it"
        ) from None


def _name(result: RunResult) -> str:
    own = f" backend={backend}" if (backend := result.config.get("backend")) else ""
    return f"{result.framework} {result.mode} {result.num_nodes}x{result.devices_per_node}{own}"


def _of_study(study: Study, study_dir: Path) -> list[ArmRuns]:
    plan = Plan(
        rounds=max(study.repeats, ROUNDS_FOR_CLAIM),
        looks=len(study.looks),
        adding=study.adding,
        until=study.adding or study.stopped_by is not None,
    )
    arms = {
        arm.name: ArmRuns(
            name=arm.name,
            config=arm.config,
            source=str(study_dir),
            subject=study.subject,
            plan=plan,
            varies_seed=study.vary_seed,
            margin=study.margin,
            is_named=None if study.pair is None else arm.name in study.pair,
        )
        for arm in study.arms
    }
    made = attempts_of(study_dir)
    for number in range(1, study.repeats + 1):
        for position, arm in enumerate(study.order(number), start=1):
            run_dir = study.run_dir(study_dir, number, arm)
            _add_round(arms[arm.name], number, run_dir, made.get((number, arm.name)))
            arms[arm.name].positions.append(position)
            arms[arm.name].repeated += [_in_round(number, why) for why in disturbances(study, study_dir, number, arm)]
    for arm in study.arms:
        if arm.ablation_of in arms:
            without = arms.pop(arm.name)
            arms[arm.ablation_of].without_sync = without.runs
            arms[arm.ablation_of].without_sync_dirs = without.run_dirs
            arms[arm.ablation_of].ablation_failures = without.failures
            arms[arm.ablation_of].repeated += [f"without gradient sync, {why}" for why in without.repeated]
    return list(arms.values())


def _add_round(arm: ArmRuns, number: int, run_dir: Path, attempt_id: str | None) -> None:
    """The run of a round, where there is one; one that was interrupted is repeated, so it does not count.

    Args:
        arm: gets the run.
        number: of the round.
        run_dir: of the run.
        attempt_id: of the attempt that the study has made; None where that is not known.
    """
    result, failure, is_checked = None, None, True
    if (run_dir / RESULT_FILE).exists():
        try:
            result = RunResult.load(run_dir)
        except OtherFormatError:
            raise
        except RequestError as error:
            failure = str(error)
        else:
            interrupted = result.status == "interrupted"
            failure, is_checked = (None, True) if interrupted else _checked_failure(result, run_dir)
            failure = failure or (None if interrupted else replaced(result, attempt_id))
            result = None if interrupted else result
    arm.runs.append(None if failure else result)
    arm.run_dirs.append(str(run_dir) if result else "")
    arm.predictions.append(load_predictions(run_dir) if arm.runs[-1] else None)
    arm.num_unchecked += not is_checked and failure is None
    if failure:
        arm.failures.append(_in_round(number, failure))
