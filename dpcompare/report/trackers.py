"""What experiment trackers are given of a run, after the fact: its config, its series and its figures."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcompare.experiments.collection import Collection
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.study import Arm
from dpcompare.report.records import Value, record
from dpcompare.results.result import RunResult
from dpcompare.results.timing import seconds_of_steps

PROJECT = "dpcompare"
"""What a tracker files the runs under."""
_TELEMETRY_OFF = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """One completed run."""

    name: str
    """Of a folder too."""
    arm: str
    config: dict[str, Any]
    """As config.json has it."""
    series: dict[int, dict[str, float]]
    """Step, from 1 -> what was measured there: `train/loss`, `train/step_seconds`, `evaluation/loss`,
    `evaluation/accuracy`."""
    record: dict[str, Value]
    """As in `dpcompare.report.records`."""

    @property
    def figures(self) -> dict[str, float]:
        """The numbers of the record that are known."""
        numbers = {name: value for name, value in self.record.items() if isinstance(value, (int, float))}
        return {name: value for name, value in numbers.items() if not isinstance(value, bool)}


@contextmanager
def nothing_else_sent() -> Iterator[None]:
    """While this lasts, no tracker tells its makers of its use or of its errors, as MLflow and wandb would."""
    before = {name: os.environ.get(name) for name in _TELEMETRY_OFF}
    os.environ.update(_TELEMETRY_OFF)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def tracked_runs(collection: Collection, comparison: Comparison) -> Iterator[TrackedRun]:
    """The completed runs of a collection, and of what was made of it."""
    for arm, row in zip(collection.arms, comparison.arms, strict=True):
        for shown in row.rounds_shown:
            if (run := arm.runs[shown.number - 1]) is not None:
                run_dir = Path(arm.run_dirs[shown.number - 1])
                yield TrackedRun(
                    name=f"{Arm(name=arm.name, config=arm.config).folder}-round-{shown.number:02d}",
                    arm=row.name,
                    config=run.config,
                    series=_series(run, seconds_of_steps(arm.config, run_dir)),
                    record=record(row, shown),
                )


def _series(run: RunResult, step_seconds: dict[int, float]) -> dict[int, dict[str, float]]:
    measured: dict[int, dict[str, float | None]] = defaultdict(dict)
    for step, loss in enumerate(run.train_loss, start=1):
        measured[step]["train/loss"] = loss
    for step, seconds in step_seconds.items():
        measured[step]["train/step_seconds"] = seconds
    for evaluation in run.evaluations:
        measured[evaluation.step] |= {"evaluation/loss": evaluation.loss, "evaluation/accuracy": evaluation.accuracy}
    return {
        step: {name: value for name, value in measured[step].items() if value is not None} for step in sorted(measured)
    }
