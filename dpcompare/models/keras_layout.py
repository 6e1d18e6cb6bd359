"""Keras's names and layouts of the models' tensors, converted to the framework-neutral ones and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


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

_OUTER_LAYERS = {
    "stem_conv": "conv_stem",
    "stem_bn": "bn1",
    "top_conv": "conv_head",
    "top_bn": "bn2",
    "top_dropout": "dropout",
    "predictions": "classifier",
}
_BLOCK_LAYERS = {
    "expand_conv": "conv_pw",
    "expand_bn": "bn1",
    "dwconv": "conv_dw",
    "bn": "bn2",
    "se_reduce": "se.conv_reduce",
    "se_expand": "se.conv_expand",
    "project_conv": "conv_pwl",
    "project_bn": "bn3",
    "drop": "drop_path",
}
# The blocks of group 0 do not expand, so their names move up by one.
_FIRST_GROUP_LAYERS = _BLOCK_LAYERS | {"bn": "bn1", "project_conv": "conv_pw", "project_bn": "bn2"}


def neutral_layer_name(name: str) -> str:
    """Keras's `block2a_expand_conv` is the neutral `blocks.1.0.conv_pw`; a name that it does not know stays."""
    block = re.fullmatch(r"block(\d)([a-z])_(.+)", name)
    if block is None:
        return _OUTER_LAYERS.get(name, name)
    group, index = int(block[1]) - 1, ord(block[2]) - ord("a")
    layers = _FIRST_GROUP_LAYERS if group == 0 else _BLOCK_LAYERS
    return f"blocks.{group}.{index}.{layers.get(block[3], block[3])}"


def tensor_name(variable: str) -> str:
    """Keras's `gamma` is the neutral `weight`."""
    return _TENSORS.get(variable, variable)


def neutral_name(layer: str, variable: str) -> str:
    """Keras's `stem_bn` and `gamma` are the neutral `bn1.weight`."""
    return f"{neutral_layer_name(layer)}.{tensor_name(variable)}"
