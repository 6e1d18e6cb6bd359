"""ResNet as a Keras model that pads as torch does: as much before as after."""

from __future__ import annotations

from typing import Any

import keras
from dpcompare.models.resnet.spec import EXPANSION, STEM_CHANNELS, blocks, has_projection

from dpcompare.models.spec import IMAGE_CHANNELS


def build(name: str, image_size: int, num_classes: int) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits."""
    images = keras.Input((image_size, image_size, IMAGE_CHANNELS))
    x = _normed(_convolution(images, STEM_CHANNELS, 7, 2, "conv1"), "bn1")
    # Of what a ReLU leaves nothing is below 0, so that padding by 0 is padding by minus infinity.
    x = keras.layers.MaxPooling2D(3, 2)(keras.layers.ZeroPadding2D(1)(keras.layers.ReLU()(x)))
    for block, entering, channels, stride in blocks():
        x = _block(x, block.replace(".", "_"), entering, channels, stride)
    return keras.Model(images, keras.layers.Dense(num_classes, name="fc")(keras.layers.GlobalAveragePooling2D()(x)))


def _block(x: Any, name: str, entering: int, channels: int, stride: int) -> Any:
    shortcut, leaving = x, channels * EXPANSION
    x = keras.layers.ReLU()(_normed(_convolution(x, channels, 1, 1, f"{name}_conv1"), f"{name}_bn1"))
    x = keras.layers.ReLU()(_normed(_convolution(x, channels, 3, stride, f"{name}_conv2"), f"{name}_bn2"))
    x = _normed(_convolution(x, leaving, 1, 1, f"{name}_conv3"), f"{name}_bn3")
    if has_projection(entering, channels, stride):
        projected = _convolution(shortcut, leaving, 1, stride, f"{name}_downsample_0")
        shortcut = _normed(projected, f"{name}_downsample_1")
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))


def _convolution(x: Any, channels: int, size: int, stride: int, name: str) -> Any:
    padded = keras.layers.ZeroPadding2D(size // 2)(x) if size > 1 else x
    return keras.layers.Conv2D(channels, size, strides=stride, use_bias=False, name=name)(padded)


def _normed(x: Any, name: str) -> Any:
    return keras.layers.BatchNormalization(name=name)(x)
