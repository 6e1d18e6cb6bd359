"""Environment variables that change how fast or how exactly a framework computes, and that no option of ours sets."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.system.secrets import is_secret

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
"""By the plan of a run, by torchrun, by a backend, or by a library that is imported: known already, and different
between modes."""
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
    """Those that a framework reads: one that slows down TensorFlow alone is not the same for torch beside it."""
    of_some = tuple(start for row in FRAMEWORKS.values() for start in row.variables)
    own = FRAMEWORKS[framework].variables
    return {name: value for name, value in variables.items() if name.startswith(own) or not name.startswith(of_some)}
