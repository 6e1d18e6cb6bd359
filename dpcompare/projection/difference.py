"""The difference between two runs: by which parts of the step one takes longer than the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dpcompare.errors import RunFailedError
from dpcompare.experiments.accuracy_statistics import paired_difference
from dpcompare.experiments.fairness import compare
from dpcompare.experiments.fairness import shown as values_shown
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM, Plan, confidence
from dpcompare.experiments.study import Study
from dpcompare.experiments.variants import ADDED, Part, StepParts, Variant, Variants
from dpcompare.projection.explanation import WORDS, others_in_words, parts_of, results_of, warnings_in_words
from dpcompare.results.result import RunResult
from dpcompare.results.timeline import TimelineError, operators_of, traced_processes
from dpcompare.system.terminal_text import joined, pluralize, printable

MOST_OPERATORS = 8
"""Operators that are shown."""
TOGETHER = "what cannot be separated"
"""The words of a row that holds all parts which one of the runs does not show."""


class DifferenceRow(BaseModel):
    """A part of the step in both runs."""

    model_config = ConfigDict(frozen=True)

    part: Part | None
    """None: all parts that one of the runs does not show, together."""
    words: str
    first_milliseconds: float
    second_milliseconds: float
    """Means over the rounds, as all figures here: those of the parts add up to those of the step. Each is a difference
    of runs, which noise can take below 0."""
    milliseconds: float
    """How much longer the part takes in the second run; below 0, how much less."""
    low: float | None
    """Ends of Student's interval; None with too few rounds."""
    high: float | None
    is_shown: bool
    """Whether the interval excludes 0, over rounds that are enough for a claim and were mostly not disturbed."""


class OperatorRow(BaseModel):
    """What an operator takes of a traced step in both runs, in their first processes."""

    model_config = ConfigDict(frozen=True)

    name: str
    first_milliseconds: float
    second_milliseconds: float

    @property
    def milliseconds(self) -> float:
        """How much longer it takes in the second run."""
        return self.second_milliseconds - self.first_milliseconds


class Difference(BaseModel):
    """By which parts of its step a run differs from another: the document behind every format."""

    model_config = ConfigDict(frozen=True)

    first: str
    second: str
    study: str
    """The directory of the runs."""
    workload: str
    """Of the first run."""
    devices: str
    """Likewise."""
    rounds: int
    """Those in which all variants of both runs were measured."""
    confidence: str | None
    """The confidence of each interval, all of them together having 96%; None with too few rounds."""
    verdict: str
    step: DifferenceRow
    """The whole step."""
    parts: list[DifferenceRow]
    """They add up to the step."""
    others: str | None
    """In how many runs other processes took cores, in words; None where they did in none."""
    warnings: list[str]
    """What has disturbed the runs."""
    unlike: list[str] = []
    """Settings in which the two runs differ other than by their environments, as the fairness sheet has them: what they
    cost is part of the difference."""
    operators: list[OperatorRow] = []
    """Of two runs of one framework that were traced: the operators that differ most. A trace is one look at some steps,
    which it slows down, so that nothing is claimed of them."""
    without_operators: str | None = None
    """Why traced runs have no operators."""


def with_operators(found: Difference, run_dirs: Sequence[Path]) -> Difference:
    """The difference with the operators of two runs, as far as both have kept traces."""
    runs = [RunResult.load(run_dir) for run_dir in run_dirs]
    if not all(traced_processes(run_dir) for run_dir in run_dirs):
        return found
    if runs[0].framework != runs[1].framework:
        return found.model_copy(update={"without_operators": "the operators of two frameworks have no common names"})
    try:
        first, second = (_operators(run, run_dir) for run, run_dir in zip(runs, run_dirs, strict=True))
    except TimelineError as error:
        return found.model_copy(update={"without_operators": printable(str(error))})
    rows = [
        OperatorRow(
            name=printable(name), first_milliseconds=first.get(name, 0.0), second_milliseconds=second.get(name, 0.0)
        )
        for name in first.keys() | second.keys()
    ]
    rows.sort(key=lambda row: (-abs(row.milliseconds), row.name))
    return found.model_copy(update={"operators": rows[:MOST_OPERATORS]})


def _operators(run: RunResult, run_dir: Path) -> dict[str, float]:
    """Operator -> milliseconds of a traced step of the first process that has kept a trace."""
    found = operators_of(run_dir, traced_processes(run_dir)[0], run.framework)
    if not run.config.get("profile_steps"):
        raise TimelineError(f"{run_dir} does not say which steps were traced")
    first, last = run.config["profile_steps"]
    return {name: milliseconds / (last - first + 1) for name, milliseconds in found.items()}


def difference(study: Study, study_dir: Path, variants: tuple[Variants, Variants]) -> Difference:
    """Which parts make the difference between two runs, by the runs of their variants.

    Every part is what leaving it out saves, in each run and round; the differences are taken within rounds.

    Args:
        study: of the variants of both, as it was run.
        study_dir: where it is.
        variants: of the first and of the second run, as the study has them.

    Raises:
        RunFailedError: there is no round in which both were measured.
    """
    both = [parts_of(study, study_dir, each) for each in variants]
    seconds = _seconds(both)
    whole = [[each.step("as it is") for each in parts.rounds] for parts in both]
    complete = [
        number
        for number in range(len(study.rounds))
        if all(of[number] is not None for pair in (whole, *seconds.values()) for of in pair)
    ]
    found = [results_of(study, study_dir, each) for each in variants]
    runs = [run for results, _ in found for completed in results.values() for run in completed.values()]
    if not complete:
        failures = "; ".join(dict.fromkeys(reason for _, failed in found for reason in failed.values()))
        raise RunFailedError(
            f"the difference cannot be explained: {failures or 'no step was measured'}", str(study_dir)
        )

    def known(pair: Sequence[Sequence[float | None]]) -> list[list[float]]:
        return [[value for number in complete if (value := of[number]) is not None] for of in pair]

    measured: dict[Part | None, list[list[float]]] = {part: known(pair) for part, pair in seconds.items()}
    steps = known(whole)
    if (rest := _rest(steps, list(measured.values()))) is not None:
        measured[None] = rest
    level = Plan().level / (len(measured) + 1)
    others, is_disturbed = others_in_words(runs)
    may_claim = len(complete) >= ROUNDS_FOR_CLAIM and not is_disturbed
    step = _row(None, "step", steps, level, may_claim=may_claim)
    rows = [
        _row(part, WORDS[part] if part else TOGETHER, pair, level, may_claim=may_claim)
        for part, pair in measured.items()
    ]
    names = [each.arms["as it is"].name for each in variants]
    config = variants[0].arms["as it is"].config
    return Difference(
        first=names[0],
        second=names[1],
        study=str(study_dir),
        workload=printable(config.workload.in_words),
        devices=config.cluster.in_words,
        rounds=len(complete),
        confidence=confidence(level) if step.low is not None else None,
        verdict=_verdict(names, step, rows, len(complete), others if is_disturbed else None),
        step=step,
        parts=rows,
        others=others,
        warnings=warnings_in_words(runs),
        unlike=_unlike([results for results, _ in found]),
    )


def _unlike(both: Sequence[Mapping[int, Mapping[Variant, RunResult]]]) -> list[str]:
    """The rows of the fairness sheet that make two runs not comparable: `precision: float32; bfloat16`."""
    runs = [next(of["as it is"] for of in results.values() if "as it is" in of) for results in both]
    return [
        printable(f"{row.setting}: {'; '.join(dict.fromkeys(values_shown(row.values)))}")
        for row in compare(runs).rows
        if row.reason
    ]


def _seconds(both: Sequence[StepParts]) -> dict[Part, list[list[float | None]]]:
    """Part -> its seconds in each run, round by round, of the parts that both runs show."""
    found: dict[Part, list[list[float | None]]] = {part: [parts.seconds_of(part) for parts in both] for part in ADDED}
    return {part: pair for part, pair in found.items() if all(any(each is not None for each in of) for of in pair)}


_ROUNDING = 1e-9
"""Seconds by which parts that are all of a step may miss it."""


def _rest(steps: Sequence[Sequence[float]], parts: Sequence[Sequence[Sequence[float]]]) -> list[list[float]] | None:
    """What is left of the steps of both runs, round by round; None where the parts are all of them."""
    rest = [
        [step - sum(part[run][number] for part in parts) for number, step in enumerate(of_run)]
        for run, of_run in enumerate(steps)
    ]
    return rest if any(abs(each) > _ROUNDING for of_run in rest for each in of_run) else None


def _row(
    part: Part | None, words: str, pair: Sequence[Sequence[float]], level: float, *, may_claim: bool
) -> DifferenceRow:
    first, second = ([1000 * each for each in of] for of in pair)
    found = paired_difference(second, first)
    assert found is not None  # there is a round
    low, high = found.interval(level) or (None, None)
    return DifferenceRow(
        part=part,
        words=words,
        first_milliseconds=sum(first) / len(first),
        second_milliseconds=sum(second) / len(second),
        milliseconds=found.mean,
        low=low,
        high=high,
        is_shown=may_claim and low is not None and high is not None and max(low, -high) > 1000 * _ROUNDING,
    )


def _verdict(
    names: Sequence[str], step: DifferenceRow, rows: Sequence[DifferenceRow], rounds: int, disturbed_by: str | None
) -> str:
    first, second = names
    largest = max(rows, key=lambda row: abs(row.milliseconds))
    if disturbed_by is not None:
        return (
            f"Other processes come first: {disturbed_by}. Nothing is claimed of the difference; the part that seems to "
            f"differ most is {largest.words} ({_size(largest)}). Explain it again when the machine is idle."
        )
    if rounds < ROUNDS_FOR_CLAIM:
        return (
            f"FIRST LOOK: {rounds} of {ROUNDS_FOR_CLAIM} rounds, nothing is claimed. A step of {second} takes "
            f"{_more(step)} than one of {first}; the part that differs most is {largest.words} ({_size(largest)})."
        )
    shown = sorted((row for row in rows if row.is_shown), key=lambda row: -abs(row.milliseconds))
    parts = joined([f"{row.words} {_size(row)} ({_interval(row)})" for row in shown])
    if step.is_shown:
        whole = f"A step of {second} takes {_more(step)} than one of {first} ({_interval(step)})"
        said = f": {parts}" if shown else ""
    else:
        whole = f"A step of {second} is not shown to differ from one of {first}, {_size(step)} ({_interval(step)})"
        said = f", although these parts do: {parts}" if shown else ""
    if not shown:
        return f"{whole}. No part by itself is shown to differ; {largest.words} differs most, {_size(largest)}."
    rest = len(rows) - len(shown)
    also = f" {pluralize(rest, 'other part')} show{'s' if rest == 1 else ''} no difference." if rest else ""
    return f"{whole}{said}.{also}"


def _more(row: DifferenceRow) -> str:
    return f"{abs(row.milliseconds):.3g} ms {'longer' if row.milliseconds >= 0 else 'less'}"


def _size(row: DifferenceRow) -> str:
    return f"{row.milliseconds:+.3g} ms"


def _interval(row: DifferenceRow) -> str:
    if row.low is None or row.high is None:
        return "no interval"
    return f"interval {row.low:+.3g} to {row.high:+.3g}"
