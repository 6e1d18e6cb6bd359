"""The peak of device memory: counted by the frameworks, whose counters are imitated here."""

import json
import subprocess
import sys

import pytest


@pytest.mark.torch
def test_torch_resets_the_counter_of_each_of_its_gpus(monkeypatch):
    import torch

    from dpcompare.backends.torch.dp import DataParallel

    peaks = {0: 900, 1: 700}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peaks.update({device.index: 100}))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peaks[device.index])
    backend = object.__new__(DataParallel)  # without a run: only its counters are looked at
    backend.device = torch.device("cuda", 0)
    assert backend._peak_device_memory_bytes() == 1600
    backend.reset_peak_memory()
    assert backend._peak_device_memory_bytes() == 200


@pytest.mark.torch
def test_torch_on_the_cpu_resets_nothing(monkeypatch):
    import torch

    from dpcompare.backends.torch.single import SingleDevice

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: pytest.fail("there is no GPU"))
    backend = object.__new__(SingleDevice)
    backend.device = torch.device("cpu")
    backend.reset_peak_memory()
    assert backend._peak_device_memory_bytes() is None


# In a process of its own: torch and TensorFlow cannot share one.
OF_TENSORFLOW = """
import json
from types import SimpleNamespace
import tensorflow as tf
from dpcompare.backends.tensorflow.mirrored import Mirrored
peaks = {"GPU:0": 900, "GPU:1": 700}
tf.config.experimental.reset_memory_stats = lambda device: peaks.update({device: 100})
tf.config.experimental.get_memory_info = lambda device: {"peak": peaks[device]}
told = {}
for kind in ("gpu", "cpu", "tpu"):
    backend = object.__new__(Mirrored)
    backend.config = SimpleNamespace(
        cluster=SimpleNamespace(device_type=kind), topology=SimpleNamespace(replicas_per_process=2)
    )
    before = backend._peak_device_memory_bytes()
    backend.reset_peak_memory()
    told[kind] = before, backend._peak_device_memory_bytes()
print(json.dumps(told))
"""


@pytest.mark.tensorflow
def test_tensorflow_resets_the_counter_of_each_of_its_gpus():
    done = subprocess.run([sys.executable, "-c", OF_TENSORFLOW], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"gpu": [1600, 200], "cpu": [None, None], "tpu": [None, None]}
