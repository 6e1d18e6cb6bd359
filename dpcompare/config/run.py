"""The config of a run, and the rules that it must obey."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import BaseModel, model_validator

from dpcompare.config.modes import MODES, Mode
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.run_fields import Inputs, RunFields
from dpcompare.config.setting import Changes, in_several_lines, raise_problems, setting
from dpcompare.config.tuning import problems_of
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.models.architectures import MODELS, may_have_batchnorm, model_of
from dpcompare.models.libraries import library_of
from dpcompare.models.spec import Drop, columns
from dpcompare.system.json_files import read_document, write_document
from dpcompare.system.python_environment import is_custom
from dpcompare.system.terminal_text import joined, pluralize


def problems_of_run(config: RunFields) -> list[str]:
    """All problems that can be reported at once: none is the consequence of another."""
    for check in (_mode, _device_type):
        if problems := list(check(config)):
            return problems
    shape = [*_roles(config), *_stages(config)]
    checks = (_devices, _shared_gpu, _settings, _target, _launcher, _placement, _gradient_sync, _reused_batch)
    others = [problem for check in checks for problem in check(config)]
    # How many rows a replica has is clear only where it is clear what a replica is.
    return others + (shape or list(_batch(config)))


def _mode(config: RunFields) -> Iterator[str]:
    modes = [mode for framework, mode in MODES if framework == config.framework]
    if config.mode in modes:
        return
    owners = sorted({framework for framework, mode in MODES if mode == config.mode})
    where = f" ({config.mode!r} is a mode of {' and '.join(owners)})" if owners else did_you_mean(config.mode, modes)
    yield f"unknown mode {config.mode!r} of {config.framework}; expected one of {', '.join(modes)}.{where}"


def _device_type(config: RunFields) -> Iterator[str]:
    received, possible = config.cluster.device_type, config.mode_row.device_types
    if received not in possible:
        expected = " or ".join(sorted(possible))
        yield f"device: received {received} with mode {config.mode} of {config.framework}; expected {expected}"


def _roles(config: RunFields) -> Iterator[str]:
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


def _stages(config: RunFields) -> Iterator[str]:
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
            f"pipeline_schedule: received 1f1b with {pluralize(micro_batches, 'micro-batch')} and {stages} stages; "
            "expected at least as many micro-batches, or gpipe"
        )
    if per_node % stages:
        yield (
            f"stages: received {stages} on nodes of {pluralize(per_node, 'device')}; a replica has its devices "
            f"on one node: expected a number that divides {per_node}, or other --devices-per-node"
        )
    if is_custom(model):
        yield f"stages: received {stages} with a custom model; expected one of {', '.join(MODELS)}"
    elif stages > (layers := len(model_of(model).layers)):
        yield f"stages: received {stages}, but {model} has {layers} layers to be split between"


def _devices(config: RunFields) -> Iterator[str]:
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


def _shared_gpu(config: RunFields) -> Iterator[str]:
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


def _settings(config: RunFields) -> Iterator[str]:
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
    if workload.batchnorm == "local" and lacks_local_batchnorm(row, config.topology.num_replicas, workload.model):
        yield (
            f"batchnorm: received local with mode {config.mode} of {config.framework}, whose step is that of the whole "
            "batch, so that BatchNorm has the statistics of all replicas; expected sync, which changes nothing for "
            "a custom model without BatchNorm, or a built-in model without it"
        )
    if config.profile_steps and not 1 <= config.profile_steps[0] <= config.profile_steps[1]:
        yield f"profile_steps: received {config.profile_steps}, expected a first step from 1 and a later last one"


def lacks_local_batchnorm(row: Mode, num_replicas: int, model: str) -> bool:
    """Whether a model's BatchNorm cannot be local in a mode, since its step is that of the whole batch."""
    return row.sees_whole_batch and num_replicas > 1 and may_have_batchnorm(model)


def _target(config: RunFields) -> Iterator[str]:
    if config.stop_at_target and config.target_accuracy is None:
        yield "stop_at_target: received without a target to stop at; give target_accuracy too, such as 0.9"


def _launcher(config: RunFields) -> Iterator[str]:
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


def _placement(config: RunFields) -> Iterator[str]:
    placement, cluster = config.placement, config.cluster
    yield from placement.options.problems(cluster, config.workload)
    model = config.workload.model
    own = {"model": is_custom(model) and not library_of(model), "backend": config.backend is not None}
    if (option := placement.options.leaves_directory) and any(own.values()):
        yield (
            f"{option}: received with a custom {joined([name for name in own if own[name]])}, found from the current "
            "directory; run the printed commands in that directory of each host instead"
        )
    if config.isolate and placement.engine != "local":
        yield f"isolate: received with engine {placement.engine}; expected engine local"
    if placement.row.simulated != cluster.simulated:
        yield "cluster: received simulated nodes for other machines, or the reverse; see Cluster.of_machines"


def _gradient_sync(config: RunFields) -> Iterator[str]:
    if not config.sync_gradients and not config.mode_row.gradient_sync_separable:
        able = [
            mode
            for (framework, mode), row in MODES.items()
            if framework == config.framework and row.multi_device and row.gradient_sync_separable
        ]
        yield (
            f"sync_gradients: received False with mode {config.mode} of {config.framework}, whose steps cannot leave "
            f"gradient sync out; expected True, or one of the modes {', '.join(able)}"
        )
    workload = config.workload
    if not config.sync_gradients and (workload.weight_average is not None or workload.batchnorm_recompute):
        yield (
            "weight_average, batchnorm_recompute: received without gradient sync, where each replica has a model of "
            "its own and an evaluation would give all of them the first one's; expected neither"
        )


def _reused_batch(config: RunFields) -> Iterator[str]:
    if not config.reuse_batch:
        return
    if not config.mode_row.steps_together:
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


def _batch(config: RunFields) -> Iterator[str]:
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


class RunConfig(RunFields):
    """One run: a workload, trained by one mode of one framework, on a cluster."""

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        for name, value in self:
            raise_problems(list(in_several_lines(value.model_dump() if isinstance(value, BaseModel) else value, name)))
        raise_problems(problems_of_run(self))
        return self

    def __eq__(self, other: object) -> bool:
        """Whether it is the same run, whether or not one of them is a `PreparedRun`."""
        return isinstance(other, RunConfig) and dict(self) == dict(other)

    def prepared(self, inputs: Inputs | None = None) -> PreparedRun:
        """The same run with these inputs, or with those that it has.

        Raises:
            RequestError: it has none.
        """
        if inputs is None and isinstance(self, PreparedRun):
            return self
        if inputs is None and self.inputs is None:
            raise RequestError(
                "this config has no inputs yet; expected one of dpcompare.launch.inputs.prepare_inputs, which prepares "
                "the dataset and the initial weights, as dpcompare.run and dpcompare.backend do"
            )
        return PreparedRun(**dict(self) | {"inputs": inputs or self.inputs})

    @property
    def drops(self) -> tuple[Drop, ...]:
        """Where regularization drops features, in the order of the layers; none where it is off."""
        if self.workload.regularization == "off":
            return ()
        if not is_custom(self.workload.model):
            return model_of(self.workload.model).drops
        return () if self.inputs is None else self.inputs.drops

    @property
    def drop_columns(self) -> dict[str, slice]:
        """Layer of a custom model that drops features, in the order of its layers -> its columns of the drop masks."""
        if self.inputs is None or not is_custom(self.workload.model):
            return {}
        named = columns(self.drops)
        layers = self.inputs.drop_layers.get(self.framework) or {name: name for name in named}
        return {layer: named[drop] for layer, drop in layers.items() if named}

    def without_inputs(self) -> RunConfig:
        """The same run, whose inputs are still to be prepared."""
        return RunConfig(**dict(self) | {"inputs": None})

    def save(self, path: Path) -> None:
        write_document(self, path)

    @classmethod
    def load(cls, path: Path) -> Self:
        return read_document(cls, path, kind="the config of a run", expected="the directory of a run")


class PreparedRun(RunConfig):
    """A run whose inputs are prepared; its files are those of any other."""

    inputs: Inputs = setting(changes=Changes.NOTHING)
