"""The study that `compare --resume` goes on with: as it was asked for, with more rounds where they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dpcompare._version import __version__
from dpcompare.cli.option_values import refuse_strange
from dpcompare.errors import RequestError

if TYPE_CHECKING:
    from dpcompare.experiments.study import Study

_BESIDE = frozenset({"resume", "repeats", "until", "budget", "retry_failed", "dry_run", "as_json", "python"})
"""Options that may stand beside --resume: the study itself has the others."""


def resumed_study(
    context: click.Context, study_dir: Path, *, repeats: int, adding: bool, known: Mapping[str, str]
) -> Study:
    """The study in a directory, with the rounds that are asked for, if they are more.

    Args:
        context: of the command.
        study_dir: of the study.
        repeats: rounds that are asked for.
        adding: whether more are to be added until intervals are narrow.
        known: framework -> interpreter, of --python or made by `dpcompare setup`.

    Raises:
        RequestError: there is none, options were given or left out that would make it another one, or it names an
            interpreter of somebody else.
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
    if study.adding and not adding:
        raise RequestError(
            "--resume: the study was adding rounds until its intervals are narrow; give --until PERCENT (and --budget) "
            "again, or it would end here, as another look at its claims"
        )
    for arm in study.arms:
        refuse_strange(arm.config.python, arm.config.framework, known, named_by=f"--resume: arm {arm.name}")
    # The cache may have been emptied since, so the inputs are looked for again.
    configs = (arm.config.model_copy(update={"inputs": None}) for arm in study.arms)
    arms = tuple(arm.model_copy(update={"config": config}) for arm, config in zip(study.arms, configs, strict=True))
    asked = {"repeats": max(study.repeats, repeats), "adding": adding, "dpcompare_version": __version__}
    return study.model_copy(update={"arms": arms, **asked})
