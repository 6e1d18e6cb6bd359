"""What a model costs, by its own shapes, against the counters of torch and of XLA."""

import json
import subprocess
import sys

import pytest

from dpcompare.models.architectures import MODELS
from dpcompare.models.costs import layer_costs, training_flops, values_moved

BY_TORCH = """
import json, sys
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from dpcompare.config.workload import Workload
from dpcompare.backends.torch.model import build_model

found = {}
for name, size in json.loads(sys.argv[1]):
    model = build_model(Workload(model=name, image_size=size), 10).eval()
    # Of its other kernels of attention on the CPU it counts the products since 2.15 only.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, size, size))
    found[name] = counter.get_total_flops()
print(json.dumps(found))
"""

BY_XLA = """
import json, sys
import jax
from jax import numpy as jnp
from dpcompare.config.workload import Workload
from dpcompare.backends.jax.model import build_model

found = {}
for name, size in json.loads(sys.argv[1]):
    model = build_model(Workload(model=name, image_size=size), 10, by_shifts=False)
    tensors = model.init()
    forward = jax.jit(lambda images: model.apply(tensors, images, None, training=False, axis_name=None)[0])
    found[name] = forward.lower(jnp.zeros((1, size, size, 3))).compile().cost_analysis()["flops"]
print(json.dumps(found))
"""


def counted(script, *models):
    done = subprocess.run([sys.executable, "-c", script, json.dumps(models)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def forward(model, size):
    return sum(cost.flops for cost in layer_costs(model, size, 10))


def test_efficientnet_b2_takes_what_is_known_of_it():
    assert forward("efficientnet-b2", 260) == pytest.approx(1.984e9, rel=1e-3)
    assert training_flops("efficientnet-b2", 260, 10) == pytest.approx(5.95e9, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "multiplications"),
    [("resnet18", 1.814e9), ("resnet50", 4.089e9), ("vgg16", 15.470e9), ("vit-b16", 17.564e9)],
)
def test_the_others_take_what_torchvision_publishes_of_them(model, multiplications):
    """`GFLOPS` of torchvision's table of weights, which are multiplications at 224 px with 1,000 classes."""
    found = sum(cost.flops for cost in layer_costs(model, 224, 1000)) / 2
    assert found == pytest.approx(multiplications, rel=2e-3)


@pytest.mark.torch
@pytest.mark.slow
def test_torch_counts_the_same_whatever_the_model():
    """It counts grouped convolutions forward too; backward it does not divide them by their groups (pytorch#183405)."""
    sizes = {"mlp": 32, "toy-cnn": 32, "toy-bn": 33, "efficientnet-b0": 64, "resnet18": 64, "vit-ti16": 64}
    for name, flops in counted(BY_TORCH, *sizes.items()).items():
        assert forward(name, sizes[name]) == pytest.approx(flops, rel=0.01), name


@pytest.mark.jax
@pytest.mark.slow
def test_xla_counts_the_same_without_padding():
    """What else it counts, biases and activations, is little there; of padded convolutions it leaves out the zeros."""
    models = [("mlp", 32), ("toy-cnn", 32)]
    for name, flops in counted(BY_XLA, *models).items():
        assert forward(name, dict(models)[name]) == pytest.approx(flops, rel=0.01), name


@pytest.mark.parametrize("model", MODELS)
def test_every_layer_with_a_weight_has_a_cost(model):
    row, size = MODELS[model], 64
    layers = [name.rpartition(".")[0] for name in row.shapes(size, 10) if name.endswith(".weight")]
    costs = layer_costs(model, size, 10)
    assert [cost.name for cost in costs] == [*layers, *row.attention(size)]
    assert all(cost.values_moved > 0 for cost in costs)
    assert set(row.positions(size)) == set(layers)


def test_a_convolution_and_a_normalisation_by_hand():
    costs = {cost.name: cost for cost in layer_costs("toy-bn", 32, 10)}
    assert costs["conv_stem"].flops == 2 * 16 * 16 * 8 * 3 * 3 * 3
    assert costs["conv_stem"].values_moved == 3 * (3 * 32 * 32 + 8 * 16 * 16)
    assert costs["conv_dw"].flops == 2 * 8 * 8 * 8 * 3 * 3  # each channel by itself
    assert (costs["bn2"].flops, costs["bn2"].values_moved) == (0, 8 * 8 * 8 * 8)
    assert costs["classifier"].flops == 2 * 8 * 10
    assert training_flops("toy-bn", 32, 10) == 3 * sum(cost.flops for cost in costs.values())
    assert values_moved("toy-bn", 32, 10) == sum(cost.values_moved for cost in costs.values())


def test_of_a_custom_model_nothing_is_known():
    assert training_flops("package.module:NAME", 64, 10) is None
    assert values_moved("package.module:NAME", 64, 10) is None
