"""ViT-Ti/16, S/16 and B/16 (Dosovitskiy et al. 2021, Touvron et al. 2021), and a narrow one: timm's names and shapes.

Without BatchNorm, so that N replicas compute what one device does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpcompare.models.spec import IMAGE_CHANNELS, Drop, ModelSpec, Shape, biased

PATCH = 16
"""Pixels on a side of a patch, which becomes a token."""
NATIVE_IMAGE_SIZE = 224
HEAD_WIDTH = 64
"""Features of each head of attention."""
MLP_RATIO = 4
LAYER_NORM_EPSILON = 1e-6
"""Of the reference code, which timm follows; torch's own default is 1e-5, Keras's 1e-3."""
STOCHASTIC_DEPTH_RATE = 0.1
"""Of the last block, towards which the others rise from 0 (Touvron et al. 2021, table 9)."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What the models differ in."""

    width: int
    num_blocks: int = 12
    published: str | None = None

    @property
    def blocks(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(f"blocks.{index}" for index in range(self.num_blocks))

    @property
    def num_heads(self) -> int:
        return self.width // HEAD_WIDTH


# The published weights are of ImageNet-1k alone, with the pixel statistics of the other models.
SIZES = {
    "vit-ti16": Size(width=192, published="deit_tiny_patch16_224.fb_in1k"),
    "vit-s16": Size(width=384, published="deit_small_patch16_224.fb_in1k"),
    "vit-b16": Size(width=768, published="deit_base_patch16_224.fb_in1k"),
    "vit-narrow": Size(width=2 * HEAD_WIDTH, num_blocks=3),
}


def num_tokens(image_size: int) -> int:
    """A token of each patch, and that of the class before them."""
    return (image_size // PATCH) ** 2 + 1


def _shapes(size: Size, image_size: int, num_classes: int) -> Iterator[tuple[str, Shape]]:
    width = size.width
    yield "cls_token", (1, 1, width)
    yield "pos_embed", (1, num_tokens(image_size), width)
    yield from biased("patch_embed.proj", (width, IMAGE_CHANNELS, PATCH, PATCH))
    for block in size.blocks:
        yield from _layer_norm(f"{block}.norm1", width)
        yield from biased(f"{block}.attn.qkv", (3 * width, width))
        yield from biased(f"{block}.attn.proj", (width, width))
        yield from _layer_norm(f"{block}.norm2", width)
        yield from biased(f"{block}.mlp.fc1", (MLP_RATIO * width, width))
        yield from biased(f"{block}.mlp.fc2", (width, MLP_RATIO * width))
    yield from _layer_norm("norm", width)
    yield from biased("head", (num_classes, width))


def _layer_norm(prefix: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.weight", (width,)
    yield f"{prefix}.bias", (width,)


def _positions(size: Size, image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    tokens = num_tokens(image_size)
    yield "patch_embed.proj", (image_size**2, tokens - 1)
    for block in size.blocks:
        layers = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        yield from ((f"{block}.{layer}", (tokens, tokens)) for layer in layers)
    yield from (("norm", (tokens, tokens)), ("head", (1, 1)))


def drops(size: Size) -> Iterator[Drop]:
    """Stochastic depth of both branches of every block; that of the first one has rate 0."""
    for index, block in enumerate(size.blocks[1:], start=1):
        rate = STOCHASTIC_DEPTH_RATE * index / (size.num_blocks - 1)
        yield from (Drop(name=f"{block}.drop_path{n}", kind="stochastic depth", rate=rate) for n in (1, 2))


def _row(size: Size) -> ModelSpec:
    return ModelSpec(
        family="vit",
        is_big=size.published is not None,
        min_image_size=PATCH,
        multiple_of=PATCH,
        native_image_size=NATIVE_IMAGE_SIZE if size.published else None,
        initial_values="vit",
        shapes=lambda image_size, num_classes: dict(_shapes(size, image_size, num_classes)),
        layers=(("cls_token", "pos_embed", "patch_embed"), *((block,) for block in size.blocks), ("norm", "head")),
        drops=tuple(drops(size)),
        positions=lambda image_size: dict(_positions(size, image_size)),
        attention=lambda image_size: {f"{block}.attn": (num_tokens(image_size), size.width) for block in size.blocks},
        published=size.published,
        published_image_size=NATIVE_IMAGE_SIZE if size.published else None,
    )


SPECS = {name: _row(size) for name, size in SIZES.items()}
