"""The toys as Keras models; activations are layers of their own, so that features are those of the other frameworks."""

from __future__ import annotations

import keras

from dpcompare.models.spec import IMAGE_CHANNELS


def build(name: str, image_size: int, num_classes: int) -> keras.Model:
    """A toy of static input shape that takes normalised pixels and returns logits."""
    models = {"toy-cnn": _toy_cnn, "toy-bn": _toy_bn, "mlp": _mlp}
    return models[name]((image_size, image_size, IMAGE_CHANNELS), num_classes)


def _toy_cnn(shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(6, 5, name="conv1"),
            layers.ReLU(),
            layers.MaxPooling2D(2),
            layers.Conv2D(16, 5, name="conv2"),
            layers.ReLU(),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(120, name="fc1"),
            layers.ReLU(),
            layers.Dense(84, name="fc2"),
            layers.ReLU(),
            layers.Dense(num_classes, name="fc3"),
        ]
    )


def _toy_bn(shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    layers = keras.layers
    images = keras.Input(shape)
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="conv_stem")(images)
    x = layers.ReLU()(layers.BatchNormalization(name="bn1")(x))
    x = layers.DepthwiseConv2D(3, strides=2, padding="same", use_bias=False, name="conv_dw")(x)
    x = layers.ReLU()(layers.BatchNormalization(name="bn2")(x))
    branch = layers.BatchNormalization(name="bn3")(layers.Conv2D(8, 1, use_bias=False, name="conv_pwl")(x))
    x = layers.Add()([x, layers.Dropout(0.2, noise_shape=(None, 1, 1, 1), name="drop_path")(branch)])
    x = layers.Dropout(0.25, name="dropout")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, layers.Dense(num_classes, name="classifier")(x))


def _mlp(shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Flatten(),
            layers.Dense(512, name="fc1"),
            layers.ReLU(),
            layers.Dropout(0.5, name="dropout"),
            layers.Dense(num_classes, name="fc2"),
        ]
    )
