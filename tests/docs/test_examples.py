"""The examples of the docs: models of other libraries, and datasets of theirs on small files in their formats."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.data.store import open_store
from stress.injection import write_sitecustomize
from tests.support.command import dpcompare
from tests.support.custom import checks_of
from tests.support.marks import KERAS

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("flax", {"regularization": "shared"}),
        ("equinox", {}),
        pytest.param("keras", {"regularization": "shared"}, marks=KERAS),
    ],
)
@pytest.mark.usefixtures("warm")
def test_models_of_other_libraries_have_twins_in_torch(monkeypatch, model, asked):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]))
    checks = checks_of(f"other_libraries:{model}", ("torch", "jax"), ("single",), **asked)
    assert [check for check in checks if not check.passed] == []
    assert {"evaluation logits", "gradient"} <= {check.name for check in checks}


OTHER_DRAWS = """
def inject(module):
    module.Backend._seed_of_own_draws = lambda self, step, *generator: 7 + sum(generator)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "mode", "model"),
    [
        pytest.param("torch", "ddp", "flax", marks=pytest.mark.torch),  # the twin in torch
        pytest.param("tensorflow", "mirrored", "keras", marks=pytest.mark.tensorflow),
    ],
)
@pytest.mark.usefixtures("warm")
def test_what_a_model_itself_draws_repeats_with_its_seed(tmp_path, monkeypatch, framework, mode, model):
    monkeypatch.chdir(EXAMPLES)
    nodes, devices = (2, 1) if mode == "ddp" else (1, 2)
    workload = Workload(
        model=f"other_libraries:{model}", image_size=32, dataset="synthetic-mini", global_batch_size=16, steps=3,
        warmup_steps=0, precision="float64",
    )  # fmt: skip
    cluster = Cluster.partition(nodes, devices, device="cpu")
    config = RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster)
    losses = [run(config, tmp_path / each).train_loss for each in ("first", "second")]
    write_sitecustomize(tmp_path / "other", "dpcompare.backends.base", OTHER_DRAWS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "other"), os.environ.get("PYTHONPATH", "")]))
    others = run(config, tmp_path / "third").train_loss
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert losses[0] != pytest.approx(others, rel=1e-6)


@pytest.mark.torch
@pytest.mark.slow
def test_torchvision(tmp_path):
    """Files of FashionMNIST as they are published, with few images; that they are there keeps it from downloading."""
    raw = tmp_path / "data" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 20), ("t10k", 10)):
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + bytes(count * 784))
        labels = bytes(np.arange(count, dtype=np.uint8) % 10)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels)
    found_from = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    command = ("data", "prepare", "library_datasets:of_torchvision", "store", "--image-size", "16")
    done = dpcompare(*command, PYTHONPATH=found_from)
    assert done.code == 0, done.stderr
    store = open_store(tmp_path / "store")
    assert store.manifest.classes[:2] == ("T-shirt/top", "Trouser")
    assert store.split("train").labels.tolist() == [*range(10)] * 2
    assert len(store.split("validation")) == 10
