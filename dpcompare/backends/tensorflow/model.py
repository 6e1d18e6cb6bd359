"""The models as Keras models, and the map between their variables and the framework-neutral names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import keras
import numpy as np
import numpy.typing as npt

from dpcompare.arithmetic import BATCH_NORM_EPSILON
from dpcompare.config import Workload
from dpcompare.models import IMAGE_CHANNELS

Array = npt.NDArray[np.generic]


def build_model(workload: Workload, num_classes: int) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits."""
    shape = (workload.image_size, workload.image_size, IMAGE_CHANNELS)
    if workload.model == "toy-cnn":
        return _toy_cnn(shape, num_classes)
    if workload.model == "mlp":
        return _mlp(shape, num_classes)
    if workload.model == "toy-bn":
        return _with_shared_batch_norm(_toy_bn(shape, num_classes), workload)
    return _with_shared_batch_norm(_efficientnet(workload, shape, num_classes), workload)


def _with_shared_batch_norm(model: keras.Model, workload: Workload) -> keras.Model:
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.epsilon, layer.momentum = BATCH_NORM_EPSILON, workload.batchnorm_momentum
            layer.synchronized = workload.batchnorm == "sync"
    return model


def _efficientnet(workload: Workload, shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    scale = workload.model.removeprefix("efficientnet-")
    build = getattr(keras.applications, f"EfficientNet{scale.upper()}")
    # A static shape: with (None, None, 3) the padding is wrong at odd feature sizes.
    whole = build(weights=None, input_shape=shape, classes=num_classes, classifier_activation=None)
    for layer in whole.layers:
        if isinstance(layer, keras.layers.Dropout):  # dropout and stochastic depth alike
            layer.rate = 0.0
    # Entered after its own rescaling and normalisation: pixels are normalised on the host, once for all.
    return keras.Model(whole.get_layer("normalization").output, whole.output)


def _toy_cnn(shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(6, 5, activation="relu", name="conv1"),
            layers.MaxPooling2D(2),
            layers.Conv2D(16, 5, activation="relu", name="conv2"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(120, activation="relu", name="fc1"),
            layers.Dense(84, activation="relu", name="fc2"),
            layers.Dense(num_classes, name="fc3"),
        ]
    )


def _toy_bn(shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="conv_stem"),
            layers.BatchNormalization(name="bn1"),
            layers.ReLU(),
            layers.DepthwiseConv2D(3, strides=2, padding="same", use_bias=False, name="conv_dw"),
            layers.BatchNormalization(name="bn2"),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_classes, name="classifier"),
        ]
    )


def _mlp(shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Flatten(),
            layers.Dense(512, activation="relu", name="fc1"),
            layers.Dense(num_classes, name="fc2"),
        ]
    )


@dataclass(frozen=True)
class MappedVariable:
    """A Keras variable and its framework-neutral name and layout."""

    name: str
    variable: keras.Variable
    to_neutral: Callable[[Array], Array]
    from_neutral: Callable[[Array], Array]


def _same(array: Array) -> Array:
    return array


# Keras stores (height, width, in, out), depthwise (height, width, channel, 1), dense (in, out).
_CONVOLUTION = (lambda a: a.transpose(3, 2, 0, 1), lambda a: a.transpose(2, 3, 1, 0))
_DEPTHWISE = (lambda a: a.transpose(2, 3, 0, 1), lambda a: a.transpose(2, 3, 0, 1))
_DENSE = (lambda a: a.transpose(), lambda a: a.transpose())
_VECTOR = (_same, _same)

_BATCH_NORM_TENSORS = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def mapped_variables(model: keras.Model) -> Iterator[MappedVariable]:
    """Every variable of the model, in the order of its layers."""
    for layer in model.layers:
        for variable in layer.weights:
            prefix = neutral_layer_name(layer.name)
            if isinstance(layer, keras.layers.BatchNormalization):
                tensor, layouts = _BATCH_NORM_TENSORS[variable.name], _VECTOR
            elif variable.name == "bias":
                tensor, layouts = "bias", _VECTOR
            elif isinstance(layer, keras.layers.DepthwiseConv2D):
                tensor, layouts = "weight", _DEPTHWISE
            elif isinstance(layer, keras.layers.Conv2D):
                tensor, layouts = "weight", _CONVOLUTION
            elif isinstance(layer, keras.layers.Dense):
                tensor, layouts = "weight", _DENSE
            else:  # a layer of somebody's own model: Keras's name and layout
                tensor, layouts = variable.name, _VECTOR
            yield MappedVariable(f"{prefix}.{tensor}", variable, *layouts)


_OUTER_LAYERS = {
    "stem_conv": "conv_stem",
    "stem_bn": "bn1",
    "top_conv": "conv_head",
    "top_bn": "bn2",
    "predictions": "classifier",
}
_BLOCK_LAYERS = {
    "expand_conv": "conv_pw",
    "expand_bn": "bn1",
    "dwconv": "conv_dw",
    "bn": "bn2",
    "se_reduce": "se.conv_reduce",
    "se_expand": "se.conv_expand",
    "project_conv": "conv_pwl",
    "project_bn": "bn3",
}
# The blocks of stage 0 do not expand, so their names move up by one.
_FIRST_STAGE_LAYERS = _BLOCK_LAYERS | {"bn": "bn1", "project_conv": "conv_pw", "project_bn": "bn2"}


def neutral_layer_name(name: str) -> str:
    """Keras's `block2a_expand_conv` is the neutral `blocks.1.0.conv_pw`."""
    block = re.fullmatch(r"block(\d)([a-z])_(.+)", name)
    if block is None:
        return _OUTER_LAYERS.get(name, name)
    stage, index = int(block[1]) - 1, ord(block[2]) - ord("a")
    layers = _FIRST_STAGE_LAYERS if stage == 0 else _BLOCK_LAYERS
    return f"blocks.{stage}.{index}.{layers[block[3]]}"
