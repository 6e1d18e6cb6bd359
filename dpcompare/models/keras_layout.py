"""Keras's layouts and names of tensors, converted to the framework-neutral ones and back."""

from __future__ import annotations

from dataclasses import dataclass

from dpcompare.models.architectures import MODELS
from dpcompare.system.type_names import Array


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A way to order the axes of a tensor."""

    axes: tuple[int, ...]
    """The order in Keras of its axes as the neutral layout has them; none where both have the same."""

    @property
    def axes_in_keras(self) -> tuple[int, ...]:
        """The order in the neutral layout of its axes as Keras has them."""
        return tuple(self.axes.index(axis) for axis in range(len(self.axes)))

    def to_neutral(self, array: Array) -> Array:
        """An array of Keras's in the neutral layout."""
        return array.transpose(self.axes) if self.axes else array

    def from_neutral(self, array: Array) -> Array:
        """An array of the neutral layout in Keras's."""
        return array.transpose(self.axes_in_keras) if self.axes else array


# Keras stores (height, width, in, out), depthwise (height, width, channel, 1), dense (in, out).
CONVOLUTION = Layout(axes=(3, 2, 0, 1))
DEPTHWISE = Layout(axes=(2, 3, 0, 1))
DENSE = Layout(axes=(1, 0))
AS_IT_IS = Layout(axes=())

BATCH_NORM_VARIABLES = ("gamma", "beta", "moving_mean", "moving_variance")
"""In the order in which Keras saves them."""

_TENSORS = {
    "kernel": "weight",
    "depthwise_kernel": "weight",  # as Keras 2 called it
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def tensor_name(variable: str) -> str:
    """Keras's `gamma` is the neutral `weight`."""
    return _TENSORS.get(variable, variable)


def neutral_name(layer: str, variable: str) -> str:
    """Keras's `stem_bn` and `gamma` are the neutral `bn1.weight`, of whichever model knows the layer."""
    names = (spec.keras_layer_name(layer) for spec in MODELS.values())
    return f"{next((name for name in names if name != layer), layer)}.{tensor_name(variable)}"
