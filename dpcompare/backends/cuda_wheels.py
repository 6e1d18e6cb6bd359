"""What an environment needs to use GPUs, the GPUs that a framework was built for, and how many it finds."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command

IMPORT_SECONDS = 120.0


def compiled_for(framework: str, python: str) -> list[str] | None:
    """What a build has code for: `sm_90` is machine code of compute capability 9.0, `compute_90` is PTX.

    None for a framework that compiles for the GPU that it finds.

    Raises:
        RequestError: the interpreter, or the framework in it, cannot be used.
    """
    if (program := FRAMEWORKS[framework].print_gpu_code) is None:
        return None
    try:
        answer = run_command([python, "-P", "-c", program], seconds=IMPORT_SECONDS)
        answer.check_returncode()
        return [str(name) for name in json.loads(answer.stdout)]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RequestError(
            f"the {framework} of {python!r} cannot be asked for which GPUs it was built: {error}"
        ) from None


Code = Literal["machine code", "PTX", "none"]


def code_for(capability: tuple[int, int], architectures: Sequence[str]) -> Code:
    """What a build has for GPUs of a compute capability; CUDA C++ Programming Guide, "Compute Capabilities".

    Machine code runs on GPUs of the same major version and the same minor version or a higher one. From PTX the driver
    compiles for any capability as high or higher. With an `a` at the end both are for one capability alone, with an `f`
    for those of one major version.
    """
    found: Code = "none"
    for name in architectures:
        if (built := _Architecture.parse(name)) is None or built.capability > capability:
            continue
        same_major = built.capability[0] == capability[0]
        if (built.suffix == "a" and built.capability != capability) or (built.suffix == "f" and not same_major):
            continue
        if not built.is_ptx and same_major:
            return "machine code"
        if built.is_ptx:
            found = "PTX"
    return found


class _Architecture(NamedTuple):
    capability: tuple[int, int]
    is_ptx: bool
    suffix: str

    @classmethod
    def parse(cls, name: str) -> _Architecture | None:
        """None for a name of another maker's GPUs."""
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        return cls((int(found[2]), int(found[3])), found[1] == "compute", found[4]) if found else None


def gpus_seen(framework: str, python: str) -> tuple[int, str]:
    """How many of the visible GPUs a framework can use, and the end of what it said about them.

    Raises:
        RequestError: the interpreter, or the framework in it, cannot be used.
    """
    try:
        answer = run_command([python, "-P", "-c", FRAMEWORKS[framework].count_gpus], seconds=IMPORT_SECONDS)
        answer.check_returncode()
        return int(answer.stdout), " ".join(answer.stderr.split())[-300:]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RequestError(f"the {framework} of {python!r} cannot be asked which GPUs it finds: {error}") from None


DRIVER_VERSION = Path("/proc/driver/nvidia/version")

COMPATIBILITY = Path("/usr/local/cuda/compat")
"""NVIDIA's package of that name lets older drivers of data centres run newer CUDA, where its libcuda is loaded."""
LINKER_FOLDERS = Path("/etc/ld.so.conf.d")

LEAST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""Major version of CUDA -> the first driver of Linux that runs all its minor versions; NVIDIA, CUDA Compatibility,
table "CUDA Toolkit and minimum required driver versions"."""


class CudaWheels(BaseModel):
    """What the distributions of an environment say, and its dynamic linker."""

    versions: dict[str, str]
    """Versions of NVIDIA's distributions, and of JAX's for their libraries: name -> version."""
    claimed_twice: list[str]
    """Distributions that claim the same files: the one installed last has overwritten the other."""
    finds_cudnn: bool
    """Whether the system brings cuDNN, as images of NVIDIA's and environments of conda do."""
    for_cpus: dict[str, str] = {}
    """Packages that were built for CPUs, as `torch 2.14.1+cpu` and tensorflow-cpu say: name -> version."""


_ASK = """
import json, os, sys
from ctypes.util import find_library
from glob import glob
from importlib import metadata
versions, owners, for_cpus = {}, {}, {}
for distribution in metadata.distributions():
    name = distribution.metadata["Name"] or ""
    if (distribution.version or "").endswith("+cpu"):
        for_cpus[name] = distribution.version
    if name == "tensorflow-cpu":
        for_cpus["tensorflow"] = distribution.version
    if name.startswith(("nvidia-", "jax-cuda")):
        versions[name] = distribution.version
        for file in distribution.files or ():
            if file.suffix in (".so", ".h") or ".so." in file.name:
                owners.setdefault(str(file), set()).add(name)
claimed = sorted({" and ".join(sorted(names)) for names in owners.values() if len(names) > 1})
folders = [sys.prefix + "/lib", *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
finds_cudnn = bool(find_library("cudnn")) or any(glob(folder + "/libcudnn.so*") for folder in folders if folder)
print(json.dumps({
    "versions": versions, "claimed_twice": claimed, "finds_cudnn": finds_cudnn, "for_cpus": for_cpus,
}))
"""


@cache
def cuda_wheels_of(python: str) -> CudaWheels:
    """Those of an interpreter's environment.

    Raises:
        RequestError: it cannot be used.
    """
    try:
        answer = run_command([python, "-P", "-c", _ASK], seconds=60)
        answer.check_returncode()
        return CudaWheels.model_validate(json.loads(answer.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RequestError(f"the interpreter {python!r} cannot be used: {error}") from None


def require_cuda(framework: str, python: str) -> None:
    """Raise RequestError, with what is to be done, unless a framework's environment can use this machine's GPUs."""
    if problem := cuda_problem(framework, python, cuda_wheels_of(python)):
        raise RequestError(f"{framework} cannot use the GPUs: {problem.found}; {problem.remedy}")


class CudaProblem(NamedTuple):
    found: str
    remedy: str
    is_of_driver: bool = False
    """Whether the same wheels in another environment would have it too."""


def cuda_problem(framework: str, python: str, wheels: CudaWheels) -> CudaProblem | None:
    """What keeps a framework from the GPUs of this machine, and what to do; None where nothing is known to."""
    if wheels.claimed_twice:
        return CudaProblem(
            f"in the environment of {python} the same files belong to {'; '.join(wheels.claimed_twice)}",
            "the one installed last has overwritten the other: `dpcompare setup` gives each an environment "
            "of its own, or name yours with --python FRAMEWORK=PATH",
        )
    row = FRAMEWORKS[framework]
    if for_cpus := wheels.for_cpus.keys() & set(row.packages):
        found = " and ".join(f"{name} {wheels.for_cpus[name]}" for name in sorted(for_cpus))
        return CudaProblem(
            f"the {found} of {python} was built for CPUs",
            f"`dpcompare setup --frameworks {framework}` makes an environment with the CUDA libraries",
        )
    brought_by_system = row.takes_system_cudnn and wheels.finds_cudnn
    if row.cuda_distributions and not brought_by_system and not wheels.versions.keys() & set(row.cuda_distributions):
        return CudaProblem(
            f"the {framework} of {python} has no CUDA libraries (none of {', '.join(row.cuda_distributions)})",
            f"`dpcompare setup --frameworks {framework}` makes an environment that has them, or: {python} -m pip "
            f"install 'dpcompare[{','.join(gpu_extras(framework))}]'{_apart(framework)}",
        )
    cuda, driver = _cuda_major(wheels), _driver()
    if cuda in LEAST_DRIVER and driver and max(driver, _compatibility() or driver) < LEAST_DRIVER[cuda]:
        older = next((wheels for major, wheels in row.wheels_of_cuda.items() if driver >= LEAST_DRIVER[major]), None)
        # Not into this one, where the libraries of the newer CUDA would stay.
        instead = f", or make an environment with wheels for an older CUDA: pip install {older}" if older else ""
        return CudaProblem(
            f"this machine's driver is {_dotted(driver)}, and the wheels of {python} for CUDA {cuda} need at least "
            f"{_dotted(LEAST_DRIVER[cuda])}",
            f"update the driver{instead}",
            is_of_driver=True,
        )
    return None


def gpu_extras(framework: str) -> tuple[str, ...]:
    """The extras of dpcompare that bring a framework's CUDA: of the newest that this machine's driver runs."""
    row, cuda = FRAMEWORKS[framework], newest_cuda()
    return row.extras_of_cuda.get(cuda or 0, row.extras["gpu"])


def _apart(framework: str) -> str:
    """The reason why these go into no environment with torch, unless they are for its own CUDA."""
    is_of_torch = gpu_extras(framework) in FRAMEWORKS[framework].extras_of_cuda.values()
    return "" if is_of_torch else ", in an environment without torch, whose libraries have the same names"


def newest_cuda() -> int | None:
    """The newest major version of CUDA that this machine's driver runs; None if there is no driver."""
    driver = _driver()
    return max((cuda for cuda, least in LEAST_DRIVER.items() if driver and driver >= least), default=None)


def _compatibility() -> tuple[int, ...] | None:
    """The driver version of the libcuda in NVIDIA's compatibility package; None unless the dynamic linker finds it.

    The folder alone proves nothing: it may belong to an older CUDA, and no process may load it.
    """
    files = sorted(COMPATIBILITY.rglob("libcuda.so.*.*"))
    searched = [os.environ.get("LD_LIBRARY_PATH", ""), *(path.read_text() for path in LINKER_FOLDERS.glob("*.conf"))]
    if not files or not any(str(COMPATIBILITY) in where for where in searched):
        return None
    found = re.search(r"\.so\.(\d+)\.(\d+)", files[-1].name)
    return (int(found[1]), int(found[2])) if found else None


def _cuda_major(wheels: CudaWheels) -> int | None:
    """From CUDA 13 on the names of the distributions no longer end in the version."""
    for name, version in wheels.versions.items():
        if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name):
            return int(version.split(".")[0])
    return None


def _driver() -> tuple[int, ...] | None:
    """Major and minor version of the driver; None if there is none, or it is not known."""
    if not DRIVER_VERSION.is_file():
        return None
    found = re.search(r"\b(\d{3})\.(\d+)(?:\.\d+)?\b", DRIVER_VERSION.read_text())
    return (int(found[1]), int(found[2])) if found else None


def driver_version() -> str | None:
    """The version of the kernel module, such as 580.65; None if there is none."""
    driver = _driver()
    return _dotted(driver) if driver else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
