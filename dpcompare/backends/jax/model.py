"""The models as pure functions of tensors with the framework-neutral names and layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from dpcompare.backends.constants import BATCH_NORM_EPSILON
from dpcompare.config.workload import Workload
from dpcompare.data.regularization import columns
from dpcompare.errors import RequestError
from dpcompare.models.architectures import (
    B0_BLOCK_GROUPS,
    EFFICIENTNET_SCALES,
    IMAGE_CHANNELS,
    MODELS,
)
from dpcompare.models.custom import custom_model
from dpcompare.models.initial_weights import initial_weights
from dpcompare.models.state import is_statistic
from dpcompare.system.import_path import is_custom

Tensors = Mapping[str, jax.Array]


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


def build_model(workload: Workload, num_classes: int, *, depthwise_as_shifts: bool = False) -> Model:
    """The model of a workload.

    Args:
        workload: which it is, and how it is trained.
        num_classes: of the dataset.
        depthwise_as_shifts: whether depthwise convolutions are sums of shifted products, and not XLA's convolution.
    """
    if is_custom(workload.model):
        return _custom(workload.model, workload.image_size, num_classes, bfloat16=workload.precision == "bfloat16")
    forward = {"toy-cnn": _toy_cnn, "toy-bn": _toy_bn, "mlp": _mlp}.get(workload.model) or _efficientnet(workload.model)

    def apply(
        tensors: Tensors, images: jax.Array, drop_masks: jax.Array | None, *, training: bool, axis_name: str | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        layers = Layers(
            workload,
            tensors,
            drop_masks if training else None,
            training=training,
            axis_name=axis_name,
            depthwise_as_shifts=depthwise_as_shifts,
        )
        return forward(layers, images), layers.made

    return Model(
        init=lambda: initial_weights(workload.model, workload.image_size, num_classes, workload.seed), apply=apply
    )


def _custom(name: str, image_size: int, num_classes: int, *, bfloat16: bool = False) -> Model:
    """A custom model, whose tensors have the names of their twins in torch."""
    pair = custom_model(name).build("jax", image_size, num_classes)
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(callable, pair))):
        raise RequestError(
            f"model: the jax factory of {name!r} gave a {type(pair).__name__}; expected a pair of functions, init and "
            "apply (docs/custom_models.md)"
        )
    init, function = pair

    def apply(
        tensors: Tensors, images: jax.Array, drop_masks: jax.Array | None, *, training: bool, axis_name: str | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        if bfloat16:
            tensors, images = _in_bfloat16(tensors), images.astype(jnp.bfloat16)
        logits, made = function(tensors, images, training=training, axis_name=axis_name)
        return logits, made

    return Model(init=init, apply=apply)


def _in_bfloat16(tensors: Tensors) -> dict[str, jax.Array]:
    """All but those of layers with running statistics, which in the other frameworks too stay as they are."""
    norms = {name.rpartition(".")[0] for name in tensors if is_statistic(name)}
    return {
        name: tensor if name.rpartition(".")[0] in norms else tensor.astype(jnp.bfloat16)
        for name, tensor in tensors.items()
    }


def custom_shapes(name: str, image_size: int, num_classes: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a custom model, which is also tried on two images.

    Raises:
        RequestError: it is no pair of functions, or gives something else than logits and running statistics.
    """
    jax.config.update("jax_platforms", "cpu")
    model = _custom(name, image_size, num_classes)
    tensors = {key: jnp.asarray(value, jnp.float32) for key, value in model.init().items()}
    images = jnp.zeros((2, image_size, image_size, IMAGE_CHANNELS), jnp.float32)
    for training in (False, True):
        logits, made = model.apply(tensors, images, None, training=training, axis_name=None)
        if logits.shape != (2, num_classes):
            raise RequestError(
                f"model: {name!r} gives {logits.shape} for 2 images in jax; expected logits (2, {num_classes})"
            )
    if missing := [key for key in tensors if is_statistic(key) and key not in made]:
        raise RequestError(
            f"model: {name!r} gives no new {', '.join(missing)} in training in jax; expected apply to return logits "
            "and a dict that holds them"
        )
    return {key: tuple(tensor.shape) for key, tensor in tensors.items()}


class Layers:
    """The layers of a model by name, in one pass; what they make is kept."""

    def __init__(
        self,
        workload: Workload,
        tensors: Tensors,
        drop_masks: jax.Array | None,
        *,
        training: bool,
        axis_name: str | None,
        depthwise_as_shifts: bool,
    ) -> None:
        """Arguments as for `Apply` and `build_model`; without `drop_masks` all features stay as they are."""
        self._tensors = tensors
        self._drop_masks = drop_masks
        self._training = training
        self._axis_name = axis_name
        self._depthwise_as_shifts = depthwise_as_shifts
        self._columns = columns(MODELS[workload.model].drops)
        self._kept = workload.batchnorm_momentum
        self._dtype = jnp.bfloat16 if workload.precision == "bfloat16" else next(iter(tensors.values())).dtype
        self.made: dict[str, jax.Array] = {}
        """Layer -> its features, and running statistic -> its value after this pass."""

    def convolution(self, name: str, x: jax.Array, *, stride: int = 1, padding: str = "SAME") -> jax.Array:
        """Of (rows, height, width, channels); depthwise where each filter has one channel of several."""
        x, weight = x.astype(self._dtype), self._tensor(f"{name}.weight")
        num_channels = x.shape[-1]
        depthwise = weight.shape[1] == 1 and num_channels > 1
        if depthwise and self._depthwise_as_shifts:
            x = _depthwise_by_shifts(x, weight, stride)
        else:
            x = lax.conv_general_dilated(
                x,
                weight,
                (stride, stride),
                padding,
                dimension_numbers=("NHWC", "OIHW", "NHWC"),
                feature_group_count=num_channels if depthwise else 1,
            )
        if f"{name}.bias" in self._tensors:
            x = x + self._tensor(f"{name}.bias")
        return self._keep(name, x)

    def dense(self, name: str, x: jax.Array) -> jax.Array:
        product = x.astype(self._dtype) @ self._tensor(f"{name}.weight").T
        return self._keep(name, product + self._tensor(f"{name}.bias"))

    def batch_norm(self, name: str, features: jax.Array) -> jax.Array:
        """By the batch of this replica, or of all on the axis; the running variance takes the biased one."""
        scale, shift, mean, variance = (
            self._tensors[f"{name}.{tensor}"] for tensor in ("weight", "bias", "running_mean", "running_var")
        )
        x = features.astype(scale.dtype)  # in bfloat16, statistics still are float32
        if self._training:
            running = {"running_mean": mean, "running_var": variance}
            mean, variance = self._moments(x)
            for tensor, of_batch in (("running_mean", mean), ("running_var", variance)):
                moved = running[tensor] * self._kept + lax.stop_gradient(of_batch) * (1 - self._kept)
                self.made[f"{name}.{tensor}"] = moved
        factor = scale * lax.rsqrt(variance + BATCH_NORM_EPSILON)
        return self._keep(name, (x * factor + (shift - mean * factor)).astype(features.dtype))

    def _moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        axes = (0, 1, 2)
        if self._axis_name is None:
            mean = x.mean(axes)
            return mean, jnp.square(x - mean).mean(axes)
        # The formula of the other frameworks: one exchange of sums and of sums of squares.
        mean, mean_of_squares = lax.pmean((x.mean(axes), jnp.square(x).mean(axes)), self._axis_name)
        return mean, mean_of_squares - jnp.square(mean)

    def drop(self, name: str, x: jax.Array) -> jax.Array:
        """Dropout or stochastic depth, by drop masks drawn on the host: (rows, features of all such layers)."""
        if self._drop_masks is None or name not in self._columns:
            return x
        masks = self._drop_masks[:, self._columns[name]].astype(x.dtype)
        return x * masks.reshape(len(masks), *[1] * (x.ndim - 2), -1)

    def _tensor(self, name: str) -> jax.Array:
        return self._tensors[name].astype(self._dtype)

    def _keep(self, name: str, features: jax.Array) -> jax.Array:
        self.made[name] = features
        return features


def _depthwise_by_shifts(x: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """The same sum tap by tap, which XLA fuses into one pass; with TensorFlow's "same" padding."""
    size = weight.shape[2]
    rows, height, width, channels = x.shape
    tall, wide = -(-height // stride), -(-width // stride)
    missing = (max((out - 1) * stride + size - side, 0) for out, side in ((tall, height), (wide, width)))
    x = jnp.pad(x, ((0, 0), *((each // 2, each - each // 2) for each in missing), (0, 0)))
    total = jnp.zeros((), x.dtype)
    for i, j in np.ndindex(size, size):
        last = (rows, i + (tall - 1) * stride + 1, j + (wide - 1) * stride + 1, channels)
        total = total + lax.slice(x, (0, i, j, 0), last, (1, stride, stride, 1)) * weight[:, 0, i, j]
    return total


Forward = Callable[[Layers, jax.Array], jax.Array]


def _efficientnet(model: str) -> Forward:
    _, depth, _, _ = EFFICIENTNET_SCALES[model.removeprefix("efficientnet-")]

    def forward(layers: Layers, images: jax.Array) -> jax.Array:
        x = jax.nn.silu(layers.batch_norm("bn1", layers.convolution("conv_stem", images, stride=2)))
        for i, group in enumerate(B0_BLOCK_GROUPS):
            for j in range(math.ceil(group.repeats * depth)):
                stride = 1 if j else group.stride
                x = _block(layers, f"blocks.{i}.{j}", x, expands=group.expansion > 1, stride=stride)
        x = jax.nn.silu(layers.batch_norm("bn2", layers.convolution("conv_head", x)))
        return layers.dense("classifier", layers.drop("dropout", x.mean((1, 2))))

    return forward


def _block(layers: Layers, name: str, x: jax.Array, *, expands: bool, stride: int) -> jax.Array:
    """A mobile inverted bottleneck; one that does not expand has no first convolution, and names one lower."""
    shortcut = x
    if expands:
        x = jax.nn.silu(layers.batch_norm(f"{name}.bn1", layers.convolution(f"{name}.conv_pw", x)))
    first_norm, second_norm, projection = ("bn2", "bn3", "conv_pwl") if expands else ("bn1", "bn2", "conv_pw")
    x = layers.convolution(f"{name}.conv_dw", x, stride=stride)
    x = jax.nn.silu(layers.batch_norm(f"{name}.{first_norm}", x))
    squeezed = jax.nn.silu(layers.convolution(f"{name}.se.conv_reduce", x.mean((1, 2), keepdims=True)))
    x = x * jax.nn.sigmoid(layers.convolution(f"{name}.se.conv_expand", squeezed))
    x = layers.batch_norm(f"{name}.{second_norm}", layers.convolution(f"{name}.{projection}", x))
    has_residual = stride == 1 and x.shape == shortcut.shape
    return shortcut + layers.drop(f"{name}.drop_path", x) if has_residual else x


def _toy_cnn(layers: Layers, images: jax.Array) -> jax.Array:
    x = _max_pool(jax.nn.relu(layers.convolution("conv1", images, padding="VALID")))
    x = _max_pool(jax.nn.relu(layers.convolution("conv2", x, padding="VALID")))
    x = jax.nn.relu(layers.dense("fc1", x.reshape(len(x), -1)))
    return layers.dense("fc3", jax.nn.relu(layers.dense("fc2", x)))


def _max_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _toy_bn(layers: Layers, images: jax.Array) -> jax.Array:
    x = jax.nn.relu(layers.batch_norm("bn1", layers.convolution("conv_stem", images, stride=2)))
    x = jax.nn.relu(layers.batch_norm("bn2", layers.convolution("conv_dw", x, stride=2)))
    x = x + layers.drop("drop_path", layers.batch_norm("bn3", layers.convolution("conv_pwl", x)))
    return layers.dense("classifier", layers.drop("dropout", x.mean((1, 2))))


def _mlp(layers: Layers, images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(layers.dense("fc1", images.reshape(len(images), -1)))
    return layers.dense("fc2", layers.drop("dropout", hidden))
