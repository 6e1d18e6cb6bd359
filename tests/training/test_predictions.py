"""Predictions that are kept: every sample once, whatever the number of processes."""

import numpy as np
import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.data.store import open_store
from dpcompare.errors import RequestError
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.results.predictions import load_predictions
from dpcompare.training.evaluated import keep_predictions
from tests.support.numpy_backend import NumpyBackend


def keep(run_dir, num_processes, **workload):
    workload = Workload(model="mlp", image_size=8, global_batch_size=32, **workload)
    cluster = Cluster.partition(num_processes, device="cpu")
    config = prepare_inputs(RunConfig(framework="torch", mode="ddp", workload=workload, cluster=cluster))
    store = open_store(config.inputs.store)
    run_dir.mkdir()
    for rank in range(num_processes):
        backend = NumpyBackend(config)
        backend.setup()
        backend.weights = np.random.default_rng(3).normal(size=backend.weights.shape)
        backend.process_rank, backend.num_processes = rank, num_processes
        keep_predictions(backend, store, run_dir, lambda: None)
    return load_predictions(run_dir), store


def test_any_number_of_processes_predicts_each_sample_once(tmp_path):
    (alone, store), (shared, _) = (keep(tmp_path / str(number), number) for number in (1, 4))
    assert len(alone.labels) == 359
    assert alone.labels.tolist() == store.split("validation").labels.tolist() == shared.labels.tolist()
    assert alone.predicted.tolist() == shared.predicted.tolist()
    in_parts, _ = keep(tmp_path / "in parts", 2, accumulate=4)
    assert in_parts.predicted.tolist() == alone.predicted.tolist()
    assert len(set(alone.predicted.tolist())) > 3
    assert alone.classes == [str(digit) for digit in range(10)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("index,label,prediction\n0,1,1\n0,1,1\n", "not every sample is there once"),
        ("index,label,prediction\n0,1,10\n", "a class is not one of the 10"),
        ("index,label,prediction\n0,1,one\n", "invalid literal"),
        (f"index,label,prediction\n0,1,{'9' * 30}\n", "Python int too large"),
        ("index,label,prediction\n", "not every sample is there once"),
    ],
)
def test_files_that_are_none_are_refused(tmp_path, text, why):
    keep(tmp_path / "run", 1)
    (tmp_path / "run" / "predictions" / "process-0.csv").write_text(text)
    with pytest.raises(RequestError, match=f"does not hold the predictions of a run .{why}"):
        load_predictions(tmp_path / "run")


def test_a_run_that_kept_none_has_none(tmp_path):
    assert load_predictions(tmp_path) is None
