"""VGG-16 (Simonyan and Zisserman 2015): names and shapes of its tensors, those of torchvision's `vgg16`.

Without BatchNorm, and 553 MB of gradients at 224 px: what bounds data parallelism is their exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dpcompare.models.spec import IMAGE_CHANNELS, Drop, ModelSpec, Shape, biased, squares

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Channels of the convolutions before each max-pooling (table 1, configuration D)."""
SHRINKS_BY = 32
"""Pixels on a side per position behind the last of five poolings."""
HIDDEN = 4096
"""Units of the two hidden dense layers."""
DROPOUT_RATE = 0.5
CLASSIFIER = ("classifier.0", "classifier.3", "classifier.6")
DROPOUTS = ("classifier.2", "classifier.5")
"""Behind each hidden layer."""


def stages() -> Iterator[list[tuple[str, int, int]]]:
    """Name, channels that enter and channels that leave of the convolutions of each stage.

    torchvision counts the ReLU behind each convolution and the max-pooling behind each stage, too.
    """
    index, channels_in = 0, IMAGE_CHANNELS
    for stage in STAGES:
        convolutions = []
        for channels_out in stage:
            convolutions.append((f"features.{index}", channels_in, channels_out))
            index, channels_in = index + 2, channels_out
        index += 1
        yield convolutions


def last_side(image_size: int) -> int:
    """Positions on a side of the features that are flattened."""
    return image_size // SHRINKS_BY


def _shapes(image_size: int, num_classes: int) -> Iterator[tuple[str, Shape]]:
    for stage in stages():
        for name, channels_in, channels_out in stage:
            yield from biased(name, (channels_out, channels_in, 3, 3))
    flat = last_side(image_size) ** 2 * STAGES[-1][-1]
    units = (flat, HIDDEN, HIDDEN, num_classes)
    for name, (units_in, units_out) in zip(CLASSIFIER, pairwise(units), strict=True):
        yield from biased(name, (units_out, units_in))


def _sides(image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    side = image_size
    for stage in stages():
        yield from ((name, (side, side)) for name, _, _ in stage)
        side //= 2
    yield from ((name, (1, 1)) for name in CLASSIFIER)


SPECS = {
    "vgg16": ModelSpec(
        family="vgg",
        is_big=True,
        min_image_size=SHRINKS_BY,
        native_image_size=224,
        initial_values="vgg",
        shapes=lambda image_size, num_classes: dict(_shapes(image_size, num_classes)),
        layers=(*((name,) for stage in stages() for name, _, _ in stage), *((name,) for name in CLASSIFIER)),
        drops=tuple(Drop(name=name, kind="dropout", rate=DROPOUT_RATE, features=HIDDEN) for name in DROPOUTS),
        positions=lambda image_size: squares(_sides(image_size)),
    )
}
