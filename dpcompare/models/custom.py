"""Custom models: those that a user writes, named `package.module:NAME`, in one or several frameworks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dpcompare.errors import RequestError
from dpcompare.models.libraries import Library, library_of
from dpcompare.system.python_environment import find_object
from dpcompare.system.terminal_text import joined
from dpcompare.system.type_names import Array, FrameworkModel

Factory = Callable[[int, int], FrameworkModel]
"""(image_size, num_classes) -> a model."""

_PACKAGES = {"torch": {"torch"}, "tensorflow": {"keras", "tensorflow"}, "jax": {"jax", "flax", "equinox"}}
"""Framework -> packages that its models are of."""


@dataclass(frozen=True, kw_only=True)
class CustomModel:
    """A model in one or several frameworks, which must be the same one.

    All take normalised pixels and give logits, (rows, num_classes), and draw random numbers in layers of dropout only.
    Their layers have the same names, or `layer_names` maps those of torch to those of Keras.
    """

    torch: Factory | None = None
    """Makes a torch.nn.Module that takes (rows, 3, image_size, image_size)."""
    tensorflow: Factory | None = None
    """Makes a keras.Model that takes (rows, image_size, image_size, 3)."""
    jax: Factory | None = None
    """Makes a module of Flax NNX that takes (rows, image_size, image_size, 3), one of Equinox that takes one image, (3,
    image_size, image_size), or a pair of functions.

    The functions are `init()`, which gives the tensors by torch's names and in its layouts, and `apply(tensors, images,
    *, training, axis_name)`, which gives the logits and a dict; with an argument `drop`, it gets a
    `dpcompare.backends.jax.model.Dropping`. docs/custom_models.md says what the dict holds."""
    keras: Factory | None = None
    """Makes a keras.Model as for `tensorflow`, in each framework for which there is no factory of its own."""
    layer_names: Mapping[str, str] = field(default_factory=dict)
    """Name of a torch module -> name of the Keras layer that is its twin, where it differs."""

    def __post_init__(self) -> None:
        factories = {name: getattr(self, name) for name in (*_PACKAGES, "keras")}
        if not any(factories.values()):
            raise RequestError(
                "model: received CustomModel() without a factory; expected one at least: "
                + ", ".join(f"{name}=..." for name in factories)
            )
        for name, factory in factories.items():
            if factory is not None and (is_built(factory) or not callable(factory)):
                received = f"a {type(factory).__name__} that is already built" if is_built(factory) else f"{factory!r}"
                raise RequestError(
                    f"model: received {received} as CustomModel({name}=...); expected {EXPECTED_FACTORY}"
                )

    def build(self, framework: str, image_size: int, num_classes: int) -> FrameworkModel:
        """The model of a framework.

        Raises:
            RequestError: there is none.
        """
        factory: Factory | None = getattr(self, framework) or self.keras
        if factory is None:
            raise RequestError(
                f"model: received one without a factory for {framework}; give CustomModel({framework}=...), "
                "CustomModel(keras=...) for all frameworks, or name frameworks without it"
            )
        return _made_by(factory, image_size, num_classes)


def custom_model(name: str) -> CustomModel:
    """The model of a name: that of a library, a CustomModel, a function that returns one, or a factory of a framework.

    Raises:
        RequestError: there is none.
    """
    if library := library_of(name):
        return _of_library(library, name)
    model = find_object(name, "model")
    if not isinstance(model, CustomModel | type) and callable(model) and _arguments(model) == {}:
        with suppress(Exception):  # if it makes a Keras model, it may need the settings that it is called again with
            made = model()
            model = made if isinstance(made, CustomModel) else model
    if isinstance(model, CustomModel):
        return model
    if not callable(model) or is_built(model):
        raise RequestError(f"model: {name!r} is of type {type(model).__name__}; {EXPECTED_MODEL}")
    # Whichever framework it is of: the process of any other refuses what it gives.
    return CustomModel(**dict.fromkeys(_PACKAGES, model))  # type: ignore[arg-type]  # fields of those names


def _of_library(library: Library, name: str) -> CustomModel:
    """The model of a library, which only its frameworks can train."""

    def refused(image_size: int, num_classes: int) -> FrameworkModel:
        theirs = joined(library.frameworks)
        raise RequestError(
            f"model: {name!r} is a model of {theirs} alone; expected arms of {theirs}, or a model that is written in "
            "each framework: a built-in one, one of keras:NAME, or a CustomModel with a factory for each"
        )

    def build(image_size: int, num_classes: int) -> FrameworkModel:
        return library.build(name.partition(":")[2], image_size, num_classes)

    return CustomModel(**dict.fromkeys(_PACKAGES, refused) | dict.fromkeys(library.frameworks, build))  # type: ignore[arg-type]


def refuse_made(name: str, framework: str, made: object, expected: str) -> RequestError:
    """The error for what a factory has made in the place of a model of its framework.

    Args:
        name: of the model.
        framework: for which it was called.
        made: by it.
        expected: in its place, in words.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(made).__mro__}
    other = next((row for row, names in _PACKAGES.items() if row != framework and names & packages), None)
    also = f", or a run of {other} alone" if other else ""
    is_value = made is None or isinstance(made, int | float | str)
    received = f"{made!r}, of type {type(made).__name__}" if is_value else f"a {type(made).__name__}"
    return RequestError(f"model: the {framework} factory of {name!r} gave {received}; expected {expected}{also}")


def refuse_probabilities(name: str, framework: str, outputs: Array) -> None:
    """Raise RequestError if a model gives probabilities in the place of logits.

    Args:
        name: of the model.
        framework: that computed them.
        outputs: of some images, (rows, classes).
    """
    if (outputs >= 0).all() and abs(outputs.sum(-1) - 1).max() < 1e-3:
        raise RequestError(
            f"model: {name!r} gives probabilities in {framework}: the outputs of an image sum to 1; expected logits, "
            "without a softmax at the end, which the loss applies itself"
        )


def require_called_with_images(module: object, name: str, expected: str, besides: Collection[str] = ()) -> None:
    """Raise RequestError if a module of JAX must be called with more than images.

    Args:
        module: of a user.
        name: of the model.
        expected: of an argument without a default, in words.
        besides: arguments that it is given.
    """
    _, *others = inspect.signature(type(module).__call__).parameters.values()
    for argument in others[1:]:
        is_given = argument.name in besides or argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        if argument.default is argument.empty and not is_given:
            raise RequestError(
                f"model: the call of {name!r} requires the argument {argument.name}, and dpcompare passes images "
                f"alone; expected {expected}"
            )


def without_gradient(name: str, framework: str, tensors: Sequence[str]) -> RequestError:
    """The error for a model, some of whose tensors get no gradient: a layer has left the framework's graph."""
    return RequestError(
        f"model: {name!r} computes no gradient for {', '.join(tensors)} in {framework}; expected layers that compute "
        "with keras.ops alone, not with functions of another framework or NumPy, and no stop_gradient"
    )


def tied_tensors(name: str, first: str, second: str) -> RequestError:
    """The error for a model, one of whose tensors has these two names: each framework would count it differently."""
    return RequestError(
        f"model: {name!r} has one tensor under two names, {first} and {second}; expected a tensor of its own for each "
        "layer"
    )


def _made_by(factory: Factory, image_size: int, num_classes: int) -> FrameworkModel:
    """What a factory makes: called with the arguments that it has names for, else with both, in this order."""
    known = {"image_size": image_size, "num_classes": num_classes}
    arguments = _arguments(factory)
    if arguments is None:
        return factory(image_size, num_classes)
    required = {name: each for name, each in arguments.items() if each.default is each.empty}
    if required.keys() <= known.keys():
        return factory(**{name: value for name, value in known.items() if name in arguments})  # type: ignore[call-arg]
    of_random_numbers = required.keys() & {"rngs", "rng", "key"}
    # By their order, unless a name says that it is something else: (width, num_classes).
    in_order = len(required) == len(known) and all(
        each.kind is not each.KEYWORD_ONLY and _NAMES[of_place].fullmatch(name)
        for (name, each), of_place in zip(required.items(), known, strict=True)
    )
    if in_order and not of_random_numbers:
        return factory(image_size, num_classes)
    called = getattr(factory, "__name__", factory)
    wrapped = f"; write a function: def net(num_classes): return {called}(...)" if of_random_numbers else ""
    raise RequestError(
        f"model: {called!r} takes the arguments {', '.join(required)}; expected {EXPECTED_FACTORY}{wrapped}"
    )


_NAMES = {
    "image_size": re.compile(r".{1,2}|((image|img|input)_?)?(size|side)|.*(pixels|resolution)"),
    "num_classes": re.compile(r".{1,2}|(.*_)?(n?class(es)?|labels?|outputs?|out_features)"),
}
"""Argument of a factory -> the names that it has in users' code, as a pattern; those of two letters say nothing."""


def _arguments(factory: object) -> dict[str, inspect.Parameter] | None:
    """Each argument that a factory can be given by name; None if it takes any, or is not known."""
    made_by = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]  # of its class
    try:
        parameters = list(inspect.signature(made_by).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    parameters = parameters[1:] if isinstance(factory, type) else parameters
    kinds = {parameter.kind for parameter in parameters}
    if kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}:
        return {} if isinstance(factory, type) else None
    return {each.name: each for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD}


def is_built(model: object) -> bool:
    """Whether it is a model itself and not what makes one, which each process needs for itself."""
    packages = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    has_tensors = hasattr(model, "parameters") or hasattr(model, "trainable_variables")
    is_function = isinstance(model, type) or hasattr(model, "__wrapped__")  # as nnx.jit and eqx.filter_jit give
    return not is_function and (has_tensors or not packages.isdisjoint({"flax", "equinox"}))


EXPECTED_FACTORY = (
    "a class or a function that makes a model, with the arguments image_size and num_classes (either, both or none)"
)
EXPECTED_MODEL = f"expected {EXPECTED_FACTORY}, or a dpcompare.CustomModel of such in several frameworks"
