"""The peak of TensorFlow's device memory: counted by its C library, whose counters are imitated here.

Those of torch are in test_gpu_calls.py.
"""

import json
import subprocess
import sys

import pytest

# In a process of its own: torch and TensorFlow cannot share one.
OF_TENSORFLOW = """
import json
from types import SimpleNamespace
from tensorflow.python import pywrap_tfe
from dpcompare.backends.tensorflow.modes import Mirrored
peaks = {"GPU:0": 900, "GPU:1": 700}
pywrap_tfe.TFE_ResetMemoryStats = lambda context, device: peaks.update({device: 100})
pywrap_tfe.TFE_GetMemoryInfo = lambda context, device: {"peak": peaks[device]}
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
@pytest.mark.slow
def test_tensorflow_resets_the_counter_of_each_of_its_gpus():
    done = subprocess.run([sys.executable, "-c", OF_TENSORFLOW], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"gpu": [1600, 200], "cpu": [None, None], "tpu": [None, None]}
