"""AlexNet (Krizhevsky 2014, "One weird trick"): names and shapes of its tensors, those of torchvision's `alexnet`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from dpcompare.models.spec import IMAGE_CHANNELS, ModelSpec, Shape, biased, squares


class Convolution(NamedTuple):
    """A convolution and the ReLU behind it, with a max-pooling of 3 by 3 positions and stride 2 if it is `pooled`."""

    name: str
    channels_in: int
    channels_out: int
    size: int
    stride: int
    padding: int
    pooled: bool


CONVOLUTIONS = (
    Convolution("features.0", IMAGE_CHANNELS, 64, 11, 4, 2, pooled=True),
    Convolution("features.3", 64, 192, 5, 1, 2, pooled=True),
    Convolution("features.6", 192, 384, 3, 1, 1, pooled=False),
    Convolution("features.8", 384, 256, 3, 1, 1, pooled=False),
    Convolution("features.10", 256, 256, 3, 1, 1, pooled=True),
)
DENSE = ("classifier.1", "classifier.4", "classifier.6")
HIDDEN = 4096


def _sides(image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    side = image_size
    for each in CONVOLUTIONS:
        entering, side = side, (side + 2 * each.padding - each.size) // each.stride + 1
        yield each.name, (entering, side)
        side = (side - 3) // 2 + 1 if each.pooled else side
    yield from ((name, (1, 1)) for name in DENSE)


def flat_features(image_size: int) -> int:
    """Features that the first dense layer takes."""
    last = CONVOLUTIONS[-1]
    return last.channels_out * ((dict(_sides(image_size))[last.name][1] - 3) // 2 + 1) ** 2


def _shapes(image_size: int, num_classes: int) -> Iterator[tuple[str, Shape]]:
    for each in CONVOLUTIONS:
        yield from biased(each.name, (each.channels_out, each.channels_in, each.size, each.size))
    units = (flat_features(image_size), HIDDEN, HIDDEN, num_classes)
    for name, (units_in, units_out) in zip(DENSE, pairwise(units), strict=True):
        yield from biased(name, (units_out, units_in))


SPECS = {
    "alexnet": ModelSpec(
        family="alexnet",
        min_image_size=63,
        native_image_size=224,
        is_big=True,
        shapes=lambda image_size, num_classes: dict(_shapes(image_size, num_classes)),
        layers=(*((each.name,) for each in CONVOLUTIONS), *((name,) for name in DENSE)),
        positions=lambda image_size: squares(_sides(image_size)),
    )
}
