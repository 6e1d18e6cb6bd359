"""What the row of an arm has in addition to its figures: its rounds, its scaling, its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, zip_longest

import numpy as np

from dpcompare.experiments.arm_rows import Round, Scaling
from dpcompare.experiments.check_row import Differs
from dpcompare.experiments.claim_rows import ArmPredictions, PredictionAgreement, PredictionRows
from dpcompare.experiments.collection import ArmRuns, pairs_within
from dpcompare.experiments.fairness_checks import names_that_differ
from dpcompare.experiments.figures import FIGURES, figures_of_run
from dpcompare.experiments.sheet import sheet_of_arms
from dpcompare.experiments.soundness import doubt_of
from dpcompare.experiments.statistics import FALSE_CLAIMS, SUSPICIOUS_EFFICIENCY, interval_in_words, paired_ratio
from dpcompare.results.predictions import Integers, Predictions
from dpcompare.system.terminal_text import pluralize, printable


def rounds_of(arm: ArmRuns) -> list[Round]:
    """Those that were run; a run that was interrupted is repeated, and is not among them."""
    rounds = zip(arm.positions, arm.run_dirs, strict=True)
    runs = zip_longest(arm.runs, arm.without_sync)
    return [
        Round(
            number=number,
            position=position,
            run_dir=printable(run_dir),
            failure=arm.failure_of(number),
            warnings=list(dict.fromkeys(warning.kind for warning in run.warnings)) if run else [],
            seed=run.config["workload"].get("seed") if run else None,
            **{name: value for name, value in figures_of_run(run, without_sync).items() if FIGURES[name].per_run},
        )
        for number, ((position, run_dir), (run, without_sync)) in enumerate(zip(rounds, runs, strict=True), start=1)
        if run_dir or arm.failure_of(number)
    ]


OF_SCALING = names_that_differ(Differs.DEVICES | Differs.SPLIT_BATCH | Differs.EMULATION)
"""Checks in which a baseline of one device differs by its nature."""

_OF_WEAK_SCALING = names_that_differ(Differs.GLOBAL_BATCH)
"""Checks that follow from a global batch which grows with the devices."""


def scaling_of(arm: ArmRuns, all_arms: Sequence[ArmRuns]) -> Scaling | None:
    """An arm of several devices against `single` of the same framework, study and settings.

    Its speed over that of one device is the ratio of steady speeds, paired within rounds, with its 95% interval. Which
    of the two is faster is not the question, so it is not a claim and takes no part in the correction for many pairs.
    Where most rounds are not sound it has no interval.
    """
    for other in all_arms:
        kind = _kind(arm, other)
        ratio = paired_ratio(*_paired(arm, other)) if kind else None
        if kind is None or ratio is None:
            continue
        num_devices = len(arm.completed[0].device_names)
        interval = ratio.interval(FALSE_CLAIMS)
        # Of too few rounds for an interval nothing is claimed in any case.
        doubt = doubt_of(arm.runs, other.runs) if interval else None
        low, high = interval if interval and not doubt else (None, None)
        efficiency = ratio.value / num_devices
        shown = "in what was measured" if doubt else interval_in_words(interval, FALSE_CLAIMS, ratio.rounds)
        return Scaling(
            kind=kind,
            baseline=other.name,
            num_devices=num_devices,
            speedup=ratio.value,
            low=low,
            high=high,
            rounds=ratio.rounds,
            efficiency=efficiency,
            suspicious=efficiency > SUSPICIOUS_EFFICIENCY,
            doubt=doubt.reason if doubt else None,
            sentence=(f"{doubt.reason}: no claim; {doubt.remedy}. " if doubt else "")
            + f"{arm.name} on {pluralize(num_devices, 'device')}: {ratio.value:.3f} times the speed of one "
            f"device ({shown}), {efficiency:.0%} efficient in {kind} scaling.",
        )
    return None


def is_scaling(first: ArmRuns, second: ArmRuns) -> bool:
    """Whether two arms are several devices and the one device that they are measured against."""
    return any(
        _kind(arm, one) is not None and paired_ratio(*_paired(arm, one)) is not None
        for arm, one in ((first, second), (second, first))
    )


def _paired(arm: ArmRuns, other: ArmRuns) -> tuple[list[float | None], list[float | None]]:
    rounds = min(len(arm.steady_speeds), len(other.steady_speeds))
    return arm.steady_speeds[:rounds], other.steady_speeds[:rounds]


def _kind(arm: ArmRuns, baseline: ArmRuns) -> str | None:
    """`strong`, `weak`, or None where they are no such pair, or too much else differs for a figure."""
    if not arm.completed or not baseline.completed or arm.source != baseline.source:
        return None
    run, one = arm.completed[0], baseline.completed[0]
    same = (one.framework, one.environment) == (run.framework, run.environment)
    if one.mode != "single" or not same or run.num_replicas == 1:
        return None
    # All rounds of both: the speed-up is of all of them.
    sheet = sheet_of_arms([arm, baseline], sorted(OF_SCALING))
    unequal = {row.setting for row in sheet.rows if row.reason}
    same_per_replica = one.global_batch_size == run.global_batch_size / run.num_replicas
    if same_per_replica and unequal <= _OF_WEAK_SCALING:
        return "weak"
    return None if unequal else "strong"


def confusion(labels: Integers, predicted: Integers, num_classes: int) -> Integers:
    """(label, prediction): how many samples of a class were taken for which."""
    counts = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def predictions_of(sets: Sequence[Sequence[ArmRuns]]) -> PredictionRows | None:
    """The predictions of arms that were evaluated on the same samples; None where none were kept."""
    arms = [arm for each in sets for arm in each]
    kept = {arm.name: found for arm in arms if (found := [each for each in arm.predictions if each])}
    if not kept:
        return None
    first = next(iter(kept.values()))[0]
    alike = [arm for arm in arms if arm.name in kept and all(_same_samples(each, first) for each in kept[arm.name])]
    rows = [_arm(arm.name, kept[arm.name]) for arm in alike]
    pairs = [_agreement(*pair) for pair in pairs_within([arm for arm in each if arm in alike] for each in sets)]
    return PredictionRows(
        classes=list(map(printable, first.classes)),
        samples=len(first.labels),
        arms=rows,
        agreements=[pair for pair in pairs if pair is not None],
    )


def _same_samples(one: Predictions, other: Predictions) -> bool:
    return one.classes == other.classes and np.array_equal(one.labels, other.labels)


def _arm(name: str, rounds: Sequence[Predictions]) -> ArmPredictions:
    num_classes = len(rounds[0].classes)
    counts = np.sum([confusion(each.labels, each.predicted, num_classes) for each in rounds], axis=0)
    samples, right = counts.sum(axis=1), counts.diagonal()
    between = [_part_alike(*pair) for pair in combinations(rounds, 2)]
    return ArmPredictions(
        name=name,
        rounds=len(rounds),
        class_accuracy=[float(hits / of) if of else None for hits, of in zip(right, samples, strict=True)],
        confusion=counts.tolist(),
        agreement_between_rounds=float(np.mean(between)) if between else None,
    )


def _part_alike(one: Predictions, other: Predictions) -> float:
    return float((one.predicted == other.predicted).mean())


def _agreement(first: ArmRuns, second: ArmRuns) -> PredictionAgreement | None:
    """Within rounds, whose seed both have; None where there is no such round."""
    both = [(one, other) for one, other in zip(first.predictions, second.predictions, strict=False) if one and other]
    if not both:
        return None
    parts = [_part_alike(*pair) for pair in both]
    mean, rounds = float(np.mean(parts)), pluralize(len(parts), "round")
    return PredictionAgreement(
        first=first.name,
        second=second.name,
        agreement=mean,
        rounds=len(parts),
        sentence=f"{first.name} and {second.name} predict the same class for {mean:.1%} of the "
        f"{len(both[0][0].labels)} validation samples (mean of {rounds}, {min(parts):.1%} to {max(parts):.1%}).",
    )
