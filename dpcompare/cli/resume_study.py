"""The study that `compare --resume` goes on with: as it was asked for, with more rounds where they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dpcompare.errors import RequestError

if TYPE_CHECKING:
    from dpcompare.experiments.study import Study

_BESIDE = frozenset({"resume", "repeats", "until", "budget", "retry_failed", "dry_run", "as_json"})
"""Options that may stand beside --resume: the study itself has the others."""


def resumed_study(context: click.Context, study_dir: Path, *, repeats: int, adding: bool) -> Study:
    """The study in a directory, with the rounds that are asked for, if they are more.

    Args:
        context: of the command.
        study_dir: of the study.
        repeats: rounds that are asked for.
        adding: whether more are to be added until intervals are narrow.

    Raises:
        RequestError: there is none, or options were given that would make it another one.
    """
    from dpcompare.experiments.study import Study

    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _BESIDE
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise RequestError(
            f"--resume: received {', '.join(given)} beside it, but a study that is resumed stays as it was asked for; "
            "expected none of these, or a new study"
        )
    study = Study.load(study_dir)
    # The cache may have been emptied since, so the inputs are looked for again.
    configs = (arm.config.model_copy(update={"inputs": None}) for arm in study.arms)
    arms = tuple(arm.model_copy(update={"config": config}) for arm, config in zip(study.arms, configs, strict=True))
    return study.model_copy(update={"arms": arms, "repeats": max(study.repeats, repeats), "adding": adding})
