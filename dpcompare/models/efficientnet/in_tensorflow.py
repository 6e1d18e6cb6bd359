"""EfficientNet as Keras's own model."""

from __future__ import annotations

import keras

from dpcompare.models.spec import IMAGE_CHANNELS


def build(name: str, image_size: int, num_classes: int) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits."""
    scale = name.removeprefix("efficientnet-")
    create = getattr(keras.applications, f"EfficientNet{scale.upper()}")
    # A static shape: with (None, None, 3) the padding is wrong at odd feature sizes.
    complete = create(
        weights=None,
        input_shape=(image_size, image_size, IMAGE_CHANNELS),
        classes=num_classes,
        classifier_activation=None,
    )
    # From behind its rescaling and normalisation: pixels are normalised on the host, once for all frameworks.
    return keras.Model(complete.get_layer("normalization").output, complete.output)
