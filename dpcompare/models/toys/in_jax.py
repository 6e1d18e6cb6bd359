"""The toys as functions of their layers in JAX."""

from __future__ import annotations

import jax

from dpcompare.models.layers.in_jax import Forward, Layers, max_pool


def build(name: str, image_size: int, num_classes: int) -> Forward:
    """From layers and normalised pixels to logits."""
    return {"toy-cnn": _toy_cnn, "toy-bn": _toy_bn, "mlp": _mlp}[name]


def _toy_cnn(layers: Layers, images: jax.Array) -> jax.Array:
    x = max_pool(jax.nn.relu(layers.convolution("conv1", images, padding="VALID")))
    x = max_pool(jax.nn.relu(layers.convolution("conv2", x, padding="VALID")))
    x = jax.nn.relu(layers.dense("fc1", x.reshape(len(x), -1)))
    return layers.dense("fc3", jax.nn.relu(layers.dense("fc2", x)))


def _toy_bn(layers: Layers, images: jax.Array) -> jax.Array:
    x = jax.nn.relu(layers.batch_norm("bn1", layers.convolution("conv_stem", images, stride=2)))
    x = jax.nn.relu(layers.batch_norm("bn2", layers.convolution("conv_dw", x, stride=2)))
    x = x + layers.drop("drop_path", layers.batch_norm("bn3", layers.convolution("conv_pwl", x)))
    return layers.dense("classifier", layers.drop("dropout", x.mean((1, 2))))


def _mlp(layers: Layers, images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(layers.dense("fc1", images.reshape(len(images), -1)))
    return layers.dense("fc2", layers.drop("dropout", hidden))
