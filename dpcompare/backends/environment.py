"""Environment variables that change how fast or how exactly a framework computes, and that no option of ours sets."""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIXES = (
    "CUBLAS_", "CUDNN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "NCCL_", "OMP_", "ONEDNN_", "TF_GPU_", "TF_XLA_",
    "TORCHINDUCTOR_",
)  # fmt: skip
NAMES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TF_CUDNN_USE_AUTOTUNE",
    "TF_ENABLE_ONEDNN_OPTS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "XLA_FLAGS",
)
SET_BY_US = (
    "CUBLAS_WORKSPACE_CONFIG",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "MKL_NUM_THREADS",
    "NCCL_HOSTID",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS",
)
"""By the plan of a run, or by a library when it is imported: known already, and different between the frameworks."""


def speed_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that a user has set, by name."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if (name in NAMES or name.startswith(PREFIXES)) and name not in SET_BY_US
    }
