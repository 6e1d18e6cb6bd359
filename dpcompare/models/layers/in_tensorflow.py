"""Layers that Keras has not, which the models in TensorFlow are made of."""

from __future__ import annotations

import math

import keras

from dpcompare.system.type_names import FrameworkArray, PassedOn


class OwnTensor(keras.layers.Layer):
    """A layer for one tensor that belongs to no other, and has the layer's name.

    In mixed precision it computes in the type of its tensor, as torch does where it adds or joins two types.
    """

    def __init__(self, **options: PassedOn) -> None:
        super().__init__(dtype=type_of_tensors(), **options)


class ClassToken(OwnTensor):
    """The token of the class before those of the patches."""

    def build(self, shape: tuple[int | None, int, int]) -> None:
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name=self.name)

    def call(self, x: FrameworkArray) -> FrameworkArray:
        repeated = keras.ops.broadcast_to(self.token, (keras.ops.shape(x)[0], 1, x.shape[-1]))
        return keras.ops.concatenate([repeated, x], axis=1)


class PositionEmbedding(OwnTensor):
    """A learned vector added to each token."""

    def build(self, shape: tuple[int | None, int, int]) -> None:
        self.embedding = self.add_weight(shape=(1, *shape[1:]), name=self.name)

    def call(self, x: FrameworkArray) -> FrameworkArray:
        return x + self.embedding


class Attention(keras.layers.Layer):
    """Scaled dot products of queries, keys and values that come in one tensor, in this order (Vaswani et al. 2017)."""

    def __init__(self, head_width: int, **options: PassedOn) -> None:
        super().__init__(**options)
        self._head_width = head_width

    def call(self, x: FrameworkArray) -> FrameworkArray:
        tokens, width = x.shape[1], x.shape[2] // 3
        parts = keras.ops.reshape(x, (-1, tokens, 3, width // self._head_width, self._head_width))
        queries, keys, values = parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
        if keras.backend.backend() == "jax":  # whose own attention takes the softmax in float32, whatever the type
            scores = keras.ops.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(self._head_width)
            heads = keras.ops.einsum("bhqk,bkhd->bqhd", keras.ops.softmax(scores), values)
        else:
            heads = keras.ops.dot_product_attention(queries, keys, values)
        return keras.ops.reshape(heads, (-1, tokens, width))


class Gelu(keras.layers.Layer):
    """By the error function, not by tanh."""

    def call(self, x: FrameworkArray) -> FrameworkArray:
        # Not tf.nn.gelu, whose root of 2 is float32 where all else is float64.
        return 0.5 * x * (1 + keras.ops.erf(x / math.sqrt(2)))


DOT = "__"
"""In the place of a dot, in torch."""


def keras_name(name: str) -> str:
    """The name of a layer as Keras takes it: in torch, where its tensors are parameters of modules, without dots."""
    return name.replace(".", DOT) if keras.backend.backend() == "torch" else name


def type_of_tensors() -> str:
    """The type in which Keras keeps tensors now: in mixed precision a wider one than it computes products in."""
    kept: str = keras.config.dtype_policy().variable_dtype
    return kept
