"""What experiment trackers are given of a run: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcompare.errors import RequestError
from dpcompare.experiments.collection import Collection
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.study import Arm
from dpcompare.report.records import Value, record
from dpcompare.results.result import RunResult
from dpcompare.results.timing import seconds_of_steps
from dpcompare.system.python_environment import import_extra

PROJECT = "dpcompare"
"""What a tracker files the runs under."""
_TELEMETRY_OFF = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """One completed run."""

    name: str
    """The name of the run, and of a folder."""
    arm: str
    config: dict[str, Any]
    """The config as config.json has it."""
    series: dict[int, dict[str, float]]
    """Step, from 1 -> what was measured there: `train/loss`, `train/step_seconds`, `evaluation/loss`,
    `evaluation/accuracy`."""
    record: dict[str, Value]
    """The record as in `dpcompare.report.records`."""

    @property
    def figures(self) -> dict[str, float]:
        """The numbers of the record that are known."""
        numbers = {name: value for name, value in self.record.items() if isinstance(value, (int, float))}
        return {name: value for name, value in numbers.items() if not isinstance(value, bool)}


@contextmanager
def nothing_else_sent() -> Iterator[None]:
    """Within this context no tracker reports its use or its errors to its makers, as MLflow and wandb would."""
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


MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""The most metrics and parameters of one request to MLflow."""
MOST_CHARACTERS = 6000
"""The most characters of a parameter."""


def write_to_mlflow(runs: Iterable[TrackedRun], target: str) -> None:
    """A run of the experiment `dpcompare` per run.

    Args:
        runs: that have completed.
        target: a folder, for the SQLite database mlflow.db in it, or the URI of a server or of a store.

    Raises:
        RequestError: mlflow is not installed, or the server refuses.
    """
    with nothing_else_sent():
        mlflow = import_extra("mlflow", extra="mlflow", needed_by="--mlflow")
        try:
            client = mlflow.MlflowClient(tracking_uri=_store(target))
            experiment = _experiment(client, target)
            for run in runs:
                _write(mlflow.entities, client, experiment, run)
        except mlflow.exceptions.MlflowException as error:
            raise RequestError(
                f"--mlflow: {target!r} cannot be written ({' '.join(str(error).split())}); expected a folder, or the "
                "URI of a server"
            ) from None


def _store(target: str) -> str:
    if "://" in target:
        return target
    for needed in ("sqlalchemy", "alembic"):
        import_extra(needed, extra="mlflow", needed_by="--mlflow DIR")
    Path(target).mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{Path(target).resolve() / 'mlflow.db'}"


def _experiment(client: Any, target: str) -> str:
    """Its number; it is made where there is none. MLflow would place artifacts of a database where the command runs."""
    if found := client.get_experiment_by_name(PROJECT):
        return str(found.experiment_id)
    place = None if "://" in target else (Path(target).resolve() / "artifacts").as_uri()
    return str(client.create_experiment(PROJECT, artifact_location=place))


def _write(entities: Any, client: Any, experiment: str, run: TrackedRun) -> None:
    now = int(1000 * time.time())
    tags = {name: value for name, value in run.record.items() if isinstance(value, str) and value}
    run_id = client.create_run(experiment, start_time=now, run_name=run.name, tags=tags).info.run_id
    last_step = max(run.series, default=0)
    metrics = [
        *(
            entities.Metric(name, value, now, step)
            for step, values in run.series.items()
            for name, value in values.items()
        ),
        *(entities.Metric(f"figures/{name}", float(value), now, last_step) for name, value in run.figures.items()),
    ]
    parameters = [entities.Param(name, value) for name, value in _parameters(run.config)]
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + MOST_METRICS])
    for start in range(0, len(parameters), MOST_PARAMETERS):
        client.log_batch(run_id, params=parameters[start : start + MOST_PARAMETERS])
    client.set_terminated(run_id, end_time=now)


def _parameters(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The config as flat names and texts: `workload.model`, `mlp`."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _parameters(each, f"{name}.{key}" if name else key)
    else:
        yield name, (value if isinstance(value, str) else json.dumps(value))[:MOST_CHARACTERS]


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
