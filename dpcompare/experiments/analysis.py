"""The analysis of collected runs: from results to the document that reports render."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cache
from itertools import combinations, zip_longest
from typing import Any

from dpcompare.config.run import RunConfig
from dpcompare.experiments import fairness
from dpcompare.experiments.arm_rows import ArmRow, Curve, Round
from dpcompare.experiments.claim_rows import ClaimRow, GateRow
from dpcompare.experiments.collection import (
    ANOTHER_PAIR,
    ArmRuns,
    Collection,
    is_exploratory,
    is_pair_elsewhere,
    label_of,
    of_each_set,
    pairs_within,
)
from dpcompare.experiments.comparison import Comparison, Group, SettingRow
from dpcompare.experiments.environments import change_logs
from dpcompare.experiments.figures import figures_of_arm, median
from dpcompare.experiments.gate import gate_row
from dpcompare.experiments.learning import (
    SheetOf,
    accuracy_curve,
    learning_of,
    not_judged,
    spread_of,
    target_row,
    time_to_accuracy,
)
from dpcompare.experiments.next_steps import next_steps
from dpcompare.experiments.rounds import is_scaling, predictions_of, rounds_of, scaling_of
from dpcompare.experiments.sentences import (
    agreement_of,
    headline_of,
    layers_in_words,
    machines_in_words,
    measured_in_words,
)
from dpcompare.experiments.sheet import sheet_of_arms, sheet_of_sets
from dpcompare.experiments.soundness import doubt_of
from dpcompare.experiments.statistics import (
    ROUNDS_FOR_CLAIM,
    Claim,
    Pair,
    RatioPair,
    claims_of,
    paired_ratio,
)
from dpcompare.results.clock import RunWarning
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import pluralize, printable

LARGEST_CURVE = 400
"""Points of a loss curve that are shown."""


def analyse(collection: Collection) -> Comparison:
    """Compare all arms with each other, and say what to do next."""
    comparison = _compared(collection)
    if collection.alone is None:
        return comparison
    study, study_dir = collection.alone
    commands, steps = map(printable, study.commands), next_steps(comparison, study, study_dir)
    return comparison.model_copy(update={"commands": list(commands), "next_steps": list(steps)})


def _compared(collection: Collection) -> Comparison:
    arms = list(map(_printable, collection.arms))
    present = [arm for arm in arms if arm.completed]
    subject = collection.subject_of(present)
    sets = collection.judged_together(present)
    sheet = sheet_of_sets(sets, present, subject)

    @cache
    def sheet_of(first: ArmRuns, second: ArmRuns) -> fairness.Sheet:
        return sheet_of_arms([first, second], collection.subject_of([first, second]))

    claims = _claims(pairs_within(sets), sheet_of)
    rows = [_row(arm, present, pipeline) for arm, pipeline in zip(arms, _pipelines(arms), strict=True)]
    # A failure is reported with its arm; only rounds that are still to be run make a study partial.
    done = min((arm.complete_rounds for arm in arms if not arm.failures), default=collection.repeats)
    partial = any(arm.complete_rounds < len(arm.runs) for arm in arms if not arm.failures)
    needed = max(ROUNDS_FOR_CLAIM, *(arm.plan.rounds for arm in arms))
    runs = [run for arm in present for run in arm.completed]
    gate = _gate(collection, arms, sheet)
    headline = (
        f"{gate.sentence} {gate.advice}".rstrip()
        if gate
        else of_each_set(sets, lambda arms: _headline(arms, sets, claims, rows, needed=needed, is_partial=partial))
    )
    return Comparison(
        partial=partial,
        repeats=collection.repeats,
        order_seed=collection.order_seed,
        unchecked=_unchecked(arms),
        stopped_by=printable(collection.stopped_by) if collection.stopped_by else None,
        look_level=min(arm.plan.level for arm in arms),
        subject=list(subject),
        measured=measured_in_words(runs),
        machines=machines_in_words(runs),
        measured_by=list(dict.fromkeys(run.dpcompare_version for run in runs)),
        layers=layers_in_words(runs),
        environments=list(map(printable, change_logs(runs))),
        headline=f"PARTIAL ({done} of {collection.repeats} rounds are complete). {headline}" if partial else headline,
        gate=gate,
        learning=learning_of(sets, sheet_of),
        time_to_accuracy=time_to_accuracy(sets, {row.name: row.to_target for row in rows}, sheet_of),
        not_judged=not_judged(present),
        predictions=predictions_of(sets),
        agreement=of_each_set(sets, lambda arms: agreement_of(_within(arms, claims), arms)) or None,
        verdict=sheet.verdict,
        summary=sheet.summary,
        reasons=[printable(reason) for reason in sheet.reasons],
        settings=[
            SettingRow(setting=row.setting, values=_values_of_arms(row, present), equal=row.equal, reason=row.reason)
            for row in sheet.rows
        ],
        arms=rows,
        groups=[group for arms in sets for group in _groups(arms, claims, label_of(arms) if len(sets) > 1 else None)],
        claims=claims,
    )


def _gate(collection: Collection, arms: Sequence[ArmRuns], sheet: fairness.Sheet) -> GateRow | None:
    """What the study says as a gate; None of any other study.

    Args:
        collection: of the study.
        arms: all of them.
        sheet: of those that have a completed run.
    """
    study = collection.alone[0] if collection.alone else None
    if study is None or study.allowed_loss is None:
        return None
    candidate, baseline = arms
    unequal = [row.setting for row in sheet.rows if row.reason]
    inequality = Pair(first=candidate.name, second=baseline.name, unequal=unequal).inequality if unequal else None
    return gate_row(candidate, baseline, study.allowed_loss, inequality)


def _printable(arm: ArmRuns) -> ArmRuns:
    """Names hold those of directories; control characters would reach terminals, and abort the plotting library."""
    return replace(
        arm,
        name=printable(arm.name),
        failures=list(map(printable, arm.failures)),
        ablation_failures=list(map(printable, arm.ablation_failures)),
    )


def _unchecked(arms: Sequence[ArmRuns]) -> str | None:
    num_runs, unchecked = sum(len(arm.completed) for arm in arms), sum(arm.num_unchecked for arm in arms)
    if not unchecked:
        return None
    return (
        f"The figures of {unchecked} of {num_runs} runs are as written in result.json: they could not be recomputed, "
        "because their events are missing."
    )


def _values_of_arms(row: fairness.Row, arms: Sequence[ArmRuns]) -> list[str]:
    """What each arm has; several values where its rounds had several."""
    values = iter(fairness.shown(row.values))
    return [", ".join(dict.fromkeys(printable(next(values)) for _ in arm.completed)) for arm in arms]


def widest_interval(comparison: Comparison) -> float | None:
    """Half width, relative to the ratio, of the widest interval of two arms that are comparable and have not failed.

    Each is as wide as if nothing were claimed of the other pairs: when rounds are no longer added must not depend on
    what they show. None where there are no two such arms.
    """
    failed = {row.name for row in comparison.arms if row.failures}
    comparable = [made for made in comparison.claims if made.outcome not in ("NOT COMPARABLE", "exploratory")]
    widths = [
        _half_width(made, comparison.look_level / len(comparable))
        for made in comparable
        if not {made.first, made.second} & failed
    ]
    return max(widths, default=None)


def _half_width(made: ClaimRow, level: float) -> float:
    return math.expm1(made.measured.half_width(level) or 0.0) if made.measured else math.inf


def _claims(pairs: Sequence[tuple[ArmRuns, ArmRuns]], sheet_of: SheetOf) -> list[ClaimRow]:
    """Those of each study are judged together; no two arms of different studies are comparable.

    Several devices against one are not among them: see `dpcompare.experiments.rounds`.
    """
    pairs = [pair for pair in pairs if not is_scaling(*pair)]
    measured = [_pair(*arms, sheet_of(*arms)) for arms in pairs]
    made: dict[int, Claim] = {}
    for source in dict.fromkeys(first.source for first, _ in pairs):
        study_indices = [index for index, (first, _) in enumerate(pairs) if first.source == source]
        found = claims_of([measured[index] for index in study_indices], pairs[study_indices[0]][0].plan)
        made.update(zip(study_indices, found, strict=True))
    return [
        ClaimRow.of(made[index], **_apart(first.completed[0], second.completed[0]))
        for index, (first, second) in enumerate(pairs)
    ]


def _pair(first: ArmRuns, second: ArmRuns, sheet: fairness.Sheet) -> RatioPair:
    rounds = max(len(first.steady_speeds), len(second.steady_speeds))
    speeds = [arm.steady_speeds + [None] * (rounds - len(arm.steady_speeds)) for arm in (first, second)]
    unequal = [row.setting for row in sheet.rows if row.reason]
    return RatioPair(
        first=first.name,
        second=second.name,
        ratio=paired_ratio(*speeds),
        doubt=doubt_of(first.runs, second.runs),
        unequal=unequal,
        exploratory=is_exploratory(first, second),
    )


def _apart(first: RunResult, second: RunResult) -> dict[str, float | None]:
    """How far apart two trainings were: the fields of ClaimRow in addition to the ratio."""
    return {
        "loss_difference": _loss_difference(first, second),
        "diverged_at": _diverged_at(first, second),
        "accuracy_difference": _accuracy_difference(first, second),
    }


def _loss_difference(first: RunResult, second: RunResult) -> float | None:
    pairs = zip(first.train_loss, second.train_loss, strict=False)
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=None)


def _diverged_at(first: RunResult, second: RunResult) -> int | None:
    pairs = zip(first.train_loss, second.train_loss, strict=False)
    return next((step for step, (a, b) in enumerate(pairs, start=1) if (a is None) != (b is None)), None)


def _accuracy_difference(first: RunResult, second: RunResult) -> float | None:
    if not (first.evaluations and second.evaluations):
        return None
    return abs(first.evaluations[-1].accuracy - second.evaluations[-1].accuracy)


def _headline(
    arms: Sequence[ArmRuns],
    sets: Sequence[Sequence[ArmRuns]],
    claims: Sequence[ClaimRow],
    rows: Sequence[ArmRow],
    *,
    needed: int,
    is_partial: bool,
) -> str:
    """The sentence on the arms of one of the sets, those of its models that failed included."""
    names, models = {arm.name for arm in arms}, {arm.config.workload.model for arm in arms}
    if len(sets) > 1:
        rows = [row for row in rows if row.name in names or (not row.rounds and row.model in models)]
    elsewhere = ANOTHER_PAIR if is_pair_elsewhere(arms) else None
    return headline_of(_within(arms, claims), rows, needed=needed, is_partial=is_partial, elsewhere=elsewhere)


def _within(arms: Sequence[ArmRuns], claims: Sequence[ClaimRow]) -> list[ClaimRow]:
    names = {arm.name for arm in arms}
    return [claim for claim in claims if {claim.first, claim.second} <= names]


def _groups(arms: Sequence[ArmRuns], claims: Sequence[ClaimRow], model: str | None) -> list[Group]:
    """The arms by their number of devices, fewest first: those that are comparable with each other, and the others."""
    apart = {frozenset((made.first, made.second)) for made in claims if made.outcome == "NOT COMPARABLE"}
    by_devices: dict[int, list[str]] = {}
    for arm in arms:
        cluster = arm.config.cluster
        by_devices.setdefault(cluster.num_nodes * cluster.devices_per_node, []).append(arm.name)
    groups = []
    for num_devices, names in sorted(by_devices.items()):
        left, sets = list(names), []
        while alike := _alike(left, apart):
            sets.append(alike)
            left = [name for name in left if name not in alike]
        groups.append(Group(model=model, num_devices=num_devices, arms=names, comparable=sets))
    return groups


def _alike(names: Sequence[str], apart: Set[frozenset[str]]) -> list[str]:
    """A large set of names of which no two stand apart; none where there are no two such names."""
    left = list(names)
    while any(frozenset(pair) in apart for pair in combinations(left, 2)):
        # The arm that stands apart from most others; of several such ones the last.
        left.remove(max(reversed(left), key=lambda name: sum(frozenset((name, other)) in apart for other in left)))
    return left if len(left) > 1 else []


def _row(arm: ArmRuns, all_arms: Sequence[ArmRuns], pipeline: str | None) -> ArmRow:
    runs, rounds, workload = arm.completed, rounds_of(arm), arm.config.workload
    figures: dict[str, Any] = figures_of_arm(list(zip_longest(arm.runs, arm.without_sync)))
    return ArmRow(
        name=arm.name,
        source=printable(arm.source),
        framework=arm.config.framework,
        mode=arm.config.mode,
        num_nodes=arm.config.cluster.num_nodes,
        devices_per_node=arm.config.cluster.devices_per_node,
        num_replicas=arm.config.topology.num_replicas,
        device_type=arm.config.cluster.device_type,
        model=workload.model,
        dataset=workload.dataset,
        image_size=workload.image_size,
        global_batch_size=workload.global_batch_size,
        precision=workload.precision,
        profile=workload.profile,
        emulated=arm.config.emulated,
        pipeline=pipeline,
        micro_batches=workload.accumulate,
        rounds=len(runs),
        **figures,
        step_parts_ms=_parts(rounds),
        accuracy_over_seeds=spread_of(arm, "accuracy"),
        loss_over_seeds=spread_of(arm, "loss"),
        to_target=target_row(arm),
        accuracy_curve=accuracy_curve(arm),
        scaling=scaling_of(arm, all_arms),
        rounds_shown=rounds,
        loss_curve=_curve(runs[0] if runs else None),
        outliers=_outliers(runs),
        warnings=[
            RunWarning(kind=warning.kind, sentence=printable(f"round {number}: {warning.sentence}"))
            for number, run in enumerate(arm.runs, start=1)
            if run
            for warning in run.warnings
        ],
        repeated=list(map(printable, arm.repeated)),
        failures=arm.failures,
        ablation_failures=arm.ablation_failures,
    )


def _outliers(runs: Sequence[RunResult]) -> list[str]:
    """Of the round in which a few samples make most of the loss, and in how many rounds some do."""
    outliers = [(run.evaluations[-1], sentence) for run in runs if (sentence := run.outlier)]
    if not outliers:
        return []
    _, worst = max(outliers, key=lambda pair: (pair[0].loss or 0.0) / (pair[0].median_batch_loss or 1.0))
    if len(runs) == 1:
        return [worst]
    such = "" if len(outliers) == 1 else ", such as"
    return [f"in {len(outliers)} of {pluralize(len(runs), 'round')}{such}: {worst}"]


def _pipelines(arms: Sequence[ArmRuns]) -> list[str | None]:
    """Name of each arm's pipeline: the same where arms differ in their micro-batches alone; None: it has none."""
    piped = [arm for arm in arms if arm.config.mode_row.is_pipeline]
    called: dict[str, str] = {}
    for arm in piped:
        config = arm.config
        label = f"{config.topology.num_replicas} x {config.stages} stages, {config.pipeline_schedule or 'gpipe'}"
        called.setdefault(_but_micro_batches(config), f"{label}, {arm.name}" if label in called.values() else label)
    return [called[_but_micro_batches(arm.config)] if arm in piped else None for arm in arms]


def _but_micro_batches(config: RunConfig) -> str:
    workload = config.workload.changed(accumulate=1)
    return config.model_copy(update={"workload": workload}).model_dump_json()  # no run: 1f1b needs more micro-batches


def _median_of(values: Sequence[float | None]) -> float | None:
    return median([value for value in values if value is not None])


def _parts(rounds: Sequence[Round]) -> dict[str, float]:
    """The parts of a mean step, in milliseconds; medians over the rounds."""
    step_ms = _median_of([each.step_mean_ms for each in rounds])
    if step_ms is None:
        return {}
    waiting = _median_of([each.data_wait_fraction for each in rounds])
    parts = {} if waiting is None else {"waiting for data": step_ms * waiting}
    communication = _median_of([each.communication_ms for each in rounds])
    if communication is not None:
        parts["communication"] = max(0.0, communication)
    parts["computing"] = max(0.0, step_ms - sum(parts.values()))
    between = _median_of([each.between_steps_ms for each in rounds])
    if between is not None:
        parts["other"] = between
    return parts


def _curve(run: RunResult | None) -> Curve:
    losses = run.train_loss if run else []
    stride = -(-len(losses) // LARGEST_CURVE) or 1
    steps = sorted({*range(0, len(losses), stride), *([len(losses) - 1] if losses else [])})
    return Curve(steps=[step + 1 for step in steps], losses=[losses[step] for step in steps])
