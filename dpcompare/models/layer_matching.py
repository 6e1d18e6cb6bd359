"""The layers of a custom model in several frameworks: which of them correspond, and what differs between those."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple

from dpcompare.errors import RequestError
from dpcompare.models.spec import Shape
from dpcompare.system.terminal_text import pluralize

NO_NAMES: Mapping[str, str] = MappingProxyType({})
"""The names of layers that all frameworks call alike."""
Windows = tuple[tuple[int, int], tuple[int, int]]
"""Pixels of padding before and after, of rows and of columns."""
CHANNELS_FIRST = "channels, rows, columns"
CHANNELS_LAST = "rows, columns, channels"
"""The order in which features are flattened."""


class Source(NamedTuple):
    """A tensor in the library that its layer is written in."""

    name: str
    shape: Shape
    axes: tuple[int, ...] = ()
    """Its axes in the order of the neutral layout; empty if that is the same."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What a framework says of a layer of a model."""

    name: str
    """As it is in the framework, or as `CustomModel.layer_names` calls it."""
    tensors: Mapping[str, Shape] = field(default_factory=dict)
    """`weight`, `bias`, ... -> its shape in the framework-neutral layout; empty for a layer without any."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What of `_SETTINGS` and `sides` is known of it; of dropout see `dpcompare.models.dropout_matching`."""
    written_in: str = ""
    """The library that it is written in, where that is known."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Tensor -> what it is in that library, if its name or its layout is another."""

    @property
    def shown_tensors(self) -> str:
        """`weight (8, 3, 3, 3), bias (8)`."""
        return ", ".join(f"{name} ({', '.join(map(str, shape))})" for name, shape in self.tensors.items())


FLAX, EQUINOX, KERAS = "Flax", "Equinox", "Keras"
"""`Layer.written_in` of their layers."""
OWN_FORWARD = "own forward"
"""The setting of a BatchNorm that synchronized BatchNorm cannot take the place of."""
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
        pairs = ", ".join(f"{name} = {neutral}" for name, neutral in names.items())
        yield f"{framework} has other names for the layers of {model}; matched by order and shape: {pairs}"


def layouts_in_words(model: str, framework: str, layers: Layers) -> Iterator[str]:
    """Which tensors of a library became which of the neutral names and layouts, in a line if there are any.

    Args:
        model: its name.
        framework: of the layers.
        layers: all of them.
    """
    alike: dict[tuple[Any, ...], list[str]] = {}
    for layer in layers:
        for tensor, source in layer.sources.items():
            name, shape, axes = source
            order = f" with its axes in the order {', '.join(map(str, axes))}" if axes else ""
            shapes = f" {tuple(shape)}", f" {tuple(layer.tensors[tensor])}"
            before, after = shapes if axes or shapes[0] != shapes[1] else ("", "")
            example = f"{name}{before} becomes {tensor}{after}{order} in {layer.name}"
            alike.setdefault((name, tensor, tuple(axes), len(shape)), []).append(example)
    if alike:
        yield f"tensors of {model} in {framework}: " + "; ".join(
            f"{first} and {len(others)} more" if others else first for first, *others in alike.values()
        )


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
    is_of_keras = any(layer.written_in == KERAS for layer in (*reference, *other))
    of_keras = "; CustomModel(layer_names={...}) maps names in torch to those in Keras" if is_of_keras else ""
    for number, (first, second) in enumerate(zip_longest(reference, other), start=1):
        if problem := _mismatch(first, second, by_name, frameworks):
            raise RequestError(
                f"model: the layers of {model!r} have different names in {frameworks[0]} "
                f"({listed(reference)}) and {frameworks[1]} ({listed(other)}), and their order does not show which "
                f"ones correspond: layer {number}: {problem}; expected the same layers in the same order, or the same "
                f"names in both{of_keras}"
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


def listed(layers: Layers, most: int = 4) -> str:
    """The names of the first layers."""
    names = ", ".join(layer.name for layer in layers[:most])
    return f"{names}, ..." if len(layers) > most else names


def require_equal(
    model: str,
    matching: Matching,
    of_reference: Sequence[Layer],
    of_other: Sequence[Layer],
    frameworks: tuple[str, str],
    others: Iterable[str] = (),
) -> None:
    """Refuse a model whose layers, as far as both frameworks describe them, compute something else.

    Args:
        model: its name, for the error.
        matching: of its layers with tensors.
        of_reference: all layers in the first framework.
        of_other: those in the second one.
        frameworks: both.
        others: what else differs, a line for each; see `dpcompare.models.dropout_matching.unlike_dropout`.

    Raises:
        RequestError: they differ, with what to write instead, a line for each.
    """
    pairs = [*matching.pairs, *_without_tensors(of_reference, of_other)]
    lines = [*(line for pair in pairs for line in differences(*pair, frameworks, _SETTINGS)), *others]
    if lines:
        raise RequestError(
            f"model: {model!r} is not the same in {' and in '.join(frameworks)} "
            f"({pluralize(len(lines), 'difference')}):\n" + "\n".join(f"  {line}" for line in lines)
        )


def _without_tensors(of_reference: Layers, of_other: Layers) -> Iterator[tuple[Layer, Layer]]:
    """Layers without tensors that correspond, in their order; none of a sort of which one side has others or more.

    What a framework computes by functions is not a layer of it, so fewer layers are no difference.
    """
    for sort in ("kernel", "flattened", "epsilon"):
        first, second = (
            [layer for layer in layers if not layer.tensors and sort in layer.settings]
            for layers in (of_reference, of_other)
        )
        if len(first) == len(second):
            yield from zip(first, second, strict=True)


def differences(
    first: Layer, second: Layer, frameworks: tuple[str, str], settings: Mapping[str, Setting]
) -> Iterator[str]:
    """What two corresponding layers do differently, and what to write instead."""
    names = first.name if first.name == second.name else f"{first.name} / {second.name}"
    for setting, row in settings.items():
        one, two = first.settings.get(setting), second.settings.get(setting)
        if one is None or two is None or (_padded_alike(first, second) if setting == "padding" else one == two):
            continue
        shown = f"{row.shown(one)} in {frameworks[0]}, {row.shown(two)} in {frameworks[1]}"
        fix = row.fix_in.get(second.written_in, row.fix)
        yield f"{names}: {row.begins} {shown}; {fix(row.shown(one), row.shown(two))}"


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
class Setting:
    """What is compared of a layer in two frameworks."""

    begins: str
    """How a difference in it begins."""
    shown: Callable[[Any], str]
    fix: Callable[[str, str], str]
    """(in torch, in Keras) -> what to write instead."""
    fix_in: Mapping[str, Callable[[str, str], str]] = field(default_factory=dict)
    """Library of JAX -> (in another framework, in the library) -> what to write there."""


_SETTINGS = {
    "kernel": Setting(begins="window", shown=_side, fix=lambda one, two: f"in Keras write pool_size={one}"),
    "stride": Setting(begins="stride", shown=_side, fix=lambda one, two: f"in Keras write strides={one}"),
    "dilation": Setting(begins="dilation", shown=_side, fix=lambda one, two: f"in Keras write dilation_rate={one}"),
    "padding": Setting(
        begins="padding",
        shown=_side,
        fix=lambda one, two: (
            'in Keras write padding="valid"' + ("" if one == "0" else f", and ZeroPadding2D({one}) before it")
        ),
    ),
    "epsilon": Setting(
        begins="epsilon",
        shown=lambda value: f"{value:g}",
        fix=lambda one, two: f"in Keras write epsilon={one}, or in torch eps={two}",
        fix_in={
            FLAX: lambda one, two: f"in Flax write epsilon={one}",
            EQUINOX: lambda one, two: f"in Equinox write eps={one}",
        },
    ),
    "momentum": Setting(
        begins="momentum (part kept)",
        shown=lambda value: f"{value:g}",
        fix=lambda one, two: f"in Keras write momentum={one}, or in torch momentum={1 - float(two):g}",
        fix_in={FLAX: lambda one, two: f"in Flax write momentum={one}"},
    ),
    "flattened": Setting(
        begins="flattens",
        shown=str,
        fix=lambda one, two: "in Keras write Permute((3, 1, 2)) before it, or average over the pixels in both",
    ),
}
