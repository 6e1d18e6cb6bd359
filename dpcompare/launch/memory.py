"""What a run needs of memory at least, estimated from its model before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.models.architectures import model_of
from dpcompare.models.costs import values_kept
from dpcompare.models.state import is_statistic
from dpcompare.results.computed import BYTES
from dpcompare.system.devices import free_gpu_memory
from dpcompare.system.processes import available_memory

NUM_CLASSES = 10
"""Of a dataset that is not prepared yet: the classifier is a small part of a model."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that each device needs at least; libraries, workspaces and buckets come on top."""

    state: int
    """Weights, their gradients, and what the optimizer remembers of each."""
    features: int
    """What the forward pass keeps for the backward pass, if nothing is computed twice."""

    @property
    def total(self) -> int:
        return self.state + self.features


def need_of(config: RunConfig) -> Need | None:
    """What each device of a run needs at least; None for a model whose layers are not known, or with servers."""
    workload, topology, mode = config.workload, config.topology, config.mode_row
    num_classes = NUM_CLASSES if config.inputs is None else config.inputs.num_classes
    kept = values_kept(workload.model, workload.image_size, num_classes)
    if kept is None or mode.roles:
        return None
    shapes = model_of(workload.model).shapes(workload.image_size, num_classes)
    parameters = sum(math.prod(shape) for name, shape in shapes.items() if not is_statistic(name))
    # The first device alone has the optimizer where it also has the gradients of all.
    slots = 0 if mode.exchange == "first device" else len(OPTIMIZERS[workload.optimizer].slots)
    parts = config.stages * (topology.num_replicas if mode.shards_parameters else 1)
    images = -(-workload.global_batch_size // (topology.num_replicas * workload.accumulate))
    return Need(
        # Weights stay in float32 where features are in bfloat16.
        state=parameters * (2 + slots) * max(BYTES["float32"], BYTES[workload.precision]) // parts,
        features=kept * images * _micro_batches_kept(config) * BYTES[workload.precision] // config.stages,
    )


def _micro_batches_kept(config: RunConfig) -> int:
    """Whose features are kept at the same time."""
    if not config.mode_row.is_pipeline:
        return 1
    all_of_them = config.workload.accumulate
    return min(config.stages, all_of_them) if config.pipeline_schedule == "1f1b" else all_of_them


def free_for_each(config: RunConfig) -> int | None:
    """Bytes that each device of a run may take; None if its machines are others, or the device does not say."""
    cluster = config.cluster
    if not cluster.simulated or cluster.device_type not in ("cpu", "gpu"):
        return None
    if cluster.device_type == "cpu":
        return available_memory() // cluster.num_devices
    free = free_gpu_memory(cluster.devices)
    return None if free is None else free // (cluster.num_devices if cluster.shared else 1)


def require_memory(config: RunConfig) -> None:
    """Refuse a run whose weights, gradients and optimizer do not fit into the memory that is free.

    Raises:
        RequestError: it is such a run.
    """
    need, free = need_of(config), free_for_each(config)
    if need is not None and free is not None and need.state > free:
        raise RequestError(
            f"memory: {config.workload.model} needs at least {_in_words(need.state)} on each device for weights, "
            f"gradients and the state of {config.workload.optimizer}, and {_in_words(free)} is free for each; expected "
            "a smaller model, fewer devices on one machine, or a mode that shards the state or splits the model"
        )


def memory_remark(config: RunConfig) -> str | None:
    """A line if a run will hardly fit into the memory that is free."""
    need, free = need_of(config), free_for_each(config)
    if need is None or free is None or need.total <= free:
        return None
    keeps_all = config.mode_row.is_pipeline and config.pipeline_schedule != "1f1b"
    other = "--pipeline-schedule 1f1b" if keeps_all else "--accumulate"
    return (
        f"memory: each device needs at least {need_in_words(need)}, and {_in_words(free)} is free for each: the run is "
        f"unlikely to fit; use a smaller --global-batch-size, or {other}"
    )


def need_in_words(need: Need) -> str:
    """`2.6 GB (180 MB of state, 2.4 GB of features)`."""
    parts = f"{_in_words(need.state)} of state, {_in_words(need.features)} of features"
    return f"{_in_words(need.total)} ({parts})"


def _in_words(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.1f} GB"
