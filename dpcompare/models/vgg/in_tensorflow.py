"""VGG as a Keras model that flattens its features in torch's order."""

from __future__ import annotations

import keras

from dpcompare.models.layers.in_tensorflow import keras_name
from dpcompare.models.spec import IMAGE_CHANNELS
from dpcompare.models.vgg.spec import CLASSIFIER, DROPOUT_RATE, DROPOUTS, WIDTHS, stages


def build(name: str, image_size: int, num_classes: int) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits."""
    layers = keras.layers
    x = images = keras.Input((image_size, image_size, IMAGE_CHANNELS))
    for stage in stages(name):
        for convolution, _, channels in stage:
            x = layers.ReLU()(layers.Conv2D(channels, 3, padding="same", name=keras_name(convolution))(x))
        x = layers.MaxPooling2D(2)(x)
    x = layers.Flatten()(layers.Permute((3, 1, 2))(x))
    *hidden, last = CLASSIFIER
    for dense, dropout in zip(hidden, DROPOUTS, strict=True):
        x = layers.ReLU()(layers.Dense(WIDTHS[name].hidden, name=keras_name(dense))(x))
        x = layers.Dropout(DROPOUT_RATE, name=keras_name(dropout))(x)
    return keras.Model(images, layers.Dense(num_classes, name=keras_name(last))(x))
