"""The feed of a TensorFlow training: host batches on this process's replicas, where GPUs look up their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from dpcompare.data.batches import DeviceBatch, HostBatch
from dpcompare.data.pixels import NUM_BYTES


class DeviceFeed:
    """Places host batches: the rows of each of this process's replicas on its device."""

    def __init__(
        self, strategy: tf.distribute.Strategy, devices: Sequence[str], dtype: tf.DType, *, device_type: str
    ) -> None:
        """Args:
        strategy: of the mode, which wraps what several replicas have.
        devices: of this process, one per replica.
        dtype: of images, weights and drop masks.
        device_type: of the devices.
        """
        self._strategy, self._devices, self._dtype = strategy, devices, dtype
        self._on_gpu = device_type == "gpu"

    def place(self, batch: HostBatch) -> DeviceBatch:
        """A batch on the replicas."""
        return DeviceBatch(
            images=self._images(batch),
            labels=self._scatter(batch.labels, tf.int32),
            weights=self._scatter(batch.weights, self._dtype),
            global_count=batch.global_count,
            drop_masks=None if batch.drop_masks is None else self._scatter(batch.drop_masks, self._dtype),
        )

    def _images(self, batch: HostBatch) -> Any:
        """The images: bytes that each GPU looks up, or what the host has looked up."""
        if not self._on_gpu:
            return self._scatter(batch.images, self._dtype)
        tables = batch.tables.astype(self._dtype.as_numpy_dtype, copy=False)

        def part(rows: slice) -> tf.Tensor:
            row_tables = tables[rows] if len(tables) > 1 else tables
            flips = None if batch.flips is None else tf.constant(batch.flips[rows])
            return look_up(tf.constant(batch.pixels[rows]), tf.constant(row_tables), flips)

        return self._on_replicas(len(batch.pixels), part)

    def _scatter(self, rows: npt.NDArray[Any], dtype: tf.DType) -> Any:
        """This process's rows, a contiguous part on each of its replicas."""
        # The host casts, where that is necessary: an operation less.
        return self._on_replicas(
            len(rows), lambda part: tf.constant(rows[part].astype(dtype.as_numpy_dtype, copy=False))
        )

    def _on_replicas(self, num_rows: int, make: Callable[[slice], tf.Tensor]) -> Any:
        """What `make` gives for each replica's rows, made on the replica's device."""
        replicas = len(self._devices)
        count = num_rows // replicas

        def part(rank: int) -> tf.Tensor:
            with tf.device(self._devices[rank]):  # TensorFlow itself would put all parts on the first
                return make(slice(rank * count, (rank + 1) * count))

        if replicas == 1:  # nothing to wrap, which would take as long as the rest
            return part(0)

        def replica_value(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
            return part(context.replica_id_in_sync_group % replicas)

        return self._strategy.experimental_distribute_values_from_function(replica_value)


@tf.function(autograph=False)
def look_up(pixels: tf.Tensor, tables: tf.Tensor, flips: tf.Tensor | None) -> tf.Tensor:
    """The same as `dpcompare.data.pixels.look_up`, bit for bit."""
    # int64: TensorFlow adds int32 on the host, wherever the numbers are.
    num_channels = tables.shape[1]
    first = tf.range(num_channels, dtype=tf.int64) * NUM_BYTES
    if tables.shape[0] != 1:
        rows = tf.range(tf.shape(pixels, out_type=tf.int64)[0]) * (num_channels * NUM_BYTES)
        first = tf.reshape(rows, [-1, 1, 1, 1]) + first
    images = tf.gather(tf.reshape(tables, [-1]), tf.cast(pixels, tf.int64) + first)
    if flips is None:
        return images
    return tf.where(tf.reshape(flips, [-1, 1, 1, 1]), tf.reverse(images, [2]), images)
