"""Shapes and initial values of the models."""

import math

import numpy as np
import pytest

from dpcompare.models.architectures import MODELS, misfits
from dpcompare.models.initial_weights import initial_weights

# Published sizes at 1,000 classes and 224 px (Tan and Le 2019; torchvision's and timm's tables of weights).
PUBLISHED_PARAMETERS = {
    "efficientnet-b0": 5_288_548,
    "efficientnet-b1": 7_794_184,
    "efficientnet-b2": 9_109_994,
    "efficientnet-b3": 12_233_232,
    "efficientnet-b4": 19_341_616,
    "efficientnet-b5": 30_389_784,
    "efficientnet-b6": 43_040_704,
    "efficientnet-b7": 66_347_960,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "vit-ti16": 5_717_416,
    "vit-s16": 22_050_664,
    "vit-b16": 86_567_656,
}


def trainable(shapes):
    return {name: shape for name, shape in shapes.items() if "running_" not in name}


@pytest.mark.parametrize("model", PUBLISHED_PARAMETERS)
def test_a_model_has_its_published_size(model):
    shapes = trainable(MODELS[model].shapes(224, 1000))
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


def test_initial_values_of_resnet_are_normal():
    weights = initial_weights("resnet18", 64, 10, seed=0)
    filters = weights["layer4.0.conv2.weight"]
    assert filters.std() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert np.abs(filters).max() > 4 * filters.std()  # not truncated
    assert (weights["layer4.1.bn2.weight"] == 1).all()


def test_initial_values_of_vgg_are_those_of_torchvision():
    weights = initial_weights("vgg16-narrow", 32, 10, seed=0)
    assert weights["classifier.0.weight"].std() == pytest.approx(0.01, rel=0.01)
    assert not weights["features.0.bias"].any()


def test_initial_values_of_vit_are_those_of_deit():
    weights = initial_weights("vit-ti16", 64, 10, seed=0)
    for name in ("pos_embed", "blocks.3.mlp.fc1.weight", "head.weight"):
        assert weights[name].std() == pytest.approx(0.02, rel=0.05)
    assert weights["patch_embed.proj.weight"].std() == pytest.approx(1 / math.sqrt(3 * 16 * 16), rel=0.02)
    assert (weights["norm.weight"] == 1).all()
    assert not weights["norm.bias"].any()


@pytest.mark.parametrize(
    ("model", "image_size", "says"),
    [
        ("vit-ti16", 100, "needs a multiple of 16 pixels; expected one such as 96 or 112"),
        ("vit-b16", 8, "vit-b16 needs at least 16 pixels"),
        ("resnet50", 28, "resnet50 needs at least 32 pixels"),
        ("vgg16", 31, "vgg16 needs at least 32 pixels"),
    ],
)
def test_an_image_size_that_does_not_fit_is_refused(model, image_size, says):
    (problem,) = misfits(model, image_size=image_size, regularization="off", weights="random")
    assert says in problem


def test_published_weights_of_other_positions_are_refused():
    (problem,) = misfits("vit-ti16", image_size=64, regularization="off", weights="imagenet")
    assert "the published weights of vit-ti16 are for 224 pixels" in problem
    assert not list(misfits("vit-ti16", image_size=224, regularization="off", weights="imagenet"))
    assert not list(misfits("resnet18", image_size=64, regularization="off", weights="imagenet"))
