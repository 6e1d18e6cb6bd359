"""AlexNet as a function of its layers in JAX."""

from __future__ import annotations

import jax
from dpcompare.models.alexnet.spec import CONVOLUTIONS, DENSE
from jax import lax
from jax import numpy as jnp

from dpcompare.models.layers.in_jax import Forward, Layers


def build(name: str, image_size: int, num_classes: int) -> Forward:
    """From layers and normalised pixels to logits."""
    return _alexnet


def _alexnet(layers: Layers, images: jax.Array) -> jax.Array:
    x = images
    for each in CONVOLUTIONS:
        padding = [(each.padding, each.padding)] * 2
        x = jax.nn.relu(layers.convolution(each.name, x, stride=each.stride, padding=padding))
        if each.pooled:
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    *hidden, last = DENSE
    for dense in hidden:
        x = jax.nn.relu(layers.dense(dense, x))
    return layers.dense(last, x)
