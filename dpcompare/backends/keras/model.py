"""A Keras model in whichever framework Keras computes with: its layers, and its variables by the neutral names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import keras
import numpy as np

from dpcompare.errors import RequestError
from dpcompare.models.custom import CustomModel, refuse_made, refuse_probabilities, tied_tensors
from dpcompare.models.dropout_matching import drop_settings, images_to_try, noise, randomness
from dpcompare.models.keras_layout import AS_IT_IS, CONVOLUTION, DENSE, DEPTHWISE, Layout, tensor_name
from dpcompare.models.layer_matching import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    KERAS,
    NO_NAMES,
    Layer,
    Source,
    order_flattened,
    same_padding,
    window_settings,
)
from dpcompare.models.layers.in_tensorflow import OwnTensor
from dpcompare.models.spec import Shape, channels_first, shape_of_draws
from dpcompare.models.state import is_statistic
from dpcompare.system.type_names import Array, FrameworkArray


def with_neutral_names(
    model: Any, name: str, custom: CustomModel, framework: str, names: Mapping[str, str] = NO_NAMES
) -> keras.Model:
    """What the factory of a custom model made, whose layers get the names of their twins in torch.

    Args:
        model: of `made_with`.
        name: of the custom model, for errors.
        custom: the custom model.
        framework: that Keras computes with.
        names: layers with tensors, in their order -> the names that their tensors get.

    Raises:
        RequestError: it is not a Keras model whose layers Keras knows, one of them contains others or has a dtype of
            its own, or it changes what it computes, the loss or the step.
    """
    if not isinstance(model, keras.Model):
        raise refuse_made(name, framework, model, "a keras.Model of Keras 3")
    if not getattr(model, "inputs", None):
        raise RequestError(
            f"model: the {framework} factory of {name!r} gave a {type(model).__name__}, a subclass of keras.Model "
            "whose layers Keras does not know before it is called; expected a keras.Sequential, or a functional model: "
            "keras.Model(inputs, outputs)"
        )
    _refuse_other_types(model, name)
    _refuse_own_terms(model, name)
    _refuse_inner_layers(model, name)
    there = [layer.name for layer in model.layers]
    if missing := [in_keras for in_keras in custom.layer_names.values() if in_keras not in there]:
        raise RequestError(
            f"model: layer_names of {name!r} has {', '.join(missing)}, which Keras's model does not; expected names "
            f"among {', '.join(there)}"
        )
    neutral = {in_keras: in_torch for in_torch, in_keras in custom.layer_names.items()}
    if names:  # by their order: Keras counts on in the names that it gives, so they may be others here
        weighted = [layer.name for layer in model.layers if layer.weights]
        neutral = dict(zip(weighted, names.values(), strict=True))
    model.neutral_layer_name = lambda layer: neutral.get(layer, layer)
    return model


def layer_name(model: keras.Model, layer: keras.layers.Layer) -> str:
    """The framework-neutral name of a layer."""
    name: str = model.neutral_layer_name(layer.name)
    return name


def layers_of(model: keras.Model, name: str, framework: str, image_size: int, num_classes: int) -> list[Layer]:
    """The layers of a custom model in the order in which they compute, with their tensors in the neutral layouts.

    Args:
        model: of `with_neutral_names`; it is used up.
        name: of the custom model, for errors.
        framework: that Keras computes with.
        image_size: in pixels.
        num_classes: of the dataset.

    Raises:
        RequestError: it gives something else than logits, has two tensors of the same name, or adds losses.
    """
    if tuple(model.output_shape) != (None, num_classes):
        raise RequestError(
            f"model: {name!r} gives {model.output_shape} in {framework}; expected logits (None, {num_classes})"
        )
    tensors: dict[str, dict[str, Shape]] = {}
    sources: dict[str, dict[str, Source]] = {}
    of_variables: dict[int, str] = {}
    for mapped in mapped_variables(model):
        if (first := of_variables.setdefault(id(mapped.variable), mapped.name)) != mapped.name:
            raise tied_tensors(name, first, mapped.name)
        layer, _, kind = mapped.name.rpartition(".")
        of_layer = tensors.setdefault(layer, {})
        if kind in of_layer:
            raise RequestError(
                f"model: {name!r} has several tensors called {mapped.name} in {framework}; expected layers that are no "
                "models and hold each kind of tensor once"
            )
        of_layer[kind] = mapped.neutral_shape
        if mapped.variable.name != kind or mapped.layout.axes:
            source = Source(mapped.variable.name, tuple(mapped.variable.shape), mapped.layout.axes)
            sources.setdefault(layer, {})[kind] = source
    _refuse_unknown_kernels(model, name)
    settings = {layer.name: settings_of(layer, model) for layer in model.layers}
    layers = [
        Layer(
            name=layer_name(model, layer),
            tensors=tensors.get(layer_name(model, layer), {}),
            settings=settings[layer.name],
            written_in=KERAS,
            sources=sources.get(layer_name(model, layer), {}),
        )
        for layer in model.layers
        if layer.weights or settings[layer.name]
    ]
    tried = _logits_without_dropout(model, image_size)
    logits = next(tried)
    refuse_probabilities(name, framework, logits)
    if model.losses:
        raise _ignored(name, "one of its layers calls `add_loss`")
    return [*layers, *randomness(chain([logits], tried))]


def _refuse_unknown_kernels(model: keras.Model, name: str) -> None:
    """Raise RequestError for a kernel of a layer without a row in _LAYOUTS: its axes and its fan are not known."""
    known = tuple(kind for kind, _ in _LAYOUTS)
    for layer in model.layers:
        if not isinstance(layer, known) and any(variable.name == "kernel" for variable in layer.weights):
            raise RequestError(
                f"model: {name!r} has the kernel of {layer.name} ({type(layer).__name__}), whose layout is not "
                f"known here; expected kernels of {', '.join(kind.__name__ for kind in known)} alone"
            )


def _refuse_inner_layers(model: keras.Model, name: str) -> None:
    """Raise RequestError if a layer of a model contains others, whose variables would get no layouts of their own."""
    for layer in model.layers:
        if any(inner.variables for inner in layer._flatten_layers(include_self=False)):
            instead = (
                "go on from its output instead, keras.Model(base.input, head(base.output))"
                if isinstance(layer, keras.Model)
                else "write its parts as layers of the model"
            )
            raise RequestError(
                f"model: {name!r} has layers inside its layer {layer.name} ({type(layer).__name__}); expected layers "
                f"that contain no others: {instead}"
            )


def _refuse_other_types(model: keras.Model, name: str) -> None:
    """Raise RequestError if a layer computes in another type than the run, whose policy is set."""
    policy = keras.config.dtype_policy()
    for layer in model.layers:
        if (layer.compute_dtype, layer.variable_dtype) != (policy.compute_dtype, policy.variable_dtype):
            raise RequestError(
                f"model: {name!r} has the layer {layer.name} with a dtype of its own, {layer.dtype_policy.name}, where "
                f"the run has {policy.name}; expected layers without a dtype, and a factory that sets no policy: "
                "--precision says how a run computes"
            )


def refuse_untrained(model: keras.Model, name: str) -> None:
    """Raise RequestError for a tensor that is not trained: it would keep a value that dpcompare has drawn.

    Args:
        model: of `with_neutral_names`.
        name: of the custom model.
    """
    for layer in model.layers:
        if layer.weights and not layer.trainable:
            raise RequestError(
                f"model: {name!r} has the layer {layer.name} with trainable=False; expected layers that are trained"
            )
    for mapped in mapped_variables(model):
        if not (mapped.variable.trainable or is_statistic(mapped.name)):
            raise RequestError(
                f"model: {name!r} has the tensor {mapped.name}, which is not trained; expected no others than "
                "BatchNorm's statistics"
            )


def _refuse_own_terms(model: keras.Model, name: str) -> None:
    """Raise RequestError for what a model adds to the loss, or changes in a step: Keras's `fit` alone would obey it."""
    own = [each.path for each in model.trainable_variables if each.regularizer or each.constraint]
    own += [layer.name for layer in model.layers if getattr(layer, "activity_regularizer", None)]
    if own:
        raise _ignored(name, f"{own[0]} has a regularizer or a constraint", " (--weight-decay decays weights)")
    for method in ("call", "train_step", "compute_loss"):
        if getattr(type(model), method).__module__.partition(".")[0] != "keras":
            raise _ignored(name, f"{type(model).__name__} has a `{method}` of its own")


def _ignored(name: str, what: str, instead: str = "") -> RequestError:
    return RequestError(
        f"model: {name!r}: {what}, which dpcompare's steps would ignore; expected a model without it{instead}"
    )


def _logits_without_dropout(model: keras.Model, image_size: int) -> Iterator[Array]:
    """Logits of the same images in training, where the layers of dropout drop nothing."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    for variable in model.trainable_variables:
        variable.assign_add(noise(variable.shape))
    while True:
        yield keras.ops.convert_to_numpy(model(images_to_try(image_size), training=True))


def settings_of(layer: keras.layers.Layer, model: keras.Model) -> dict[str, Any]:
    """What `dpcompare.models.layer_matching` compares of a layer of a model that is Keras's own."""
    if isinstance(layer, keras.layers.BatchNormalization):
        return {"epsilon": layer.epsilon, "momentum": layer.momentum}
    if isinstance(layer, keras.layers.LayerNormalization | keras.layers.GroupNormalization):
        return {"epsilon": layer.epsilon}
    if isinstance(layer, keras.layers.Dropout):
        features = channels_first(layer.input.shape[1:])
        calls = sum(node.operation is layer for node in _nodes(model))
        return drop_settings(layer.rate, _draws(layer, features), features, calls=calls)
    if isinstance(layer, keras.layers.Flatten):
        # Behind a layer that changes the order of the axes, that is taken to be the order of torch.
        permuted = isinstance(layer.input._keras_history.operation, keras.layers.Permute)
        *sides, channels = layer.input.shape[1:]
        order = CHANNELS_FIRST if permuted else CHANNELS_LAST
        return {"flattened": order_flattened(channels, math.prod(sides), order)}
    if isinstance(layer, keras.layers.Conv2D | keras.layers.DepthwiseConv2D):
        kernel, dilation = tuple(layer.kernel_size), tuple(layer.dilation_rate)
    elif isinstance(layer, keras.layers.MaxPooling2D):
        kernel, dilation = tuple(layer.pool_size), (1, 1)
    else:
        return {}
    sides, stride = tuple(layer.input.shape[1:3]), tuple(layer.strides)
    return window_settings(
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=same_padding(kernel, stride, dilation, sides) if layer.padding == "same" else ((0, 0), (0, 0)),
        sides=sides,
        sides_after=tuple(layer.output.shape[1:3]),
    )


def _draws(layer: keras.layers.Dropout, features: Shape) -> int:
    """How many draws of a dropout layer a sample needs; 0 where `shape_of_draws` cannot lay them out."""
    if isinstance(layer, keras.layers.SpatialDropout2D):
        return features[0]
    if type(layer) is not keras.layers.Dropout:
        return 0
    if layer.noise_shape is None:
        return math.prod(features)
    given = zip(layer.noise_shape[1:], layer.input.shape[1:], strict=True)
    drawn = channels_first([noise or side for noise, side in given])
    return next(
        (draws for draws in (1, features[0], math.prod(features)) if shape_of_draws(draws, features) == drawn), 0
    )


def layer_outputs(model: keras.Model) -> dict[str, FrameworkArray]:
    """Framework-neutral name of each layer with weights -> what it gives in this model."""
    # Not layer.output: of a layer that is in two models, as in TensorFlow with shared dropout, that is of the first.
    given = {node.operation.name: node.output_tensors[0] for node in _nodes(model)}
    return {
        layer_name(model, layer): given[layer.name]
        for layer in model.layers
        if layer.weights and not isinstance(layer, OwnTensor)
    }


def _nodes(model: keras.Model) -> Iterator[Any]:
    """The calls of layers in a model."""
    functional = model._functional if isinstance(model, keras.Sequential) else model
    return (node for nodes in functional._nodes_by_depth.values() for node in nodes)


@dataclass(frozen=True)
class MappedVariable:
    """A Keras variable and its framework-neutral name and layout."""

    name: str
    variable: keras.Variable
    layout: Layout

    @property
    def neutral_shape(self) -> tuple[int, ...]:
        """Its shape in the framework-neutral layout."""
        shape = tuple(self.variable.shape)
        return tuple(shape[axis] for axis in self.layout.axes) or shape

    def on_host(self, tensor: keras.Variable) -> Array:
        """The variable, or an optimizer's slot of it, in the framework-neutral layout."""
        return np.ascontiguousarray(self.layout.to_neutral(tensor.numpy()))


def mapped_variables(model: keras.Model) -> Iterator[MappedVariable]:
    """Every variable of the model, in the order of its layers."""
    for layer in model.layers:
        for variable in layer.weights:
            layout = AS_IT_IS
            if variable.name != "bias":
                layout = next((known for kind, known in _LAYOUTS if isinstance(layer, kind)), AS_IT_IS)
            name = layer_name(model, layer)
            kind = "" if isinstance(layer, OwnTensor) else f".{tensor_name(variable.name)}"
            yield MappedVariable(f"{name}{kind}", variable, layout)


_LAYOUTS = (
    (keras.layers.DepthwiseConv2D, DEPTHWISE),
    (keras.layers.Conv2D, CONVOLUTION),
    (keras.layers.Dense, DENSE),
)
