"""Why a run that is asked for cannot be made: each check yields a problem with what was received, expected, and to be done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpcompare.backends import MODES
from dpcompare.engines import ENGINES
from dpcompare.errors import did_you_mean
from dpcompare.models import MODELS, model_of
from dpcompare.own import is_own
from dpcompare.tuning import problems_of

if TYPE_CHECKING:
    from dpcompare.config import RunConfig


def problems_of_run(config: RunConfig) -> list[str]:
    """All problems that can be told at once: none is the consequence of another."""
    for check in (_mode, _device_type):
        if problems := list(check(config)):
            return problems
    shape = [*_roles(config), *_stages(config)]
    others = [problem for check in (_devices, _settings, _launcher, _placement, _exchange) for problem in check(config)]
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
            f"nodes: received {cluster.num_nodes} with mode {config.mode}; expected at least {len(roles) + 1}: one each for "
            f"{' and '.join(roles)}, and one per worker"
        )
    if cluster.devices_per_node > 1:
        yield f"devices_per_node: received {cluster.devices_per_node} with mode {config.mode}; expected 1"


def _stages(config: RunConfig) -> Iterator[str]:
    row, stages, model = config.mode_row, config.stages, config.workload.model
    over_processes = row.split == "over processes"
    if config.pipeline_schedule and not over_processes:
        yield (
            f"pipeline_schedule: received {config.pipeline_schedule} with {config.framework} {config.mode}; expected torch pipeline"
        )
        return
    if stages == 1:
        if over_processes:
            yield f"stages: received 1 with mode {config.mode}; expected at least 2"
        return
    if row.split is None:
        splitting = ", ".join(f"{framework} {mode}" for (framework, mode), other in MODES.items() if other.split)
        yield f"stages: received {stages} with {config.framework} {config.mode}; expected 1, or one of the modes {splitting}"
        return
    micro_batches, per_node = config.workload.accumulate, config.cluster.devices_per_node
    if config.pipeline_schedule == "1f1b" and micro_batches < stages:
        yield (
            f"pipeline_schedule: received 1f1b with {micro_batches} micro-batches and {stages} stages; expected "
            "as many micro-batches at least, or gpipe"
        )
    if per_node % stages:
        yield (
            f"stages: received {stages} on nodes of {per_node} devices; a replica has its devices "
            f"on one node: expected a number that divides {per_node}, or other --devices-per-node"
        )
    if is_own(model):
        yield f"stages: received {stages} with a model of your own; expected one of {', '.join(MODELS)}"
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


def _settings(config: RunConfig) -> Iterator[str]:
    row, workload = config.mode_row, config.workload
    yield from problems_of(config.framework, config.mode, workload.profile, config.tune)
    for name, values in row.only.items():
        if (received := getattr(workload, name)) not in values:
            expected = " or ".join(map(str, values))
            yield f"{name}: received {received} with mode {config.mode}, which can have {expected} only"
    if config.mode == "fsdp" and workload.optimizer == "sgd" and config.tune.get("optimizer_kernels") == "fused":
        yield "tune: received optimizer_kernels=fused with mode fsdp and sgd, for whose shared tensors torch has none; expected foreach"
    if workload.batchnorm == "sync" and config.cluster.device_type not in row.sync_batchnorm_on:
        yield (
            f"batchnorm: received sync, which mode {config.mode} of {config.framework} cannot do on "
            f"{config.cluster.device_type} devices; use local, or another mode"
        )
    if config.profile_steps and not 1 <= config.profile_steps[0] <= config.profile_steps[1]:
        yield f"profile_steps: received {config.profile_steps}, expected a first step from 1 and a later last one"


def _launcher(config: RunConfig) -> Iterator[str]:
    if config.launcher is not None and not config.mode_row.spawnable:
        spawnable = ", ".join(f"{framework} {mode}" for (framework, mode), row in MODES.items() if row.spawnable)
        yield (
            f"launcher: received {config.launcher} with mode {config.mode} of {config.framework}; expected one of the modes {spawnable}"
        )
    if config.launcher == "spawn" and not config.cluster.simulated:
        yield (
            f"launcher: received spawn with engine {config.placement.engine}, whose nodes are machines of their own: a program "
            "cannot start processes on others; expected torchrun"
        )


def _placement(config: RunConfig) -> Iterator[str]:
    placement, cluster = config.placement, config.cluster
    if placement.hosts and len(placement.hosts) != cluster.num_nodes:
        yield f"hosts: received {len(placement.hosts)} for {cluster.num_nodes} nodes; expected one per node"
    if placement.ssh and is_own(config.workload.model):
        yield (
            "ssh: received with a model of your own, which is found from the current directory; run the printed commands in that "
            "directory of each host instead"
        )
    if config.isolate and placement.engine != "local":
        yield f"isolate: received with engine {placement.engine}; expected engine local"
    if ENGINES[placement.engine].simulated != cluster.simulated:
        yield "cluster: received simulated nodes for other machines, or the reverse; see Cluster.of_machines"


def _exchange(config: RunConfig) -> Iterator[str]:
    if not config.exchange_gradients and not config.mode_row.exchange_separable:
        yield f"mode {config.mode} of {config.framework} cannot train without its exchange of gradients"


def _batch(config: RunConfig) -> Iterator[str]:
    workload = config.workload
    batch, parts = workload.global_batch_size, config.num_replicas * workload.accumulate
    if batch % parts:
        each = f" in {workload.accumulate} micro-batches each" if workload.accumulate > 1 else ""
        yield (
            f"global_batch_size: received {batch}, which does not divide evenly among {config.num_replicas} "
            f"replicas{each}; expected a multiple of {parts}"
        )
    elif workload.batchnorm == "local" and workload.batchnorm_values(batch // parts) == 1:
        yield (
            f"global_batch_size: received {batch}, which leaves each replica one image per micro-batch; at "
            f"{workload.image_size} px the last BatchNorm of {workload.model} needs at least 2"
        )
