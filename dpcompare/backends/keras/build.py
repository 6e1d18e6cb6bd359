"""The models as Keras models, in whichever framework Keras computes with, and what is loaded into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras

from dpcompare.backends.keras.model import MappedVariable, mapped_variables, with_neutral_names
from dpcompare.backends.keras.settings import Scope, made_with
from dpcompare.config.workload import Workload
from dpcompare.models.architectures import family_of, model_of
from dpcompare.models.custom import custom_model
from dpcompare.models.layer_matching import NO_NAMES
from dpcompare.models.layers.in_tensorflow import DOT
from dpcompare.models.state import State
from dpcompare.system.python_environment import is_custom


def build(
    workload: Workload,
    num_classes: int,
    framework: str,
    names: Mapping[str, str] = NO_NAMES,
    scope: Scope | None = None,
) -> keras.Model:
    """A model of static input shape that takes normalised pixels and returns logits.

    Args:
        workload: which it is, and how it is trained.
        num_classes: of the dataset.
        framework: that Keras computes with.
        names: layers of a custom model with tensors, in their order -> the names that their tensors get.
        scope: in which Keras makes its variables, as of `made_with`.
    """
    if is_custom(workload.model):
        model = custom(workload.model, workload.image_size, num_classes, framework, workload.precision, names, scope)
    else:
        model = _built_in(workload, num_classes, framework, scope)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = framework == "tensorflow" and workload.batchnorm == "sync"
    return model


def custom(
    name: str,
    image_size: int,
    num_classes: int,
    framework: str,
    precision: str = "float32",
    names: Mapping[str, str] = NO_NAMES,
    scope: Scope | None = None,
) -> keras.Model:
    """A custom model, with the arguments of `build`.

    Raises:
        RequestError: it is not a Keras model, as far as that is known before it is called.
    """
    given = custom_model(name)
    made = made_with(framework, precision, image_size, lambda: given.build(framework, image_size, num_classes), scope)
    return with_neutral_names(made, name, given, framework, names)


def _built_in(workload: Workload, num_classes: int, framework: str, scope: Scope | None) -> keras.Model:
    """A built-in model with the constants of BatchNorm that all frameworks share, which drops nothing."""
    model: keras.Model = made_with(
        framework,
        workload.precision,
        workload.image_size,
        lambda: family_of(workload.model, "tensorflow").build(workload.model, workload.image_size, num_classes),
        scope,
    )
    spec = model_of(workload.model)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.epsilon, layer.momentum = spec.batchnorm_epsilon, workload.batchnorm_momentum
        if isinstance(layer, keras.layers.Dropout):  # dropout and stochastic depth alike: Keras would draw itself
            layer.rate = 0.0
    model.neutral_layer_name = lambda layer: spec.keras_layer_name(layer.replace(DOT, "."))
    return model


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
