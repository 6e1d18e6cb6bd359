"""The feed of a JAX training: host batches on the devices of all replicas, where GPUs look up their bytes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy.typing as npt
from jax import numpy as jnp
from jax.sharding import Mesh

from dpcompare.backends.jax.arrays import REPLICATED, SHARDED, replicate, shard
from dpcompare.data.batches import DeviceBatch, HostBatch
from dpcompare.data.pixels import NUM_BYTES
from dpcompare.system.type_names import Array


class DeviceFeed:
    """Places host batches: the rows of each replica on its device."""

    def __init__(
        self,
        mesh: Mesh,
        dtype: npt.DTypeLike,
        over_replicas: Callable[..., Callable[..., jax.Array]],
        *,
        device_type: str,
    ) -> None:
        """Args:
        mesh: the devices of all replicas.
        dtype: of images, weights and drop masks.
        over_replicas: makes a function of each replica's parts one of whole arrays, see `JaxBackend`.
        device_type: of the devices.
        """
        self._mesh, self._dtype = mesh, dtype
        self._on_gpu = device_type == "gpu"
        self._look_up = {
            rows: over_replicas(look_up, (SHARDED, SHARDED if rows == "each" else REPLICATED, SHARDED), SHARDED)
            for rows in ("each", "all")
        }

    def place(self, batch: HostBatch) -> DeviceBatch:
        """A batch on the devices."""
        return DeviceBatch(
            images=self._images(batch),
            labels=shard(self._mesh, batch.labels),
            weights=self._split(batch.weights),
            global_count=batch.global_count,
            drop_masks=None if batch.drop_masks is None else self._split(batch.drop_masks),
        )

    def _split(self, rows: Array) -> jax.Array:
        return shard(self._mesh, rows.astype(self._dtype, copy=False))

    def _images(self, batch: HostBatch) -> jax.Array:
        """The images: bytes that each GPU looks up, or what the host has looked up."""
        if not self._on_gpu:
            return self._split(batch.images)
        tables = batch.tables.astype(self._dtype, copy=False)
        flips = None if batch.flips is None else shard(self._mesh, batch.flips)
        pixels = shard(self._mesh, batch.pixels)
        if len(tables) > 1:
            return self._look_up["each"](pixels, shard(self._mesh, tables), flips)
        return self._look_up["all"](pixels, replicate(self._mesh, tables), flips)


@jax.jit
def look_up(pixels: jax.Array, tables: jax.Array, flips: jax.Array | None) -> jax.Array:
    """The same as `dpcompare.data.pixels.look_up`, bit for bit."""
    num_tables, num_channels, _ = tables.shape
    first = jnp.arange(num_channels) * NUM_BYTES
    if num_tables > 1:
        first = (jnp.arange(num_tables) * (num_channels * NUM_BYTES))[:, None, None, None] + first
    # "clip": the default would replace an index out of bounds by NaN, and look for one.
    images = jnp.take(tables.reshape(-1), pixels + first, mode="clip")
    if flips is None:
        return images
    return jnp.where(flips[:, None, None, None], jnp.flip(images, 2), images)
