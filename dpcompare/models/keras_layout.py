"""Keras's layouts and names of tensors, converted to the framework-neutral ones and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpcompare.models.architectures import MODELS
from dpcompare.system.type_names import Array


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A way to order the axes of a tensor."""

    to_neutral: Callable[[Array], Array]
    from_neutral: Callable[[Array], Array]


# Keras stores (height, width, in, out), depthwise (height, width, channel, 1), dense (in, out).
CONVOLUTION = Layout(to_neutral=lambda a: a.transpose(3, 2, 0, 1), from_neutral=lambda a: a.transpose(2, 3, 1, 0))
DEPTHWISE = Layout(to_neutral=lambda a: a.transpose(2, 3, 0, 1), from_neutral=lambda a: a.transpose(2, 3, 0, 1))
DENSE = Layout(to_neutral=lambda a: a.transpose(), from_neutral=lambda a: a.transpose())
AS_IT_IS = Layout(to_neutral=lambda a: a, from_neutral=lambda a: a)

BATCH_NORM_VARIABLES = ("gamma", "beta", "moving_mean", "moving_variance")
"""In the order in which Keras saves them."""

_TENSORS = {
    "kernel": "weight",
    "depthwise_kernel": "weight",  # as Keras 2 called it
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
