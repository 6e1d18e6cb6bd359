"""The commands that one types after a study, to settle what it has left open."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from dpcompare.errors import RequestError
from dpcompare.experiments.arms import estimate_seconds
from dpcompare.experiments.comparison import Comparison, NextStep
from dpcompare.experiments.fairness import checks_named
from dpcompare.experiments.fairness_checks import CHECKS
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM
from dpcompare.experiments.study import Study
from dpcompare.experiments.study_runs import results
from dpcompare.system.terminal_text import hint, printable


def next_steps(comparison: Comparison, study: Study, study_dir: Path) -> Iterator[NextStep]:
    """To run again what has failed, to take a difference for the question, to make more rounds, and to predict nodes.

    Args:
        comparison: what the study shows.
        study: as it is in its directory.
        study_dir: where its runs are.
    """
    if study.allowed_loss is not None:
        yield from _of_gate(comparison, study, study_dir)
        return
    if any(row.failures for row in comparison.arms):
        command = hint("compare", "--resume", study_dir, "--retry-failed", *environments_of(study))
        yield NextStep(name="run again", command=command)
    yield from _as_subject(comparison, study_dir)
    without_interval = any(row.scaling and row.scaling.low is None for row in comparison.arms)
    if comparison.partial:
        yield _rounds("continue", study, study_dir, study.repeats)
    elif study.repeats < ROUNDS_FOR_CLAIM and ("too few rounds" in comparison.outcomes or without_interval):
        yield _rounds("settle it", study, study_dir, ROUNDS_FOR_CLAIM)
    elif "no difference shown" in comparison.outcomes and not comparison.stopped_by:
        yield _rounds("more rounds", study, study_dir, 2 * study.repeats)
    yield from _more_nodes(comparison, study_dir)


def _as_subject(comparison: Comparison, study_dir: Path) -> Iterator[NextStep]:
    """The command that takes the options in which the arms differ for the question, if nothing else parts them all."""
    parted = {row.setting for row in comparison.settings if row.reason}
    options = [CHECKS[setting].field for setting in CHECKS if setting in parted and CHECKS[setting].field]
    if options and parted <= set(checks_named(options)) and not any(group.comparable for group in comparison.groups):
        named = (part for option in options for part in ("--subject", option))
        yield NextStep(name="as subject", command=hint("report", study_dir, *named))


def _more_nodes(comparison: Comparison, study_dir: Path) -> Iterator[NextStep]:
    """The command that predicts more nodes; one for each model, since it predicts arms that are comparable."""
    measured = [row for row in comparison.arms if row.communication_ms is not None and row.num_nodes > 1]
    by_model = any(group.model for group in comparison.groups)
    for model in dict.fromkeys(row.model if by_model else "" for row in measured):
        named = (part for row in measured if row.model == model for part in ("--arm", row.name))
        yield NextStep(name="more nodes", command=hint("project", study_dir, *named))


def _of_gate(comparison: Comparison, study: Study, study_dir: Path) -> Iterator[NextStep]:
    """The command of a gate, where more rounds may decide it, or failed ones can be run again."""
    command = command_of_gate(study, study_dir)
    if any(row.failures for row in comparison.arms):
        yield NextStep(name="run again", command=f"{command} --retry-failed")
    elif comparison.gate and not comparison.gate.is_final:
        yield NextStep(name="continue", command=command)


def command_of_gate(study: Study, study_dir: Path) -> str:
    """The command that it was begun with, in this directory.

    The words of a file, which may be another's, are quoted so that a shell takes them for nothing but words.
    """
    try:
        first, second, *words = shlex.split(study.commands[0])
    except (IndexError, ValueError):
        first, second, words = "", "", []
    if (first, second) != ("dpcompare", "gate"):
        words = ["ARM", "--baseline", "BASELINE"]
    own = () if any(word.partition("=")[0] == "--out" for word in words) else ("--out", study_dir)
    return printable(hint("gate", *(word for word in words if word != "--retry-failed"), *own))


def _rounds(name: str, study: Study, study_dir: Path, repeats: int) -> NextStep:
    """The rounds that are missing, or more of them, with how long they will take."""
    longer = study.changed(repeats=repeats)
    seconds: float | None
    try:
        seconds, _ = estimate_seconds(longer, results(longer, study_dir))
    except RequestError:  # the data of an arm that has no run yet may be on another machine
        seconds = None
    more = () if repeats == study.repeats else ("--repeats", repeats)
    command = hint("compare", "--resume", study_dir, *more, *environments_of(study))
    return NextStep(name=name, command=command, seconds=seconds)


def environments_of(study: Study) -> tuple[str, ...]:
    """The options that a command needs to continue a study whose arms have environments of their own."""
    configs = (arm.config for arm in study.arms)
    typed = [pair for config in configs if config.environment for pair in config.environment.typed(config.python)]
    return tuple(part for pair in dict.fromkeys(typed) for part in ("--env", pair))
