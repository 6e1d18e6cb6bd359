"""tensorflow single: one device, the baseline."""

from __future__ import annotations

import tensorflow as tf

from dpcompare.backends.tensorflow.backend import TensorFlowBackend


class SingleDevice(TensorFlowBackend):
    """TensorFlow's default strategy: one replica and no distribution."""

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.get_strategy()
