"""Runs as event files for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dpcompare.report.trackers import TrackedRun
from dpcompare.system.python_environment import import_extra


def write_to_tensorboard(runs: Iterable[TrackedRun], folder: str) -> None:
    """A folder per run below `folder`; figures stand at the last step, the config is a text.

    Raises:
        RequestError: tensorboardX, which writes them, is not installed. (TensorFlow no longer brings TensorBoard.)
    """
    tensorboard = import_extra("tensorboardX", extra="report", needed_by="--tensorboard")
    for run in runs:
        with tensorboard.SummaryWriter(str(Path(folder) / run.name)) as writer:
            for step, values in run.series.items():
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
            for name, figure in run.figures.items():
                writer.add_scalar(f"figures/{name}", figure, max(run.series, default=0))
            writer.add_text("config", f"```\n{json.dumps(run.config, indent=2)}\n```")
