"""Runs as runs of MLflow: in a database of a folder, or on a server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpcompare.errors import RequestError
from dpcompare.report.trackers import PROJECT, TrackedRun, nothing_else_sent
from dpcompare.system.python_environment import import_extra

MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""Of one request."""
MOST_CHARACTERS = 6000
"""Of a parameter."""


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
