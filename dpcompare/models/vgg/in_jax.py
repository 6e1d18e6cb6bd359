"""VGG as a function of its layers in JAX, which flattens its features in torch's order."""

from __future__ import annotations

import jax

from dpcompare.models.layers.in_jax import Forward, Layers, max_pool
from dpcompare.models.vgg.spec import CLASSIFIER, DROPOUTS, stages


def build(name: str, image_size: int, num_classes: int) -> Forward:
    """From layers and normalised pixels to logits."""

    def forward(layers: Layers, images: jax.Array) -> jax.Array:
        x = images
        for stage in stages(name):
            for convolution, _, _ in stage:
                x = jax.nn.relu(layers.convolution(convolution, x))
            x = max_pool(x)
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        *hidden, last = CLASSIFIER
        for dense, dropout in zip(hidden, DROPOUTS, strict=True):
            x = layers.drop(dropout, jax.nn.relu(layers.dense(dense, x)))
        return layers.dense(last, x)

    return forward
