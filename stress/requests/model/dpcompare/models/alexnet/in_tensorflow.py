"""AlexNet as a Keras model that pads and flattens as torch does."""

from __future__ import annotations

import keras
from dpcompare.models.alexnet.spec import CONVOLUTIONS, DENSE, HIDDEN

from dpcompare.models.spec import IMAGE_CHANNELS


def build(name: str, image_size: int, num_classes: int) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits."""
    layers = keras.layers
    x = images = keras.Input((image_size, image_size, IMAGE_CHANNELS))
    for each in CONVOLUTIONS:
        x = layers.ZeroPadding2D(each.padding)(x)
        x = layers.Conv2D(each.channels_out, each.size, each.stride, activation="relu", name=each.name)(x)
        x = layers.MaxPooling2D(3, 2)(x) if each.pooled else x
    x = layers.Flatten()(layers.Permute((3, 1, 2))(x))
    *hidden, last = DENSE
    for dense in hidden:
        x = layers.Dense(HIDDEN, activation="relu", name=dense)(x)
    return keras.Model(images, layers.Dense(num_classes, name=last)(x))
