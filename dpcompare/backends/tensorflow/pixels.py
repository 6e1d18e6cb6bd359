"""The table of every image looked up by TensorFlow, where its bytes are."""

from __future__ import annotations

import tensorflow as tf

from dpcompare.data.pixels import NUM_BYTES


@tf.function(autograph=False)
def look_up(pixels: tf.Tensor, tables: tf.Tensor, flips: tf.Tensor | None) -> tf.Tensor:
    """As `dpcompare.data.pixels.look_up`, bit for bit."""
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
