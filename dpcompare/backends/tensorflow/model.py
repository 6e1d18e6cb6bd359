"""The models as Keras models, and the map between their variables and the framework-neutral names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from dpcompare.backends.keras.model import (
    MappedVariable,
    layer_name,
    layers_of,
    mapped_variables,
    with_neutral_names,
)
from dpcompare.backends.keras.settings import made_with
from dpcompare.config.workload import Workload
from dpcompare.models.architectures import family_of, model_of
from dpcompare.models.custom import custom_model
from dpcompare.models.layer_matching import NO_NAMES, Layer
from dpcompare.models.spec import IMAGE_DIMENSIONS, NO_COLUMNS, channels_first, columns, shape_of_draws
from dpcompare.models.state import State
from dpcompare.system.python_environment import is_custom
from dpcompare.system.type_names import FrameworkArray, PassedOn


def build_model(
    workload: Workload,
    num_classes: int,
    names: Mapping[str, str] = NO_NAMES,
    drop_columns: Mapping[str, slice] = NO_COLUMNS,
) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits.

    Args:
        workload: which it is, and how it is trained.
        num_classes: of the dataset.
        names: layers of a custom model with tensors, in their order -> the names that their tensors get.
        drop_columns: `RunConfig.drop_columns` of a custom model.
    """
    name = workload.model
    if is_custom(name):
        own = _custom(name, workload.image_size, num_classes, workload.precision, names)
        for layer in own.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.synchronized = workload.batchnorm == "sync"
        # By their order, since Keras counts on in the names that it gives.
        dropping = [layer.name for layer in own.layers if isinstance(layer, keras.layers.Dropout) and layer.rate]
        of_layer = dict(zip(dropping, drop_columns.values(), strict=True)) if drop_columns else {}
        return _with_shared_drops(own, of_layer) if of_layer else own
    model = family_of(name, "tensorflow").build(name, workload.image_size, num_classes)
    return _aligned(model, workload)


def _custom(
    name: str, image_size: int, num_classes: int, precision: str = "float32", names: Mapping[str, str] = NO_NAMES
) -> keras.Model:
    custom = custom_model(name)
    made = made_with("tensorflow", precision, lambda: custom.build("tensorflow", image_size, num_classes))
    return with_neutral_names(made, name, custom, "tensorflow", image_size, names)


def custom_layers(name: str, image_size: int, num_classes: int) -> list[Layer]:
    """The layers of a custom model in the order in which they compute.

    Raises:
        RequestError: it is not a Keras model, gives something else than logits, or has two tensors of the same name.
    """
    return layers_of(_custom(name, image_size, num_classes), name, "tensorflow", image_size, num_classes)


def _aligned(model: keras.Model, workload: Workload) -> keras.Model:
    """The same model with the constants of BatchNorm and the regularization that all frameworks share."""
    spec = model_of(workload.model)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.epsilon, layer.momentum = spec.batchnorm_epsilon, workload.batchnorm_momentum
            layer.synchronized = workload.batchnorm == "sync"
        if isinstance(layer, keras.layers.Dropout):  # dropout and stochastic depth alike: Keras would draw itself
            layer.rate = 0.0
    model.neutral_layer_name = spec.keras_layer_name
    if workload.regularization == "off":
        return model
    named = columns(spec.drops)
    neutral = {
        layer.name: layer_name(model, layer) for layer in model.layers if isinstance(layer, keras.layers.Dropout)
    }
    return _with_shared_drops(model, {in_keras: named[name] for in_keras, name in neutral.items()})


class SharedDrop(keras.layers.Layer):
    """Dropout or stochastic depth by drop masks drawn on the host: (rows, features of all such layers)."""

    def __init__(self, columns: slice, **options: PassedOn) -> None:
        super().__init__(**options)
        self._columns = columns

    def call(self, features: FrameworkArray, drop_masks: FrameworkArray, training: bool = False) -> FrameworkArray:
        if not training:
            return features
        masks = keras.ops.cast(drop_masks[:, self._columns], features.dtype)
        is_image = len(features.shape) == IMAGE_DIMENSIONS
        factors = keras.ops.reshape(masks, (-1, *shape_of_draws(masks.shape[1], channels_first(features.shape[1:]))))
        return features * (keras.ops.transpose(factors, (0, 2, 3, 1)) if is_image else factors)


def _with_shared_drops(model: keras.Model, of_layer: Mapping[str, slice]) -> keras.Model:
    """The same layers in a model of two inputs, pixels and drop masks, without the dropout that Keras would draw.

    Args:
        model: to rebuild.
        of_layer: Keras's name of each layer of dropout -> its columns of the drop masks.
    """
    images = keras.Input(model.inputs[0].shape[1:])
    drop_masks = keras.Input((max(columns.stop for columns in of_layer.values()),), name="drop_masks")

    def call(layer: keras.layers.Layer, *arguments: Any, **options: Any) -> Any:
        if layer.name not in of_layer:
            return layer(*arguments, **options)
        return SharedDrop(of_layer[layer.name], name=layer.name)(arguments[0], drop_masks)

    # clone_model walks through a model of the same inputs as the new one, so the drop masks pass through here as well.
    passing = keras.Model([*model.inputs, drop_masks], [*model.outputs, drop_masks])
    rebuilt = keras.models.clone_model(
        passing, input_tensors=[images, drop_masks], clone_function=lambda layer: layer, call_function=call
    )
    regularized = keras.Model([images, drop_masks], rebuilt.outputs[0])
    regularized.neutral_layer_name = model.neutral_layer_name
    return regularized


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
