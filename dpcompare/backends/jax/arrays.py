"""Arrays on the devices of all replicas: a part on each, or the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dpcompare.system.type_names import Array

REPLICAS = "replicas"
"""The one axis of the mesh."""
REPLICATED, SHARDED = PartitionSpec(), PartitionSpec(REPLICAS)
"""The same on every replica; a part of the first axis on each."""


def mesh_of_replicas() -> Mesh:
    """The devices of all processes, in the order of the processes."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(devices), (REPLICAS,), axis_types=(AxisType.Auto,))


def shard(mesh: Mesh, rows: Array) -> jax.Array:
    """This process's rows, a contiguous part on each of its devices."""
    parts = np.split(rows, len(mesh.local_devices))
    return _placed(mesh, parts, (len(parts[0]) * mesh.size, *rows.shape[1:]), SHARDED)


def replicate(mesh: Mesh, array: Array) -> jax.Array:
    """The same array on each device."""
    return _placed(mesh, [array] * len(mesh.local_devices), array.shape, REPLICATED)


def copies(mesh: Mesh, array: Array, spec: PartitionSpec) -> jax.Array:
    """The same array for each replica, with an axis of replicas in front; with REPLICATED one for all of them."""
    if spec == SHARDED:
        return shard(mesh, np.stack([array] * len(mesh.local_devices)))
    return replicate(mesh, array[None])


def _placed(mesh: Mesh, parts: Sequence[Array], shape: tuple[int, ...], spec: PartitionSpec) -> jax.Array:
    """A global array, of which each of this process's devices has a part."""
    # may_alias: on the CPU JAX would take the memory of an array of NumPy for its own, and give it away.
    arrays = [
        jax.device_put(part, device, may_alias=False) for part, device in zip(parts, mesh.local_devices, strict=True)
    ]
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), arrays)


def local_rows(array: jax.Array) -> Array:
    """The rows of this process's replicas, one replica after another."""
    parts = sorted(array.addressable_shards, key=lambda part: part.index[0].start or 0)
    return np.concatenate([np.asarray(part.data) for part in parts])


def on_host(array: jax.Array) -> Array:
    """What the first replica of this process has; a copy, since the next step may use its memory."""
    return np.array(array.addressable_shards[0].data)
