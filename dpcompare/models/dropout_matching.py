"""Dropout of a custom model in several frameworks: which layers correspond, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from dpcompare.errors import RequestError
from dpcompare.models.layer_matching import Layer, Layers, Setting, differences, listed
from dpcompare.models.spec import IMAGE_CHANNELS, Drop, Shape
from dpcompare.system.type_names import Array


def drop_settings(rate: float, draws: int, features: Shape, *, calls: int = 1) -> dict[str, Any]:
    """The settings of a layer that drops features.

    Args:
        rate: the part that it drops.
        draws: for each image, see `dpcompare.models.spec.shape_of_draws`; 0: it does something else than that drops.
        features: shape of those of an image that enter it, the channels of feature maps first.
        calls: in a pass of training.
    """
    while len(features) > 1 and features[-1] == 1:  # (channels, 1, 1) are as many features as (channels)
        features = features[:-1]
    return {"rate": rate, "draws": draws, "features": tuple(features), "calls": calls}


def images_to_try(image_size: int) -> Array:
    """Images of noise, (rows, height, width, channels): so many that a layer that drops few of them is seen."""
    shape = (32, image_size, image_size, IMAGE_CHANNELS)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def noise(shape: Sequence[int]) -> Array:
    """What is added to weights before `randomness`: layers that begin with zeros would hide what comes before them."""
    return (0.05 * np.random.default_rng(1).standard_normal(shape)).astype(np.float32)


def randomness(logits: Iterator[Array]) -> Iterator[Layer]:
    """A layer for what a model draws at random outside its layers of dropout, if it does.

    Args:
        logits: of the same images, in training, with nothing dropped by those layers.
    """
    first, *others = islice(logits, 4)
    tolerance = 1e-5 * float(np.abs(first).max())
    if not all(np.allclose(first, other, rtol=1e-3, atol=tolerance, equal_nan=True) for other in others):
        yield Layer(name="it", settings={"random": True})


def matched_drops(of_reference: Layers, of_other: Layers) -> dict[str, str]:
    """Name of a layer that drops features in one framework, in its order -> the name of its twin in the reference.

    By their names where all are equal, else by their order; no twins where one has more than the other.
    """
    reference, other = ([layer.name for layer in _dropping(layers)] for layers in (of_reference, of_other))
    twins = other if sorted(reference) == sorted(other) else reference
    return dict(zip(other, twins, strict=False))


def without_a_key(layer: Layer) -> str:
    """What is said of a layer that would drop features if a step had a key for it."""
    return (
        f"drops nothing: {layer.written_in} draws dropout from a key, and a step has none; write the model with "
        "flax.nnx if it should drop"
    )


def _dropping(layers: Layers) -> list[Layer]:
    return [layer for layer in layers if layer.settings.get("rate")]


def unlike_dropout(
    of_reference: Layers, of_other: Layers, frameworks: tuple[str, str], *, shared: bool
) -> Iterator[str]:
    """What two models draw at random otherwise, and what to write instead, a line for each.

    Args:
        of_reference: all layers in the first framework.
        of_other: those in the second one.
        frameworks: both.
        shared: whether dropout is drawn on the host, for both.
    """
    if shared:
        yield from _unlike_drops(of_reference, of_other, frameworks)
    for layers, framework in zip((of_reference, of_other), frameworks, strict=True):
        for layer in layers:
            if layer.settings.get("random"):
                yield f"it draws random numbers in training in {framework}, {OUTSIDE_OF_LAYERS}"
            if layer.settings.get("rate") and not shared:
                yield (
                    f"{layer.name} in {framework} drops features (rate {layer.settings['rate']:g}), which differ "
                    "between frameworks; pass --regularization shared, which draws them once for all frameworks"
                )


def _unlike_drops(of_reference: Layers, of_other: Layers, frameworks: tuple[str, str]) -> Iterator[str]:
    """What two models drop otherwise."""
    first, second = _dropping(of_reference), _dropping(of_other)
    by_name = {layer.name: layer for layer in first}
    for layer, twin in zip(second, matched_drops(first, second).values(), strict=False):
        yield from differences(by_name[twin], layer, frameworks, _DROP_SETTINGS)
        if layer.name in by_name and twin != layer.name:
            yield (
                f"{layer.name} in {frameworks[1]} stands where {twin} is in {frameworks[0]}, which has another "
                f"{layer.name}; give corresponding layers of dropout the same names"
            )
    if len(first) != len(second):
        yield (
            f"layers that drop features: {listed(first) or 'none'} in {frameworks[0]}, {listed(second) or 'none'} in "
            f"{frameworks[1]}; expected the same ones in both"
        )


MOST_DRAWS = 100_000
"""For an image, 4 bytes each: more would make batches larger than those of the images themselves (150,528 values)."""
SHARED_LAYERS = (
    "nn.Dropout or nn.Dropout2d in torch, Dropout or SpatialDropout2D in Keras, nnx.Dropout or the argument `drop` of "
    "`apply` in JAX"
)
OUTSIDE_OF_LAYERS = f"outside its layers of dropout; expected {SHARED_LAYERS}"
"""What is said of a model of which `randomness` has found some."""


def drops_of(model: str, framework: str, layers: Layers) -> tuple[Drop, ...]:
    """Where `regularization="shared"` drops features of a custom model, in the order of its layers.

    Args:
        model: its name, for the error.
        framework: of the layers.
        layers: all of them.

    Raises:
        RequestError: it drops none, or some in a way that cannot be shared.
    """
    dropping = _dropping(layers)
    called = Counter(layer.name for layer in dropping for _ in range(layer.settings["calls"]))
    problems = [] if dropping else [f"it has no layer that drops features; expected {SHARED_LAYERS}"]
    problems += [f"{layer.name} {without_a_key(layer)}" for layer in layers if layer.settings.get("idle_rate")]
    if any(layer.settings.get("random") for layer in layers):
        problems.append(f"it draws random numbers in training, {OUTSIDE_OF_LAYERS}")
    for layer in dropping:
        rate, draws = layer.settings["rate"], layer.settings["draws"]
        if not rate < 1:
            problems.append(f"{layer.name} drops all features (rate {rate:g}); expected a rate below 1")
        if not draws:
            problems.append(
                f"{layer.name} drops features neither one by one nor by whole channels nor all together; expected "
                f"{SHARED_LAYERS}"
            )
    problems += [
        f"{name} is called more than once; expected a layer for each call"
        for name, number in called.items()
        if number > 1
    ]
    if (draws := sum(layer.settings["draws"] for layer in dropping)) > MOST_DRAWS:
        problems.append(
            f"it drops {draws:,} features of an image one by one; expected at most {MOST_DRAWS:,}, which are drawn on "
            "the host: drop whole channels of large feature maps (nn.Dropout2d, SpatialDropout2D)"
        )
    if problems:
        raise RequestError(f"regularization: received shared with {model!r}, but in {framework} {'; '.join(problems)}")
    return tuple(
        Drop(
            name=layer.name,
            kind="stochastic depth" if layer.settings["draws"] == 1 else "dropout",
            rate=layer.settings["rate"],
            features=layer.settings["draws"],
        )
        for layer in dropping
    )


_DROP_SETTINGS = {
    "rate": Setting(
        begins="rate of dropout",
        shown=lambda value: f"{value:g}",
        fix=lambda one, two: "give both the same",
    ),
    "draws": Setting(
        begins="draws for an image",
        shown=str,
        fix=lambda one, two: "nn.Dropout is Dropout in Keras, nn.Dropout2d is SpatialDropout2D",
    ),
    "features": Setting(
        begins="features of an image, the channels of feature maps first:",
        shown=str,
        fix=lambda one, two: "drop features of the same shape in both",
    ),
}
"""Of layers that drop features, where the draws are shared."""
