"""Runs as offline runs of Weights & Biases, which `wandb sync` sends where their owner wants them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dpcompare.report.trackers import PROJECT, TrackedRun, nothing_else_sent
from dpcompare.system.python_environment import import_extra


def write_to_wandb(runs: Iterable[TrackedRun], folder: str) -> None:
    """A folder per run below FOLDER/wandb; nothing is sent.

    Raises:
        RequestError: wandb is not installed.
    """
    with nothing_else_sent():
        wandb = import_extra("wandb", extra="wandb", needed_by="--wandb")
        settings = wandb.Settings(
            mode="offline",
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,  # what is installed here is not what the run was made with
        )
        Path(folder).mkdir(parents=True, exist_ok=True)
        try:
            for run in runs:
                with wandb.init(
                    project=PROJECT, group=run.arm, name=run.name, config=run.config, dir=folder, settings=settings
                ) as writer:
                    for step, values in run.series.items():
                        writer.log(values, step=step)
                    writer.summary.update(run.record)
        finally:
            wandb.teardown()  # the process that it started
