"""The initial values of a model's tensors, drawn once on the host, so that all frameworks start from the same file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dpcompare.models.architectures import MODELS
from dpcompare.models.spec import Shape

Weights = dict[str, npt.NDArray[np.float32]]

INITIALIZATION = 2
"""Number of the rule by which `initial_weights` draws, so that no cached file of another rule is taken for it."""


def custom_weights(shapes: Mapping[str, Shape], seed: int) -> Weights:
    """Like `initial_weights`, but independent of the order of the tensors, which may differ between the frameworks."""
    weights = {}
    for name, shape in shapes.items():
        entropy = [seed, 0, *hashlib.sha256(name.encode()).digest()]
        weights[name] = _initial_value(
            name, shape, np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
        )
    return weights


def initial_weights(model: str, image_size: int, num_classes: int, seed: int) -> Weights:
    """Draw the initial value of every tensor of `model`: float32 arrays by name.

    Convolutions are normal with variance 2 / fan_out, truncated at two standard deviations (as EfficientNet's
    reference code); dense weights are uniform within 1 / sqrt(fan_in) (as torch.nn.Linear); biases and means are
    0, scales and variances 1.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0])))
    return {
        name: _initial_value(name, shape, generator)
        for name, shape in MODELS[model].shapes(image_size, num_classes).items()
    }


def _initial_value(name: str, shape: Shape, generator: np.random.Generator) -> npt.NDArray[np.float32]:
    if len(shape) == 4:
        depthwise = shape[1] == 1
        fan_out = shape[2] * shape[3] * (1 if depthwise else shape[0])
        return _truncated_normal(shape, math.sqrt(2 / fan_out), generator)
    if len(shape) == 2:
        limit = 1 / math.sqrt(shape[1])
        return generator.uniform(-limit, limit, shape).astype(np.float32)
    is_scale_or_variance = name.endswith((".weight", ".running_var"))
    return np.full(shape, 1.0 if is_scale_or_variance else 0.0, np.float32)


def _truncated_normal(
    shape: Shape, standard_deviation: float, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Normal draws outside two standard deviations are drawn again; the result has the variance asked for."""
    values = generator.standard_normal(shape)
    while (outside := np.abs(values) > 2).any():
        values[outside] = generator.standard_normal(int(outside.sum()))
    # 0.8796... is the standard deviation of a standard normal truncated at +-2.
    return (values * (standard_deviation / 0.87962566103423978)).astype(np.float32)
