"""The explanation of a run: which part of its step is what, whether one stands out, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dpcompare.config.run import RunConfig
from dpcompare.errors import RunFailedError
from dpcompare.experiments.soundness import LARGEST_FLAWED_SHARE
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM, confidence
from dpcompare.experiments.study import Study
from dpcompare.experiments.study_runs import finished_run
from dpcompare.experiments.variants import JUDGED, Part, Round, Seconds, Share, StepParts, Variant, Variants
from dpcompare.projection.remedies import QUIET, Floor, Remedy, floors_of, remedies_of
from dpcompare.results.result import RunResult
from dpcompare.results.timing import measured_seconds
from dpcompare.system.terminal_text import in_one_line, pluralize, printable

ROUNDED = 0.005
"""How far a share may lie outside 0 to 1 without a word: in whole percent it is 0 or 100."""
STANDS_OUT = 0.1
"""Share of a step from which on a part is mentioned."""

WORDS: dict[Part, str] = {
    "input": "input",
    "exchange": "exchange",
    "waiting": "waiting for the slowest",
    "devices": "exchange, waiting and contention",
    "launching": "launching and updating",
    "computing": "computing",
    "sharing": "contention between devices",
    "together": "overlap of input and exchange",
}
MEANINGS: dict[Part, str] = {
    "input": "reading batches and copying them to the devices, not overlapped with computing",
    "exchange": "gradient communication not overlapped with the backward pass",
    "waiting": "time that the other processes wait for the slowest one",
    "devices": "extra time of a step on several devices over one; in this mode the three cannot be separated",
    "launching": "what a step takes however small its batch: kernel launches, Python, the update of the weights",
    "computing": "what grows with the number of images",
    "sharing": "extra time of devices that compute side by side over one that computes alone",
    "together": "saved only by leaving out both: each hides behind the other; below 0, one slows the other down",
}


class PartRow(BaseModel):
    """A part of the step."""

    model_config = ConfigDict(frozen=True)

    part: Part
    words: str
    meaning: str
    share: float
    """The part of the step: how much longer the unchanged step takes than one without this part. A difference of runs,
    which noise can take below 0 or above 1; what is printed is cut there."""
    low: float | None
    """Ends of Student's interval; None with too few rounds."""
    high: float | None
    milliseconds: float
    stands_out: bool
    floor_milliseconds: float | None = None
    """The least that it can take, hidden or not; None where that is not known."""
    floor: str = ""
    """What the floor is of, or why none is known."""

    @property
    def is_cut(self) -> bool:
        """Whether noise takes its share, or an end of its interval, where no share can be."""
        ends = [self.share, *(end for end in (self.low, self.high) if end is not None)]
        return self.part != "together" and not all(-ROUNDED <= end <= 1 + ROUNDED for end in ends)

    @property
    def share_in_words(self) -> str:
        """The share in percent, cut at 0 and 100; `-` of an overlap below 0, which costs time and is no share."""
        return "-" if self._costs else f"{_cut(self.share):.0%}"

    @property
    def interval_in_words(self) -> str:
        """The interval of the share in the same way; `-` where there is none."""
        if self.low is None or self.high is None or self._costs:
            return "-"
        return f"{_cut(self.low):.0%} to {_cut(self.high):.0%}"

    @property
    def milliseconds_shown(self) -> float:
        """The milliseconds of the share that is shown; of an overlap below 0 those that it costs."""
        if self._costs or not self.share:
            return self.milliseconds
        return self.milliseconds * _cut(self.share) / self.share or 0.0  # not -0

    @property
    def _costs(self) -> bool:
        return self.part == "together" and self.share < -ROUNDED


def _cut(share: float) -> float:
    return min(1.0, max(0.0, share))


class Explanation(BaseModel):
    """What bounds a run: the document behind every format."""

    model_config = ConfigDict(frozen=True)

    run: str
    study: str
    """The directory of the runs."""
    workload: str
    devices: str
    rounds: int
    step_milliseconds: float
    images_per_second: float
    confidence: str | None
    """The confidence of each interval, all of them together having 96%; None with too few rounds."""
    verdict: str
    parts: list[PartRow]
    unmeasured: dict[Part, str]
    """Part -> why it could not be measured."""
    others: str | None = None
    """In how many runs other processes took cores, in words; None where they did in none."""
    slowest: str | None
    """A sentence about a process that is slower than the others in every round."""
    speedup: float | None
    """The speed of all devices over that of one, both without input and at the same batch per device; None if one alone
    could not be measured."""
    remedies: list[Remedy]
    """The one that helps most first."""
    warnings: list[str]
    """What has disturbed the runs."""


def explain(study: Study, study_dir: Path, variants: Variants, *, measured_link: str | None = None) -> Explanation:
    """Explain a run by the runs of its variants.

    Args:
        study: of the variants, as it was run.
        study_dir: where it is.
        variants: of the run, as the study has them.
        measured_link: the rate of the link between the machines of the run, where it is known.

    Raises:
        RunFailedError: the run as it is, or without input, never completed.
    """
    results, failures = results_of(study, study_dir, variants)
    config = variants.arms["as it is"].config
    parts = parts_of(study, study_dir, variants)
    shares = parts.shares
    if parts.seconds is None or "input" not in shares:
        reasons = "; ".join(dict.fromkeys(failures.values()))
        raise RunFailedError(f"the run cannot be explained: {reasons or 'no step was measured'}", str(study_dir))
    unchanged = [completed["as it is"] for completed in results.values() if "as it is" in completed]
    floors = floors_of(config, unchanged[-1], measured_link)
    rows = [_row(part, share, parts.seconds, floors.get(part)) for part, share in shares.items()]
    rounds = shares["input"].rounds
    runs = [result for completed in results.values() for result in completed.values()]
    others, is_disturbed = others_in_words(runs)
    if is_disturbed:
        rows = [row.model_copy(update={"stands_out": False}) for row in rows]
    remedies = remedies_of(_to_remedy(rows), parts, config, unchanged[-1], measured_link)
    return Explanation(
        run=variants.arms["as it is"].name,
        study=str(study_dir),
        workload=printable(config.workload.in_words),
        devices=config.cluster.in_words,
        rounds=rounds,
        step_milliseconds=1000 * parts.seconds,
        images_per_second=config.workload.global_batch_size / parts.seconds,
        confidence=confidence(parts.level) if shares["input"].interval else None,
        verdict=_verdict(rows, rounds, others, is_disturbed),
        parts=rows,
        unmeasured=dict(_unmeasured(shares, parts, variants, failures)),
        others=others,
        slowest=_slowest(parts, config),
        speedup=_speedup(parts, config),
        remedies=[QUIET, *remedies] if is_disturbed else remedies,
        warnings=warnings_in_words(runs),
    )


def parts_of(study: Study, study_dir: Path, variants: Variants) -> StepParts:
    """The parts of the step of a run in all rounds of a study, as far as the variants that show them have run.

    Args:
        study: of the variants, as it was run.
        study_dir: where it is.
        variants: of the run, as the study has them.
    """
    results, _ = results_of(study, study_dir, variants)
    seconds = [_seconds(study, study_dir, number, variants, completed) for number, completed in results.items()]
    config = variants.arms["as it is"].config
    waits_within = config.workload.batchnorm == "sync" and config.topology.num_replicas > 1
    return StepParts.of(seconds, alone=variants.alone, waits_within=waits_within)


def results_of(
    study: Study, study_dir: Path, variants: Variants
) -> tuple[dict[int, dict[Variant, RunResult]], dict[Variant, str]]:
    """Round -> the result of each variant that completed; and why others did not."""
    results: dict[int, dict[Variant, RunResult]] = {number: {} for number in study.rounds}
    failures: dict[Variant, str] = {}
    for number in study.rounds:
        for variant, arm in variants.arms.items():
            result = finished_run(study.run_dir(study_dir, number, arm))
            if result is None:
                continue
            if result.status == "completed":
                results[number][variant] = result
            else:
                failures[variant] = f"{arm.name} failed: {printable(in_one_line(result.error))}"
    return results, failures


def _seconds(
    study: Study, study_dir: Path, number: int, variants: Variants, completed: Mapping[Variant, RunResult]
) -> dict[Variant, Seconds]:
    found = {}
    for variant in completed:
        arm = variants.arms[variant]
        found[variant] = measured_seconds(arm.config, study.run_dir(study_dir, number, arm))
    return {variant: seconds for variant, seconds in found.items() if seconds}


def _row(part: Part, share: Share, seconds: float, floor: Floor | None) -> PartRow:
    low, high = share.interval or (None, None)
    return PartRow(
        part=part,
        words=WORDS[part],
        meaning=MEANINGS[part],
        share=share.value,
        low=low,
        high=high,
        milliseconds=1000 * share.value * seconds,
        stands_out=part in JUDGED
        and share.rounds >= ROUNDS_FOR_CLAIM
        and share.value >= STANDS_OUT
        and (low or 0.0) > 0,
        floor_milliseconds=None if floor is None or floor.seconds is None else 1000 * floor.seconds,
        floor="" if floor is None else floor.words,
    )


def others_in_words(runs: Sequence[RunResult]) -> tuple[str | None, bool]:
    """What other processes took, in words, and whether they did in most runs, so that nothing else can be claimed."""
    disturbances = [sentence for run in runs for sentence in run.disturbances[:1]]
    if not disturbances:
        return None, False
    sentence = f"DISTURBED in {len(disturbances)} of {pluralize(len(runs), 'run')}, such as: {disturbances[0]}"
    return printable(sentence), len(disturbances) > LARGEST_FLAWED_SHARE * len(runs)


def _verdict(rows: Sequence[PartRow], rounds: int, others: str | None, is_disturbed: bool) -> str:
    """What is said first: other processes where they took part in most runs, else what bounds the run."""
    if not is_disturbed:
        return _verdict_of_parts(rows, rounds, others)
    first = max((row for row in rows if row.part in JUDGED), key=lambda row: row.share)
    return (
        f"Other processes come first: {others}. Nothing is claimed of the parts of a step, of which {first.words} "
        f"seems to be the largest other than computing ({first.share_in_words}); explain it again when the machine is "
        "idle."
    )


def _verdict_of_parts(rows: Sequence[PartRow], rounds: int, others: str | None) -> str:
    judged = sorted((row for row in rows if row.part in JUDGED), key=lambda row: row.share, reverse=True)
    first = judged[0]
    if rounds < ROUNDS_FOR_CLAIM:
        return (
            f"FIRST LOOK: {rounds} of {ROUNDS_FOR_CLAIM} rounds, nothing is claimed. The largest part other than "
            f"computing is {first.words}, {first.share_in_words} of a step."
        )
    found = [row for row in judged if row.stands_out]
    if not found and first.share >= STANDS_OUT:
        why = "too few of its rounds completed" if first.low is None else "the rounds vary too much"
        cause = f"{others}. " if others else ""
        return (
            f"{cause}Inconclusive: {first.words} may take {_size(first)}, but {why} to say. Run more rounds "
            "(--repeats), or measure on a quieter machine."
        )
    if not found:
        computing = next((row for row in rows if row.part == "computing"), None)
        rest = "" if computing is None else f" {computing.share_in_words} of a step is computing."
        return (
            f"Nothing stands out: no part other than computing is shown to take {STANDS_OUT:.0%} of a step or more."
            f"{rest}"
        )
    others = "".join(f" Also {row.words}: {_size(row)}." for row in found[1:])
    return f"This run is bound by {found[0].words}: {_size(found[0])}.{others}"


def _to_remedy(rows: Sequence[PartRow]) -> dict[Part, float]:
    """The parts that stand out; where none is shown to, those that may."""
    large = {row.part: row.share for row in rows if row.part in JUDGED and row.share >= STANDS_OUT}
    return {row.part: row.share for row in rows if row.stands_out} or large


def _size(row: PartRow) -> str:
    interval = "" if row.low is None else f" (interval {row.interval_in_words})"
    return f"{row.share_in_words} of a step{interval}, {row.milliseconds_shown:.3g} ms"


def _unmeasured(
    shares: Mapping[Part, Share], parts: StepParts, variants: Variants, failures: Mapping[Variant, str]
) -> Iterator[tuple[Part, str]]:
    needed: dict[Part, tuple[Variant, ...]] = {
        "exchange": ("no exchange",),
        "waiting": ("computing alone",),
        "launching": (variants.alone, "larger batch"),
        "sharing": ("one device", "computing alone"),
    }
    missing = {**variants.unmeasured, **failures}
    for part, of in needed.items():
        if part in shares:
            continue
        reason = next((missing[variant] for variant in of if variant in missing), None)
        if reason is None and part == "waiting":
            reason = (
                "with synchronized BatchNorm replicas wait for each other in every layer, which shows as computing"
                if parts.waits_within
                else "one process drives all devices and cannot see which of them it waits for"
            )
        yield part, reason or "none of its runs completed"


def _slowest(parts: StepParts, config: RunConfig) -> str | None:
    ratio = parts.slowest_ratio
    if not parts.is_always_slowest or ratio is None or ratio < 1 + STANDS_OUT:
        return None
    node = parts.slowest // config.topology.processes_per_node
    return (
        f"Process {parts.slowest}, on node {node}, takes {ratio:.2f} times as long as the others to compute, in every "
        "round."
    )


def _speedup(parts: StepParts, config: RunConfig) -> float | None:
    """How many more images per second all devices make; with one batch on each, since one device would read too."""

    def ratio(each: Round) -> float | None:
        one, together = each.step("one device"), each.step("no input")
        return None if one is None or together is None else config.topology.num_replicas * one / together

    return parts.median(ratio)


def warnings_in_words(results: Sequence[RunResult]) -> list[str]:
    """What was said of the runs, a line per kind: first what may be the cause of the others."""
    said: dict[str, list[str]] = {}
    for result in results:
        for kind in dict.fromkeys(warning.kind for warning in result.warnings):
            said.setdefault(kind, []).append(next(each.sentence for each in result.warnings if each.kind == kind))
    return [
        printable(f"{kind} in {len(sentences)} of {pluralize(len(results), 'run')}, such as: {sentences[0]}")
        for kind, sentences in sorted(said.items(), key=lambda pair: pair[0] != "DISTURBED")
    ]
