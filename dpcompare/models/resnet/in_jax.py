"""ResNet as a function of its layers in JAX."""

from __future__ import annotations

import jax
from jax import lax
from jax import numpy as jnp

from dpcompare.models.layers.in_jax import Forward, Layers
from dpcompare.models.resnet.spec import STEM, Block, Convolution, blocks


def build(name: str, image_size: int, num_classes: int) -> Forward:
    """From layers and normalised pixels to logits."""

    def forward(layers: Layers, images: jax.Array) -> jax.Array:
        x = jax.nn.relu(_normed(layers, STEM, images))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
        for block in blocks(name):
            x = _block(layers, block, x)
        return layers.dense("fc", x.mean((1, 2)))

    return forward


def _block(layers: Layers, block: Block, x: jax.Array) -> jax.Array:
    shortcut = x if block.projection is None else _normed(layers, block.projection, x)
    *inner, last = block.convolutions
    for convolution in inner:
        x = jax.nn.relu(_normed(layers, convolution, x))
    return jax.nn.relu(_normed(layers, last, x) + shortcut)


def _normed(layers: Layers, each: Convolution, x: jax.Array) -> jax.Array:
    padding = [(each.padding, each.padding)] * 2
    return layers.batch_norm(each.norm, layers.convolution(each.name, x, stride=each.stride, padding=padding))
