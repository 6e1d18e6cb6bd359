"""The models as Keras models that a step of TensorFlow trains, with what the host has drawn for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from dpcompare.backends.keras.build import build, custom
from dpcompare.backends.keras.model import layer_name, layers_of, mapped_variables, refuse_untrained
from dpcompare.config.workload import Workload
from dpcompare.models.architectures import model_of
from dpcompare.models.custom import without_gradient
from dpcompare.models.dropout_matching import images_to_try
from dpcompare.models.layer_matching import NO_NAMES, Layer
from dpcompare.models.spec import IMAGE_DIMENSIONS, NO_COLUMNS, channels_first, columns, shape_of_draws
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
    model = build(workload, num_classes, "tensorflow", names)
    dropping = [layer for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    if is_custom(workload.model):
        # By their order, since Keras counts on in the names that it gives.
        own = [layer.name for layer in dropping if layer.rate]
        of_layer = dict(zip(own, drop_columns.values(), strict=True)) if drop_columns else {}
    elif workload.regularization == "off":
        of_layer = {}
    else:
        named = columns(model_of(workload.model).drops)
        of_layer = {layer.name: named[layer_name(model, layer)] for layer in dropping}
    return _with_shared_drops(model, of_layer) if of_layer else model


def custom_layers(name: str, image_size: int, num_classes: int) -> list[Layer]:
    """The layers of a custom model in the order in which they compute.

    Raises:
        RequestError: as `with_neutral_names` and `layers_of` do, or some tensor is not trained or gets no gradient.
    """
    model = custom(name, image_size, num_classes, "tensorflow")
    refuse_untrained(model, name)
    layers = layers_of(model, name, "tensorflow", image_size, num_classes)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(images_to_try(image_size)[:2], training=True))
    trained = {id(mapped.variable): mapped.name for mapped in mapped_variables(model)}
    gradients = tape.gradient(total, [variable.value for variable in model.trainable_variables])
    if without := [
        trained.get(id(variable), variable.path)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True)
        if gradient is None
    ]:
        raise without_gradient(name, "tensorflow", without)
    return layers


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
