"""Scaling: what several devices bring over one device of the same framework."""

from __future__ import annotations

from collections.abc import Sequence

from dpcompare.experiments import fairness
from dpcompare.experiments.collection import ArmRuns, rounds_of_seeds
from dpcompare.experiments.comparison import Scaling
from dpcompare.experiments.fairness_checks import Differs, names_that_differ
from dpcompare.experiments.statistics import FALSE_CLAIMS, SUSPICIOUS_EFFICIENCY, interval_in_words, paired_ratio
from dpcompare.system.terminal_text import counted

OF_SCALING = names_that_differ(Differs.DEVICES | Differs.SPLIT_BATCH | Differs.EMULATION)
"""Checks in which a baseline of one device differs by its nature."""

_OF_WEAK_SCALING = names_that_differ(Differs.GLOBAL_BATCH)
"""Checks that follow from a global batch which grows with the devices."""


def scaling_of(arm: ArmRuns, all_arms: Sequence[ArmRuns]) -> Scaling | None:
    """An arm of several devices against `single` of the same framework, study and settings.

    Its speed over that of one device is the ratio of steady speeds, paired within rounds, with its 95% interval. Which
    of the two is faster is not the question, so it is no claim and takes no part in the correction for many pairs.
    """
    for other in all_arms:
        kind = _kind(arm, other)
        ratio = paired_ratio(*_paired(arm, other)) if kind else None
        if kind is None or ratio is None:
            continue
        num_devices = len(arm.completed[0].device_names)
        interval = ratio.interval(FALSE_CLAIMS)
        low, high = interval or (None, None)
        efficiency = ratio.value / num_devices
        shown = interval_in_words(interval, FALSE_CLAIMS, ratio.rounds)
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
            sentence=f"{arm.name} on {counted(num_devices, 'device')}: {ratio.value:.3f} times the speed of one device "
            f"({shown}), {efficiency:.0%} efficient in {kind} scaling.",
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
    if (one.mode, one.framework) != ("single", run.framework) or run.num_replicas == 1:
        return None
    # All rounds of both: the speed-up is of all of them.
    sheet = fairness.compare(
        [*arm.completed, *baseline.completed], subject=sorted(OF_SCALING), rounds=rounds_of_seeds([arm, baseline])
    )
    unequal = {row.knob for row in sheet.rows if row.reason}
    same_per_replica = one.global_batch_size == run.global_batch_size / run.num_replicas
    if same_per_replica and unequal <= _OF_WEAK_SCALING:
        return "weak"
    return None if unequal else "strong"
