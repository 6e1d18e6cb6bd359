"""tensorflow tpu: TPUStrategy over the cores of a TPU, written after its documentation and never run by us."""

from __future__ import annotations

import os

import tensorflow as tf

from dpcompare.backends.tensorflow.backend import TensorFlowBackend


class Tpu(TensorFlowBackend):
    """One process that drives all cores of the TPU that TPU_NAME names, or of this machine."""

    def _configure_devices(self) -> None:
        self._resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
        tf.config.experimental_connect_to_cluster(self._resolver)
        tf.tpu.experimental.initialize_tpu_system(self._resolver)

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.TPUStrategy(self._resolver)

    def local_devices(self) -> list[str]:
        return [device.name for device in tf.config.list_logical_devices("TPU")]

    def _device_names(self) -> list[str]:
        return self.local_devices()

    def synchronize(self, *, drain: bool = False) -> None:
        tf.test.experimental.sync_devices()
