"""A small Keras model that trains in TensorFlow, PyTorch and JAX.

    dpcompare compare torch:single tensorflow:single jax:single --model keras_net:model --image-size 32

Without dropout, which Keras's own `fit` cannot repeat between frameworks.
"""

import keras
from keras import layers


def model(image_size, num_classes):
    images = keras.Input((image_size, image_size, 3))
    features = images
    for channels in (16, 32):
        features = layers.Conv2D(channels, 3, strides=2, use_bias=False)(features)
        features = layers.ReLU()(layers.BatchNormalization()(features))
    return keras.Model(images, layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(features)))
