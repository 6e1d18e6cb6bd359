"""ResNet as a Keras model that pads as torch does; Keras's own `ResNet50` is version 1, with biased convolutions."""

from __future__ import annotations

import keras

from dpcompare.models.layers.in_tensorflow import keras_name
from dpcompare.models.resnet.spec import STEM, Block, Convolution, blocks
from dpcompare.models.spec import IMAGE_CHANNELS
from dpcompare.system.type_names import FrameworkArray


def build(name: str, image_size: int, num_classes: int) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits."""
    images = keras.Input((image_size, image_size, IMAGE_CHANNELS))
    x = keras.layers.ReLU()(_normed(STEM, images))
    # A ReLU leaves nothing below 0, so that padding by 0 is padding by minus infinity.
    x = keras.layers.MaxPooling2D(3, 2)(keras.layers.ZeroPadding2D(1)(x))
    for block in blocks(name):
        x = _block(block, x)
    return keras.Model(images, keras.layers.Dense(num_classes, name="fc")(keras.layers.GlobalAveragePooling2D()(x)))


def _block(block: Block, x: FrameworkArray) -> FrameworkArray:
    shortcut = x if block.projection is None else _normed(block.projection, x)
    *inner, last = block.convolutions
    for convolution in inner:
        x = keras.layers.ReLU()(_normed(convolution, x))
    return keras.layers.ReLU()(keras.layers.Add()([_normed(last, x), shortcut]))


def _normed(each: Convolution, x: FrameworkArray) -> FrameworkArray:
    padded = keras.layers.ZeroPadding2D(each.padding)(x) if each.padding else x
    x = keras.layers.Conv2D(
        each.channels_out, each.size, strides=each.stride, use_bias=False, name=keras_name(each.name)
    )(padded)
    return keras.layers.BatchNormalization(name=keras_name(each.norm))(x)
