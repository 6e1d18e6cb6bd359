"""The modes of JAX: single, spmd and multiprocess."""

from __future__ import annotations

import os
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import xla_bridge

from dpcompare.backends.jax.arrays import REPLICAS, REPLICATED, SHARDED, shard
from dpcompare.backends.jax.backend import JaxBackend


class SingleDevice(JaxBackend):
    """A mesh of one device."""


class Spmd(JaxBackend):
    """XLA chooses the collectives by the devices: NCCL between GPUs, its own within the process between CPU devices."""


class MultiProcess(JaxBackend):
    """The launcher has set where the first process is, and which one this is."""

    def connect(self) -> None:
        if self.config.topology.num_processes == 1:
            return  # with jax.distributed, JAX would have gloo carry what stays within the process
        if self.config.cluster.device_type == "cpu":
            jax.config.update("jax_cpu_collectives_implementation", self.config.collective)
            _listen_on(os.environ.get("GLOO_SOCKET_IFNAME"))
        address = os.environ["JAX_COORDINATOR_ADDRESS"]
        # Longer than the launcher waits, which knows how to name who hangs.
        seconds = int(max(self.config.seconds_to_start, self.config.progress_timeout)) + 60
        jax.distributed.initialize(
            address,
            num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
            process_id=int(os.environ["JAX_PROCESS_ID"]),
            coordinator_bind_address=address,  # not all interfaces, which is the default
            cluster_detection_method="deactivate",  # it would ask Slurm, and metadata servers of clouds
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=seconds,
        )

    def barrier(self) -> None:
        jax.block_until_ready(
            self._sum_over_replicas(shard(self.mesh, np.zeros(len(self.mesh.local_devices), np.int32)))
        )

    @cached_property
    def _sum_over_replicas(self) -> Any:
        return self._over_replicas(lambda part: lax.psum(part, REPLICAS), SHARDED, REPLICATED)

    def teardown(self) -> None:
        """Wait for the other processes: one that leaves early ends those that still compute with it."""
        self.barrier()
        if self.config.topology.num_processes > 1:
            jax.distributed.shutdown()


def _listen_on(interface: str | None) -> None:
    """Have gloo listen on one interface; None leaves it at the address that the host's name resolves to.

    JAX calls its constructor without the argument that says so.
    """
    if interface:
        gloo = xla_bridge._jax.make_gloo_tcp_collectives
        xla_bridge._jax.make_gloo_tcp_collectives = partial(gloo, interface=interface)
