"""The initial values of a model's tensors, drawn once on the host, so that all frameworks start from the same file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from dpcompare.errors import RequestError
from dpcompare.models.architectures import CUSTOM, MODELS
from dpcompare.models.spec import InitialValues, Shape

Value = npt.NDArray[np.float32]
Weights = dict[str, Value]

INITIALIZATION = 2
"""Number of the rules by which `initial_weights` draws, so that no cached file of another one is taken for it."""

KINDS = (".weight", ".bias", ".running_mean", ".running_var")
AXES = (1, 2, 4)
"""How the names of a custom model's tensors end, and how many axes they have."""

_STANDARD_DEVIATION_WITHIN_TWO = 0.87962566103423978
"""Of a standard normal distribution truncated at -2 and 2."""


def require_rules(model: str, shapes: Mapping[str, Shape], otherwise: str = "") -> None:
    """Raise RequestError for tensors for which `custom_weights` has no rule.

    Args:
        model: its name, for the error.
        shapes: of its tensors.
        otherwise: what else may be done, at the end of the error.
    """
    strange = [
        f"{name} {tuple(shape)}" for name, shape in shapes.items() if not name.endswith(KINDS) or len(shape) not in AXES
    ]
    if strange:
        raise RequestError(
            f"model: {model!r} has tensors for which there is no rule of initial values: {', '.join(strange)}; "
            f"expected names that end in {', '.join(KINDS)}, and {', '.join(map(str, AXES))} axes, as convolutions of "
            f"images, dense layers, embeddings and normalization have{otherwise}"
        )


def custom_weights(shapes: Mapping[str, Shape], seed: int) -> Weights:
    """Like `initial_weights`, but independent of the order of the tensors, which may differ between the frameworks."""
    weights = {}
    for name, shape in shapes.items():
        entropy = [seed, 0, *hashlib.sha256(name.encode()).digest()]
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
        weights[name] = _RULES[CUSTOM.initial_values](name, shape, generator)
    return weights


def initial_weights(model: str, image_size: int, num_classes: int, seed: int) -> Weights:
    """Draw the initial value of every tensor of `model`, by the rule of its row: float32 arrays by name."""
    row = MODELS[model]
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0])))
    draw = _RULES[row.initial_values]
    return {name: draw(name, shape, generator) for name, shape in row.shapes(image_size, num_classes).items()}


def _of_efficientnet(name: str, shape: Shape, generator: np.random.Generator) -> Value:
    """EfficientNet's reference code: convolutions are normal with variance 2 / fan_out, truncated at two standard
    deviations. Dense weights are uniform within 1 / sqrt(fan_in), as those of torch.nn.Linear."""
    if _is_convolution(shape):
        return _truncated_normal(shape, math.sqrt(2 / _fan_out(shape)), generator)
    return _dense_or_constant(name, shape, generator)


def _of_resnet(name: str, shape: Shape, generator: np.random.Generator) -> Value:
    """torchvision and timm: convolutions are normal with variance 2 / fan_out, which keeps the size of gradients (He et
    al. 2015, "Delving Deep into Rectifiers", equation 14); dense weights as those of torch.nn.Linear."""
    if _is_convolution(shape):
        return _normal(shape, math.sqrt(2 / _fan_out(shape)), generator)
    return _dense_or_constant(name, shape, generator)


def _of_vgg(name: str, shape: Shape, generator: np.random.Generator) -> Value:
    """torchvision: convolutions as `_of_resnet`, dense weights normal with standard deviation 0.01."""
    if _is_convolution(shape):
        return _of_resnet(name, shape, generator)
    return _normal(shape, 0.01, generator) if len(shape) == 2 else _constant(name, shape)


def _of_vit(name: str, shape: Shape, generator: np.random.Generator) -> Value:
    """DeiT's code (Touvron et al. 2021): class token, positions and dense weights are normal with standard deviation
    0.02; it truncates at 2, a hundred of them away. The projection of patches has variance 1 / fan_in, truncated at two
    standard deviations, as in the reference code of Dosovitskiy et al. 2021 (LeCun's rule)."""
    if _is_convolution(shape):
        return _truncated_normal(shape, 1 / math.sqrt(math.prod(shape[1:])), generator)
    return _constant(name, shape) if len(shape) == 1 else _normal(shape, 0.02, generator)


_RULES: dict[InitialValues, Callable[[str, Shape, np.random.Generator], Value]] = {
    "efficientnet": _of_efficientnet,
    "resnet": _of_resnet,
    "vgg": _of_vgg,
    "vit": _of_vit,
}


def _is_convolution(shape: Shape) -> bool:
    return len(shape) == 4


def _fan_out(shape: Shape) -> int:
    """The outputs of a convolution that an input value is part of; a depthwise one has one filter per channel."""
    is_depthwise = shape[1] == 1
    return shape[2] * shape[3] * (1 if is_depthwise else shape[0])


def _dense_or_constant(name: str, shape: Shape, generator: np.random.Generator) -> Value:
    if len(shape) == 2:
        limit = 1 / math.sqrt(shape[1])
        return generator.uniform(-limit, limit, shape).astype(np.float32)
    return _constant(name, shape)


def _constant(name: str, shape: Shape) -> Value:
    """Biases and means are 0, scales and variances 1."""
    is_scale_or_variance = name.endswith((".weight", ".running_var"))
    return np.full(shape, 1.0 if is_scale_or_variance else 0.0, np.float32)


def _normal(shape: Shape, standard_deviation: float, generator: np.random.Generator) -> Value:
    return (generator.standard_normal(shape) * standard_deviation).astype(np.float32)


def _truncated_normal(shape: Shape, standard_deviation: float, generator: np.random.Generator) -> Value:
    """Normal draws outside two standard deviations are drawn again; the result has the variance asked for."""
    values = generator.standard_normal(shape)
    while (outside := np.abs(values) > 2).any():
        values[outside] = generator.standard_normal(int(outside.sum()))
    return (values * (standard_deviation / _STANDARD_DEVIATION_WITHIN_TWO)).astype(np.float32)
