"""The table of frameworks: what an environment of each needs, and what is known of it from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Approximate sizes of an environment, in GB."""

    download: float
    on_disk: float

    @property
    def in_words(self) -> str:
        return f"about {self.download:g} GB to download, {self.on_disk:g} GB on disk"


@dataclass(frozen=True, kw_only=True)
class CpuIndex:
    """A package index with builds for CPUs of what the usual index has with CUDA's libraries."""

    url: str
    variable: str
    """Gives the address of a mirror of it; empty: the usual builds are taken."""
    distributions: tuple[str, ...]
    """What is taken from it, of the framework's extra."""
    sizes: Sizes
    """Of an environment with these builds."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One row of FRAMEWORKS."""

    packages: tuple[str, ...]
    """Import names that must be installed; the extra of dpcompare has the framework's name."""
    extras: Mapping[Literal["cpu", "gpu"], tuple[str, ...]]
    """Device type -> the extras of dpcompare that `setup` installs for all of its modes."""
    sizes: Mapping[Literal["cpu", "gpu"], Sizes]
    """Device type -> of such an environment, from the usual index."""
    cpu_index: CpuIndex | None = None
    """None: the usual index has a build for CPUs."""
    extras_of_cuda: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Major version of CUDA -> the extras that `setup` installs in place of those for GPUs where the driver runs it."""
    wheels_of_cuda: Mapping[int, str] = field(default_factory=dict)
    """Major version of CUDA -> what `pip install` takes for wheels of it, where the usual ones are for a newer CUDA."""
    least_versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Package -> the first version that has what is used of it, where older ones lack a name that is not looked up
    before processes start."""
    cuda_distributions: tuple[str, ...] = ()
    """Distributions one of which an environment needs for GPUs; none where the framework's wheel brings its own."""
    devices_variable: str = ""
    """Variable in which a user sets how many devices the framework has on the CPU; None if there is none."""
    takes_system_cudnn: bool = False
    """Whether cuDNN as the system brings it does in their place."""
    cpu_start_seconds: float
    """From the start of a process to its first step of a small model on CPUs, about."""
    variables: tuple[str, ...]
    """Beginnings of the names of variables that it reads and not every other framework does."""
    rendezvous_variables: tuple[str, ...] = ()
    """Variables by which processes find each other: those of an outer launcher would have ours join its cluster."""
    count_gpus: str
    """A program that prints how many GPUs it finds; it runs in the framework's interpreter, and imports it."""
    print_gpu_code: str | None = None
    """A program that prints, as a list in JSON, the GPUs it was built for; None: it compiles for those it finds."""
    tested_versions: Mapping[str, tuple[str, ...]]
    """Package -> MAJOR.MINOR of what the figures of the documentation were made with."""
    is_optional: bool = False
    """Whether `setup` installs it only if it is named, and its modes are taken by default only where it is usable."""
    usual_modes: tuple[str, str]
    """The mode of several replicas on one node that `verify --like` compares with, and that on several nodes."""
    has_train_job: bool = False
    """Whether every release of Kubeflow Trainer v2 has a runtime for it."""
    gpu_start_seconds: float
    """How long the first step may take on GPUs where nothing was asked for: what hangs there, as collectives between
    GPUs that cannot reach each other do, is to be named soon."""


TORCH_EXTRAS = ("torch", "fabric", "accelerate", "keras")
TORCH_SIZES = Sizes(download=3, on_disk=7)  # the wheel for GPUs runs on CPUs too

FRAMEWORKS: dict[str, Framework] = {
    "torch": Framework(
        packages=("torch", "timm"),
        extras={"cpu": TORCH_EXTRAS, "gpu": TORCH_EXTRAS},
        sizes={"cpu": TORCH_SIZES, "gpu": TORCH_SIZES},
        cpu_index=CpuIndex(
            url="https://download.pytorch.org/whl/cpu",
            variable="DPCOMPARE_TORCH_CPU_INDEX",
            distributions=("torch", "torchvision"),
            sizes=Sizes(download=0.5, on_disk=2),
        ),
        wheels_of_cuda={12: "--upgrade torch torchvision --index-url https://download.pytorch.org/whl/cu126"},
        variables=("PYTORCH_", "TORCH"),
        rendezvous_variables=(
            *("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"),
        ),
        count_gpus="import torch; print(torch.cuda.device_count())",
        # Some releases let `get_arch_list` name none where CUDA cannot be initialised.
        print_gpu_code="""
import json, torch
flags = getattr(torch._C, "_cuda_getArchFlags", str)() or ""
print(json.dumps(torch.cuda.get_arch_list() or flags.split()))
""",
        tested_versions={"torch": ("2.14", "2.15"), "timm": ("1.0",)},
        usual_modes=("ddp", "ddp"),
        has_train_job=True,
        cpu_start_seconds=8,
        gpu_start_seconds=300,
    ),
    "tensorflow": Framework(
        packages=("tensorflow", "keras"),
        extras={"cpu": ("tensorflow-cpu",), "gpu": ("tensorflow-cuda",)},
        sizes={"cpu": Sizes(download=0.5, on_disk=2), "gpu": Sizes(download=3, on_disk=7)},
        cuda_distributions=("nvidia-cudnn-cu12",),
        takes_system_cudnn=True,
        variables=("TF_", "XLA_FLAGS"),
        rendezvous_variables=("TF_CONFIG",),
        count_gpus="import tensorflow; print(len(tensorflow.config.list_physical_devices('GPU')))",
        print_gpu_code="""
import json, tensorflow
print(json.dumps(list(tensorflow.sysconfig.get_build_info().get("cuda_compute_capabilities", []))))
""",
        tested_versions={"tensorflow": ("2.21",), "keras": ("3.15",)},
        usual_modes=("mirrored", "multiworker"),
        cpu_start_seconds=20,
        gpu_start_seconds=1800,  # on a GPU newer than itself it compiles every kernel in the first step
    ),
    "jax": Framework(
        packages=("jax", "jaxlib"),
        extras={"cpu": ("jax", "keras"), "gpu": ("jax-cuda", "keras")},
        sizes={"cpu": Sizes(download=0.2, on_disk=1), "gpu": Sizes(download=3, on_disk=7)},
        extras_of_cuda={13: ("jax-cuda13", "keras")},  # the distributions that torch's wheels bring too
        wheels_of_cuda={12: "'jax[cuda12]'"},
        least_versions={"jax": (0, 8)},  # jax.shard_map, and a heartbeat of jax.distributed that can be set
        cuda_distributions=("jax-cuda12-plugin", "jax-cuda13-plugin"),
        devices_variable="JAX_NUM_CPU_DEVICES",
        variables=("JAX_", "XLA_"),
        rendezvous_variables=(
            *("JAX_COORDINATOR_ADDRESS", "JAX_CUDA_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS", "JAX_NUM_PROCESSES"),
            *("JAX_PARTITION_INDEX", "JAX_PROCESS_ID", "JAX_SLICE_INDEX"),
        ),
        # Only to count them it would reserve three quarters of their memory, and fail where others hold it.
        count_gpus="""
import os
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax
print(sum(device.platform == "gpu" for device in jax.devices()))
""",
        tested_versions={"jax": ("0.10",), "jaxlib": ("0.10",)},
        is_optional=True,
        usual_modes=("spmd", "multiprocess"),
        cpu_start_seconds=30,
        gpu_start_seconds=900,  # XLA compiles each step as a whole
    ),
}


def python_variable(framework: str) -> str:
    """The variable in which a user names the interpreter of a framework."""
    return f"DPCOMPARE_{framework.upper()}_PYTHON"
