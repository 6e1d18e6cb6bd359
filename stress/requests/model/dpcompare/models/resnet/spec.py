"""ResNet-50 (He et al. 2016), with its strides in the 3x3 convolutions as timm's and torchvision's have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dpcompare.models.spec import IMAGE_CHANNELS, ModelSpec, Shape, batch_norm, biased, halved

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Blocks, channels of their 3x3 convolutions, and stride of the first one."""
EXPANSION = 4
STEM_CHANNELS = 64


def blocks() -> Iterator[tuple[str, int, int, int]]:
    """Name, channels that enter, channels of the 3x3 convolution, and stride of every block."""
    entering = STEM_CHANNELS
    for number, (repeats, channels, stride) in enumerate(STAGES, start=1):
        for index in range(repeats):
            yield f"layer{number}.{index}", entering, channels, stride if index == 0 else 1
            entering = channels * EXPANSION


def has_projection(entering: int, channels: int, stride: int) -> bool:
    """Whether the shortcut of a block has a convolution, since its features have another shape."""
    return stride > 1 or entering != channels * EXPANSION


def _shapes(num_classes: int) -> Iterator[tuple[str, Shape]]:
    yield "conv1.weight", (STEM_CHANNELS, IMAGE_CHANNELS, 7, 7)
    yield from batch_norm("bn1", STEM_CHANNELS)
    for name, entering, channels, stride in blocks():
        leaving = channels * EXPANSION
        yield f"{name}.conv1.weight", (channels, entering, 1, 1)
        yield from batch_norm(f"{name}.bn1", channels)
        yield f"{name}.conv2.weight", (channels, channels, 3, 3)
        yield from batch_norm(f"{name}.bn2", channels)
        yield f"{name}.conv3.weight", (leaving, channels, 1, 1)
        yield from batch_norm(f"{name}.bn3", leaving)
        if has_projection(entering, channels, stride):
            yield f"{name}.downsample.0.weight", (leaving, entering, 1, 1)
            yield from batch_norm(f"{name}.downsample.1", leaving)
    yield from biased("fc", (num_classes, STAGES[-1][1] * EXPANSION))


def _sides(image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    stem = halved(image_size, 2)
    side = halved(stem, 2)
    yield from (("conv1", (image_size, stem)), ("bn1", (stem, stem)))
    for name, entering, channels, stride in blocks():
        before, side = side, halved(side, stride)
        yield from ((f"{name}.conv1", (before, before)), (f"{name}.bn1", (before, before)))
        yield from ((f"{name}.conv2", (before, side)), (f"{name}.bn2", (side, side)))
        yield from ((f"{name}.conv3", (side, side)), (f"{name}.bn3", (side, side)))
        if has_projection(entering, channels, stride):
            yield from ((f"{name}.downsample.0", (before, side)), (f"{name}.downsample.1", (side, side)))
    yield "fc", (1, 1)


def _keras_layer_name(name: str) -> str:
    """Keras allows no point in a name: `layer1_0_conv1` is `layer1.0.conv1`."""
    return name.replace("_", ".") if re.fullmatch(r"layer\d_\d+_\w+", name) else name


def _zero_gradients(names: Iterable[str]) -> set[str]:
    """None: behind the last BatchNorm of a block comes a ReLU, and before every other one a convolution."""
    return set()


SPECS = {
    "resnet50": ModelSpec(
        family="resnet",
        min_image_size=32,
        native_image_size=224,
        is_big=True,
        batchnorm_stride=32,
        batchnorm_epsilon=1e-5,
        shapes=lambda image_size, num_classes: dict(_shapes(num_classes)),
        layers=(("conv1", "bn1"), *((name,) for name, *_ in blocks()), ("fc",)),
        sides=lambda image_size: dict(_sides(image_size)),
        published="resnet50.a1_in1k",
        keras_layer_name=_keras_layer_name,
        zero_gradients=_zero_gradients,
    )
}
