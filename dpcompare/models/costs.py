"""What an image takes in operations and values moved, and where a model is cut into stages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from dpcompare.models.architectures import model_of
from dpcompare.models.spec import Shape

ROUNDS = 5
WARMUP_ROUNDS = 2


def seconds_of(calls: Sequence[Callable[[], object]], synchronize: Callable[[], None]) -> list[float]:
    """Seconds that each call takes, the median of some rounds through all of them in their order."""
    rounds = []
    for _ in range(WARMUP_ROUNDS + ROUNDS):
        taken = []
        for call in calls:
            synchronize()
            begin = time.perf_counter()
            call()
            synchronize()
            taken.append(time.perf_counter() - begin)
        rounds.append(taken)
    return [median(column) for column in zip(*rounds[WARMUP_ROUNDS:], strict=True)]


def balanced_cuts(seconds: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """The layers with which the second and all later stages start, so that the slowest stage is as fast as can be.

    Args:
        seconds: of each layer, in their order.
        num_stages: at most as many as there are layers.

    Returns:
        num_stages - 1 ascending indices of layers.
    """
    if not 1 <= num_stages <= len(seconds):
        raise ValueError(f"received {num_stages} stages for {len(seconds)} layers, expected 1 to {len(seconds)}")

    @cache
    def best(first: int, stages: int) -> tuple[float, tuple[int, ...]]:
        """Seconds of the slowest stage of the layers from `first` on, and their cuts."""
        if stages == 1:
            return sum(seconds[first:]), ()
        choices = []
        for cut in range(first + 1, len(seconds) - stages + 2):
            slowest, cuts = best(cut, stages - 1)
            choices.append((max(sum(seconds[first:cut]), slowest), (cut, *cuts)))
        return min(choices)

    return best(0, num_stages)[1]


def seconds_of_stages(seconds: Sequence[float], cuts: Sequence[int]) -> list[float]:
    """Seconds of each stage: the sum of those of the layers between one cut and the next."""
    return [sum(seconds[begin:end]) for begin, end in pairwise([0, *cuts, len(seconds)])]


FLOPS_PER_MULTIPLICATION = 2
"""Each product is added to a sum."""
PASSES = 3
"""Forward, and two products of the same size backward: the gradient of what entered a layer and that of its weights, as
Chowdhery et al. 2022 ("PaLM", appendix B) count a training step. The unused gradient of the images is included."""
BATCH_NORM_PASSES = 8
"""Over the features of a BatchNorm in training: read for its statistics, read and written to normalise; backward they
and their gradient are read for two sums, read again, and a gradient is written."""
LAYER_NORM_PASSES = 5
"""Over the features of a LayerNorm in training, whose statistics are of one token, which stays in a cache: read and
written; backward they and their gradient are read, and a gradient is written."""
ATTENTION_PRODUCTS = 2
"""Between tokens, of as many multiplications each: queries by keys, and what follows by values."""
ATTENTION_FEATURES = 4
"""Of each token: its query, key and value are read, and one is written."""
ATTENTION_KEPT = 3
"""Of each token for the backward pass: its query, key and value. What is written is counted with the layer that it
enters."""


class LayerCost(NamedTuple):
    """What a layer with tensors takes for one image."""

    name: str
    flops: int
    """Operations of its forward pass; BatchNorm's, a few per value, are not counted."""
    values_moved: int
    """Features that training has to read and write at least, forward and backward, if none stays in a cache: a layer of
    products reads its input, writes its output, reads both and the gradient of the output twice, and writes that of the
    input. Activations and pooling, which compilers fuse with their neighbours, and weights are not counted."""
    values_kept: int
    """Features that the forward pass keeps for the backward pass at least: what entered the layer."""


def layer_costs(model: str, image_size: int, num_classes: int) -> list[LayerCost]:
    """The costs of each layer, in their order; nothing for a custom model, whose layers are not known."""
    return list(_costs(model, image_size, num_classes))


def _costs(model: str, image_size: int, num_classes: int) -> Iterator[LayerCost]:
    row = model_of(model)
    positions, attention = row.positions(image_size), row.attention(image_size)
    shapes = row.shapes(image_size, num_classes) if positions else {}
    for tensor, shape in shapes.items():
        layer, _, kind = tensor.rpartition(".")
        if kind != "weight":
            continue
        entering, leaving = positions[layer]
        if len(shape) > 1:
            yield _of_products(layer, shape, entering, leaving)
        else:
            passes = BATCH_NORM_PASSES if f"{layer}.running_var" in shapes else LAYER_NORM_PASSES
            yield LayerCost(layer, 0, passes * shape[0] * leaving, shape[0] * leaving)
    yield from (_of_attention(layer, tokens, width) for layer, (tokens, width) in attention.items())


def _of_products(layer: str, shape: Shape, entering: int, leaving: int) -> LayerCost:
    """The cost of a dense layer or a convolution by the shape of its weight, and its positions."""
    channels_out = shape[0]
    is_depthwise = len(shape) == 4 and shape[1] == 1
    channels_in = channels_out if is_depthwise else shape[1]
    moved = channels_in * entering + channels_out * leaving
    flops = FLOPS_PER_MULTIPLICATION * math.prod(shape) * leaving
    return LayerCost(layer, flops, PASSES * moved, channels_in * entering)


def _of_attention(layer: str, tokens: int, width: int) -> LayerCost:
    """The cost of the products of tokens with tokens, whose scores stay in a cache, as in the kernels of Dao 2023."""
    flops = FLOPS_PER_MULTIPLICATION * ATTENTION_PRODUCTS * tokens**2 * width
    features = tokens * width
    return LayerCost(layer, flops, PASSES * ATTENTION_FEATURES * features, ATTENTION_KEPT * features)


def training_flops(model: str, image_size: int, num_classes: int) -> int | None:
    """Operations that one image takes in a training step; None for a model whose layers are not known."""
    return PASSES * sum(cost.flops for cost in layer_costs(model, image_size, num_classes)) or None


def values_moved(model: str, image_size: int, num_classes: int) -> int | None:
    """Values of features that one image makes a training step read and write at least; None as above."""
    return sum(cost.values_moved for cost in layer_costs(model, image_size, num_classes)) or None


def values_kept(model: str, image_size: int, num_classes: int) -> int | None:
    """Values of features that training keeps of one image between its passes at least; None as above."""
    return sum(cost.values_kept for cost in layer_costs(model, image_size, num_classes)) or None
