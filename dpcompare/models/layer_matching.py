"""The layers of a custom model in several frameworks: which of them correspond, and what differs between those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from dpcompare.errors import RequestError
from dpcompare.models.spec import IMAGE_CHANNELS, Drop, Shape
from dpcompare.system.terminal_text import pluralize
from dpcompare.system.type_names import Array

NO_NAMES: Mapping[str, str] = MappingProxyType({})
"""The names of layers that all frameworks call alike."""
Windows = tuple[tuple[int, int], tuple[int, int]]
"""Pixels of padding before and after, of rows and of columns."""
CHANNELS_FIRST = "channels, rows, columns"
CHANNELS_LAST = "rows, columns, channels"
"""The order in which features are flattened."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What a framework says of a layer of a model."""

    name: str
    """As it is in the framework, or as `CustomModel.layer_names` calls it."""
    tensors: Mapping[str, Shape] = field(default_factory=dict)
    """`weight`, `bias`, ... -> its shape in the framework-neutral layout; empty for a layer without any."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What of `_SETTINGS`, `sides` and `drop_settings` is known of it; `random`: see `randomness`."""

    @property
    def shown_tensors(self) -> str:
        """`weight (8, 3, 3, 3), bias (8)`."""
        return ", ".join(f"{name} ({', '.join(map(str, shape))})" for name, shape in self.tensors.items())


Layers = Sequence[Layer]


def shapes_of(layers: Layers) -> dict[str, Shape]:
    """Name -> shape of every tensor of some layers."""
    return {
        f"{layer.name}.{tensor}" if layer.name else tensor: tuple(shape)
        for layer in layers
        for tensor, shape in layer.tensors.items()
    }


def window_settings(
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Windows,
    sides: Sequence[int],
    sides_after: Sequence[int],
) -> dict[str, Any]:
    """The settings of a layer that moves a window over features; empty where it does something else than they say.

    Args:
        kernel: sides of the window, rows first.
        stride: pixels from one window to the next.
        dilation: pixels from one point of a window to the next.
        padding: that the layer adds itself.
        sides: of the features that enter it.
        sides_after: of the features that leave it.
    """
    for axis in (0, 1):
        room = sides[axis] + sum(padding[axis]) - dilation[axis] * (kernel[axis] - 1) - 1
        if room // stride[axis] + 1 != sides_after[axis]:
            return {}
    return {
        "kernel": tuple(kernel),
        "stride": tuple(stride),
        "dilation": tuple(dilation),
        "padding": padding,
        "sides": tuple(sides),
    }


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


def order_flattened(channels: int, pixels: int, order: str) -> str | None:
    """The setting of a layer that flattens features; None where all orders give the same."""
    return order if channels > 1 and pixels > 1 else None


def same_padding(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], sides: Sequence[int]
) -> Windows:
    """What "same" adds to features of these sides: the odd pixel comes after them."""
    rows, columns = (
        max((-(-side // step) - 1) * step + spread * (size - 1) + 1 - side, 0)
        for size, step, spread, side in zip(kernel, stride, dilation, sides, strict=True)
    )
    return (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2)


@dataclass(frozen=True, kw_only=True)
class Matching:
    """The layers of one framework, each with the layer of the reference that it corresponds to."""

    pairs: tuple[tuple[Layer, Layer], ...]
    """(reference, other) of all layers with tensors, in the order of the other."""

    @property
    def names(self) -> dict[str, str]:
        """Name in the framework -> name in the reference, in the order of the framework; empty if all are equal."""
        names = {other.name: reference.name for reference, other in self.pairs}
        return names if any(name != neutral for name, neutral in names.items()) else {}


def matched_in_words(model: str, layers: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """How the layers of a model were matched, a line for each framework that calls them otherwise.

    Args:
        model: its name.
        layers: framework -> its name of a layer -> the name in the reference.
    """
    for framework, names in layers.items():
        pairs = ", ".join(f"{name} is {neutral}" for name, neutral in names.items())
        yield f"the layers of {model} have other names in {framework}; matched by order and shape: {pairs}"


def match(
    model: str, of_reference: Sequence[Layer], of_other: Sequence[Layer], frameworks: tuple[str, str]
) -> Matching:
    """Match the layers of two frameworks: by their names where all are equal, else by order and shapes.

    Args:
        model: its name, for the error.
        of_reference: layers in the framework whose names the tensors get, in their order.
        of_other: those in the other one.
        frameworks: both.

    Raises:
        RequestError: neither their names nor their order and shapes say which correspond.
    """
    reference, other = ([layer for layer in layers if layer.tensors] for layers in (of_reference, of_other))
    by_name = {layer.name: layer for layer in reference}
    if by_name.keys() == {layer.name for layer in other}:
        pairs = [(by_name[layer.name], layer) for layer in other]
        for one, two in pairs:
            if one.tensors != two.tensors:
                raise RequestError(
                    f"model: {model!r} is not the same in {' and '.join(frameworks)}: {_both(one, two, frameworks)}; "
                    "expected the same tensors in both"
                )
        return Matching(pairs=tuple(pairs))
    for number, (first, second) in enumerate(zip_longest(reference, other), start=1):
        if problem := _mismatch(first, second, by_name, frameworks):
            raise RequestError(
                f"model: the layers of {model!r} have different names in {frameworks[0]} "
                f"({_listed(reference)}) and {frameworks[1]} ({_listed(other)}), and their order does not show which "
                f"ones correspond: layer {number}: {problem}; expected the same layers in the same order, or the same "
                "names in both; CustomModel(layer_names={...}) maps names in torch to those in Keras"
            )
    return Matching(pairs=tuple(zip(reference, other, strict=True)))


def _mismatch(
    first: Layer | None, second: Layer | None, by_name: Mapping[str, Layer], frameworks: tuple[str, str]
) -> str | None:
    """Why two layers at the same place do not correspond; None where they do."""
    if first is None or second is None or first.tensors != second.tensors:
        return _both(first, second, frameworks)
    if second.name in by_name and second.name != first.name:
        return f"it is called {first.name!r} in {frameworks[0]}, where {second.name!r} is another one"
    return None


def _both(first: Layer | None, second: Layer | None, frameworks: tuple[str, str]) -> str:
    described = [
        f"{layer.name!r} with {layer.shown_tensors} in {framework}" if layer else f"there is none in {framework}"
        for layer, framework in zip((first, second), frameworks, strict=True)
    ]
    return ", ".join(described)


def _listed(layers: Layers, most: int = 4) -> str:
    names = ", ".join(layer.name for layer in layers[:most])
    return f"{names}, ..." if len(layers) > most else names


def require_equal(
    model: str,
    matching: Matching,
    of_reference: Sequence[Layer],
    of_other: Sequence[Layer],
    frameworks: tuple[str, str],
    *,
    shared_drops: bool,
) -> None:
    """Refuse a model whose layers, as far as both frameworks describe them, compute something else.

    Args:
        model: its name, for the error.
        matching: of its layers with tensors.
        of_reference: all layers in the first framework.
        of_other: those in the second one.
        frameworks: both.
        shared_drops: whether dropout is drawn on the host, for both.

    Raises:
        RequestError: they differ, with what to write instead, a line for each.
    """
    pairs = [*matching.pairs, *_without_tensors(of_reference, of_other)]
    lines = [line for pair in pairs for line in _differences(*pair, frameworks, _SETTINGS)]
    if shared_drops:
        lines += _unlike_drops(of_reference, of_other, frameworks)
    for layers, framework in zip((of_reference, of_other), frameworks, strict=True):
        for layer in layers:
            if layer.settings.get("random"):
                lines.append(f"it draws random numbers in training in {framework}, {OUTSIDE_OF_LAYERS}")
            if layer.settings.get("rate") and not shared_drops:
                lines.append(
                    f"{layer.name} in {framework} drops random features (rate {layer.settings['rate']:g}), different "
                    "ones in each framework; pass --regularization shared, which draws them once for all frameworks"
                )
    if lines:
        raise RequestError(
            f"model: {model!r} computes something else in {' and in '.join(frameworks)}, by "
            f"{pluralize(len(lines), 'difference')}:\n" + "\n".join(f"  {line}" for line in lines)
        )


def matched_drops(of_reference: Layers, of_other: Layers) -> dict[str, str]:
    """Name of a layer that drops features in one framework, in its order -> the name of its twin in the reference.

    By their names where all are equal, else by their order; no twins where one has more than the other.
    """
    reference, other = ([layer.name for layer in _dropping(layers)] for layers in (of_reference, of_other))
    twins = other if sorted(reference) == sorted(other) else reference
    return dict(zip(other, twins, strict=False))


def _dropping(layers: Layers) -> list[Layer]:
    return [layer for layer in layers if layer.settings.get("rate")]


def _unlike_drops(of_reference: Layers, of_other: Layers, frameworks: tuple[str, str]) -> Iterator[str]:
    """What two models drop otherwise."""
    first, second = _dropping(of_reference), _dropping(of_other)
    by_name = {layer.name: layer for layer in first}
    for layer, twin in zip(second, matched_drops(first, second).values(), strict=False):
        yield from _differences(by_name[twin], layer, frameworks, _DROP_SETTINGS)
        if layer.name in by_name and twin != layer.name:
            yield (
                f"{layer.name} in {frameworks[1]} stands where {twin} is in {frameworks[0]}, which has another "
                f"{layer.name}; give corresponding layers of dropout the same names"
            )
    if len(first) != len(second):
        yield (
            f"layers that drop features: {_listed(first) or 'none'} in {frameworks[0]}, {_listed(second) or 'none'} in "
            f"{frameworks[1]}; expected the same ones in both"
        )


MOST_DRAWS = 100_000
"""For an image, 4 bytes each: more would make batches larger than those of the images themselves (150,528 values)."""
SHARED_LAYERS = "nn.Dropout or nn.Dropout2d in torch, keras.layers.Dropout or SpatialDropout2D in TensorFlow"
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
    problems = [] if dropping else ["it has no layer that drops features (JAX: `apply` calls its argument `drop`)"]
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


def _without_tensors(of_reference: Layers, of_other: Layers) -> Iterator[tuple[Layer, Layer]]:
    """Layers without tensors that correspond, in their order; none of a sort of which one side has others or more.

    What a framework computes by functions is not a layer of it, so fewer layers are no difference.
    """
    for sort in ("kernel", "flattened"):
        first, second = (
            [layer for layer in layers if not layer.tensors and sort in layer.settings]
            for layers in (of_reference, of_other)
        )
        if len(first) == len(second):
            yield from zip(first, second, strict=True)


def _differences(
    first: Layer, second: Layer, frameworks: tuple[str, str], settings: Mapping[str, _Setting]
) -> Iterator[str]:
    """What two corresponding layers do otherwise, and what to write instead."""
    names = first.name if first.name == second.name else f"{first.name} / {second.name}"
    for setting, row in settings.items():
        one, two = first.settings.get(setting), second.settings.get(setting)
        if one is None or two is None or (_padded_alike(first, second) if setting == "padding" else one == two):
            continue
        shown = f"{row.shown(one)} in {frameworks[0]}, {row.shown(two)} in {frameworks[1]}"
        yield f"{names}: {row.begins} {shown}; {row.fix(row.shown(one), row.shown(two))}"


def _padded_alike(first: Layer, second: Layer) -> bool:
    """Whether two windows are moved over the same features, whether the layer pads them or what comes before it.

    Where something before it pads in one framework, only the sum is known.
    """
    if first.settings["sides"] == second.settings["sides"]:
        return bool(first.settings["padding"] == second.settings["padding"])
    padded = [
        [side + sum(added) for side, added in zip(layer.settings["sides"], layer.settings["padding"], strict=True)]
        for layer in (first, second)
    ]
    return padded[0] == padded[1]


def _side(value: Any) -> str:
    """`1` where all of several numbers are 1."""
    numbers = {number for part in value for number in (part if isinstance(part, tuple) else (part,))}
    return str(numbers.pop()) if len(numbers) == 1 else str(value)


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """What is compared of a layer in torch and in Keras."""

    begins: str
    """How a difference in it begins."""
    shown: Callable[[Any], str]
    fix: Callable[[str, str], str]
    """(in torch, in Keras) -> what to write instead."""


_SETTINGS = {
    "kernel": _Setting(begins="window", shown=_side, fix=lambda one, two: f"in Keras write pool_size={one}"),
    "stride": _Setting(begins="stride", shown=_side, fix=lambda one, two: f"in Keras write strides={one}"),
    "dilation": _Setting(begins="dilation", shown=_side, fix=lambda one, two: f"in Keras write dilation_rate={one}"),
    "padding": _Setting(
        begins="padding",
        shown=_side,
        fix=lambda one, two: (
            'in Keras write padding="valid"' + ("" if one == "0" else f", and ZeroPadding2D({one}) before it")
        ),
    ),
    "epsilon": _Setting(
        begins="epsilon",
        shown=lambda value: f"{value:g}",
        fix=lambda one, two: f"in Keras write BatchNormalization(epsilon={one}), or in torch BatchNorm2d(eps={two})",
    ),
    "momentum": _Setting(
        begins="momentum (part kept)",
        shown=lambda value: f"{value:g}",
        fix=lambda one, two: (
            f"in Keras write BatchNormalization(momentum={one}), or in torch BatchNorm2d(momentum={1 - float(two):g})"
        ),
    ),
    "flattened": _Setting(
        begins="flattens",
        shown=str,
        fix=lambda one, two: "in Keras write Permute((3, 1, 2)) before it, or average over the pixels in both",
    ),
}

_DROP_SETTINGS = {
    "rate": _Setting(
        begins="rate of dropout",
        shown=lambda value: f"{value:g}",
        fix=lambda one, two: "give both the same",
    ),
    "draws": _Setting(
        begins="draws for an image",
        shown=str,
        fix=lambda one, two: "nn.Dropout is Dropout in Keras, nn.Dropout2d is SpatialDropout2D",
    ),
    "features": _Setting(
        begins="features of an image, the channels of feature maps first:",
        shown=str,
        fix=lambda one, two: "drop features of the same shape in both",
    ),
}
"""Of layers that drop features, where the draws are shared."""
