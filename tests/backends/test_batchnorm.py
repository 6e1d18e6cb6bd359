"""BatchNorm over all replicas by torch's own kernels: the same numbers as by ours, by the rule of both frameworks."""

import subprocess
import sys

import pytest

from tests.support.command import python

pytestmark = pytest.mark.torch

# Trains a few steps on one CPU, where SyncBatchNorm falls back to torch's ordinary kernels, and prints the largest
# difference of any tensor between the two implementations.
TRAIN = """
import sys
import numpy as np
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends import load_backend
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.config import run_fields as run_module
from dpcompare.data.order import training_batches
from dpcompare.data.store import open_store
from dpcompare.training.schedule import training_reader

own_tuning = run_module.tuning_of


def trained(kernels):
    run_module.tuning_of = lambda *chosen: own_tuning(*chosen) | {"batchnorm_kernels": kernels}
    workload = Workload(
        model=sys.argv[1], dataset="synthetic-mini", image_size=32, global_batch_size=8, precision="float64",
        batchnorm="sync", steps=3, warmup_steps=0,
    )
    cluster = Cluster.partition(device="cpu")
    backend = load_backend("torch", "single")(
        prepare_inputs(RunConfig(framework="torch", mode="single", workload=workload, cluster=cluster))
    )
    backend.setup()
    split = open_store(backend.inputs.store).split("train")
    reader = training_reader(workload, split, (), data_parallel_rank=0, data_parallel_size=1)
    for batch in backend.prefetch_to_device(reader.batch_loaders(training_batches(len(split), 8, seed=0, num_steps=3))):
        backend.train_step([batch], 0.01)
    kinds = {type(module).__name__ for module in backend.model.modules()}
    return backend.state().model, kinds


(ours, our_kinds), (torchs, their_kinds) = trained("default"), trained("SyncBatchNorm")
assert "GlobalBatchNorm" in our_kinds, our_kinds
assert {"SyncBatchNorm", "SyncBatchNormAct"} & their_kinds and "GlobalBatchNorm" not in their_kinds, their_kinds
assert ours.keys() == torchs.keys()
print(max(float(np.abs(ours[name] - torchs[name]).max()) for name in ours))
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["toy-bn", pytest.param("efficientnet-b0", marks=pytest.mark.long)])
def test_both_kernels_train_the_same(model):
    done = subprocess.run([sys.executable, "-c", TRAIN, model], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout.splitlines()[-1]) < 1e-8


# Two replicas of 4 rows: torch's variance is that of 8, and becomes the biased one by as many.
STATISTICS = """
from types import SimpleNamespace
import torch
from dpcompare.backends.torch.batchnorm import RunningVariance
from dpcompare.backends.torch.single import SingleDevice

backend = object.__new__(SingleDevice)  # without a run: only the count of rows is asked for
backend.num_replicas = 2
of_one_replica = SimpleNamespace(labels=torch.arange(4))
for kernels, rows in {"SyncBatchNorm": 8, "default": 4}.items():
    backend.config = SimpleNamespace(
        tuning={"batchnorm_kernels": kernels}, topology=SimpleNamespace(replicas_per_process=1)
    )
    assert backend._rows_of_statistics(of_one_replica) == rows
    images = torch.randn(rows, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norm = torch.nn.SyncBatchNorm(3, momentum=0.1).double()
    model = torch.nn.Sequential(norm)
    variance = RunningVariance(model, images[:1])
    model.train()(images)  # what the kernels of two replicas make of their 4 rows each
    variance.count_update(backend._rows_of_statistics(of_one_replica))
    variance.use_for_evaluation()
    biased = images.var((0, 2, 3), unbiased=False)
    assert torch.allclose(norm.running_var, 0.9 + 0.1 * biased, rtol=1e-12, atol=0)
for shape in ((4, 3), (4, 3, 7)):
    features = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norm = torch.nn.BatchNorm1d(3, momentum=0.1, affine=False).double()
    variance = RunningVariance(torch.nn.Sequential(norm), features[:1])
    norm.train()(features)
    variance.count_update(len(features))
    variance.use_for_evaluation()
    biased = features.var([0, *range(2, len(shape))], unbiased=False)
    assert torch.allclose(norm.running_var, 0.9 + 0.1 * biased, rtol=1e-12, atol=0), shape
"""


@pytest.mark.slow
def test_statistics_over_all_replicas_have_all_their_rows():
    python("-c", STATISTICS)
