"""ResNet-18 and ResNet-50 v1.5 (He et al. 2016): names and shapes of their tensors, those of timm's `resnet*`.

Version 1.5, which torchvision and timm call ResNet-50, has the stride of a bottleneck in its 3x3 convolution; the
paper, and Keras's `ResNet50`, have it in the first 1x1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpcompare.models.spec import IMAGE_CHANNELS, ModelSpec, Shape, batch_norm, biased, halved, squares


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution without bias, padded by as much before as after, and the BatchNorm behind it."""

    name: str
    norm: str
    channels_in: int
    channels_out: int
    size: int
    stride: int = 1

    @property
    def padding(self) -> int:
        """Pixels on each side."""
        return self.size // 2


@dataclass(frozen=True, kw_only=True)
class Block:
    """Convolutions whose features are added to those that entered; each but the last one is followed by a ReLU."""

    name: str
    convolutions: tuple[Convolution, ...]
    projection: Convolution | None
    """Of the features that entered, if they have another shape than those that leave."""


STEM = Convolution(name="conv1", norm="bn1", channels_in=IMAGE_CHANNELS, channels_out=64, size=7, stride=2)
BOTTLENECK_EXPANSION = 4
"""Channels that leave a bottleneck, per channel within it."""


@dataclass(frozen=True, kw_only=True)
class Depth:
    """One row of table 1 of He et al. 2016."""

    repeats: tuple[int, ...]
    """Blocks of each stage."""
    is_bottleneck: bool
    channels: tuple[int, ...] = (64, 128, 256, 512)
    """Of each stage."""

    @property
    def expansion(self) -> int:
        return BOTTLENECK_EXPANSION if self.is_bottleneck else 1


DEPTHS = {
    "resnet18": Depth(repeats=(2, 2, 2, 2), is_bottleneck=False),
    "resnet50": Depth(repeats=(3, 4, 6, 3), is_bottleneck=True),
    # Through all 16 blocks, rounding of the weights would grow to a tenth of the loss within 12 steps of SGD.
    "resnet50-narrow": Depth(repeats=(2, 2, 2, 2), is_bottleneck=True, channels=(8, 16, 32, 64)),
}


def blocks(name: str) -> Iterator[Block]:
    """The blocks of a model, in their order."""
    depth = DEPTHS[name]
    channels_in = STEM.channels_out
    for stage, (repeats, channels) in enumerate(zip(depth.repeats, depth.channels, strict=True), start=1):
        for index in range(repeats):
            stride = 2 if stage > 1 and index == 0 else 1
            yield _block(f"layer{stage}.{index}", channels_in, channels, stride, depth)
            channels_in = channels * depth.expansion


def _block(name: str, channels_in: int, channels: int, stride: int, depth: Depth) -> Block:
    channels_out = channels * depth.expansion
    # Size, channels that leave, and stride of each.
    bottleneck = ((1, channels, 1), (3, channels, stride), (1, channels_out, 1))
    chain = bottleneck if depth.is_bottleneck else ((3, channels, stride), (3, channels, 1))
    convolutions, entering = [], channels_in
    for number, (size, leaving, own_stride) in enumerate(chain, start=1):
        convolutions.append(
            Convolution(
                name=f"{name}.conv{number}",
                norm=f"{name}.bn{number}",
                channels_in=entering,
                channels_out=leaving,
                size=size,
                stride=own_stride,
            )
        )
        entering = leaving
    projection = Convolution(
        name=f"{name}.downsample.0",
        norm=f"{name}.downsample.1",
        channels_in=channels_in,
        channels_out=channels_out,
        size=1,
        stride=stride,
    )
    changes_shape = stride > 1 or channels_in != channels_out
    return Block(name=name, convolutions=tuple(convolutions), projection=projection if changes_shape else None)


def _of_block(block: Block) -> Sequence[Convolution]:
    """All convolutions of a block, in the order of timm's tensors."""
    return block.convolutions if block.projection is None else (*block.convolutions, block.projection)


def _shapes(name: str, num_classes: int) -> Iterator[tuple[str, Shape]]:
    for each in (STEM, *(convolution for block in blocks(name) for convolution in _of_block(block))):
        yield f"{each.name}.weight", (each.channels_out, each.channels_in, each.size, each.size)
        yield from batch_norm(each.norm, each.channels_out)
    depth = DEPTHS[name]
    yield from biased("fc", (num_classes, depth.channels[-1] * depth.expansion))


def _sides(name: str, image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    side = halved(image_size, STEM.stride)
    yield from ((STEM.name, (image_size, side)), (STEM.norm, (side, side)))
    side = halved(side, 2)  # the max-pooling
    for block in blocks(name):
        entering = side
        for each in block.convolutions:
            before, side = side, halved(side, each.stride)
            yield from ((each.name, (before, side)), (each.norm, (side, side)))
        if block.projection:
            yield from ((block.projection.name, (entering, side)), (block.projection.norm, (side, side)))
    yield "fc", (1, 1)


def _row(name: str, published: str | None) -> ModelSpec:
    return ModelSpec(
        family="resnet",
        is_big=published is not None,
        min_image_size=32,
        native_image_size=224 if published else None,
        batchnorm_stride=32,
        batchnorm_epsilon=1e-5,
        initial_values="resnet",
        ends_of_branches=tuple(f"{block.convolutions[-1].norm}.weight" for block in blocks(name)),
        shapes=lambda image_size, num_classes: dict(_shapes(name, num_classes)),
        layers=((STEM.name, STEM.norm), *((block.name,) for block in blocks(name)), ("fc",)),
        positions=lambda image_size: squares(_sides(name, image_size)),
        published=published,
    )


# Trained on ImageNet-1k alone, with the pixel statistics of the other models here.
PUBLISHED = {"resnet18": "resnet18.tv_in1k", "resnet50": "resnet50.tv_in1k"}
SPECS = {name: _row(name, PUBLISHED.get(name)) for name in DEPTHS}
