"""A Keras model as a function of its tensors, for backends that hold those themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras

from dpcompare.backends.keras.model import (
    layer_name,
    layer_outputs,
    layers_of,
    mapped_variables,
    refuse_untrained,
    settings_of,
)
from dpcompare.errors import RequestError
from dpcompare.models.layer_matching import Layer
from dpcompare.system.type_names import Array, FrameworkArray

Drop = Callable[..., FrameworkArray]
"""(name of the layer, features, rate, draws=...) -> the features, a part of them dropped."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a call of a model gives its layers."""

    drop: Drop | None
    """None: nothing is dropped."""
    mean_over_replicas: Callable[[FrameworkArray], FrameworkArray] | None
    """For BatchNorm; None: each replica has statistics of its own."""


ALONE = Call(drop=None, mean_over_replicas=None)
"""Of a model that is not called by `KerasFunction`, but by Keras's own `fit`."""

# Replicas on threads call the layers of one model at the same time.
_CALL: ContextVar[Call] = ContextVar("call")


class Computed(NamedTuple):
    """What a call of a model gives."""

    logits: FrameworkArray
    statistics: dict[str, FrameworkArray]
    """In training the new value of every running statistic."""
    features: dict[str, FrameworkArray]
    """Layer with tensors -> what it gives, channels last; empty unless it was asked for."""


class KerasFunction:
    """What a model computes from tensors with the neutral names and layouts.

    BatchNorm and dropout become layers that replicas share: Keras shares neither between replicas in torch or JAX.
    """

    def __init__(self, model: keras.Model, name: str) -> None:
        """Read a model.

        Args:
            model: of `with_neutral_names`; its layers of BatchNorm and dropout are replaced.
            name: of the custom model, for errors.

        Raises:
            RequestError: it depends on more than its tensors and what the host has drawn, as far as its layers say.
        """
        _require_function(model, name)
        self._mapped = {mapped.name: mapped for mapped in mapped_variables(model)}
        self._named = {id(mapped.variable): mapped for mapped in self._mapped.values()}
        self.dropouts: list[str] = []
        """The neutral names of its layers of dropout."""
        for layer in model.layers:
            if isinstance(layer, keras.layers.Dropout):
                self.dropouts.append(layer_name(model, layer))
                SharedDropout.take_the_place_of(layer, self.dropouts[-1], settings_of(layer, model)["draws"])
            elif isinstance(layer, keras.layers.BatchNormalization):
                SharedBatchNorm.take_the_place_of(layer)
        features = layer_outputs(model)
        self._features = list(features)
        self._model = keras.Model(model.inputs, model.outputs)
        self._with_features = keras.Model(model.inputs, [*model.outputs, *features.values()])

    def initial(self) -> dict[str, Array]:
        """Name -> value of every tensor that the model was made with, in the order of its layers."""
        return {name: mapped.on_host(mapped.variable) for name, mapped in self._mapped.items()}

    @property
    def variables(self) -> list[keras.Variable]:
        """The model's own, whose values are not needed where it is called with others."""
        return [mapped.variable for mapped in self._mapped.values()]

    def __call__(
        self,
        tensors: Mapping[str, FrameworkArray],
        images: FrameworkArray,
        call: Call,
        *,
        training: bool,
        with_features: bool,
    ) -> Computed:
        """The logits of images, and what else is made.

        Args:
            tensors: of the model, running statistics included.
            images: normalised pixels, (rows, height, width, channels).
            call: what its layers need.
            training: whether BatchNorm normalises by the batch, and features are dropped.
            with_features: whether those of all layers are returned.
        """
        model = self._with_features if with_features else self._model

        def value(variable: keras.Variable) -> Any:
            mapped = self._named.get(id(variable))
            if mapped is None:  # the seed of a layer of dropout, which is not used
                return variable.value
            tensor, axes = tensors[mapped.name], mapped.layout.axes_in_keras
            return keras.ops.transpose(tensor, axes) if axes else tensor

        others = model.non_trainable_variables
        token = _CALL.set(call)
        try:
            outputs, updated = model.stateless_call(
                [value(variable) for variable in model.trainable_variables],
                [value(variable) for variable in others],
                [images],
                training=training,
            )
        finally:
            _CALL.reset(token)
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        statistics = {
            self._named[id(variable)].name: new  # of one axis
            for variable, new in zip(others, updated, strict=True)
            if training and id(variable) in self._named
        }
        return Computed(outputs[0], statistics, dict(zip(self._features, outputs[1:], strict=False)))


def described(model: keras.Model, name: str, framework: str, image_size: int, num_classes: int) -> list[Layer]:
    """The layers of a custom model, whose values are changed.

    Args:
        model: of `with_neutral_names`.
        name: of the custom model, for errors.
        framework: that Keras computes with.
        image_size: in pixels.
        num_classes: of the dataset.

    Raises:
        RequestError: as `layers_of` does, or it depends on more than its tensors and what the host has drawn.
    """
    _require_function(model, name)
    layers = layers_of(model, name, framework, image_size, num_classes)
    if any(layer.settings.get("random") for layer in layers):
        raise RequestError(
            f"model: {name!r} draws random numbers in training outside its layers of dropout; expected keras.layers."
            "Dropout or SpatialDropout2D alone to do so"
        )
    return layers


def _require_function(model: keras.Model, name: str) -> None:
    """Raise RequestError for the first of `_problems`, or for a tensor that is not trained."""
    for problem in _problems(model):
        raise RequestError(f"model: {name!r} {problem}")
    refuse_untrained(model, name)


def _problems(model: keras.Model) -> Iterator[str]:
    """What a model has that `KerasFunction` could not give back to it, with what is expected."""
    shared = (keras.layers.Dropout, keras.layers.BatchNormalization)
    for layer in model.layers:
        kind = type(layer).__name__
        if isinstance(layer, shared) and not type(layer).__module__.startswith("keras."):
            yield f"has the layer {layer.name} of its own class {kind}; expected Keras's class, without changes"
        elif len(layer.variables) > len(layer.weights) and not isinstance(layer, keras.layers.Dropout):
            yield f"draws random numbers in {layer.name} ({kind}); expected layers of Dropout alone to do so"


class SharedDropout(keras.layers.Layer):
    """Dropout by what the host has drawn, or none."""

    rate: float
    _name_in_masks: str
    _draws: int

    @staticmethod
    def take_the_place_of(layer: keras.layers.Dropout, name: str, draws: int) -> None:
        """Have a layer of dropout compute this from now on."""
        layer.__class__ = SharedDropout
        layer._name_in_masks, layer._draws = name, draws

    def call(self, inputs: FrameworkArray, training: bool = False) -> FrameworkArray:
        drop = _CALL.get(ALONE).drop
        if drop is None or not training:
            return inputs
        return drop(self._name_in_masks, inputs, self.rate, draws=self._draws)


class SharedBatchNorm(keras.layers.BatchNormalization):
    """BatchNorm by the statistics of the batch of all replicas, where a call says how they take their mean.

    Keras has `synchronized=True` in TensorFlow alone. Formula and order of operations are the same as there: variance =
    E[x^2] - E[x]^2, of means over all replicas.
    """

    @staticmethod
    def take_the_place_of(layer: keras.layers.BatchNormalization) -> None:
        """Have a layer of BatchNorm compute this from now on."""
        layer.__class__ = SharedBatchNorm
        layer.synchronized = False

    def _moments(self, inputs: FrameworkArray, mask: FrameworkArray | None) -> tuple[FrameworkArray, FrameworkArray]:
        mean_over_replicas = _CALL.get(ALONE).mean_over_replicas
        if mean_over_replicas is None:
            own: tuple[FrameworkArray, FrameworkArray] = super()._moments(inputs, mask)
            return own
        moments = [keras.ops.mean(values, self._reduction_axes) for values in (inputs, inputs * inputs)]
        mean, mean_of_squares = mean_over_replicas(keras.ops.stack(moments))
        return mean, mean_of_squares - mean * mean
