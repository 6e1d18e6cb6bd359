"""The models as pure functions of tensors with the framework-neutral names and layouts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import numpy as jnp

from dpcompare.backends.keras.settings import is_keras, made_with
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.models.architectures import family_of, model_of
from dpcompare.models.custom import CustomModel, custom_model, refuse_made, refuse_probabilities
from dpcompare.models.dropout_matching import drop_settings
from dpcompare.models.initial_weights import initial_weights
from dpcompare.models.layer_matching import EQUINOX, FLAX, NO_NAMES, Layer, Source
from dpcompare.models.layers.in_jax import Forward, Layers, Tensors, drop_factors
from dpcompare.models.spec import IMAGE_CHANNELS, NO_COLUMNS, Shape, channels_first
from dpcompare.models.state import is_statistic
from dpcompare.system.python_environment import is_custom
from dpcompare.system.type_names import FrameworkModel


class Apply(Protocol):
    """What a model computes."""

    def __call__(
        self,
        tensors: Tensors,
        images: jax.Array,
        drop_masks: jax.Array | None,
        *,
        training: bool,
        axis_name: str | None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The logits of images, and what else was made: features of layers, and in training new running statistics.

        Args:
            tensors: of the model, running statistics included.
            images: normalised pixels, (rows, height, width, channels).
            drop_masks: what regularization multiplies features by; None where it is off.
            training: whether BatchNorm normalises by the batch.
            axis_name: of the replicas that it normalises with; None: this one alone.
        """


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model without any state: its tensors are given to it."""

    init: Callable[[], Mapping[str, Any]]
    """Makes its tensors, in the order of the layers."""
    apply: Apply


def build_model(
    workload: Workload,
    num_classes: int,
    names: Mapping[str, str] = NO_NAMES,
    drop_columns: Mapping[str, slice] = NO_COLUMNS,
    *,
    by_shifts: bool = False,
    over_devices: bool = False,
) -> Model:
    """The model of a workload.

    Args:
        workload: which it is, and how it is trained.
        num_classes: of the dataset.
        names: layers of a custom model -> the names that their tensors get.
        drop_columns: `RunConfig.drop_columns` of a custom model.
        by_shifts: whether depthwise convolutions, very small ones and those of patches are made of shifted products.
        over_devices: whether the rows of one call are on several devices.
    """
    if is_custom(workload.model):
        model = _custom(workload.model, workload.image_size, num_classes, drop_columns, workload.precision)
        return _renamed(model, names) if names else model
    spec = model_of(workload.model)
    forward: Forward = family_of(workload.model, "jax").build(workload.model, workload.image_size, num_classes)

    def apply(
        tensors: Tensors, images: jax.Array, drop_masks: jax.Array | None, *, training: bool, axis_name: str | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        layers = Layers(
            spec,
            tensors,
            drop_masks if training else None,
            batchnorm_momentum=workload.batchnorm_momentum,
            bfloat16=workload.precision == "bfloat16",
            training=training,
            axis_name=axis_name,
            by_shifts=by_shifts,
            over_devices=over_devices,
        )
        return forward(layers, images), layers.made

    return Model(
        init=lambda: initial_weights(workload.model, workload.image_size, num_classes, workload.seed), apply=apply
    )


class Dropping:
    """What a custom model's `apply` gets as its argument `drop`, where it has one of that name."""

    def __init__(self, columns: Mapping[str, slice] = NO_COLUMNS, drop_masks: jax.Array | None = None) -> None:
        self._columns = columns
        self._drop_masks = drop_masks
        self.layers: list[Layer] = []
        """What it was called for."""

    def __call__(self, name: str, features: jax.Array, rate: float, *, draws: int | None = None) -> jax.Array:
        """The features, a part of them dropped in the training steps of a run with `regularization="shared"`.

        Args:
            name: of the layer.
            features: (rows, ...), channels last.
            rate: the part that is dropped.
            draws: per row: default one for each feature; as many as channels: whole ones; 1: all features together.
        """
        if draws is None:
            draws = math.prod(features.shape[1:])
        shape = channels_first(features.shape[1:])
        known = draws if draws in (1, shape[0], math.prod(shape)) else 0
        self.layers.append(Layer(name=name, settings=drop_settings(rate, known, shape)))
        if self._drop_masks is None or not rate:
            return features
        return features * drop_factors(self._drop_masks[:, self._columns[name]], features)


class Pair(NamedTuple):
    """A custom model as functions, of which `apply` takes `drop` too."""

    init: Callable[[], Mapping[str, Any]]
    apply: Callable[..., Any]
    settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Layer -> what must be the same in other frameworks, where that is known."""
    written_in: str = ""
    """As of a `Layer`."""
    norms: Collection[str] = ()
    """Layers that normalise, where that is known: in bfloat16 their tensors stay float32."""
    sources: Mapping[str, Source] = MappingProxyType({})
    """Tensor -> as of a `Layer`."""
    computes_in_bfloat16: bool = False
    """Whether it itself computes in bfloat16 where asked, from tensors in float32."""


_LIBRARIES = {"flax.nnx": (FLAX, "flax_module:FlaxModel"), "equinox": (EQUINOX, "equinox_module:EquinoxModel")}
"""Package whose modules are taken as they are -> its name, and `module:class` that makes a pair of one."""


def _is_of(made: object, package: str) -> bool:
    return any(f"{kind.__module__}.".startswith(f"{package}.") for kind in type(made).__mro__)


def _made(custom: CustomModel, image_size: int, num_classes: int, precision: str) -> FrameworkModel:
    """What a custom model's factory makes."""
    return made_with("jax", precision, image_size, lambda: custom.build("jax", image_size, num_classes))


def _pair(made: FrameworkModel, name: str) -> Pair:
    """What the factory of a custom model has made, as functions.

    Raises:
        RequestError: it is neither a pair of functions nor a module of one of _LIBRARIES.
    """
    if library := next((row for package, row in _LIBRARIES.items() if _is_of(made, package)), None):
        # Imported here: the library is there, since its module is.
        written_in, target = library
        module, _, kind = target.partition(":")
        model = getattr(import_module(f"dpcompare.backends.jax.{module}"), kind)(name, made)
        return Pair(model.init, model.apply, model.settings, written_in, model.norms, model.sources)
    if not (isinstance(made, tuple) and len(made) == 2 and all(map(callable, made))):
        raise refuse_made(
            name,
            "jax",
            made,
            "a module of flax.nnx or of Equinox, a keras.Model, or a pair of functions, init and apply "
            "(docs/custom_models.md); rewrite a module of flax.linen with flax.nnx, or give a pair of functions that "
            "call it",
        )
    init, function = made
    if "drop" in inspect.signature(function).parameters:
        return Pair(init, function)
    return Pair(init, lambda *arrays, drop, **options: function(*arrays, **options))


def _pair_of_keras(model: Any, name: str) -> Pair:
    """The functions of a model of `with_neutral_names`."""
    from dpcompare.backends.jax.keras_module import KerasModule

    module = KerasModule(model, name)
    module.free()
    return Pair(module.init, module.apply, computes_in_bfloat16=True)


def _custom(name: str, image_size: int, num_classes: int, drop_columns: Mapping[str, slice], precision: str) -> Model:
    """A custom model, whose tensors have the names that its own layers have."""
    custom = custom_model(name)
    made = _made(custom, image_size, num_classes, precision)
    if is_keras(made):
        # Imported here: Keras is there, since the model is of it.
        from dpcompare.backends.keras.model import with_neutral_names

        pair = _pair_of_keras(with_neutral_names(made, name, custom, "jax"), name)
    else:
        pair = _pair(made, name)

    def apply(
        tensors: Tensors, images: jax.Array, drop_masks: jax.Array | None, *, training: bool, axis_name: str | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        if precision == "bfloat16" and not pair.computes_in_bfloat16:
            tensors, images = _in_bfloat16(tensors, pair.norms), images.astype(jnp.bfloat16)
        drop = Dropping(drop_columns, drop_masks if training else None)
        logits, made = pair.apply(tensors, images, training=training, axis_name=axis_name, drop=drop)
        return logits, made

    return Model(init=pair.init, apply=apply)


def _renamed(model: Model, names: Mapping[str, str]) -> Model:
    """The same model, whose layers have other names to all others.

    Args:
        model: of a user.
        names: its layers -> those names.
    """
    own = {neutral: name for name, neutral in names.items()}

    def apply(
        tensors: Tensors, images: jax.Array, drop_masks: jax.Array | None, *, training: bool, axis_name: str | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        logits, made = model.apply(
            _with_layers(tensors, own), images, drop_masks, training=training, axis_name=axis_name
        )
        return logits, _with_layers(made, names)

    return Model(init=lambda: _with_layers(model.init(), names), apply=apply)


def _with_layers(tensors: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same arrays, of tensors or of layers, with their layers renamed."""
    renamed = {}
    for key, array in tensors.items():
        layer, _, kind = key.rpartition(".")
        renamed[f"{names[layer]}.{kind}" if layer in names else names.get(key, key)] = array
    return renamed


def _in_bfloat16(tensors: Tensors, known: Collection[str]) -> dict[str, jax.Array]:
    """All but those of layers that normalise, which in the other frameworks too stay as they are.

    Args:
        tensors: of the model.
        known: layers that normalise, next to those with running statistics.
    """
    norms = {*known, *(name.rpartition(".")[0] for name in tensors if is_statistic(name))}
    return {
        name: tensor if name.rpartition(".")[0] in norms else tensor.astype(jnp.bfloat16)
        for name, tensor in tensors.items()
    }


def custom_layers(name: str, image_size: int, num_classes: int) -> list[Layer]:
    """The layers of a custom model in the order of its `init`, which is also tried on two images.

    Raises:
        RequestError: it is neither a pair of functions nor a module, or gives something else than logits and running
            statistics.
    """
    jax.config.update("jax_platforms", "cpu")
    custom = custom_model(name)
    with _refused_if_untraceable(name):  # Keras traces a layer where it is called first
        made = _made(custom, image_size, num_classes, "float32")
    if is_keras(made):
        from dpcompare.backends.keras.function import described
        from dpcompare.backends.keras.model import with_neutral_names

        named = with_neutral_names(made, name, custom, "jax")
        layers = described(named, name, "jax", image_size, num_classes)
        _tried(_pair_of_keras(named, name), name, image_size, num_classes)
        return layers
    pair = _pair(made, name)
    tensors, drops = _tried(pair, name, image_size, num_classes)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, shape in tensors.items():
        layer, _, kind = key.rpartition(".")
        shapes.setdefault(layer, {})[kind] = shape
    with_tensors = (
        Layer(
            name=layer,
            tensors=of_layer,
            settings=pair.settings.get(layer, {}),
            written_in=pair.written_in,
            sources={kind: pair.sources[key] for kind in of_layer if (key := f"{layer}.{kind}") in pair.sources},
        )
        for layer, of_layer in shapes.items()
    )
    idle = (
        Layer(name=layer, settings=settings, written_in=pair.written_in)
        for layer, settings in pair.settings.items()
        if "idle_rate" in settings
    )
    return [*with_tensors, *drops, *idle]


@contextmanager
def _refused_if_untraceable(name: str) -> Iterator[None]:
    """Raise RequestError in the place of what JAX raises where code depends on the values of arrays."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, (jax.errors.JAXTypeError, jax.errors.JAXIndexError)):
            cause = cause.__context__  # Keras fails where it makes such an error again, by its class and a text
        if cause is None:
            raise
        first_line, *_ = str(cause).splitlines()
        raise RequestError(
            f"model: {name!r} cannot be compiled by JAX ({first_line.rstrip('.')}); expected code that depends on no "
            "value of an array: jnp.where in the place of if, jnp or keras.ops in that of NumPy"
        ) from error


def _tried(pair: Pair, name: str, image_size: int, num_classes: int) -> tuple[dict[str, Shape], list[Layer]]:
    """The shapes of a custom model's tensors, and what it drops, of two images.

    Raises:
        RequestError: it gives something else than logits and running statistics.
    """
    tensors = {key: jnp.asarray(value, jnp.float32) for key, value in pair.init().items()}
    images = jnp.zeros((2, image_size, image_size, IMAGE_CHANNELS), jnp.float32)
    drop = Dropping()

    def computed(tensors: Tensors, images: jax.Array, *, training: bool) -> tuple[jax.Array, dict[str, jax.Array]]:
        given = pair.apply(tensors, images, training=training, axis_name=None, drop=drop)
        if not (isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[1], Mapping)):
            shape = f"an array of shape {given.shape}" if hasattr(given, "shape") else f"a {type(given).__name__}"
            raise RequestError(
                f"model: apply of {name!r} gives {shape} in jax; expected the pair (logits, dict of new statistics and "
                "features)"
            )
        logits, made = given
        if logits.shape != (2, num_classes):
            raise RequestError(
                f"model: {name!r} gives {logits.shape} for 2 images in jax; expected logits (2, {num_classes})"
            )
        return logits, made

    logits, _ = computed(tensors, images, training=False)
    refuse_probabilities(name, "jax", np.asarray(logits))
    drop.layers.clear()
    with _refused_if_untraceable(name):  # as each step is traced: this fails here, and not in the first one
        _, made = jax.eval_shape(partial(computed, training=True), tensors, images)
    if missing := [key for key in tensors if is_statistic(key) and key not in made]:
        raise RequestError(
            f"model: {name!r} gives no new {', '.join(missing)} in training in jax; expected apply to return logits "
            "and a dict that holds them"
        )
    return {key: tuple(tensor.shape) for key, tensor in tensors.items()}, drop.layers
