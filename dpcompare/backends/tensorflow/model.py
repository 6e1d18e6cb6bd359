"""The models as Keras models, and the map between their variables and the framework-neutral names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.models.architectures import CUSTOM, family_of, model_of
from dpcompare.models.custom import custom_model
from dpcompare.models.keras_layout import (
    AS_IT_IS,
    CONVOLUTION,
    DENSE,
    DEPTHWISE,
    Layout,
    tensor_name,
)
from dpcompare.models.spec import ModelSpec, columns
from dpcompare.models.state import State
from dpcompare.system.python_environment import is_custom
from dpcompare.system.type_names import Array, FrameworkArray, PassedOn


def build_model(workload: Workload, num_classes: int) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits."""
    name = workload.model
    if is_custom(name):
        return _custom(name, workload.image_size, num_classes, synchronized=workload.batchnorm == "sync")
    model = family_of(name, "tensorflow").build(name, workload.image_size, num_classes)
    return _aligned(model, workload)


def _custom(name: str, image_size: int, num_classes: int, *, synchronized: bool = False) -> keras.Model:
    """A custom model, whose layers get the names of their twins in torch."""
    custom = custom_model(name)
    model = custom.build("tensorflow", image_size, num_classes)
    if not isinstance(model, keras.Model):
        raise RequestError(
            f"model: the tensorflow factory of {name!r} gave a {type(model).__name__}; expected a keras.Model"
        )
    for in_torch, in_keras in custom.layer_names.items():
        model.get_layer(in_keras).name = in_torch
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = synchronized
    model.neutral_layer_name = CUSTOM.keras_layer_name
    return model


def layer_name(model: keras.Model, layer: keras.layers.Layer) -> str:
    """The framework-neutral name of a layer."""
    name: str = model.neutral_layer_name(layer.name)
    return name


def custom_shapes(name: str, image_size: int, num_classes: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a custom model, in the framework-neutral layouts.

    Raises:
        RequestError: it is not a Keras model, gives something else than logits, or has two tensors of the same name.
    """
    model = _custom(name, image_size, num_classes)
    if tuple(model.output_shape) != (None, num_classes):
        raise RequestError(
            f"model: {name!r} gives {model.output_shape} in tensorflow; expected logits (None, {num_classes})"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor, shape in neutral_shapes(model):
        if tensor in shapes:
            raise RequestError(
                f"model: {name!r} has several tensors called {tensor} in tensorflow; expected layers that are no "
                "models and hold each kind of tensor once"
            )
        shapes[tensor] = shape
    return shapes


def neutral_shapes(model: keras.Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a model, in the framework-neutral layouts."""
    for mapped in mapped_variables(model):
        yield mapped.name, mapped.layout.to_neutral(mapped.variable.numpy()).shape


def _aligned(model: keras.Model, workload: Workload) -> keras.Model:
    """The same model with the constants of BatchNorm and the regularization that all frameworks share."""
    spec = model_of(workload.model)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.epsilon, layer.momentum = spec.batchnorm_epsilon, workload.batchnorm_momentum
            layer.synchronized = workload.batchnorm == "sync"
        if isinstance(layer, keras.layers.Dropout):  # dropout and stochastic depth alike: Keras would draw itself
            layer.rate = 0.0
    model = _with_shared_drops(model, spec) if workload.regularization == "shared" else model
    model.neutral_layer_name = spec.keras_layer_name
    return model


class SharedDrop(keras.layers.Layer):
    """Dropout or stochastic depth by drop masks drawn on the host: (rows, features of all such layers)."""

    def __init__(self, columns: slice, **options: PassedOn) -> None:
        super().__init__(**options)
        self._columns = columns

    def call(self, features: FrameworkArray, drop_masks: FrameworkArray, training: bool = False) -> FrameworkArray:
        if not training:
            return features
        masks = keras.ops.cast(drop_masks[:, self._columns], features.dtype)
        return features * keras.ops.reshape(masks, (-1, *masks.shape[1:], *[1] * (len(features.shape) - 2)))


def _with_shared_drops(model: keras.Model, spec: ModelSpec) -> keras.Model:
    """The same layers in a model of two inputs, pixels and drop masks, without the dropout that Keras would draw."""
    mask_columns = columns(spec.drops)
    images = keras.Input(model.inputs[0].shape[1:])
    drop_masks = keras.Input((sum(drop.features for drop in spec.drops),), name="drop_masks")

    def call(layer: keras.layers.Layer, *arguments: Any, **options: Any) -> Any:
        if not isinstance(layer, keras.layers.Dropout):
            return layer(*arguments, **options)
        return SharedDrop(mask_columns[spec.keras_layer_name(layer.name)], name=layer.name)(arguments[0], drop_masks)

    # clone_model walks through a model of the same inputs as the new one, so the drop masks pass through here as well.
    passing = keras.Model([*model.inputs, drop_masks], [*model.outputs, drop_masks])
    rebuilt = keras.models.clone_model(
        passing, input_tensors=[images, drop_masks], clone_function=lambda layer: layer, call_function=call
    )
    return keras.Model([images, drop_masks], rebuilt.outputs[0])


@dataclass(frozen=True)
class MappedVariable:
    """A Keras variable and its framework-neutral name and layout."""

    name: str
    variable: keras.Variable
    layout: Layout

    def on_host(self, tensor: keras.Variable) -> Array:
        """The variable, or an optimizer's slot of it, in the framework-neutral layout."""
        return np.ascontiguousarray(self.layout.to_neutral(tensor.numpy()))


def load_model(model: keras.Model, state: State, name: str) -> None:
    """Give a model's variables the tensors of a state.

    Raises:
        ValueError: they are not those of the model, which is called `name`.
    """
    variables = {mapped.name: mapped for mapped in mapped_variables(model)}
    if state.keys() != variables.keys():
        raise ValueError(
            f"state does not fit {name}: missing {sorted(variables.keys() - state.keys())}, "
            f"unknown {sorted(state.keys() - variables.keys())}"
        )
    for tensor, mapped in variables.items():
        mapped.variable.assign(mapped.layout.from_neutral(state[tensor]))


def mapped_slots(
    model: keras.Model, slots: Mapping[str, Sequence[keras.Variable]]
) -> dict[str, tuple[MappedVariable, keras.Variable]]:
    """`<slot>.<tensor>` -> the parameter that it belongs to, and the slot.

    Args:
        model: whose parameters are optimized.
        slots: of the optimizer: name -> the slot of each parameter, in the model's order.
    """
    by_variable = {id(mapped.variable): mapped for mapped in mapped_variables(model)}
    parameters = [by_variable[id(variable)] for variable in model.trainable_variables]
    return {
        f"{slot}.{mapped.name}": (mapped, value)
        for slot, values in slots.items()
        for mapped, value in zip(parameters, values, strict=True)
    }


def mapped_variables(model: keras.Model) -> Iterator[MappedVariable]:
    """Every variable of the model, in the order of its layers."""
    for layer in model.layers:
        for variable in layer.weights:
            layout = AS_IT_IS
            if variable.name != "bias":
                layout = next((known for kind, known in _LAYOUTS if isinstance(layer, kind)), AS_IT_IS)
            yield MappedVariable(f"{layer_name(model, layer)}.{tensor_name(variable.name)}", variable, layout)


_LAYOUTS = (
    (keras.layers.DepthwiseConv2D, DEPTHWISE),
    (keras.layers.Conv2D, CONVOLUTION),
    (keras.layers.Dense, DENSE),
)
