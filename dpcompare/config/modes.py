"""The table of modes: what each is and can do, as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.models.layer_matching import KERAS

DEFAULT_REPLICAS = 2
"""Replicas of a mode of several devices if they are simulated and no number was asked for: one would exchange
nothing."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One row of MODES: what a mode is and can do, as data."""

    target: str
    """`module:class` of its backend, below dpcompare.backends."""
    summary: str
    launch: Literal["plain", "torchrun", "tf_config", "coordinator"] = "plain"
    """How its processes are started and find each other; see dpcompare.launch.plan."""
    spawnable: bool = False
    """Whether its processes may also be started from inside a program, by torch.multiprocessing."""
    process_per: Literal["node", "device"] = "node"
    stage_placement: Literal["in process", "over processes"] | None = None
    """Whether a replica can be split into stages on several devices, and whether one process has them all."""
    shards_parameters: bool = False
    """Whether each process keeps a shard of the parameters, for which torch has no fused SGD kernel."""
    multi_device: bool = True
    multi_node: bool = False
    collective: Mapping[str, str] = field(default_factory=dict)
    """Device type -> what carries the gradients between replicas."""
    collective_in_process: Mapping[str, str] = field(default_factory=dict)
    """Device type -> what carries them if one process has all replicas, where that is something else."""
    exchange: Literal["buckets", "one pack", "shards", "first device", "server"] | None = None
    """In which messages gradients are exchanged, for projections; None: projections have no model of it."""
    sync_batchnorm_on: frozenset[str] = frozenset({"cpu", "gpu"})
    """Device types where BatchNorm can use the batch of all replicas."""
    gradient_sync_separable: bool = True
    """Whether a step can be made without gradient sync, to measure what that costs."""
    roles: tuple[str, ...] = ()
    """What the first nodes are where they hold no replica: TensorFlow's names of their tasks."""
    sees_whole_batch: bool = False
    """Whether its step is that of the whole batch, so that BatchNorm has the statistics of all replicas."""
    steps_together: bool = True
    """Whether all replicas make each step together, and `train_step` returns when it is made. If not, each takes the
    next batch as soon as it is free, and the time of a step is spent where its losses are read."""
    supported_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Field of a workload -> the values that it can have, where not all are supported."""
    emulated_on: frozenset[str] = frozenset()
    """Device types where the framework itself cannot run this mode and dpcompare imitates it."""
    serves_files: bool = False
    """Whether its processes listen on all interfaces, and read and write files for whoever connects."""
    shares_gpu: bool = False
    """Whether several of its replicas can be on one GPU: gloo carries its collectives of GPUs, through the host."""
    device_types: frozenset[str] = frozenset({"cpu", "gpu"})
    unverifiable: str = ""
    """Why it cannot be compared with others as closely as `verify` does."""
    inexact: str = ""
    """Why another framework cannot repeat its last steps as exactly as its late step is judged."""
    by_default: bool = True
    """Whether `compare` takes it where no arms are named, if its framework is installed."""
    trains_models_of: str = ""
    """The library whose custom models alone it trains, as in `Layer.written_in`; empty: those of its framework."""
    packages: tuple[str, ...] = ()
    """Import names that it needs in addition to those of its framework."""
    extra: str = ""
    """The extra of dpcompare that brings them; empty: that of the mode's name."""

    @property
    def default_stages(self) -> int:
        """Devices that a replica is split over where no number was asked for."""
        return 2 if self.is_pipeline else 1

    def default_topology(self, replicas: int, devices_per_replica: int | None = None) -> tuple[int, int]:
        """(nodes, devices per node) of a mode of several devices where none were asked for.

        Args:
            replicas: how many there are to be, but for a pipeline, which has one.
            devices_per_replica: None: as the mode usually has.
        """
        if self.is_pipeline:
            return 1, devices_per_replica or self.default_stages
        on_nodes = replicas + self.nodes_without_replica, devices_per_replica or 1
        return on_nodes if self.multi_node else (1, replicas)

    @property
    def nodes_without_replica(self) -> int:
        """The first nodes, which only serve the others."""
        return len(self.roles)

    def task_of(self, node_rank: int) -> str:
        """TensorFlow's name of what a node is."""
        return self.roles[node_rank] if node_rank < len(self.roles) else "worker"

    @property
    def default_device(self) -> str | None:
        """The device type of a mode that has but one; None where there is a choice."""
        return next(iter(self.device_types)) if len(self.device_types) == 1 else None

    @property
    def is_pipeline(self) -> bool:
        """Whether the stages of each replica are in several processes, which pass micro-batches on."""
        return self.stage_placement == "over processes"


def _under_torchrun(**fields: Any) -> Mode:
    """A mode with a process per device, on any number of nodes."""
    collective = {"cpu": "gloo", "gpu": "nccl"}
    fields = {"exchange": "buckets"} | fields
    return Mode(launch="torchrun", process_per="device", multi_node=True, collective=collective, **fields)


def _under_coordinator(**fields: Any) -> Mode:
    """A mode of JAX with a process per node, which meet under jax.distributed if there are several."""
    return Mode(
        launch="coordinator",
        multi_node=True,
        collective={"cpu": "gloo", "gpu": "nccl"},
        collective_in_process={"cpu": "in process"},
        **fields,
    )


def _by_keras(*, drops: bool = False, **fields: Any) -> Mode:
    """A mode in which Keras trains by its own `fit`.

    Keras keeps the learning rate inside SGD's momentum, accumulates micro-batches by another rule, and updates weights
    by an optimizer of its own. `drops` says if it takes what the host has drawn for dropout.
    """
    return Mode(
        supported_values={
            **{"optimizer": ("adam",), "accumulate": (1,)},
            **{"weight_decay": (0.0,), "clip_norm": (None,), "weight_average": (None,)},
            **({} if drops else {"regularization": ("off",)}),
        },
        gradient_sync_separable=False,
        trains_models_of=KERAS,
        unverifiable="Keras trains by its own Adam alone, and `verify` reads gradients from SGD",
        by_default=False,
        **fields,
    )


MODES: dict[tuple[str, str], Mode] = {
    ("torch", "single"): Mode(
        target="torch.single:SingleDevice",
        summary="one device, the baseline",
        multi_device=False,
    ),
    ("torch", "dp"): Mode(
        target="torch.dp:DpBackend",
        summary="torch.nn.DataParallel: one process drives the devices of one node",
        collective={"cpu": "threads", "gpu": "nccl"},
        exchange="first device",
        gradient_sync_separable=False,  # gradients of all replicas flow into one model in the backward pass itself
        sync_batchnorm_on=frozenset({"cpu"}),  # nn.DataParallel's replicas cannot communicate in their forward pass
        emulated_on=frozenset({"cpu"}),
    ),
    ("torch", "ddp"): _under_torchrun(
        target="torch.ddp:DdpBackend",
        shares_gpu=True,
        summary="DistributedDataParallel under torchrun: one process per device, any number of nodes",
        spawnable=True,
        stage_placement="in process",
    ),
    ("torch", "fsdp"): _under_torchrun(
        target="torch.fsdp:FsdpBackend",
        summary="fully_shard (FSDP2) under torchrun: one process per device, which keeps a part of the parameters",
        spawnable=True,
        shards_parameters=True,
        exchange="shards",
        gradient_sync_separable=False,  # the optimizer of a process can only use shards of summed gradients
        by_default=False,
    ),
    ("torch", "pipeline"): _under_torchrun(
        target="torch.pipeline:PipelineBackend",
        summary="torch.distributed.pipelining: each replica's layers in several processes, micro-batches passed along",
        spawnable=True,
        stage_placement="over processes",
        exchange=None,
        gradient_sync_separable=False,  # what stages send each other is part of training itself
        by_default=False,
    ),
    ("torch", "fabric"): _under_torchrun(
        target="torch.fabric:FabricBackend",
        shares_gpu=True,
        summary="Lightning Fabric around DistributedDataParallel: the same, to measure what the wrapper costs",
        by_default=False,
        packages=("lightning",),
    ),
    ("torch", "accelerate"): _under_torchrun(
        target="torch.accelerate:AccelerateBackend",
        shares_gpu=True,
        summary="Hugging Face Accelerate around DistributedDataParallel: the same, to measure what the wrapper costs",
        by_default=False,
        packages=("accelerate",),
    ),
    ("torch", "keras-fit"): _by_keras(
        target="torch.keras_fit:KerasFit",
        summary="Keras's own fit on one device, to measure what it costs",
        multi_device=False,
        packages=("keras",),
        extra="keras",
    ),
    ("tensorflow", "single"): Mode(
        target="tensorflow.modes:SingleDevice",
        summary="one device, the baseline",
        multi_device=False,
    ),
    ("tensorflow", "mirrored"): Mode(
        target="tensorflow.modes:Mirrored",
        summary="MirroredStrategy: one process drives the devices of one node",
        collective={"cpu": "ring", "gpu": "nccl"},
        exchange="one pack",
    ),
    ("tensorflow", "multiworker"): Mode(
        target="tensorflow.modes:MultiWorkerMirrored",
        summary="MultiWorkerMirroredStrategy with a generated TF_CONFIG: one process per node",
        launch="tf_config",
        multi_node=True,
        serves_files=True,
        collective={"cpu": "ring", "gpu": "nccl"},
        exchange="one pack",
    ),
    ("tensorflow", "parameter-server"): Mode(
        target="tensorflow.parameter_server:ParameterServer",
        summary="ParameterServerStrategy: a coordinator, a node that keeps the parameters, and asynchronous workers",
        launch="tf_config",
        multi_node=True,
        serves_files=True,
        roles=("chief", "ps"),
        steps_together=False,
        supported_values={"accumulate": (1,), "batchnorm": ("local",)},
        collective={"cpu": "grpc", "gpu": "grpc"},
        exchange="server",
        gradient_sync_separable=False,  # the parameters are elsewhere
        by_default=False,
    ),
    ("tensorflow", "keras-fit"): _by_keras(
        target="tensorflow.keras_fit:KerasFit",
        summary="Keras's own fit under MirroredStrategy, to measure what it costs",
        collective={"cpu": "ring", "gpu": "nccl"},
        drops=True,
    ),
    ("tensorflow", "tpu"): Mode(
        target="tensorflow.modes:Tpu",
        summary="TPUStrategy: one process that drives the cores of a TPU; never run by dpcompare's authors",
        supported_values={"precision": ("float32", "bfloat16")},
        device_types=frozenset({"tpu"}),
        collective={"tpu": "interconnect"},
        sync_batchnorm_on=frozenset({"tpu"}),
        gradient_sync_separable=False,
        unverifiable="there has been none to try it on",
        inexact="there has been none to try it on",
        by_default=False,
    ),
    ("jax", "single"): Mode(
        target="jax.modes:SingleDevice",
        summary="one device, the baseline",
        multi_device=False,
    ),
    ("jax", "spmd"): Mode(
        target="jax.modes:Spmd",
        summary="jax.shard_map over a mesh: one process drives the devices of one node",
        collective={"cpu": "in process", "gpu": "nccl"},
    ),
    ("jax", "multiprocess"): _under_coordinator(
        target="jax.modes:MultiProcess",
        summary="jax.shard_map over a mesh of all nodes' devices, under jax.distributed: one process per node",
    ),
    ("jax", "jit"): _under_coordinator(
        target="jax.jit:Jit",
        summary="jax.jit over arrays with NamedSharding, where XLA adds the collectives: one process per node",
        sees_whole_batch=True,
        gradient_sync_separable=False,  # XLA decides where a step exchanges what
        by_default=False,
    ),
    ("jax", "keras-fit"): _by_keras(
        target="jax.keras_fit:KerasFit",
        summary="Keras's own fit under keras.distribution.DataParallel, to measure what it costs",
        collective={"cpu": "in process", "gpu": "nccl"},
        sees_whole_batch=True,
        packages=("keras",),
        extra="keras",
    ),
}


def modes_by_default(frameworks: Collection[str] = tuple(FRAMEWORKS)) -> list[tuple[str, str]]:
    """(framework, mode) of the modes of some frameworks that `compare` takes where none is named."""
    return [key for key, row in MODES.items() if row.by_default and key[0] in frameworks]


def frameworks_by_default() -> list[str]:
    """Those that `setup` installs and without which `doctor` sees a problem; see also `Framework.is_optional`."""
    return [framework for framework, row in FRAMEWORKS.items() if not row.is_optional]


USUAL_MODES = modes_by_default(frameworks_by_default())
"""Those that `compare` takes wherever `setup` was run."""


def modes_of_each_framework() -> list[tuple[str, str]]:
    """(framework, mode) of what `verify` and `doctor` try of a framework: its modes by default, or all of one that is
    optional, as far as they need no other package."""
    return [
        key for key, row in MODES.items() if row.by_default or (FRAMEWORKS[key[0]].is_optional and not row.packages)
    ]
