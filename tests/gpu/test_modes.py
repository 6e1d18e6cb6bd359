"""On a real GPU: every mode, with one replica, trains a toy as the CPU does, in float64. `pytest -m gpu`."""

from __future__ import annotations

import numpy as np
import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.modes import MODES
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.launch.run import run

WORKLOAD = Workload(
    **{"model": "toy-bn", "dataset": "synthetic-mini", "image_size": 32, "global_batch_size": 16, "steps": 8},
    **{"warmup_steps": 2, "precision": "float64", "regularization": "shared", "augment": ("flip", "brightness")},
)
CLOSE = 1e-9
"""Of losses in float64 after some steps: ten times what `verify` allows two steps on GPUs."""
ALONE = [
    pytest.param(framework, mode, marks=getattr(pytest.mark, framework), id=f"{framework}-{mode}")
    for (framework, mode), row in MODES.items()
    if "gpu" in row.device_types and not row.roles and not row.is_pipeline and not row.unverifiable
]
SHARING = [mode for (framework, mode), row in MODES.items() if row.shares_gpu]

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a mode on a cluster; returns its result."""

    def train(framework, mode, cluster):
        config = RunConfig(framework=framework, mode=mode, workload=WORKLOAD, cluster=cluster)
        return run(config, tmp_path_factory.mktemp("runs") / "run")

    return train


def alike(one, other):
    assert one.train_loss == pytest.approx(other.train_loss, rel=CLOSE)
    assert one.evaluations[-1].loss == pytest.approx(other.evaluations[-1].loss, rel=CLOSE)
    assert one.computed.first_gradient_norm == pytest.approx(other.computed.first_gradient_norm, rel=CLOSE)


@pytest.mark.parametrize(("framework", "mode"), ALONE)
def test_one_replica_on_a_gpu_trains_as_the_cpu_does(trained, framework, mode):
    on_gpu = trained(framework, mode, Cluster.partition(1, 1, device="gpu"))
    alike(on_gpu, trained(framework, "single", Cluster.partition(1, 1, device="cpu")))
    assert on_gpu.device_type == "gpu"
    assert not np.isnan(on_gpu.images_per_second)
    assert all("cpu" not in name for name in on_gpu.device_names)


@pytest.mark.torch
@pytest.mark.parametrize("mode", SHARING)
def test_two_replicas_on_a_shared_gpu_train_as_two_on_the_cpu_do(trained, mode):
    shared = trained("torch", mode, Cluster.partition(2, 1, device="gpu", share_gpu=True))
    alike(shared, trained("torch", "ddp", Cluster.partition(2, 1, device="cpu")))
    assert shared.emulated
    assert shared.collective == "gloo"


@pytest.mark.torch
def test_torch_times_each_step_of_a_window(trained):
    result = trained("torch", "single", Cluster.partition(1, 1, device="gpu"))
    assert result.settings["steps_per_window"] > 1
    assert 0 < result.step_seconds.median <= result.step_seconds.p95
