"""The description of a backend: what a fair comparison must know of how a process trained."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpcompare.backends.environment import speed_variables
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.models.architectures import model_of
from dpcompare.models.custom import source_sha256
from dpcompare.models.gradients import Gradients
from dpcompare.system.python_environment import is_custom


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a training process reports of itself when its training is done."""

    settings: dict[str, Any]
    """What the backend chose or was given, by name; the fairness sheet compares it."""
    devices: list[str]
    """Names of this process's devices, as the framework reports them."""
    peak_device_memory_bytes: int | None
    """Most device memory this process held at once since `Backend.reset_peak_memory`.

    None where the device is the host itself.
    """
    collective: str
    """What carried the gradients between the replicas: nccl, gloo, ring, ..., or none for one replica."""
    gradients: Gradients | None = None
    """Of a replica; None where they are not known."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of what a framework computes with on its devices: cuda, cudnn, nccl, driver."""

    def with_settings(self, **settings: Any) -> Description:
        """The same with these settings added, or in the place of those of the same names."""
        return replace(self, settings=self.settings | settings)


def description_of(config: RunConfig) -> Description:
    """What the config of a run alone says; the devices are left to the framework."""
    return Description(
        settings=_settings(config), devices=[], peak_device_memory_bytes=None, collective=_collective(config)
    )


def _collective(config: RunConfig) -> str:
    row = config.mode_row
    if config.topology.num_replicas == 1 and not row.roles and not row.is_pipeline:
        return "none"
    return config.collective


def _settings(config: RunConfig) -> dict[str, Any]:
    workload = config.workload
    custom = is_custom(workload.model)
    return {
        "compilation": "none",
        **config.tuning,
        "optimizer": {"name": workload.optimizer, **OPTIMIZERS[workload.optimizer].constants},
        "batchnorm_epsilon": "of the model" if custom else model_of(workload.model).batchnorm_epsilon,
        "model_source": source_sha256(workload.model) if custom else "of dpcompare",
        "dropout": _drop_rate(workload, "dropout"),
        "stochastic_depth": _drop_rate(workload, "stochastic depth"),
        "tf32": config.allows_tf32,
        "convolution_algorithms": "measured" if config.cluster.device_type == "gpu" else "fixed",
        "input_threads": config.input_threads,
        "steps_per_window": config.window,
        "allocator": _allocator(),
        "environment": speed_variables(threads=config.topology.threads_per_process),
    }


def _drop_rate(workload: Workload, kind: str) -> float:
    """The highest rate of a kind of regularization that this run trains with."""
    drops = model_of(workload.model).drops if workload.regularization == "shared" else ()
    return max((drop.rate for drop in drops if drop.kind == kind), default=0.0)


def _allocator() -> str:
    """What hands out this process's memory: glibc as dpcompare sets it, or another that was preloaded."""
    mapped = Path("/proc/self/maps").read_text()
    for other in ("jemalloc", "tcmalloc", "mimalloc"):
        if f"lib{other}" in mapped:
            return other
    return "glibc, keeps memory" if os.environ.get("MALLOC_MMAP_MAX_") == "0" else "glibc"
