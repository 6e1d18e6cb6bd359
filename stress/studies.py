"""A study of arms that were made here, run as those of users are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpcompare.experiments.study import Arm, Study, hold, open_study
from dpcompare.experiments.study_runs import Watcher, run_study
from dpcompare.launch.inputs import prepare_compared


def run_in_rounds(arms: Sequence[Arm], folder: Path, rounds: int, watcher: Watcher) -> Study:
    """All arms in interleaved rounds; what `folder` has of them is not run again."""
    configs = prepare_compared([arm.config for arm in arms])
    prepared = [Arm(**dict(arm) | {"config": config}) for arm, config in zip(arms, configs, strict=True)]
    with hold(folder):
        study = open_study(Study(arms=tuple(prepared), repeats=rounds), folder)
        run_study(study, folder, watcher)
    return study
