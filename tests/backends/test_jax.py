"""What is JAX's own: convolutions as shifted products, the state of its process, and where gloo listens."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.jax


def printed(script):
    """What a process of its own says: JAX fixes its devices and its precision when it is first used."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


SHIFTED = """
import json
from functools import partial
import jax, numpy as np
from jax import lax
jax.config.update("jax_enable_x64", True)
from dpcompare.models.layers.in_jax import by_shifts

generator = np.random.default_rng(0)

def kernel(x, weight, *, stride, padding, depthwise):
    return lax.conv_general_dilated(x, weight, (stride, stride), padding, dimension_numbers=("NHWC", "OIHW", "NHWC"),
                                    feature_group_count=4 if depthwise else 1)

def with_gradients(function, x, weight):
    squares = lambda x, weight: (function(x, weight) ** 2).sum()
    return function(x, weight), *jax.grad(squares, (0, 1))(x, weight)

def drawn(sides, padding, depthwise, size, stride):
    shape = (4 if depthwise else 6, 1 if depthwise else 4, size, size)
    return generator.normal(size=(2, *sides, 4)), generator.normal(size=shape)

def both(x, weight, padding, depthwise, stride):
    asked = {"stride": stride, "padding": padding, "depthwise": depthwise}
    return [with_gradients(partial(function, **asked), x, weight) for function in (kernel, by_shifts)]

AROUND = [(1, 1), (1, 1)]
CASES = [  # odd and even sides, and some that are smaller than the filter
    *(((7, 8), "SAME", True, size, stride) for size in (3, 5) for stride in (1, 2)),
    *(((2, 3), AROUND, False, 3, stride) for stride in (1, 2)),
    ((1, 1), "SAME", False, 3, 1), ((4, 5), "VALID", False, 3, 2), ((8, 9), "VALID", False, 4, 4),
]
# What they compute on are arguments: XLA computes what depends on none when it compiles.
made = {
    str(one): jax.jit(lambda x, weight: both(x, weight, one[1], one[2], one[4]))(*drawn(*one)) for one in CASES
}
print(json.dumps({
    name: max(float(abs(a - b).max()) if a.shape == b.shape else 1.0 for a, b in zip(*pair))
    for name, pair in made.items()
}))
"""


@pytest.mark.slow
def test_shifted_products_are_the_convolution():
    differences = printed(SHIFTED)
    assert len(differences) == 9
    assert max(differences.values()) < 1e-12, differences


CHOSEN = """
import json
import jax
from jax import numpy as jnp
from dpcompare.models.architectures import MODELS
from dpcompare.models.layers.in_jax import Layers

def uses_kernel(side, channels, weight, stride, by_shifts):
    tensors = {"layer.weight": jnp.zeros(weight)}
    layers = Layers(MODELS["resnet18"], tensors, None, batchnorm_momentum=0.9, bfloat16=False, training=True,
                    axis_name=None, by_shifts=by_shifts)
    made = jax.make_jaxpr(lambda x: layers.convolution("layer", x, stride=stride))(jnp.zeros((1, side, side, channels)))
    return "conv_general_dilated" in str(made)

CASES = {
    "depthwise": (16, 4, (4, 1, 3, 3), 1),
    "small": (2, 4, (8, 4, 3, 3), 1),
    "small by its stride": (4, 4, (8, 4, 3, 3), 2),
    "patches": (64, 3, (8, 3, 16, 16), 16),
    "usual": (8, 4, (8, 4, 3, 3), 1),
    "1x1 with a stride": (8, 4, (8, 4, 1, 1), 2),
}
print(json.dumps({name: [uses_kernel(*case, shifts) for shifts in (True, False)] for name, case in CASES.items()}))
"""


@pytest.mark.slow
def test_slow_convolutions_alone_are_made_of_shifts():
    chosen = printed(CHOSEN)
    assert all(with_kernels for _, with_kernels in chosen.values())
    assert {name for name, (with_shifts, _) in chosen.items() if with_shifts} == {"usual", "1x1 with a stride"}


USED_ALREADY = """
import json, tempfile
import jax.numpy as jnp
from dpcompare import Cluster, RunConfig, RequestError, Workload
from dpcompare.backends import load_backend
from dpcompare.launch.inputs import prepare_inputs
ones = jnp.ones(3)  # as where a user's module makes an array when it is imported
workload = Workload(model="mlp", dataset="synthetic-mini", image_size=8, steps=2, warmup_steps=0)
made = RunConfig(framework="jax", mode="spmd", workload=workload, cluster=Cluster.partition(1, 2, device="cpu"))
try:
    load_backend("jax", "spmd")(prepare_inputs(made)).setup()
    print(json.dumps("not refused"))
except RequestError as refused:
    print(json.dumps(str(refused)))
"""


@pytest.mark.slow
def test_a_process_in_which_jax_was_used_already_is_refused():
    refused = printed(USED_ALREADY)
    assert refused.startswith("JAX has been used in this process already")
    assert "expected another process for each training" in refused


CALLS = """
import json
from types import SimpleNamespace
from jax._src import xla_bridge
from dpcompare.backends.jax import runtime
from dpcompare.backends.jax.modes import _listen_on

asked = []
for interface in ("lo", None):
    xla_bridge._jax.make_gloo_tcp_collectives = lambda **given: asked.append(given)
    _listen_on(interface)
    xla_bridge._jax.make_gloo_tcp_collectives(distributed_client="client")

def gpu(peak):
    return SimpleNamespace(device_kind="NVIDIA H200", memory_stats=lambda: {"peak_bytes_in_use": peak})

mesh = SimpleNamespace(local_devices=[gpu(900), gpu(700)])

def config(kind, task, **tuning):  # only what JAX tells XLA and reads of its devices is looked at
    return SimpleNamespace(cluster=SimpleNamespace(device_type=kind), task=task, tuning=tuning)

trained, probed = config("gpu", "train"), config("gpu", "probe")
found = {
    "asked": asked,
    "memory": runtime.peak_device_memory_bytes(trained, mesh),
    "names": runtime.device_names(trained, mesh, 0),
    "compared": runtime.compiler_options(probed),
    "tuned": runtime.compiler_options(config("gpu", "train", scheduler="latency-hiding")),
    "plain": runtime.compiler_options(trained),
    "CPU": [
        runtime.peak_device_memory_bytes(config("cpu", "train"), mesh),
        runtime.compiler_options(config("cpu", "probe")),
    ],
}
found["without statistics"] = []
for told in (None, {"num_allocs": 3}):  # as the allocator "platform" and others answer
    mesh.local_devices[1].memory_stats = lambda: told
    found["without statistics"].append(runtime.peak_device_memory_bytes(trained, mesh))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_gloo_listens_where_the_plan_says():
    found = printed(CALLS)
    assert found["asked"] == [{"distributed_client": "client", "interface": "lo"}, {"distributed_client": "client"}]
    assert (found["memory"], found["names"]) == (1600, ["NVIDIA H200"] * 2)
    deterministic, latency_hiding = "xla_gpu_deterministic_ops", "xla_gpu_enable_latency_hiding_scheduler"
    assert found["compared"] == {deterministic: True}
    assert found["tuned"] == {latency_hiding: True}
    assert found["plain"] is None  # what is not asked for is left to XLA_FLAGS
    assert found["CPU"] == [None, None]
    assert found["without statistics"] == [None, None]
