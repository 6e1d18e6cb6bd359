"""The GPU code in a framework's build: whether it was compiled for the GPUs of this machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from typing import Literal, NamedTuple

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
