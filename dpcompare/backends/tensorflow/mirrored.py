"""tensorflow mirrored: MirroredStrategy, one process that drives all devices of its node."""

from __future__ import annotations

import tensorflow as tf

from dpcompare.backends.tensorflow.backend import TensorFlowBackend


class Mirrored(TensorFlowBackend):
    """TensorFlow chooses the collectives by the devices: NCCL between GPUs, ring collectives between CPU devices."""

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.MirroredStrategy(self.local_devices())
