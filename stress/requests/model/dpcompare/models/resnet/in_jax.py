"""ResNet as a function of its layers in JAX."""

from __future__ import annotations

import jax
from dpcompare.models.resnet.spec import blocks, has_projection
from jax import lax
from jax import numpy as jnp

from dpcompare.models.layers.in_jax import Forward, Layers


def build(name: str, image_size: int, num_classes: int) -> Forward:
    """From layers and normalised pixels to logits."""
    return _resnet


def _resnet(layers: Layers, images: jax.Array) -> jax.Array:
    x = jax.nn.relu(_normed(layers, "conv1", "bn1", images, size=7, stride=2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for name, entering, channels, stride in blocks():
        shortcut = x
        x = jax.nn.relu(_normed(layers, f"{name}.conv1", f"{name}.bn1", x))
        x = jax.nn.relu(_normed(layers, f"{name}.conv2", f"{name}.bn2", x, size=3, stride=stride))
        x = _normed(layers, f"{name}.conv3", f"{name}.bn3", x)
        if has_projection(entering, channels, stride):
            shortcut = _normed(layers, f"{name}.downsample.0", f"{name}.downsample.1", shortcut, stride=stride)
        x = jax.nn.relu(x + shortcut)
    return layers.dense("fc", x.mean((1, 2)))


def _normed(layers: Layers, convolution: str, norm: str, x: jax.Array, *, size: int = 1, stride: int = 1) -> jax.Array:
    """A convolution, padded by as much before as after, and its BatchNorm."""
    padding = [(size // 2, size // 2)] * 2
    return layers.batch_norm(norm, layers.convolution(convolution, x, stride=stride, padding=padding))
