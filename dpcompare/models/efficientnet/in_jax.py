"""EfficientNet as a function of its layers in JAX."""

from __future__ import annotations

import math

import jax

from dpcompare.models.efficientnet.spec import B0_BLOCK_GROUPS, EFFICIENTNET_SCALES
from dpcompare.models.layers.in_jax import Forward, Layers


def build(name: str, image_size: int, num_classes: int) -> Forward:
    """From layers and normalised pixels to logits."""
    _, depth, _, _ = EFFICIENTNET_SCALES[name.removeprefix("efficientnet-")]

    def forward(layers: Layers, images: jax.Array) -> jax.Array:
        x = jax.nn.silu(layers.batch_norm("bn1", layers.convolution("conv_stem", images, stride=2)))
        for i, group in enumerate(B0_BLOCK_GROUPS):
            for j in range(math.ceil(group.repeats * depth)):
                stride = 1 if j else group.stride
                x = _block(layers, f"blocks.{i}.{j}", x, expands=group.expansion > 1, stride=stride)
        x = jax.nn.silu(layers.batch_norm("bn2", layers.convolution("conv_head", x)))
        return layers.dense("classifier", layers.drop("dropout", x.mean((1, 2))))

    return forward


def _block(layers: Layers, name: str, x: jax.Array, *, expands: bool, stride: int) -> jax.Array:
    """A mobile inverted bottleneck; one that does not expand has no first convolution, and names one lower."""
    shortcut = x
    if expands:
        x = jax.nn.silu(layers.batch_norm(f"{name}.bn1", layers.convolution(f"{name}.conv_pw", x)))
    first_norm, second_norm, projection = ("bn2", "bn3", "conv_pwl") if expands else ("bn1", "bn2", "conv_pw")
    x = layers.convolution(f"{name}.conv_dw", x, stride=stride)
    x = jax.nn.silu(layers.batch_norm(f"{name}.{first_norm}", x))
    squeezed = jax.nn.silu(layers.convolution(f"{name}.se.conv_reduce", x.mean((1, 2), keepdims=True)))
    x = x * jax.nn.sigmoid(layers.convolution(f"{name}.se.conv_expand", squeezed))
    x = layers.batch_norm(f"{name}.{second_norm}", layers.convolution(f"{name}.{projection}", x))
    has_residual = stride == 1 and x.shape == shortcut.shape
    return shortcut + layers.drop(f"{name}.drop_path", x) if has_residual else x
