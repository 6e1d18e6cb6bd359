"""On a real GPU: every mode, with one replica, trains a toy as the CPU does, in float64. `pytest -m gpu`."""

from __future__ import annotations

import numpy as np
import pytest

from dpcompare.backends.availability import require_mode
from dpcompare.backends.cuda_wheels import cuda_problem
from dpcompare.backends.cuda_wheels import cuda_wheels_of as wheels
from dpcompare.config.cluster import Cluster
from dpcompare.config.modes import MODES
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.launch.run import run
from tests.conftest import MASK

WORKLOAD = Workload(
    **{"model": "toy-bn", "dataset": "synthetic-mini", "image_size": 32, "global_batch_size": 16, "steps": 8},
    **{"warmup_steps": 2, "precision": "float64", "regularization": "shared", "augment": ("flip", "brightness")},
)
CLOSE = 1e-9
"""The tolerance of losses in float64 after some steps: ten times what `verify` allows two steps on GPUs."""
ALONE = [
    pytest.param(framework, mode, marks=getattr(pytest.mark, framework), id=f"{framework}-{mode}")
    for (framework, mode), row in MODES.items()
    if "gpu" in row.device_types and not row.roles and not row.is_pipeline and not row.unverifiable
]
SHARING = [mode for (framework, mode), row in MODES.items() if row.shares_gpu]

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _mask_of_the_caller(monkeypatch):
    if MASK is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MASK)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a mode on a cluster, once; returns its result."""
    results = {}

    def train(framework, mode, cluster):
        config = RunConfig(framework=framework, mode=mode, workload=WORKLOAD, cluster=cluster)
        try:
            require_mode(framework, mode)
        except RequestError as error:
            pytest.skip(str(error))
        if cluster.device_type == "gpu" and (problem := cuda_problem(framework, config.python, wheels(config.python))):
            pytest.skip(problem.found)
        key = config.model_dump_json()
        if key not in results:
            results[key] = run(config, tmp_path_factory.mktemp("runs") / "run")
        return results[key]

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
