"""The models: names and shapes of their tensors, in no framework's terms.

Tensor names are those of timm's `tf_efficientnet_*` checkpoints, layouts are (out, in, height, width) for
convolutions and (out, in) for dense layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, ...]

IMAGE_CHANNELS = 3


@dataclass(frozen=True, kw_only=True)
class Drop:
    """A place in a model where regularization drops features of a sample in training."""

    name: str
    """Its layer: `blocks.1.1.drop_path`, or `dropout` before the classifier."""
    kind: Literal["dropout", "stochastic depth"]
    rate: float
    """Probability that a feature, or with stochastic depth the whole branch, is dropped."""
    features: int = 1
    """Independent draws per sample: 1 drops all features of the sample together."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """One row of MODELS."""

    min_image_size: int
    """Smallest image side in pixels that the layers accept."""
    native_image_size: int | None = None
    """Image side in pixels that it was designed for; None: no particular one."""
    batchnorm_stride: int | None = None
    """Pixels per position of the smallest feature map that is batch-normalised; None without BatchNorm."""
    shapes: Callable[[int, int], dict[str, Shape]]
    """(image_size, num_classes) -> name -> shape of every tensor, in the order of the layers."""
    layers: tuple[tuple[str, ...], ...]
    """What it can be cut between: by the prefixes of the names of their tensors, in the order of the layers."""
    drops: tuple[Drop, ...] = ()
    """Where regularization acts, in the order of the layers; only `regularization="shared"` does."""
    published: str | None = None
    """timm's name of published ImageNet weights."""
    sides: Callable[[int], dict[str, tuple[int, int]]] = lambda image_size: {}
    """image_size -> layer -> the sides of the square features that enter it and that leave it, 1 where they are flat;
    what a layer costs follows from these and its shapes, see `dpcompare.models.costs`. Empty: not known."""


@dataclass(frozen=True, kw_only=True)
class BlockGroup:
    """One row of the EfficientNet-B0 table (Tan and Le 2019, table 1, "stage"), before scaling."""

    repeats: int
    channels: int
    kernel_size: int
    expansion: int
    stride: int
    """Of its first block."""


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


def _batch_norm(prefix: str, channels: int) -> Iterator[tuple[str, Shape]]:
    for tensor in ("weight", "bias", "running_mean", "running_var"):
        yield f"{prefix}.{tensor}", (channels,)


def _biased(prefix: str, weight_shape: Shape) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.weight", weight_shape
    yield f"{prefix}.bias", weight_shape[:1]


def _efficientnet_block(
    prefix: str, channels_in: int, channels_out: int, kernel_size: int, expansion: int
) -> Iterator[tuple[str, Shape]]:
    hidden = channels_in * expansion
    squeezed = max(1, channels_in // 4)
    if expansion > 1:
        yield f"{prefix}.conv_pw.weight", (hidden, channels_in, 1, 1)
        yield from _batch_norm(f"{prefix}.bn1", hidden)
    yield f"{prefix}.conv_dw.weight", (hidden, 1, kernel_size, kernel_size)
    yield from _batch_norm(f"{prefix}.bn2" if expansion > 1 else f"{prefix}.bn1", hidden)
    yield from _biased(f"{prefix}.se.conv_reduce", (squeezed, hidden, 1, 1))
    yield from _biased(f"{prefix}.se.conv_expand", (hidden, squeezed, 1, 1))
    projection, norm = ("conv_pwl", "bn3") if expansion > 1 else ("conv_pw", "bn2")
    yield f"{prefix}.{projection}.weight", (channels_out, hidden, 1, 1)
    yield from _batch_norm(f"{prefix}.{norm}", channels_out)


def _efficientnet(width: float, depth: float, num_classes: int) -> Iterator[tuple[str, Shape]]:
    channels = _scaled_channels(B0_STEM_CHANNELS, width)
    yield "conv_stem.weight", (channels, IMAGE_CHANNELS, 3, 3)
    yield from _batch_norm("bn1", channels)
    for i, group in enumerate(B0_BLOCK_GROUPS):
        channels_out = _scaled_channels(group.channels, width)
        for j in range(math.ceil(group.repeats * depth)):
            yield from _efficientnet_block(
                f"blocks.{i}.{j}", channels, channels_out, group.kernel_size, group.expansion
            )
            channels = channels_out
    head = _scaled_channels(B0_HEAD_CHANNELS, width)
    yield "conv_head.weight", (head, channels, 1, 1)
    yield from _batch_norm("bn2", head)
    yield from _biased("classifier", (num_classes, head))


def _efficientnet_layers(depth: float) -> Iterator[tuple[str, ...]]:
    yield "conv_stem", "bn1"
    for i, group in enumerate(B0_BLOCK_GROUPS):
        yield from ((f"blocks.{i}.{j}",) for j in range(math.ceil(group.repeats * depth)))
    yield "conv_head", "bn2"
    yield ("classifier",)


def _efficientnet_sides(depth: float, image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Convolutions are padded so that a stride alone makes features smaller; squeezed ones are of one position."""
    side = _halved(image_size, 2)
    yield from (("conv_stem", (image_size, side)), ("bn1", (side, side)))
    for i, group in enumerate(B0_BLOCK_GROUPS):
        for j in range(math.ceil(group.repeats * depth)):
            entering, side = side, _halved(side, group.stride if j == 0 else 1)
            block, has_expansion = f"blocks.{i}.{j}", group.expansion > 1
            if has_expansion:
                yield from ((f"{block}.conv_pw", (entering, entering)), (f"{block}.bn1", (entering, entering)))
            depthwise, projection = ("bn2", ("conv_pwl", "bn3")) if has_expansion else ("bn1", ("conv_pw", "bn2"))
            yield from ((f"{block}.conv_dw", (entering, side)), (f"{block}.{depthwise}", (side, side)))
            yield from ((f"{block}.se.{layer}", (1, 1)) for layer in ("conv_reduce", "conv_expand"))
            yield from ((f"{block}.{layer}", (side, side)) for layer in projection)
    yield from (("conv_head", (side, side)), ("bn2", (side, side)), ("classifier", (1, 1)))


def _halved(side: int, stride: int) -> int:
    return -(-side // stride)


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


def _toy_cnn(image_size: int, num_classes: int) -> Iterator[tuple[str, Shape]]:
    """conv(5)-pool-conv(5)-pool and three dense layers, with valid padding."""
    side = ((image_size - 4) // 2 - 4) // 2
    yield from _biased("conv1", (6, IMAGE_CHANNELS, 5, 5))
    yield from _biased("conv2", (16, 6, 5, 5))
    yield from _biased("fc1", (120, side * side * 16))
    yield from _biased("fc2", (84, 120))
    yield from _biased("fc3", (num_classes, 84))


def _toy_cnn_sides(image_size: int) -> dict[str, tuple[int, int]]:
    pooled = (image_size - 4) // 2
    dense = dict.fromkeys(("fc1", "fc2", "fc3"), (1, 1))
    return {"conv1": (image_size, image_size - 4), "conv2": (pooled, pooled - 4), **dense}


def _toy_bn(num_classes: int) -> Iterator[tuple[str, Shape]]:
    """What is hard to align in EfficientNet, in miniature: strided "same" convolutions, BatchNorm and a residual."""
    yield "conv_stem.weight", (8, IMAGE_CHANNELS, 3, 3)
    yield from _batch_norm("bn1", 8)
    yield "conv_dw.weight", (8, 1, 3, 3)
    yield from _batch_norm("bn2", 8)
    yield "conv_pwl.weight", (8, 8, 1, 1)
    yield from _batch_norm("bn3", 8)
    yield from _biased("classifier", (num_classes, 8))


def _toy_bn_sides(image_size: int) -> dict[str, tuple[int, int]]:
    stem = _halved(image_size, 2)
    side = _halved(stem, 2)
    return {
        **{"conv_stem": (image_size, stem), "bn1": (stem, stem), "conv_dw": (stem, side), "bn2": (side, side)},
        **{"conv_pwl": (side, side), "bn3": (side, side), "classifier": (1, 1)},
    }


def _mlp(image_size: int, num_classes: int) -> Iterator[tuple[str, Shape]]:
    """One hidden layer of 512 units on the flattened (height, width, channel) pixels."""
    yield from _biased("fc1", (512, image_size * image_size * IMAGE_CHANNELS))
    yield from _biased("fc2", (num_classes, 512))


def _efficientnet_row(scale: str) -> Model:
    width, depth, image_size, dropout_rate = EFFICIENTNET_SCALES[scale]
    return Model(
        min_image_size=32,
        native_image_size=image_size,
        batchnorm_stride=32,
        shapes=lambda image_size, num_classes: dict(_efficientnet(width, depth, num_classes)),
        layers=tuple(_efficientnet_layers(depth)),
        drops=tuple(_efficientnet_drops(width, depth, dropout_rate)),
        # Trained on ImageNet-1k alone, with these pixel statistics, and there for B0 to B7. Keras's own files come from
        # other checkpoints and are never mixed with these.
        published=f"tf_efficientnet_{scale}.aa_in1k",
        sides=lambda image_size: dict(_efficientnet_sides(depth, image_size)),
    )


MODELS: dict[str, Model] = {
    **{f"efficientnet-{scale}": _efficientnet_row(scale) for scale in EFFICIENTNET_SCALES},
    "toy-cnn": Model(
        min_image_size=32,
        shapes=lambda size, classes: dict(_toy_cnn(size, classes)),
        layers=(("conv1",), ("conv2",), ("fc1",), ("fc2",), ("fc3",)),
        sides=_toy_cnn_sides,
    ),
    "toy-bn": Model(
        min_image_size=4,
        batchnorm_stride=4,
        shapes=lambda size, classes: dict(_toy_bn(classes)),
        layers=(("conv_stem", "bn1"), ("conv_dw", "bn2"), ("conv_pwl", "bn3"), ("classifier",)),
        drops=(
            Drop(name="drop_path", kind="stochastic depth", rate=0.2),
            Drop(name="dropout", kind="dropout", rate=0.25, features=8),
        ),
        sides=_toy_bn_sides,
    ),
    "mlp": Model(
        min_image_size=1,
        shapes=lambda size, classes: dict(_mlp(size, classes)),
        layers=(("fc1",), ("fc2",)),
        sides=lambda image_size: {"fc1": (1, 1), "fc2": (1, 1)},
        drops=(Drop(name="dropout", kind="dropout", rate=0.5, features=512),),
    ),
}


CUSTOM = Model(min_image_size=1, shapes=lambda size, classes: {}, layers=())
"""The row of any custom model, of which only its `dpcompare.models.custom.CustomModel` knows more."""


def model_of(name: str) -> Model:
    """The row of a model; of a custom one, `CUSTOM`."""
    return MODELS.get(name, CUSTOM)
