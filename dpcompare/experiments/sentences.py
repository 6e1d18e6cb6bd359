"""The sentences above the figures of a study: what was measured, what may be claimed, and how alike arms trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from dpcompare.backends.description import NOT_KNOWN
from dpcompare.experiments.arm_rows import ArmRow, TargetRow
from dpcompare.experiments.claim_rows import ClaimRow, RatioRow, TimeClaimRow
from dpcompare.experiments.collection import ArmRuns
from dpcompare.experiments.statistics import UNMEASURED
from dpcompare.models.layer_matching import matched_in_words
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import joined, pluralize, printable

RatioT = TypeVar("RatioT", bound=RatioRow)


def agreement_of(claims: Sequence[ClaimRow], arms: Sequence[ArmRuns]) -> str | None:
    """How closely the arms that are comparable have trained; None where there are no two."""
    comparable = [made for made in claims if made.outcome != "NOT COMPARABLE"]
    losses = [made.loss_difference for made in comparable if made.loss_difference is not None]
    accuracies = [made.accuracy_difference for made in comparable if made.accuracy_difference is not None]
    if any(arm.varies_seed for arm in arms):
        accuracies = []  # those of one seed; `dpcompare.experiments.learning` compares all rounds
    figures = [f"training losses differ by at most {max(losses):.2g} in any step"] if losses else []
    if accuracies:
        figures.append(
            f"accuracies {'' if losses else 'differ '}by at most {max(accuracies):.1%} of the validation samples"
        )
    sentences = [f"Where arms are comparable, {' and '.join(figures)}."] if figures else []
    if accuracies:
        sentences.append(_accuracy_floor(max(accuracies), arms))
    sentences += [
        f"{made.first} and {made.second} diverge: from step {made.diverged_at} the loss of one is not finite."
        for made in comparable
        if made.diverged_at is not None
    ]
    return " ".join(sentences) or None


def _accuracy_floor(difference: float, arms: Sequence[ArmRuns]) -> str:
    """What moves an accuracy where the arms do not: rounding, as far as rounds of an arm show it, and the samples."""
    last = [[run.evaluations[-1] for run in arm.completed if run.evaluations] for arm in arms]
    spread = max(
        (max(each.accuracy for each in of) - min(each.accuracy for each in of) for of in last if of), default=0
    )
    first = next(of[0] for of in last if of)
    share = min(
        max(first.accuracy, 1 / first.count), 1 - 1 / first.count
    )  # none or all right still leaves one in doubt
    error = math.sqrt(share * (1 - share) / first.count)
    if spread > 0:
        rounds = f"rounds of one arm, which differ in rounding alone, differ by up to {spread:.1%}"
    else:
        rounds = "all rounds repeat one training, so they do not show how far rounding alone moves it"
    if difference <= max(spread, 2 * error):
        judged = "no arm can be called more accurate"
    elif spread > 0:
        judged = "look for the reason"
    else:
        judged = "one training per arm cannot tell which is more accurate; use --vary-seed"
    samples = pluralize(first.count, "sample")
    return f"An accuracy on {samples} has a standard error of {error:.1%}, and {rounds}: {judged}."


def headline_of(
    claims: Sequence[ClaimRow],
    rows: Sequence[ArmRow],
    *,
    needed: int,
    is_partial: bool,
    elsewhere: str | None = None,
) -> str:
    """The sentence of the pair whose speeds differ most, or that no difference is shown.

    Args:
        claims: about pairs of these arms.
        rows: of the arms.
        needed: rounds that make claims.
        is_partial: whether rounds are missing. They are counted where the study is called partial, and not again here.
        elsewhere: the sentence if the pair that was named beforehand is not of these arms; None: it is, or none was.
    """
    comparable = [made for made in claims if made.outcome != "NOT COMPARABLE"]
    is_all_scaling = all(made.outcome == "exploratory" for made in comparable)
    if is_all_scaling and (scaling := _scaling_headline(rows, needed=needed, is_partial=is_partial)):
        return scaling
    if not comparable:
        if not claims:
            row = next(row for row in rows if row.rounds)
            return f"One arm alone: {row.name}.{_exchange_in_words(row)}"
        return (
            "NOT COMPARABLE: every pair of arms differs in a setting that must be equal, so nothing is ranked. See the "
            "fairness sheet (--full)."
        )
    judged = [made for made in comparable if made.outcome != "exploratory"]
    if not judged:
        return elsewhere or "The pair that was named beforehand is not comparable, so nothing is claimed."
    source = {row.name: row.source for row in rows}
    studies = {source[made.first] for made in judged}
    named = {source[made.first] for made in comparable if made.outcome == "exploratory"}
    if len(judged) == 1 and studies & named:
        said = f"{judged[0].sentence}{_could_have_shown(judged[0])}"
        return f"{said} All other pairs are exploratory, since one was named beforehand."
    decided = [made for made in judged if made.outcome in ("faster", "slower")]
    if len(judged) == 1 and judged[0].outcome != "too few rounds":
        return f"{judged[0].sentence}{_could_have_shown(judged[0])}"
    if decided:
        best = _largest(decided)
        together = ", judged together at 95%" if len(studies) == 1 else f", of {len(studies)} studies"
        return f"{best.sentence} It is the largest difference of {len(judged)} comparable pairs{together}."
    return _undecided_headline(judged, rows, needed=needed, is_partial=is_partial)


def _exchange_in_words(row: ArmRow) -> str:
    """What a study of one arm has measured without gradient sync for, as a further sentence."""
    step = sum(milliseconds for part, milliseconds in row.step_parts_ms.items() if part != "other")
    if row.communication_ms is None or not step:
        return ""
    if row.communication_ms <= 0:
        return " No cost of gradient sync was measured: without it a mean step took no less."
    return f" Gradient sync adds {row.communication_ms:.1f} ms to a mean step, which takes {step:.1f} ms."


def _undecided_headline(judged: Sequence[ClaimRow], rows: Sequence[ArmRow], *, needed: int, is_partial: bool) -> str:
    """What is said where no pair is shown to differ in speed; arguments as of `headline_of`."""
    too_few = sum(made.outcome == "too few rounds" for made in judged)
    if too_few == len(judged):
        done = max(made.rounds for made in judged)
        if is_partial:
            return "Nothing is ranked yet."
        if any(row.failures for row in rows):
            return (
                f"Too few rounds to claim anything about speed: runs have failed, and at most {done} of {needed} are "
                "complete."
            )
        return f"FIRST LOOK: {done} of {max(done, needed)} rounds, nothing is ranked yet."
    doubted = [claim for claim in judged if claim.outcome == "disturbed or too short"]
    if too_few + len(doubted) == len(judged):
        return f"{_largest(doubted).sentence} Nothing is claimed of any of {len(judged)} comparable pairs."
    if left_out := too_few + len(doubted):
        counts = {"too few rounds": too_few, "disturbed or too short runs": len(doubted)}
        why = {reason: count for reason, count in counts.items() if count}
        reasons = (
            next(iter(why)) if len(why) == 1 else joined([f"{count} with {reason}" for reason, count in why.items()])
        )
        return (
            f"No comparable pair that was judged shows a difference in speed; {left_out} of the {len(judged)} pairs "
            f"{'is' if left_out == 1 else 'are'} not judged: {reasons}."
        )
    largest = _largest(judged)
    return (
        f"No comparable pair shows a difference in speed. The largest ratio: {largest.sentence}"
        f"{_could_have_shown(largest)}"
    )


def _could_have_shown(claim: ClaimRow) -> str:
    """How large a difference rounds that show none would have shown, as a further sentence."""
    if claim.outcome != "no difference shown" or claim.measured is None or claim.confidence is None:
        return ""
    least = claim.measured.detectable(1 - claim.confidence)
    return (
        f" {pluralize(claim.rounds, 'round')} like these would show a difference of {least:.1%} four times out of five."
    )


def time_headline_of(needed: Sequence[TargetRow], claims: Sequence[TimeClaimRow], target: float) -> str:
    """The sentence of the pair whose times to accuracy differ most, or what all arms have in common.

    Args:
        needed: what each arm needed.
        claims: those about the arms that reached it in every round; none if the rounds repeat one training.
        target: the accuracy that was to be reached.
    """
    judged = [made for made in claims if made.outcome not in ("NOT COMPARABLE", "exploratory")]
    if not claims:
        if len(needed) <= 2:
            return " ".join(row.sentence for row in needed)
        reached = sum(not row.is_censored for row in needed)
        return f"{reached} of {pluralize(len(needed), 'arm')} reach an accuracy of {target:g} in every round."
    if not judged:
        return "The times to accuracy of no two arms are comparable."
    if len(judged) == 1:
        return judged[0].sentence
    if decided := [made for made in judged if made.outcome in ("faster", "slower")]:
        pairs = f"{pluralize(len(judged), 'comparable pair')}"
        return f"{_largest(decided).sentence} It is the largest difference in time to accuracy of {pairs}."
    if left_out := sum(made.outcome in UNMEASURED for made in judged):
        return (
            f"No difference in time to accuracy shown; {left_out} of {pluralize(len(judged), 'pair')} "
            f"{'is' if left_out == 1 else 'are'} not judged."
        )
    return "No comparable pair shows a difference in time to accuracy."


def _largest(claims: Sequence[RatioT]) -> RatioT:
    """The claim of the pair whose speeds, or times, differ most."""
    return max(claims, key=lambda claim: abs(math.log(claim.ratio or 1)))


def _scaling_headline(rows: Sequence[ArmRow], *, needed: int, is_partial: bool) -> str | None:
    """The sentence of the largest speed-up, where speed-ups are all that a study shows."""
    scaled = [(row, row.scaling) for row in rows if row.scaling]
    if not scaled:
        return None
    row, best = max(scaled, key=lambda pair: (not pair[1].doubt, not pair[0].emulated, pair[1].speedup))
    emulated = " It is emulated, so this says nothing of the mode itself." if row.emulated else ""
    if best.low is not None or best.doubt is not None:
        return f"{best.sentence}{emulated}"
    if is_partial:
        return f"{best.sentence}{emulated} Nothing is claimed yet."
    return f"FIRST LOOK: {best.rounds} of {max(best.rounds, needed)} rounds. {best.sentence}{emulated}"


def measured_in_words(runs: Sequence[RunResult]) -> str:
    """What all runs share, of what a reader asks first."""

    def shared(values: Iterable[str], several: str) -> str:
        distinct = list(dict.fromkeys(values))
        return distinct[0] if len(distinct) == 1 else several

    data = shared((f"{Path(run.dataset).name} {run.image_size} px" for run in runs), "several datasets or sizes")
    parts = [
        shared((run.model for run in runs), "several models"),
        data,
        shared((f"batch {run.global_batch_size}" for run in runs), "several batches"),
        shared((run.precision for run in runs), "several precisions"),
        shared(map(devices_in_words, runs), "several machines"),
        *_days(runs),
    ]
    return printable(" · ".join(parts))


def _days(runs: Sequence[RunResult]) -> list[str]:
    """On which day they were made, or the first and the last one; nothing where results of 0.1.0 do not say."""
    days = sorted(run.started_at.date().isoformat() for run in runs if run.started_at)
    return [" to ".join(dict.fromkeys((days[0], days[-1])))] if days else []


def devices_in_words(run: RunResult) -> str:
    """The GPUs of a run by their names, or the cores of which its devices are simulated."""
    if run.device_type == "cpu":
        cores = (run.settings or {}).get("cores")
        return f"{f'{cores} CPU cores' if cores else 'CPU'}, devices simulated"
    return ", ".join(sorted({name.split(":")[0] for name in run.device_names}))


def layers_in_words(runs: Sequence[RunResult]) -> list[str]:
    """How the layers of custom models with other names in other frameworks were matched, a line for each."""
    lines = [
        line
        for run in runs
        for line in matched_in_words(run.model, (run.config.get("inputs") or {}).get("layers") or {})
    ]
    return [printable(line) for line in dict.fromkeys(lines)]


def machines_in_words(runs: Sequence[RunResult]) -> list[str]:
    """A line for each machine that they were made on, with the names of its hosts where there are several.

    Results of older releases do not say what their machines were.
    """
    hosts: dict[str, list[str]] = {}
    for node in (node for run in runs for node in run.nodes):
        hosts.setdefault(node.machine.in_words if node.machine else f"machine {NOT_KNOWN}", []).append(node.host)
    if len(hosts) == 1:
        return [printable(words) for words in hosts]
    return [printable(f"{', '.join(dict.fromkeys(names))}: {words}") for words, names in hosts.items()]
