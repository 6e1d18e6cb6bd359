"""The modes of TensorFlow that only choose a strategy: single, mirrored, tpu and multiworker."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from dpcompare.backends.tensorflow.backend import TensorFlowBackend


class SingleDevice(TensorFlowBackend):
    """TensorFlow's default strategy: one replica and no distribution."""

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.get_strategy()


class Mirrored(TensorFlowBackend):
    """TensorFlow chooses the collectives by the devices: NCCL between GPUs, ring collectives between CPU devices."""

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.MirroredStrategy(self.local_devices())


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


class MultiWorkerMirrored(TensorFlowBackend):
    """The launcher has set TF_CONFIG; every worker is a node."""

    def make_strategy(self) -> tf.distribute.Strategy:
        implementations = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=implementations[self.config.mode_row.collective[self.config.cluster.device_type].upper()]
        )
        if self.config.cluster.device_type == "cpu":
            _use_all_cpu_devices(self.config.topology.replicas_per_process)
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        resolver = strategy.cluster_resolver
        self.process_rank = resolver.task_id
        self.num_processes = len(resolver.cluster_spec().as_dict()["worker"])
        return strategy

    def barrier(self) -> None:
        total = self.strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))
        )
        self.strategy.experimental_local_results(total)[0].numpy()  # read, since a GPU only queues it

    def profile(self, path: Path) -> AbstractContextManager[None]:
        """Only worker 0 keeps a trace.

        The others ask it for each collective's parameters, an event that ends in another thread than it began in, and
        TensorFlow 2.21's profiler now and then writes such an event's name into memory it has freed, and aborts.
        """
        return super().profile(path) if self.process_rank == 0 else nullcontext()

    def teardown(self) -> None:
        """Wait for the other workers: one that leaves early takes the cluster's coordinator or peers with it."""
        self.barrier()


def _use_all_cpu_devices(count: int) -> None:
    """Have the stock strategy take all CPU devices of each worker, where it would silently train on CPU:0 only.

    `count` devices per worker need one private override; the worker checks the number of replicas against the
    plan before anything is measured, so a TensorFlow that ignores the override is noticed.
    """

    def devices_of_worker(self: Any, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker_device}/device:CPU:{index}" for index in range(count)), "CPU"

    CollectiveAllReduceExtended._initialize_local_devices = devices_of_worker
