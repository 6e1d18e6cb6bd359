"""ViT as a function of its layers in JAX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import jax
from jax import numpy as jnp

from dpcompare.models.layers.in_jax import Forward, Layers
from dpcompare.models.vit.spec import HEAD_WIDTH, LAYER_NORM_EPSILON, PATCH, SIZES


def build(name: str, image_size: int, num_classes: int) -> Forward:
    """From layers and normalised pixels to logits."""
    return partial(_vit, SIZES[name].blocks)


def _vit(blocks: Sequence[str], layers: Layers, images: jax.Array) -> jax.Array:
    x = layers.convolution("patch_embed.proj", images, stride=PATCH, padding="VALID")
    rows, width = len(x), x.shape[-1]
    class_token = jnp.broadcast_to(layers.stored("cls_token"), (rows, 1, width))
    # In bfloat16 the tokens stay float32, as torch has them: only products are narrower.
    x = jnp.concatenate([class_token, x.reshape(rows, -1, width).astype(class_token.dtype)], axis=1)
    x = x + layers.stored("pos_embed")
    for block in blocks:
        attended = _attention(layers, f"{block}.attn", _normed(layers, f"{block}.norm1", x))
        x = x + layers.drop(f"{block}.drop_path1", attended)
        mixed = _mlp(layers, f"{block}.mlp", _normed(layers, f"{block}.norm2", x))
        x = x + layers.drop(f"{block}.drop_path2", mixed)
    return layers.dense("head", _normed(layers, "norm", x)[:, 0])


def _normed(layers: Layers, name: str, x: jax.Array) -> jax.Array:
    return layers.layer_norm(name, x, epsilon=LAYER_NORM_EPSILON)


def _attention(layers: Layers, name: str, x: jax.Array) -> jax.Array:
    """Scaled dot products of queries, keys and values (Vaswani et al. 2017)."""
    rows, tokens, width = x.shape
    parts = layers.dense(f"{name}.qkv", x).reshape(rows, tokens, 3, width // HEAD_WIDTH, HEAD_WIDTH)
    queries, keys, values = parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
    # Not jax.nn.dot_product_attention, whose scores are float32 where all else is float64.
    wide = jnp.promote_types(parts.dtype, jnp.float32)
    scores = jnp.einsum("rqhf,rkhf->rhqk", queries, keys, preferred_element_type=wide) / math.sqrt(HEAD_WIDTH)
    heads = jnp.einsum("rhqk,rkhf->rqhf", jax.nn.softmax(scores).astype(parts.dtype), values)
    return layers.dense(f"{name}.proj", heads.reshape(rows, tokens, width))


def _mlp(layers: Layers, name: str, x: jax.Array) -> jax.Array:
    return layers.dense(f"{name}.fc2", jax.nn.gelu(layers.dense(f"{name}.fc1", x), approximate=False))
