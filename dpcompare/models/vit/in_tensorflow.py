"""ViT as a Keras model: Keras has its layers, and no such model."""

from __future__ import annotations

import keras

from dpcompare.models.layers.in_tensorflow import (
    Attention,
    ClassToken,
    Gelu,
    PositionEmbedding,
    keras_name,
    type_of_tensors,
)
from dpcompare.models.spec import IMAGE_CHANNELS
from dpcompare.models.vit.spec import HEAD_WIDTH, LAYER_NORM_EPSILON, MLP_RATIO, PATCH, SIZES, drops, num_tokens
from dpcompare.system.type_names import FrameworkArray


def build(name: str, image_size: int, num_classes: int) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits."""
    layers, size = keras.layers, SIZES[name]
    width = size.width
    images = keras.Input((image_size, image_size, IMAGE_CHANNELS))
    x = layers.Conv2D(width, PATCH, strides=PATCH, name=keras_name("patch_embed.proj"))(images)
    x = layers.Reshape((num_tokens(image_size) - 1, width))(x)
    x = PositionEmbedding(name="pos_embed")(ClassToken(name="cls_token")(x))
    rates = {drop.name: drop.rate for drop in drops(size)}
    for block in size.blocks:
        for branch, drop in ((_attention, f"{block}.drop_path1"), (_mlp, f"{block}.drop_path2")):
            made = branch(x, block, width)
            if drop in rates:
                made = layers.Dropout(rates[drop], noise_shape=(None, 1, 1), name=keras_name(drop))(made)
            x = layers.Add(dtype=type_of_tensors())([x, made])
    x = _normalised(x, "norm")[:, 0]
    return keras.Model(images, layers.Dense(num_classes, name="head")(x))


def _attention(x: FrameworkArray, block: str, width: int) -> FrameworkArray:
    x = keras.layers.Dense(3 * width, name=keras_name(f"{block}.attn.qkv"))(_normalised(x, f"{block}.norm1"))
    return keras.layers.Dense(width, name=keras_name(f"{block}.attn.proj"))(
        Attention(HEAD_WIDTH, name=keras_name(f"{block}.attn"))(x)
    )


def _mlp(x: FrameworkArray, block: str, width: int) -> FrameworkArray:
    x = keras.layers.Dense(MLP_RATIO * width, name=keras_name(f"{block}.mlp.fc1"))(_normalised(x, f"{block}.norm2"))
    return keras.layers.Dense(width, name=keras_name(f"{block}.mlp.fc2"))(Gelu()(x))


def _normalised(x: FrameworkArray, name: str) -> FrameworkArray:
    return keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON, dtype=type_of_tensors(), name=keras_name(name))(
        x
    )
