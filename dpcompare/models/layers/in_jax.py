"""Layers as pure functions of tensors, in the framework-neutral layouts, which the models in JAX are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from dpcompare.models.spec import IMAGE_DIMENSIONS, ModelSpec, channels_first, columns, shape_of_draws

Tensors = Mapping[str, jax.Array]
Padding = str | Sequence[tuple[int, int]]
"""`SAME` as TensorFlow has it, `VALID`, or pixels before and after each of height and width."""


class Layers:
    """The layers of a model by name, in one pass; what they make is kept."""

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Tensors,
        drop_masks: jax.Array | None,
        *,
        batchnorm_momentum: float,
        bfloat16: bool,
        training: bool,
        axis_name: str | None,
        by_shifts: bool,
        over_devices: bool = False,
    ) -> None:
        """The layers of a model for one pass.

        Args:
            spec: of the model.
            tensors: by their names, running statistics included.
            drop_masks: what regularization multiplies features by; None: all features stay as they are.
            batchnorm_momentum: what a step keeps of running statistics.
            bfloat16: whether products are computed in it, and not in the type of the tensors.
            training: whether BatchNorm normalises by the batch.
            axis_name: of the replicas that it normalises with; None: this one alone.
            by_shifts: whether convolutions that XLA's kernels for CPUs are slow at are made of shifted products.
            over_devices: whether the rows are on several devices, between which XLA exchanges what a mean takes.
        """
        self._tensors = tensors
        self._drop_masks = drop_masks
        self._training = training
        self._axis_name = axis_name
        self._by_shifts = by_shifts
        self._over_devices = over_devices
        self._columns = columns(spec.drops)
        self._momentum, self._epsilon = batchnorm_momentum, spec.batchnorm_epsilon
        self._dtype = jnp.bfloat16 if bfloat16 else next(iter(tensors.values())).dtype
        self.made: dict[str, jax.Array] = {}
        """Layer -> its features, and running statistic -> its value after this pass."""

    def convolution(self, name: str, x: jax.Array, *, stride: int = 1, padding: Padding = "SAME") -> jax.Array:
        """A convolution of (rows, height, width, channels); depthwise if each filter has one channel of several."""
        x, weight = x.astype(self._dtype), self._tensor(f"{name}.weight")
        num_channels = x.shape[-1]
        depthwise = weight.shape[1] == 1 and num_channels > 1
        size = weight.shape[2]
        # Where less leaves than the filter covers, XLA swaps features and filter, and takes several times as long.
        small = min(x.shape[1:3]) // stride < size
        # Of patches that do not overlap, the product takes half the time at every size.
        patches = 1 < size == stride
        if self._by_shifts and (depthwise or small or patches):
            x = by_shifts(x, weight, stride=stride, padding=padding, depthwise=depthwise)
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
        """BatchNorm by the batch of this replica, or of all on the axis; the running variance takes the biased one."""
        scale, shift, mean, variance = (
            self._tensors[f"{name}.{tensor}"] for tensor in ("weight", "bias", "running_mean", "running_var")
        )
        x = features.astype(scale.dtype)  # in bfloat16, statistics still are float32
        if self._training:
            running = {"running_mean": mean, "running_var": variance}
            mean, variance = self._moments(x)
            for tensor, batch_value in (("running_mean", mean), ("running_var", variance)):
                moved = running[tensor] * self._momentum + lax.stop_gradient(batch_value) * (1 - self._momentum)
                self.made[f"{name}.{tensor}"] = moved
        assert self._epsilon is not None
        factor = scale * lax.rsqrt(variance + self._epsilon)
        return self._keep(name, (x * factor + (shift - mean * factor)).astype(features.dtype))

    def layer_norm(self, name: str, features: jax.Array, *, epsilon: float) -> jax.Array:
        """LayerNorm over the last axis (Ba et al. 2016), with the biased variance."""
        scale, shift = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        x = features.astype(scale.dtype)  # in bfloat16, statistics still are float32
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        return self._keep(name, ((x - mean) * lax.rsqrt(variance + epsilon) * scale + shift).astype(features.dtype))

    def _moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        axes = (0, 1, 2)
        if self._axis_name is None and not self._over_devices:
            mean = x.mean(axes)
            return mean, jnp.square(x - mean).mean(axes)
        # The formula of the other frameworks: one exchange of sums and of sums of squares.
        means = x.mean(axes), jnp.square(x).mean(axes)
        mean, mean_of_squares = means if self._axis_name is None else lax.pmean(means, self._axis_name)
        return mean, mean_of_squares - jnp.square(mean)

    def drop(self, name: str, x: jax.Array) -> jax.Array:
        """Dropout or stochastic depth, by drop masks drawn on the host: (rows, features of all such layers)."""
        if self._drop_masks is None or name not in self._columns:
            return x
        return x * drop_factors(self._drop_masks[:, self._columns[name]], x)

    def stored(self, name: str) -> jax.Array:
        """A tensor in the type in which it is kept."""
        return self._tensors[name]

    def _tensor(self, name: str) -> jax.Array:
        return self._tensors[name].astype(self._dtype)

    def _keep(self, name: str, features: jax.Array) -> jax.Array:
        self.made[name] = features
        return features


def drop_factors(masks: jax.Array, features: jax.Array) -> jax.Array:
    """Drop masks, (rows, draws), laid out to be multiplied by features whose channels come last."""
    factors = masks.astype(features.dtype)
    factors = factors.reshape(-1, *shape_of_draws(masks.shape[1], channels_first(features.shape[1:])))
    return factors.transpose(0, 2, 3, 1) if features.ndim == IMAGE_DIMENSIONS else factors


def by_shifts(x: jax.Array, weight: jax.Array, *, stride: int, padding: Padding, depthwise: bool) -> jax.Array:
    """A convolution of features (rows, height, width, channels) as products with features shifted by each tap.

    A depthwise one is their sum, which XLA fuses into one pass; another one is a single product of matrices, whose rows
    are patches. Where those do not overlap, they are the features in another order.
    """
    size = weight.shape[2]
    rows, *sides, channels = x.shape
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(sides, (size, size), (stride, stride), padding)
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    tall, wide = ((side - size) // stride + 1 for side in x.shape[1:3])
    if size == stride and not depthwise:
        apart = x[:, : tall * size, : wide * size].reshape(rows, tall, size, wide, size, channels)
        patches = apart.transpose(0, 1, 3, 2, 4, 5).reshape(rows, tall, wide, -1)
    else:
        shifted = {
            (i, j): lax.slice(
                x,
                (0, i, j, 0),
                (rows, i + (tall - 1) * stride + 1, j + (wide - 1) * stride + 1, channels),
                (1, stride, stride, 1),
            )
            for i, j in np.ndindex(size, size)
        }
        if depthwise:
            return sum((tap * weight[:, 0, i, j] for (i, j), tap in shifted.items()), jnp.zeros((), x.dtype))
        patches = jnp.concatenate(list(shifted.values()), -1)
    return patches @ weight.transpose(2, 3, 1, 0).reshape(-1, len(weight))


def max_pool(x: jax.Array) -> jax.Array:
    """The largest of every 2 x 2 positions."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


Forward = Callable[[Layers, jax.Array], jax.Array]
