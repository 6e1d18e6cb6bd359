"""jax spmd: jax.shard_map over a mesh, one process that drives all devices of its node."""

from __future__ import annotations

from dpcompare.backends.jax.backend import JaxBackend


class Spmd(JaxBackend):
    """XLA chooses the collectives by the devices: NCCL between GPUs, its own within the process between CPU devices."""
