"""A loss and an optimizer of one's own, by the methods that the backends of all frameworks have, and their switches."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dpcompare.system.ports import free_ports
from tests.support.warm import IMPORTED

# Squared errors in the place of cross-entropies, and updates at half the rate.
OWN = {
    "torch": """
import torch
from dpcompare.backends.torch.optimizer import Sgd

class Halved(Sgd):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] /= 2
        super().step()

class Own(load_backend("torch", mode)):
    def row_losses(self, logits, labels, *, training):
        return (logits - torch.nn.functional.one_hot(labels, logits.shape[1])).square().sum(1)
    def build_optimizer(self):
        return Halved(self.model.parameters())
    def setup(self):
        super().setup()
        torch.autograd.set_detect_anomaly(True)
        torch.backends.mkldnn.enabled = False
""",
    "tensorflow": """
import tensorflow as tf
from dpcompare.backends.tensorflow.optimizer import Sgd

class Halved(Sgd):
    def kernel_constants(self, step, learning_rate):
        return [learning_rate / 2]

class Own(load_backend("tensorflow", mode)):
    def row_losses(self, logits, labels, *, training):
        return tf.reduce_sum((logits - tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)) ** 2, 1)
    def build_optimizer(self, variables):
        return Halved(variables)
""",
    "jax": """
import jax
from dpcompare.backends.jax.optimizer import Sgd

class Halved(Sgd):
    def kernel_constants(self, step, learning_rate):
        return [learning_rate / 2]

class Own(load_backend("jax", mode)):
    def row_losses(self, logits, labels, *, training):
        return ((logits - jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)) ** 2).sum(1)
    def build_optimizer(self):
        return Halved()
    def setup(self):
        super().setup()
        jax.config.update("jax_debug_nans", True)
""",
}
LOOP = """
import json, os, sys
from importlib import import_module
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends import load_backend
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.data.batches import BatchReader
from dpcompare.data.order import training_batches
from dpcompare.data.store import open_store

framework, cases, *imported = sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:]
for name in imported:  # once, and each case has a process that is forked from this one
    import_module(name)
for mode, replicas, asked, port in cases:
    if not (pid := os.fork()):
        break
    if status := os.waitpid(pid, 0)[1]:
        sys.exit(os.waitstatus_to_exitcode(status))
else:
    sys.exit()
os.environ["MASTER_PORT"] = str(port)
OWN
workload = Workload(model="toy-cnn", image_size=32, precision="float64", dataset="synthetic-mini", global_batch_size=16)
cluster = Cluster.partition(1, replicas, device="cpu")
config = prepare_inputs(RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster))
if asked == "loss":
    del Own.build_optimizer
backend = (load_backend(framework, mode) if asked == "nothing" else Own)(config)
backend.setup()
train = open_store(config.inputs.store).split("train")
reader = BatchReader(train, None, data_parallel_rank=0, data_parallel_size=1, replicas_per_process=replicas)
losses = []
for batch in backend.prefetch_to_device(reader.batch_loaders(training_batches(len(train), 16, seed=0, num_steps=4))):
    losses.append(float(backend.read([backend.train_step([batch], learning_rate=0.02)])[0]) / batch.global_count)
switches = backend.describe().switches
backend.teardown()
print(json.dumps({"losses": losses, "switches": switches}))
"""


SWITCHES = {
    "torch": ["anomaly detection of torch on", "oneDNN of torch off"],
    "tensorflow": [],
    "jax": ["search for NaN of JAX on"],
}


def losses(folder, framework, *cases):
    """The losses of each case, which is a mode, its replicas and what is the user's own."""
    script = folder / "own_training.py"
    script.write_text(LOOP.replace("OWN", OWN[framework]))
    asked = [[*case, port] for case, port in zip(cases, free_ports(len(cases)), strict=True)]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}  # as torchrun has it
    done = subprocess.run(
        [sys.executable, script, framework, json.dumps(asked), *IMPORTED[framework]],
        capture_output=True,
        text=True,
        env=os.environ | alone,
    )
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"losses"')]
    assert [each["switches"] for each in printed] == [
        [] if own == "nothing" else SWITCHES[framework] for _, _, own in cases
    ]
    return [np.array(each["losses"]) for each in printed]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
def test_own_losses_and_optimizers_are_the_same_everywhere(tmp_path):
    usual, usual_updates, expected, dp, fabric = losses(
        tmp_path,
        "torch",
        ("single", 1, "nothing"),
        ("single", 1, "loss"),
        ("single", 1, "loss and optimizer"),
        ("dp", 2, "loss and optimizer"),
        ("fabric", 1, "loss and optimizer"),  # of which two replicas are not in one process
    )
    assert np.abs(usual - expected).max() > 0.1
    assert usual_updates[0] == expected[0]
    assert np.abs(usual_updates - expected)[1:].min() > 1e-4
    found = {"dp": dp, "fabric": fabric}
    for framework, mode in (("tensorflow", "mirrored"), ("jax", "spmd")):
        one, found[mode] = losses(tmp_path, framework, ("single", 1, "nothing"), (mode, 2, "loss and optimizer"))
        assert np.isfinite(one).all()
    for mode, each in found.items():
        assert np.abs(each / expected - 1).max() < 1e-9, mode
