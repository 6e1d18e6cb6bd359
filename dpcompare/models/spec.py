"""What all frameworks share of a model: names and shapes of its tensors, and what verification must know of it.

Tensor names are those of timm's checkpoints, or of torchvision's. Layouts are (out, in, height, width) for convolutions
and (out, in) for dense layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Literal

Shape = tuple[int, ...]
InitialValues = Literal["efficientnet", "resnet", "vgg", "vit"]
"""The rules of `dpcompare.models.initial_weights`."""

DRAWN, ZERO_INIT = "random", "zero-init"
ARE_DRAWN = (DRAWN, ZERO_INIT)
"""Initial weights that no file has; the second begins with residual branches that add nothing."""

IMAGE_CHANNELS = 3
NO_COLUMNS: Mapping[str, slice] = MappingProxyType({})
"""The columns of drop masks where nothing is dropped."""
IMAGE_DIMENSIONS = 4
"""Axes of a batch of images or feature maps."""


@dataclass(frozen=True, kw_only=True)
class Drop:
    """A place in a model where regularization drops features of a sample in training."""

    name: str
    """Its layer: `blocks.1.1.drop_path`, or `dropout` before the classifier."""
    kind: Literal["dropout", "stochastic depth"]
    rate: float
    """Probability that a feature, or with stochastic depth the whole branch, is dropped."""
    features: int = 1
    """Independent draws per sample: 1 drops all features of the sample together. See `shape_of_draws`."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One row of MODELS. Its layers are in `dpcompare.models.<family>`, in a module for each framework."""

    family: str
    """The folder of dpcompare.models that has it; empty of a custom model."""
    min_image_size: int
    """Smallest image side in pixels that the layers accept."""
    multiple_of: int = 1
    """Pixels that an image side has to be a multiple of."""
    native_image_size: int | None = None
    """Image side in pixels that it was designed for; None: no particular one."""
    is_big: bool = False
    """Whether it is too slow to be verified at every number of replicas; toy-bn takes its place there."""
    batchnorm_stride: int | None = None
    """Pixels per position of the smallest feature map that is batch-normalised; None without BatchNorm."""
    batchnorm_epsilon: float | None = None
    """Added to a variance before its root; None without BatchNorm, and of a custom model, which sets it itself."""
    shapes: Callable[[int, int], dict[str, Shape]]
    """(image_size, num_classes) -> name -> shape of every tensor, in the order of the layers."""
    initial_values: InitialValues = "efficientnet"
    """The rule by which its tensors are drawn."""
    ends_of_branches: tuple[str, ...] = ()
    """Names of the scales of the last BatchNorm of each residual branch, which `zero-init` begins with 0."""
    layers: tuple[tuple[str, ...], ...]
    """What it can be cut between: by the prefixes of the names of their tensors, in the order of the layers."""
    drops: tuple[Drop, ...] = ()
    """Where regularization acts, in the order of the layers; only `regularization="shared"` does."""
    published: str | None = None
    """timm's name of published ImageNet weights."""
    published_image_size: int | None = None
    """Image side in pixels that these are for, if tensors depend on it."""
    positions: Callable[[int], dict[str, tuple[int, int]]] = lambda image_size: {}
    """image_size -> layer -> the positions of the features that enter it and that leave it: pixels of a feature map,
    tokens, 1 where they are flat. What a layer costs follows from these and its shapes, see `dpcompare.models.costs`.
    Empty: not known."""
    attention: Callable[[int], dict[str, tuple[int, int]]] = lambda image_size: {}
    """image_size -> layer of attention -> its tokens, and the features of each."""
    keras_layer_name: Callable[[str], str] = lambda name: name
    """Keras's name of a layer -> its name here."""
    from_published: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """The tensors of a published file -> the same, where a library has other names or shapes for some."""
    zero_gradients: Callable[[Iterable[str]], set[str]] = lambda names: set()
    """Names of tensors -> those whose gradient is zero but for rounding, which no check may divide by."""
    clip_norm_of_verify: float | None = None
    """Between the norms of its first steps in `verify`, so that some gradients are scaled and others are not."""


def batch_norm(prefix: str, channels: int) -> Iterator[tuple[str, Shape]]:
    """The tensors of a BatchNorm."""
    for tensor in ("weight", "bias", "running_mean", "running_var"):
        yield f"{prefix}.{tensor}", (channels,)


def biased(prefix: str, weight_shape: Shape) -> Iterator[tuple[str, Shape]]:
    """The tensors of a layer of products with a bias."""
    yield f"{prefix}.weight", weight_shape
    yield f"{prefix}.bias", weight_shape[:1]


def halved(side: int, stride: int) -> int:
    """The side of features behind a padded convolution."""
    return -(-side // stride)


def squares(sides: Iterable[tuple[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Layer -> positions of square features, by their sides."""
    return {layer: (entering**2, leaving**2) for layer, (entering, leaving) in sides}


def channels_first(features: Sequence[int]) -> Shape:
    """The shape of a sample's features whose channels come last, as torch has it where they are a feature map."""
    is_map = len(features) == IMAGE_DIMENSIONS - 1
    return (features[-1], *features[:-1]) if is_map else tuple(features)


def shape_of_draws(draws: int, features: Shape) -> Shape:
    """How the draws of a sample are laid out, so that they can be multiplied by its features.

    Args:
        draws: one for all features, one for each channel, or one for each feature.
        features: shape of a sample's features, channels first.
    """
    return features if draws == math.prod(features) else (draws, *[1] * (len(features) - 1))


def columns(drops: Sequence[Drop]) -> dict[str, slice]:
    """Which columns of the drop masks belong to which layer."""
    ends = accumulate(drop.features for drop in drops)
    return {drop.name: slice(end - drop.features, end) for drop, end in zip(drops, ends, strict=True)}
