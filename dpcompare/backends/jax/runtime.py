"""The JAX runtime of a training process: its devices, precision and flags, and the versions that a result records."""

from __future__ import annotations

import os
from importlib import metadata

import jax
from jax._src import xla_bridge
from jax.sharding import Mesh

from dpcompare.backends.cuda_wheels import driver_version
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.system.cache import cache_dir
from dpcompare.system.terminal_text import pluralize

PEAK_OF_ALL_STEPS = "from the start, with XLA's trials unless its cache was warm"
"""What the peak of device memory is of here; in the other frameworks it is of the measured steps."""

CUDA_DISTRIBUTIONS = {
    "cuda": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}
"""Library -> the distributions that may bring it."""


def configure(config: RunConfig) -> None:
    """Set devices and precision of this process, before JAX looks for devices.

    Raises:
        RequestError: it has done so already.
    """
    if xla_bridge.backends_are_initialized():
        raise RequestError(
            "JAX has been used in this process already, by another training or where a module was imported that makes "
            "arrays; that fixes its devices and its precision; expected another process for each training"
        )
    on_gpu = config.cluster.device_type == "gpu"
    jax.config.update("jax_platforms", "cuda" if on_gpu else "cpu")  # without a GPU it then refuses
    if on_gpu:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    else:
        # Nothing else tells XLA how many threads to start.
        os.environ["NPROC"] = str(config.topology.threads_per_process)
        jax.config.update("jax_num_cpu_devices", config.topology.replicas_per_process)
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "compiled" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # their paths would be part of the keys
    jax.config.update("jax_enable_x64", config.workload.precision == "float64")
    # JAX's own default is TF32, on the GPUs that have it.
    jax.config.update("jax_default_matmul_precision", "default" if config.allows_tf32 else "highest")


def check_devices(config: RunConfig) -> None:
    """Raise RuntimeError unless JAX sees as many devices as the plan gives this process."""
    planned = config.topology.replicas_per_process
    if (found := jax.local_device_count()) != planned:
        raise RuntimeError(
            f"JAX sees {pluralize(found, 'device')}, the plan gives this process {planned}; its own message is above"
        )


def compiler_options(config: RunConfig) -> dict[str, bool] | None:
    """XLA's flags that are asked for; one that is passed here, even as False, overrules the user's XLA_FLAGS."""
    if config.cluster.device_type != "gpu":
        return None
    options = {
        # What is compared must not depend on which algorithm was fastest, or on the order in which threads add up.
        "xla_gpu_deterministic_ops": config.task == "probe",
        "xla_gpu_enable_latency_hiding_scheduler": config.tuning.get("scheduler") == "latency-hiding",
    }
    return {name: True for name, asked in options.items() if asked} or None


def libraries(config: RunConfig) -> dict[str, str]:
    """The versions of what JAX computes with on GPUs."""
    if config.cluster.device_type != "gpu":
        return {}
    found = {name: _version(*distributions) for name, distributions in CUDA_DISTRIBUTIONS.items()}
    found["driver"] = driver_version()
    return {name: version for name, version in found.items() if version}


def _version(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def device_names(config: RunConfig, mesh: Mesh, process_rank: int) -> list[str]:
    """This process's devices, as their maker or the plan calls them."""
    if config.cluster.device_type == "cpu":
        return list(config.cluster.nodes[process_rank].devices)
    return [device.device_kind for device in mesh.local_devices]


def peak_device_memory_bytes(config: RunConfig, mesh: Mesh) -> int | None:
    """The peak of all GPUs of this process together; None if one of them reports none."""
    if config.cluster.device_type != "gpu":
        return None
    # None, or without this key, where an allocator keeps no statistics (XLA_PYTHON_CLIENT_ALLOCATOR=platform).
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in mesh.local_devices]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if len(known) == len(peaks) else None


def takes_tf32() -> bool:
    """Read back, since a variable of CUDA's overrules JAX's own setting."""
    overruled = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    allowed = jax.config.jax_default_matmul_precision != "highest"  # type: ignore[attr-defined]  # made when JAX loads
    return allowed and not overruled
