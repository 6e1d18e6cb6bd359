"""Runs on GPUs from the command to the result: the driver's program is imitated, and so are torch's C functions."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from tests.support.command import invoke
from tests.support.marks import with_cuda_build
from tests.support.runs import held

pytestmark = [pytest.mark.torch, pytest.mark.slow, *with_cuda_build()]

REPOSITORY = Path(__file__).parents[2]

GPUS_IN_WORKERS = """
import os, sys
if "dpcompare.worker" in sys.orig_argv and os.environ.get("CUDA_VISIBLE_DEVICES"):
    from tests.support import fake_gpus
    fake_gpus.install(len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
"""
WORKLOAD = [
    *("--model", "toy-bn", "--image-size", "32", "--dataset", "synthetic-mini", "--global-batch-size", "16"),
    *("--steps", "30", "--warmup-steps", "4", "--precision", "float64", "--evaluate-every", "30", "--json"),
]


@pytest.fixture
def gpus(tmp_path, monkeypatch, install_gpus):
    """Has this machine list one GPU or several, which its training processes then find."""

    def install(count):
        install_gpus(
            "".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number}{number})\n" for number in range(count))
        )
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text(GPUS_IN_WORKERS)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{REPOSITORY}")

    return install


def result_of(*arguments):
    shown = invoke("run", *arguments, *WORKLOAD)
    assert shown.code == 0, shown.stderr
    return shown.json


@pytest.fixture
def on_cpu(session_folder):
    """The result of two nodes of the CPU, which train what one node with two devices does; once per session."""
    path = session_folder / "gpu-runs-on-the-cpu.json"
    with held(path.with_suffix(".lock"), fcntl.LOCK_EX):
        if not path.exists():
            path.write_text(json.dumps(result_of("torch:ddp", "--nodes", "2", "--device", "cpu")))
    return json.loads(path.read_text())


def test_two_gpus_train_as_two_devices_of_the_cpu_do(on_cpu, gpus):
    """A result has the windows, the step times, the memory and the use of GPUs."""
    gpus(2)
    on_gpus = result_of("torch:ddp", "--nodes", "2", "--device", "gpu")
    assert on_gpus["device_names"] == ["NVIDIA H100 80GB HBM3"] * 2
    assert on_gpus["train_loss"] == pytest.approx(on_cpu["train_loss"], rel=1e-10)
    assert on_gpus["evaluations"][-1]["loss"] == pytest.approx(on_cpu["evaluations"][-1]["loss"], rel=1e-10)
    assert on_gpus["settings"]["steps_per_window"] == 10
    steps = on_gpus["step_seconds"]
    assert 0 < steps["median"] <= steps["p95"]  # of steps, though the host waited at the ends of windows only
    assert (on_gpus["emulated"], on_gpus["collective"]) == (False, "nccl")
    assert on_gpus["peak_device_memory_bytes"]["total"] > 0
    assert 0 < on_gpus["model_flops_utilization"] < 1e-3
    assert on_gpus["peak_source"].endswith("66.9 TFLOP/s in float64")
    assert on_cpu["model_flops_utilization"] is None
    assert on_cpu["achieved_flops"] > 0


def test_one_gpu_in_the_place_of_two_trains_the_same(on_cpu, gpus):
    gpus(1)
    shared = result_of("torch:ddp", "--devices-per-node", "2", "--share-gpu")
    assert shared["train_loss"] == pytest.approx(on_cpu["train_loss"], rel=1e-10)
    assert (shared["emulated"], shared["collective"], shared["num_replicas"]) == (True, "gloo", 2)
    assert (shared["model_flops_utilization"], shared["joules_per_image"]) == (None, None)
    refused = invoke("run", "torch:ddp", "--devices-per-node", "2", "--device", "gpu", *WORKLOAD)
    assert refused.code == 2
    assert "need 2 gpu devices, but 1 are visible" in refused.stderr
