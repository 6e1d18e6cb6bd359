"""EfficientNet-B0 to B7 (Tan and Le 2019): names and shapes of their tensors, those of timm's `tf_efficientnet_*`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpcompare.models.spec import IMAGE_CHANNELS, Drop, ModelSpec, Shape, batch_norm, biased, halved, squares


@dataclass(frozen=True, kw_only=True)
class BlockGroup:
    """One row of the EfficientNet-B0 table (Tan and Le 2019, table 1, "stage"), before scaling."""

    repeats: int
    channels: int
    kernel_size: int
    expansion: int
    stride: int
    """The stride of its first block."""


B0_BLOCK_GROUPS = (
    BlockGroup(repeats=1, channels=16, kernel_size=3, expansion=1, stride=1),
    BlockGroup(repeats=2, channels=24, kernel_size=3, expansion=6, stride=2),
    BlockGroup(repeats=2, channels=40, kernel_size=5, expansion=6, stride=2),
    BlockGroup(repeats=3, channels=80, kernel_size=3, expansion=6, stride=2),
    BlockGroup(repeats=3, channels=112, kernel_size=5, expansion=6, stride=1),
    BlockGroup(repeats=4, channels=192, kernel_size=5, expansion=6, stride=2),
    BlockGroup(repeats=1, channels=320, kernel_size=3, expansion=6, stride=1),
)
B0_STEM_CHANNELS = 32
B0_HEAD_CHANNELS = 1280

# Coefficients of width and depth, image side in pixels, and dropout rate, of B0 to B7 (Tan and Le 2019 and their
# reference code).
EFFICIENTNET_SCALES = {
    "b0": (1.0, 1.0, 224, 0.2),
    "b1": (1.0, 1.1, 240, 0.2),
    "b2": (1.1, 1.2, 260, 0.3),
    "b3": (1.2, 1.4, 300, 0.3),
    "b4": (1.4, 1.8, 380, 0.4),
    "b5": (1.6, 2.2, 456, 0.4),
    "b6": (1.8, 2.6, 528, 0.5),
    "b7": (2.0, 3.1, 600, 0.5),
}
STOCHASTIC_DEPTH_RATE = 0.2
"""The rate towards which the blocks rise, from 0 for the first one (Huang et al. 2016, section 3, "linear decay")."""


def _scaled_channels(channels: int, width: float) -> int:
    """The nearest multiple of 8, but never more than 10% below (the reference code's rounding rule)."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


def _efficientnet_block(
    prefix: str, channels_in: int, channels_out: int, kernel_size: int, expansion: int
) -> Iterator[tuple[str, Shape]]:
    hidden = channels_in * expansion
    squeezed = max(1, channels_in // 4)
    if expansion > 1:
        yield f"{prefix}.conv_pw.weight", (hidden, channels_in, 1, 1)
        yield from batch_norm(f"{prefix}.bn1", hidden)
    yield f"{prefix}.conv_dw.weight", (hidden, 1, kernel_size, kernel_size)
    yield from batch_norm(f"{prefix}.bn2" if expansion > 1 else f"{prefix}.bn1", hidden)
    yield from biased(f"{prefix}.se.conv_reduce", (squeezed, hidden, 1, 1))
    yield from biased(f"{prefix}.se.conv_expand", (hidden, squeezed, 1, 1))
    projection, norm = ("conv_pwl", "bn3") if expansion > 1 else ("conv_pw", "bn2")
    yield f"{prefix}.{projection}.weight", (channels_out, hidden, 1, 1)
    yield from batch_norm(f"{prefix}.{norm}", channels_out)


def _efficientnet(width: float, depth: float, num_classes: int) -> Iterator[tuple[str, Shape]]:
    channels = _scaled_channels(B0_STEM_CHANNELS, width)
    yield "conv_stem.weight", (channels, IMAGE_CHANNELS, 3, 3)
    yield from batch_norm("bn1", channels)
    for i, group in enumerate(B0_BLOCK_GROUPS):
        channels_out = _scaled_channels(group.channels, width)
        for j in range(math.ceil(group.repeats * depth)):
            yield from _efficientnet_block(
                f"blocks.{i}.{j}", channels, channels_out, group.kernel_size, group.expansion
            )
            channels = channels_out
    head = _scaled_channels(B0_HEAD_CHANNELS, width)
    yield "conv_head.weight", (head, channels, 1, 1)
    yield from batch_norm("bn2", head)
    yield from biased("classifier", (num_classes, head))


def _efficientnet_layers(depth: float) -> Iterator[tuple[str, ...]]:
    yield "conv_stem", "bn1"
    for i, group in enumerate(B0_BLOCK_GROUPS):
        yield from ((f"blocks.{i}.{j}",) for j in range(math.ceil(group.repeats * depth)))
    yield "conv_head", "bn2"
    yield ("classifier",)


def _efficientnet_sides(depth: float, image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Convolutions are padded so that a stride alone makes features smaller; squeezed ones are of one position."""
    side = halved(image_size, 2)
    yield from (("conv_stem", (image_size, side)), ("bn1", (side, side)))
    for i, group in enumerate(B0_BLOCK_GROUPS):
        for j in range(math.ceil(group.repeats * depth)):
            entering, side = side, halved(side, group.stride if j == 0 else 1)
            block, has_expansion = f"blocks.{i}.{j}", group.expansion > 1
            if has_expansion:
                yield from ((f"{block}.conv_pw", (entering, entering)), (f"{block}.bn1", (entering, entering)))
            depthwise, projection = ("bn2", ("conv_pwl", "bn3")) if has_expansion else ("bn1", ("conv_pw", "bn2"))
            yield from ((f"{block}.conv_dw", (entering, side)), (f"{block}.{depthwise}", (side, side)))
            yield from ((f"{block}.se.{layer}", (1, 1)) for layer in ("conv_reduce", "conv_expand"))
            yield from ((f"{block}.{layer}", (side, side)) for layer in projection)
    yield from (("conv_head", (side, side)), ("bn2", (side, side)), ("classifier", (1, 1)))


def _efficientnet_drops(width: float, depth: float, dropout_rate: float) -> Iterator[Drop]:
    """Stochastic depth in every block with a residual, and dropout before the classifier.

    The rate of block b of n is 0.2 * b / n, b counted from 0 over all blocks, as in the models of all frameworks.
    """
    blocks = [(i, j) for i, group in enumerate(B0_BLOCK_GROUPS) for j in range(math.ceil(group.repeats * depth))]
    for number, (i, j) in enumerate(blocks):
        if j > 0:  # the first block of a group changes the shape of its features and has no residual
            rate = STOCHASTIC_DEPTH_RATE * number / len(blocks)
            yield Drop(name=f"blocks.{i}.{j}.drop_path", kind="stochastic depth", rate=rate)
    head = _scaled_channels(B0_HEAD_CHANNELS, width)
    yield Drop(name="dropout", kind="dropout", rate=dropout_rate, features=head)


_OUTER_LAYERS = {
    "stem_conv": "conv_stem",
    "stem_bn": "bn1",
    "top_conv": "conv_head",
    "top_bn": "bn2",
    "top_dropout": "dropout",
    "predictions": "classifier",
}
_BLOCK_LAYERS = {
    "expand_conv": "conv_pw",
    "expand_bn": "bn1",
    "dwconv": "conv_dw",
    "bn": "bn2",
    "se_reduce": "se.conv_reduce",
    "se_expand": "se.conv_expand",
    "project_conv": "conv_pwl",
    "project_bn": "bn3",
    "drop": "drop_path",
}
# The blocks of group 0 do not expand, so their names move up by one.
_FIRST_GROUP_LAYERS = _BLOCK_LAYERS | {"bn": "bn1", "project_conv": "conv_pw", "project_bn": "bn2"}


def keras_layer_name(name: str) -> str:
    """Keras's `block2a_expand_conv` is the neutral `blocks.1.0.conv_pw`; a name that it does not know stays."""
    block = re.fullmatch(r"block(\d)([a-z])_(.+)", name)
    if block is None:
        return _OUTER_LAYERS.get(name, name)
    group, index = int(block[1]) - 1, ord(block[2]) - ord("a")
    layers = _FIRST_GROUP_LAYERS if group == 0 else _BLOCK_LAYERS
    return f"blocks.{group}.{index}.{layers.get(block[3], block[3])}"


def _zero_gradients(names: Iterable[str]) -> set[str]:
    """The tensors whose gradient is zero but for rounding.

    The shift of a projection's BatchNorm goes through a convolution of 1x1 into the next BatchNorm, which takes it out
    again. In the first stage only its last block is followed by such a convolution; the others by a padded one.
    """
    shifts = [name for name in names if re.fullmatch(r"blocks\.(0\.\d+\.bn2|[1-9]\.\d+\.bn3)\.bias", name)]
    first_stage = sorted(
        (name for name in shifts if name.startswith("blocks.0.")), key=lambda name: int(name.split(".")[2])
    )
    return set(shifts) - set(first_stage[:-1])


def _efficientnet_row(scale: str) -> ModelSpec:
    width, depth, image_size, dropout_rate = EFFICIENTNET_SCALES[scale]
    return ModelSpec(
        family="efficientnet",
        is_big=True,
        min_image_size=32,
        native_image_size=image_size,
        batchnorm_stride=32,
        batchnorm_epsilon=1e-3,
        shapes=lambda image_size, num_classes: dict(_efficientnet(width, depth, num_classes)),
        layers=tuple(_efficientnet_layers(depth)),
        drops=tuple(_efficientnet_drops(width, depth, dropout_rate)),
        # Trained on ImageNet-1k alone, with these pixel statistics, and there for B0 to B7. Keras's own files come from
        # other checkpoints and are never mixed with these.
        published=f"tf_efficientnet_{scale}.aa_in1k",
        positions=lambda image_size: squares(_efficientnet_sides(depth, image_size)),
        keras_layer_name=keras_layer_name,
        zero_gradients=_zero_gradients,
    )


SPECS = {f"efficientnet-{scale}": _efficientnet_row(scale) for scale in EFFICIENTNET_SCALES}
