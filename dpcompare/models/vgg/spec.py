"""VGG-16 (Simonyan and Zisserman 2015): names and shapes of its tensors, those of torchvision's `vgg16`.

Without BatchNorm, and with 553 MB of gradients at 224 px, of which its dense layers have nine tenths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dpcompare.models.spec import IMAGE_CHANNELS, Drop, ModelSpec, Shape, biased, squares

STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
"""Channels of the convolutions before each max-pooling (table 1, configuration D), as multiples of the first ones'."""
SHRINKS_BY = 32
"""Pixels on a side per position behind the last of five poolings."""
NATIVE_IMAGE_SIZE = 224
DROPOUT_RATE = 0.5
CLASSIFIER = ("classifier.0", "classifier.3", "classifier.6")
CLASSIFIER_OF_TIMM = ("pre_logits.fc1", "pre_logits.fc2", "head.fc")
KERNEL_DIMENSIONS = 4
"""(units, features, height, width)."""
DROPOUTS = ("classifier.2", "classifier.5")
"""Behind each hidden layer."""


@dataclass(frozen=True, kw_only=True)
class Width:
    """What the models differ in."""

    channels: int
    """Of the first convolutions."""
    hidden: int
    """Units of the two hidden dense layers."""


WIDTHS = {"vgg16": Width(channels=64, hidden=4096), "vgg16-narrow": Width(channels=8, hidden=64)}


def stages(model: str) -> Iterator[list[tuple[str, int, int]]]:
    """Name, channels that enter and channels that leave of the convolutions of each stage.

    torchvision counts the ReLU behind each convolution and the max-pooling behind each stage, too.
    """
    index, channels_in = 0, IMAGE_CHANNELS
    for stage in STAGES:
        convolutions = []
        for multiple in stage:
            channels_out = multiple * WIDTHS[model].channels
            convolutions.append((f"features.{index}", channels_in, channels_out))
            index, channels_in = index + 2, channels_out
        index += 1
        yield convolutions


def num_flat(model: str, image_size: int) -> int:
    """Features behind the last pooling, which are flattened."""
    return (image_size // SHRINKS_BY) ** 2 * STAGES[-1][-1] * WIDTHS[model].channels


def _shapes(model: str, image_size: int, num_classes: int) -> Iterator[tuple[str, Shape]]:
    for stage in stages(model):
        for name, channels_in, channels_out in stage:
            yield from biased(name, (channels_out, channels_in, 3, 3))
    hidden = WIDTHS[model].hidden
    units = (num_flat(model, image_size), hidden, hidden, num_classes)
    for name, (units_in, units_out) in zip(CLASSIFIER, pairwise(units), strict=True):
        yield from biased(name, (units_out, units_in))


def _sides(model: str, image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    side = image_size
    for stage in stages(model):
        yield from ((name, (side, side)) for name, _, _ in stage)
        side //= 2
    yield from ((name, (1, 1)) for name in CLASSIFIER)


def _from_published(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """timm has the dense layers as convolutions over all that is left of an image."""
    found = dict(tensors)
    for theirs, ours in zip(CLASSIFIER_OF_TIMM, CLASSIFIER, strict=True):
        for tensor in ("weight", "bias"):
            if f"{theirs}.{tensor}" in found and f"{ours}.{tensor}" not in found:
                value = found.pop(f"{theirs}.{tensor}")
                is_kernel = value.ndim == KERNEL_DIMENSIONS and value.size
                found[f"{ours}.{tensor}"] = value.reshape(len(value), -1) if is_kernel else value
    return found


def _row(model: str, *, is_big: bool) -> ModelSpec:
    return ModelSpec(
        family="vgg",
        is_big=is_big,
        min_image_size=SHRINKS_BY,
        native_image_size=NATIVE_IMAGE_SIZE if is_big else None,
        initial_values="vgg",
        shapes=lambda image_size, num_classes: dict(_shapes(model, image_size, num_classes)),
        layers=(*((name,) for stage in stages(model) for name, _, _ in stage), *((name,) for name in CLASSIFIER)),
        drops=tuple(
            Drop(name=name, kind="dropout", rate=DROPOUT_RATE, features=WIDTHS[model].hidden) for name in DROPOUTS
        ),
        positions=lambda image_size: squares(_sides(model, image_size)),
        published="vgg16.tv_in1k" if is_big else None,
        published_image_size=NATIVE_IMAGE_SIZE if is_big else None,  # the first dense layer is as long as it is large
        from_published=_from_published,
    )


SPECS = {"vgg16": _row("vgg16", is_big=True), "vgg16-narrow": _row("vgg16-narrow", is_big=False)}
