"""What a fair comparison must know of how a process trained, variables that change speed included."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.models.architectures import model_of
from dpcompare.models.state import Gradients
from dpcompare.system.python_environment import is_custom
from dpcompare.system.secrets import is_secret
from dpcompare.system.user_modules import module_digests, source_sha256

NOT_KNOWN = "not known"
PRODUCTS = "products"
"""Attention by two products and a softmax."""

PREFIXES = (
    "CUBLAS_", "CUDNN_", "DNNL_", "GOMP_", "JAX_", "KMP_", "MKL_", "NCCL_", "OMP_", "ONEDNN_", "TF_",
    "TORCHINDUCTOR_", "TORCH_", "XLA_",
)  # fmt: skip
NAMES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Set by the plan of a run; recorded where a process has another number after all."""
SET_BY_US = (
    "CUBLAS_WORKSPACE_CONFIG",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "KERAS_BACKEND",
    "KERAS_NNX_ENABLED",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "NCCL_HOSTID",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_SOCKET_IFNAME",
    "TF_CONFIG",
    "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE",
    "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_WARM_POOL",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
"""Variables that are set by the plan of a run, by torchrun, by a backend, or by a library that is imported: known
already, and different between modes."""
WITHOUT_EFFECT = (
    "NCCL_DEBUG_FILE",
    "OMP_DISPLAY_ENV",
    "TF_CPP_MIN_LOG_LEVEL",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
    "TORCH_SHOW_CPP_STACKTRACES",
)
"""On speed or numbers: where files are, and what is written to a log when something goes wrong."""
OF_TERRAFORM = (
    "TF_CLI_", "TF_DATA_DIR", "TF_ENCRYPTION", "TF_HTTP_", "TF_IGNORE", "TF_INPUT", "TF_IN_AUTOMATION", "TF_LOG",
    "TF_PLUGIN_CACHE_", "TF_REGISTRY_", "TF_STATE_", "TF_TOKEN_", "TF_VAR_", "TF_WORKSPACE",
)  # fmt: skip
"""Beginnings of names that Terraform reads, which has TensorFlow's prefix."""


def speed_variables(environ: Mapping[str, str] = os.environ, *, threads: int) -> dict[str, str]:
    """The variables that a user has set, by name, but for those that look like secrets.

    Args:
        environ: name -> value.
        threads: those that the plan gave the process.
    """
    ours = {name for name in THREADS if environ.get(name) == str(threads)}
    return {
        name: environ[name] for name in _set_by_user(environ) if name not in ours and not is_secret(name, environ[name])
    }


def withheld_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The names of those that a user has set and that look like secrets: what they say is not recorded."""
    return [name for name in _set_by_user(environ) if is_secret(name, environ[name])]


def _set_by_user(environ: Mapping[str, str]) -> list[str]:
    return [
        name
        for name in sorted(environ)
        if (name in NAMES or name.startswith(PREFIXES))
        and not name.startswith(OF_TERRAFORM)
        and name not in SET_BY_US
        and name not in WITHOUT_EFFECT
    ]


def acting_on(framework: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a framework reads; one that affects TensorFlow alone says nothing about a run of torch."""
    known = tuple(start for row in FRAMEWORKS.values() for start in row.variables)
    own = FRAMEWORKS[framework].variables
    return {name: value for name, value in variables.items() if name.startswith(own) or not name.startswith(known)}


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
    """The gradients of a replica; None if they are not known."""
    threads: int | None = None
    """Threads that compute, as the framework says when training is done; None where it does not."""
    threads_asked: int | None = None
    """Those that the backend asked it for."""
    switches: Sequence[str] = ()
    """What changes speed and the framework has otherwise than by default, in words: anomaly detection, a profiler."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of what a framework computes with and was built with: gcc, onednn, cuda, cudnn, nccl, driver."""

    def with_settings(self, **settings: Any) -> Description:
        """The same with these settings added, or in the place of those of the same names."""
        return replace(self, settings=self.settings | settings)


def switched(is_so: Mapping[str, bool]) -> tuple[str, ...]:
    """The descriptions of what is so."""
    return tuple(words for words, applies in is_so.items() if applies)


def description_of(config: RunConfig) -> Description:
    """What the config of a run alone says; the devices are left to the framework."""
    return Description(
        settings=_settings(config), devices=[], peak_device_memory_bytes=None, collective=_collective(config)
    )


def _collective(config: RunConfig) -> str:
    return config.collective if config.topology.communicates else "none"


def _settings(config: RunConfig) -> dict[str, Any]:
    workload = config.workload
    custom = is_custom(workload.model)
    return {
        "compilation": "none",
        "attention": _attention(workload),
        **config.tuning,
        "optimizer": {"name": workload.optimizer, **OPTIMIZERS[workload.optimizer].constants},
        "batchnorm_epsilon": "of the model" if custom else model_of(workload.model).batchnorm_epsilon,
        "model_source": source_sha256(workload.model) if custom else "of dpcompare",
        "model_modules": module_digests(workload.model) if custom else {},
        **_of_own_backend(config.backend),
        "dropout": _drop_rate(config, "dropout"),
        "stochastic_depth": _drop_rate(config, "stochastic depth"),
        "tf32": config.allows_tf32,
        "convolution_algorithms": "measured" if config.cluster.device_type == "gpu" else "fixed",
        "input_threads": config.input_threads,
        "steps_per_window": config.window,
        "allocator": _allocator(),
        "environment": speed_variables(threads=config.topology.threads_per_process),
    }


def _attention(workload: Workload) -> str:
    """What computes attention unless a backend finds a fused kernel."""
    if is_custom(workload.model):
        return "of the model"
    return PRODUCTS if model_of(workload.model).attention(workload.image_size) else "none"


def _of_own_backend(name: str | None) -> dict[str, Any]:
    """The source of a user's backend; nothing where the run has that of its mode."""
    return {"backend_source": source_sha256(name), "backend_modules": module_digests(name)} if name else {}


def _drop_rate(config: RunConfig, kind: str) -> float:
    """The highest rate of a kind of regularization that this run trains with."""
    return max((drop.rate for drop in config.drops if drop.kind == kind), default=0.0)


def _allocator() -> str:
    """What hands out this process's memory: glibc as dpcompare sets it, or another that was preloaded."""
    mapped = Path("/proc/self/maps").read_text()
    for other in ("jemalloc", "tcmalloc", "mimalloc"):
        if f"lib{other}" in mapped:
            return other
    return "glibc, keeps memory" if os.environ.get("MALLOC_MMAP_MAX_") == "0" else "glibc"
