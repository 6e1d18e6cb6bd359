"""The config of a run: a workload, trained by a mode of a framework on a cluster, and the rules that it must obey."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dpcompare.config.cluster import Cluster
from dpcompare.config.engines import ENGINES
from dpcompare.config.modes import FRAMEWORKS, MODES, Mode
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.placement import Placement
from dpcompare.config.topology import Topology
from dpcompare.config.tuning import problems_of, tuning_of
from dpcompare.config.validation import Config, in_several_lines, one_of, raise_problems
from dpcompare.config.workload import Workload
from dpcompare.data.order import samples_trained
from dpcompare.errors import did_you_mean
from dpcompare.models.architectures import MODELS, model_of
from dpcompare.system.import_path import is_custom
from dpcompare.system.json_files import read_document, write_document
from dpcompare.system.words import counted

GPU_STEPS_PER_WINDOW = 10
"""Few enough for a window to end several times a second, many enough for the wait at its end to be lost in it."""

START_SECONDS = 600.0
"""In which the first step must be made on other devices than GPUs; for those see FRAMEWORKS."""
COMPILING_SECONDS = 900.0
"""At least, on GPUs, of a step that is compiled first."""


class Inputs(BaseModel):
    """The files that every process of a run reads; see `dpcompare.launch.inputs.prepare_inputs`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Path
    store_sha256: str
    weights: Path
    weights_sha256: str
    classifier: str = "drawn"
    """`drawn`, or `from file` where a file of initial weights has one for the same number of classes."""
    num_classes: int
    num_train: int
    num_validation: int
    num_skipped: int
    """Images of the source that could not be decoded and were left out."""


def _fraction(received: float | None) -> float | None:
    if received is not None and not 0 < received <= 1:
        raise ValueError(
            f"target_accuracy: received {received:g}, expected a fraction of the validation samples, above 0 and at "
            "most 1, such as 0.9"
        )
    return received


class RunConfig(Config):
    """One run: a workload, trained by one mode of one framework, on a cluster."""

    framework: Annotated[str, AfterValidator(one_of("framework", FRAMEWORKS))]
    mode: str
    workload: Workload = Field(default_factory=Workload)
    cluster: Cluster
    placement: Placement = Field(default_factory=Placement)
    launcher: Literal["torchrun", "spawn"] | None = None
    """How the processes of a torch mode with several are started; None: in the usual way of the mode."""
    stages: int = Field(default=1, ge=1)
    """Devices over which each replica's model is split, layer after layer."""
    pipeline_schedule: Literal["gpipe", "1f1b"] | None = None
    """pipeline: `gpipe` goes forward with all micro-batches and then backward, `1f1b` backward as soon as it can.
    None: gpipe."""
    tune: dict[str, str] = Field(default_factory=dict)
    """Settings that override those of the profile; see `dpcompare.config.tuning`."""
    autotuned: bool = False
    """Whether `tune` was found by trials on this machine; see `dpcompare.experiments.autotune`."""
    steps_per_window: int | None = Field(default=None, ge=1)
    """Steps that the clock measures together: the host waits for the device at the end of a window only.
    None: 1 on the CPU, where a step has ended when its call returns, and GPU_STEPS_PER_WINDOW on GPUs."""
    input_threads: int = Field(default=1, ge=1, le=1_024)
    """Threads per replica that read batches ahead of training."""
    sync_gradients: bool = True
    """False: replicas keep their gradients to themselves and drift apart, to measure what gradient sync costs."""
    reuse_batch: bool = False
    """Every step trains the first batch again, which stays on its devices, to measure what input costs."""
    profile_steps: tuple[int, int] | None = None
    """First and last step (from 1) of which every process keeps a trace in RUN_DIR/traces; tracing takes time.

    Of TensorFlow's multiworker only process 0 keeps one.
    """
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps from one checkpoint to the next; the last step always gets one. None: no checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the newest checkpoints are kept."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps from one evaluation to the next; the last step is always followed by one. None: after every epoch."""
    target_accuracy: Annotated[float | None, AfterValidator(_fraction)] = None
    """Of the validation samples, which the run is to reach: what that took is reported."""
    stop_at_target: bool = False
    """Whether the training ends at the first evaluation that reaches it."""
    keep_predictions: bool = False
    """Whether what the trained model predicts of each validation sample is kept in RUN_DIR/predictions."""
    resume: Path | None = None
    """Checkpoint to start from instead of the initial weights; chosen by `dpcompare.launch.run`."""
    on_nan: Literal["stop", "continue"] = "stop"
    """What happens at a loss that is not finite."""
    start_timeout: float | None = Field(default=None, gt=0)
    """Seconds in which every process must have trained its first step."""
    progress_timeout: float = Field(default=600.0, gt=0)
    """Seconds after which a process that shows no progress counts as hanging."""
    isolate: bool | None = None
    """Whether the processes get a private network, which nothing outside can reach; None: where they would serve
    files, and this machine permits one."""
    max_restarts: int = Field(default=0, ge=0)
    """How often a failed run is restarted from its newest checkpoint."""
    task: Literal["train", "probe"] = "train"
    """`probe` trains too, and leaves arrays to compare with those of other modes; see `dpcompare.training.probe`."""
    python: str = sys.executable
    """The interpreter whose environment holds the framework."""
    inputs: Inputs | None = None
    """Filled in by `prepare_inputs`."""

    @property
    def mode_row(self) -> Mode:
        return MODES[self.framework, self.mode]

    @property
    def serves_files(self) -> bool:
        """Whether who reaches the ports of its processes can read and write files as their user."""
        return self.mode_row.serves_files

    @property
    def seconds_to_start(self) -> float:
        """How long the first step may take."""
        if self.start_timeout is not None or self.cluster.device_type != "gpu":
            return self.start_timeout or START_SECONDS
        return max(FRAMEWORKS[self.framework].gpu_start_seconds, COMPILING_SECONDS if self.compiles else 0)

    @property
    def window(self) -> int:
        """Steps from one wait for the device to the next."""
        return self.steps_per_window or (GPU_STEPS_PER_WINDOW if self.cluster.device_type == "gpu" else 1)

    @property
    def launch(self) -> str:
        """How the processes are started; see `dpcompare.launch.plan`."""
        return "spawn" if self.launcher == "spawn" else self.mode_row.launch

    @property
    def topology(self) -> Topology:
        """How many processes and replicas the mode makes of the cluster."""
        return Topology(mode=self.mode_row, cluster=self.cluster, stages=self.stages)

    @property
    def tuning(self) -> dict[str, str]:
        """The value of every setting that this mode has here; see `dpcompare.config.tuning`."""
        return tuning_of(self.framework, self.mode, self.cluster.device_type, self.workload, self.tune)

    @property
    def compiles(self) -> bool:
        """Whether the first step takes as long as a compiler does."""
        return self.tuning.get("compilation", "none") != "none"

    @property
    def allows_tf32(self) -> bool:
        """Whether a GPU may round what it multiplies in float32 to TF32."""
        return self.tuning.get("tf32", "on" if self.workload.profile == "native" else "off") == "on"

    @property
    def emulated(self) -> bool:
        """Whether this mode is imitated on this kind of device rather than run by the framework's code."""
        on_others = self.cluster.device_type in self.mode_row.emulated_on and self.topology.num_replicas > 1
        return on_others or self.cluster.shared

    @property
    def collective(self) -> str:
        """What carries the collectives of the mode; gloo between processes on one GPU, which NCCL refuses."""
        return "gloo" if self.cluster.shared else self.mode_row.collective[self.cluster.device_type]

    def samples_trained(self, num_steps: int) -> int:
        """How many samples count in the first steps of a run whose inputs are prepared; those that come again do so."""
        assert self.inputs is not None
        num_train, batch = self.inputs.num_train, self.workload.global_batch_size
        if self.reuse_batch:
            return num_steps * min(num_train, batch)
        return samples_trained(num_train, batch, num_steps=num_steps)

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        for name, value in self:
            raise_problems(list(in_several_lines(value.model_dump() if isinstance(value, BaseModel) else value, name)))
        raise_problems(problems_of_run(self))
        return self

    def save(self, path: Path) -> None:
        write_document(self, path)

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        return read_document(cls, path, kind="the config of a run", expected="the directory of a run")


def problems_of_run(config: RunConfig) -> list[str]:
    """All problems that can be reported at once: none is the consequence of another."""
    for check in (_mode, _device_type):
        if problems := list(check(config)):
            return problems
    shape = [*_roles(config), *_stages(config)]
    checks = (_devices, _shared_gpu, _settings, _target, _launcher, _placement, _gradient_sync, _reused_batch)
    others = [problem for check in checks for problem in check(config)]
    # How many rows a replica has is clear only where it is clear what a replica is.
    return others + (shape or list(_batch(config)))


def _mode(config: RunConfig) -> Iterator[str]:
    modes = [mode for framework, mode in MODES if framework == config.framework]
    if config.mode in modes:
        return
    owners = sorted({framework for framework, mode in MODES if mode == config.mode})
    where = f" ({config.mode!r} is a mode of {' and '.join(owners)})" if owners else did_you_mean(config.mode, modes)
    yield f"unknown mode {config.mode!r} of {config.framework}; expected one of {', '.join(modes)}.{where}"


def _device_type(config: RunConfig) -> Iterator[str]:
    received, possible = config.cluster.device_type, config.mode_row.device_types
    if received not in possible:
        expected = " or ".join(sorted(possible))
        yield f"device: received {received} with mode {config.mode} of {config.framework}; expected {expected}"


def _roles(config: RunConfig) -> Iterator[str]:
    roles, cluster = config.mode_row.roles, config.cluster
    if not roles:
        return
    if cluster.num_nodes <= len(roles):
        yield (
            f"nodes: received {cluster.num_nodes} with mode {config.mode}; expected at least {len(roles) + 1}: one "
            f"each for {' and '.join(roles)}, and one per worker"
        )
    if cluster.devices_per_node > 1:
        yield f"devices_per_node: received {cluster.devices_per_node} with mode {config.mode}; expected 1"


def _stages(config: RunConfig) -> Iterator[str]:
    row, stages, model = config.mode_row, config.stages, config.workload.model
    if config.pipeline_schedule and not row.is_pipeline:
        yield (
            f"pipeline_schedule: received {config.pipeline_schedule} with {config.framework} {config.mode}; "
            "expected torch pipeline"
        )
        return
    if stages == 1:
        if row.is_pipeline:
            yield f"stages: received 1 with mode {config.mode}; expected at least 2"
        return
    if row.stage_placement is None:
        splitting = ", ".join(
            f"{framework} {mode}" for (framework, mode), other in MODES.items() if other.stage_placement
        )
        yield (
            f"stages: received {stages} with {config.framework} {config.mode}; "
            f"expected 1, or one of the modes {splitting}"
        )
        return
    micro_batches, per_node = config.workload.accumulate, config.cluster.devices_per_node
    if config.pipeline_schedule == "1f1b" and micro_batches < stages:
        yield (
            f"pipeline_schedule: received 1f1b with {counted(micro_batches, 'micro-batch')} and {stages} stages; "
            "expected at least as many micro-batches, or gpipe"
        )
    if per_node % stages:
        yield (
            f"stages: received {stages} on nodes of {counted(per_node, 'device')}; a replica has its devices "
            f"on one node: expected a number that divides {per_node}, or other --devices-per-node"
        )
    if is_custom(model):
        yield f"stages: received {stages} with a custom model; expected one of {', '.join(MODELS)}"
    elif stages > (layers := len(model_of(model).layers)):
        yield f"stages: received {stages}, but {model} has {layers} layers to be split between"


def _devices(config: RunConfig) -> Iterator[str]:
    row, cluster = config.mode_row, config.cluster
    if cluster.num_nodes > 1 and not row.multi_node:
        elsewhere = [
            mode for (framework, mode), other in MODES.items() if framework == config.framework and other.multi_node
        ]
        yield (
            f"mode {config.mode} of {config.framework} trains on one node, received {cluster.num_nodes} nodes; "
            f"leave --nodes at 1, or use the multi-node mode {', '.join(elsewhere)}"
        )
    if cluster.num_devices > 1 and not row.multi_device:
        yield (
            f"mode {config.mode} trains on one device, received {cluster.num_devices} "
            f"({', '.join(cluster.devices)}); name one, or use another mode"
        )


def _shared_gpu(config: RunConfig) -> Iterator[str]:
    if not config.cluster.shared:
        return
    if not config.mode_row.shares_gpu:
        able = ", ".join(f"{framework} {mode}" for (framework, mode), row in MODES.items() if row.shares_gpu)
        yield (
            f"share_gpu: received with {config.framework} {config.mode}, whose collectives only NCCL carries between "
            f"GPUs, and NCCL uses each GPU once; expected one of {able}"
        )
    if config.stages > 1:
        yield f"share_gpu: received with {config.stages} stages, which are on different GPUs; expected 1"
    if config.tune.get("batchnorm_kernels") == "SyncBatchNorm":
        yield (
            "tune: received batchnorm_kernels=SyncBatchNorm with share_gpu, whose collectives only NCCL carries "
            "between GPUs; expected default"
        )


def _settings(config: RunConfig) -> Iterator[str]:
    row, workload = config.mode_row, config.workload
    yield from problems_of(config.framework, config.mode, config.cluster.device_type, workload, config.tune)
    for name, values in row.supported_values.items():
        if (received := getattr(workload, name)) not in values:
            expected = " or ".join("none" if value is None else str(value) for value in values)
            yield f"{name}: received {received} with mode {config.mode}, which can have {expected} only"
    has_fused = OPTIMIZERS[workload.optimizer].fused_for_shards or not row.shards_parameters
    if config.tune.get("optimizer_kernels") == "fused" and not has_fused:
        yield (
            f"tune: received optimizer_kernels=fused with mode {config.mode} and {workload.optimizer}, for whose "
            "sharded tensors torch has none; expected foreach"
        )
    if config.tune.get("compilation") == "reduce-overhead" and workload.accumulate > 1:
        yield (
            f"tune: received compilation=reduce-overhead with accumulate {workload.accumulate}: a CUDA graph writes "
            "the gradients of each micro-batch over those of the one before; expected torch.compile, or accumulate 1"
        )
    if workload.batchnorm == "sync" and config.cluster.device_type not in row.sync_batchnorm_on:
        yield (
            f"batchnorm: received sync, which mode {config.mode} of {config.framework} cannot do on "
            f"{config.cluster.device_type} devices; use local, or another mode"
        )
    if config.profile_steps and not 1 <= config.profile_steps[0] <= config.profile_steps[1]:
        yield f"profile_steps: received {config.profile_steps}, expected a first step from 1 and a later last one"


def _target(config: RunConfig) -> Iterator[str]:
    if config.stop_at_target and config.target_accuracy is None:
        yield "stop_at_target: received without a target to stop at; give target_accuracy too, such as 0.9"


def _launcher(config: RunConfig) -> Iterator[str]:
    if config.launcher is not None and not config.mode_row.spawnable:
        spawnable = ", ".join(f"{framework} {mode}" for (framework, mode), row in MODES.items() if row.spawnable)
        yield (
            f"launcher: received {config.launcher} with mode {config.mode} of {config.framework}; "
            f"expected one of the modes {spawnable}"
        )
    if config.launcher == "spawn" and not config.cluster.simulated:
        yield (
            f"launcher: received spawn with engine {config.placement.engine}, whose nodes are separate machines: a "
            "program cannot start processes on others; expected torchrun"
        )


def _placement(config: RunConfig) -> Iterator[str]:
    placement, cluster = config.placement, config.cluster
    if placement.hosts and len(placement.hosts) != cluster.num_nodes:
        yield f"hosts: received {len(placement.hosts)} for {counted(cluster.num_nodes, 'node')}; expected one per node"
    if placement.ssh and is_custom(config.workload.model):
        yield (
            "ssh: received with a custom model, which is found from the current directory; run the printed commands "
            "in that directory of each host instead"
        )
    if config.isolate and placement.engine != "local":
        yield f"isolate: received with engine {placement.engine}; expected engine local"
    if ENGINES[placement.engine].simulated != cluster.simulated:
        yield "cluster: received simulated nodes for other machines, or the reverse; see Cluster.of_machines"


def _gradient_sync(config: RunConfig) -> Iterator[str]:
    if not config.sync_gradients and not config.mode_row.gradient_sync_separable:
        yield f"mode {config.mode} of {config.framework} cannot train without gradient sync"
    workload = config.workload
    if not config.sync_gradients and (workload.weight_average is not None or workload.batchnorm_recompute):
        yield (
            "weight_average, batchnorm_recompute: received without gradient sync, where each replica has a model of "
            "its own and an evaluation would give all of them the first one's; expected neither"
        )


def _reused_batch(config: RunConfig) -> Iterator[str]:
    if not config.reuse_batch:
        return
    if config.mode_row.roles:
        yield (
            f"reuse_batch: received with mode {config.mode}, which sends a batch to whichever worker is free; expected "
            "a mode whose devices have batches of their own"
        )
    purposes = ("checkpoint_every", "resume", "target_accuracy", "keep_predictions")
    if given := [name for name in purposes if getattr(config, name)]:
        yield (
            f"{', '.join(given)}: received with reuse_batch, whose model has seen one batch only and is of no use; "
            "expected none of them"
        )


def _batch(config: RunConfig) -> Iterator[str]:
    workload = config.workload
    batch, parts = workload.global_batch_size, config.topology.num_replicas * workload.accumulate
    if batch % parts:
        each = f" in {workload.accumulate} micro-batches each" if workload.accumulate > 1 else ""
        yield (
            f"global_batch_size: received {batch}, which does not divide evenly among {config.topology.num_replicas} "
            f"replicas{each}; expected a multiple of {parts}"
        )
    elif workload.batchnorm == "local" and workload.batchnorm_values(batch // parts) == 1:
        yield (
            f"global_batch_size: received {batch}, which leaves each replica one image per micro-batch; at "
            f"{workload.image_size} px the last BatchNorm of {workload.model} needs at least 2"
        )
