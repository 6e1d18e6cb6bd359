"""Shapes and initial values of the models."""

import math

import numpy as np
import pytest

from dpcompare.models.architectures import MODELS
from dpcompare.models.initial_weights import initial_weights

# Published sizes at 1,000 classes (Tan and Le 2019; keras.applications' model summaries).
PUBLISHED_PARAMETERS = {
    "efficientnet-b0": 5_288_548,
    "efficientnet-b1": 7_794_184,
    "efficientnet-b2": 9_109_994,
    "efficientnet-b3": 12_233_232,
    "efficientnet-b4": 19_341_616,
    "efficientnet-b5": 30_389_784,
    "efficientnet-b6": 43_040_704,
    "efficientnet-b7": 66_347_960,
}


def trainable(shapes):
    return {name: shape for name, shape in shapes.items() if "running_" not in name}


@pytest.mark.parametrize("model", PUBLISHED_PARAMETERS)
def test_every_efficientnet_has_its_published_size(model):
    shapes = trainable(MODELS[model].shapes(64, 1000))
    assert sum(map(math.prod, shapes.values())) == PUBLISHED_PARAMETERS[model]


def test_efficientnet_b2_with_ten_classes():
    shapes = trainable(MODELS["efficientnet-b2"].shapes(64, 10))
    assert len(shapes) == 301
    assert sum(map(math.prod, shapes.values())) == 7_715_084


def test_initial_weights_are_a_function_of_the_seed():
    first, again, other = (initial_weights("toy-cnn", 32, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])


def test_initial_values_follow_their_rules():
    weights = initial_weights("efficientnet-b2", 64, 10, seed=0)
    assert all(array.dtype == np.float32 for array in weights.values())
    head = weights["conv_head.weight"]
    assert head.std() == pytest.approx(math.sqrt(2 / head.shape[0]), rel=0.01)
    depthwise = weights["blocks.5.0.conv_dw.weight"]
    assert depthwise.std() == pytest.approx(math.sqrt(2 / 25), rel=0.05)
    classifier = weights["classifier.weight"]
    assert np.abs(classifier).max() <= 1 / math.sqrt(classifier.shape[1])
    assert (weights["bn1.running_var"] == 1).all()
    assert (weights["bn1.weight"] == 1).all()
    assert not weights["bn1.running_mean"].any()
    assert not weights["classifier.bias"].any()
