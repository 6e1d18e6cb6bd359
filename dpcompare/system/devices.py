"""The devices of this machine: its cores and its GPUs."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command

CGROUPS = Path("/sys/fs/cgroup")


def available_cores(cgroups: Path = CGROUPS) -> int:
    """CPU cores that this process may use, by its affinity and its container's limit; part of a core counts as one.

    joblib, which decodes images, counts in the same way, but importing it takes a third of our start. Limits:
    `cpu.max` of cgroups(7), version 2, and `cpu.cfs_quota_us` of version 1; in a container they are below `cgroups`.
    """
    cores = len(os.sched_getaffinity(0))
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        files = [cgroups / name for name in names]
        if all(file.is_file() for file in files):
            quota, period = " ".join(file.read_text() for file in files).split()
            return cores if quota in ("max", "-1") else min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


_GPU_LINE = re.compile(r"^GPU (?P<index>\d+): (?P<name>.*) \(UUID: (?P<uuid>GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"^\s+MIG .*\(UUID: (?P<uuid>MIG-[^)]+)\)")


LISTING_SECONDS = 60.0


class Gpu(BaseModel):
    """A GPU that is installed in this machine."""

    index: str
    uuid: str
    name: str = ""
    """The name of its model."""
    mig: list[str] = []


DEVICE_FILES = Path("/dev")
"""Where the driver puts nvidia0, nvidia1...; a container has those that were given to it."""


@cache  # without its persistence daemon the driver takes seconds to answer
def installed_gpus() -> list[Gpu]:
    """The GPUs of this machine, in PCI order, as `nvidia-smi -L` lists them, or NVML where that is not installed.

    Raises:
        RequestError: there are GPUs that neither of them lists: the CPU is not taken in their place in silence.
    """
    problems = []
    for ask in (_ask_nvidia_smi, gpus_by_nvml):
        try:
            return ask()
        except subprocess.TimeoutExpired as error:  # NVML would hang too, and cannot be ended
            problems.append(str(error))
            break
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            problems.append(str(error))
    if files := sorted(DEVICE_FILES.glob("nvidia[0-9]*")):
        raise RequestError(
            f"this machine has {', '.join(map(str, files))}, but its GPUs cannot be listed: {'; '.join(problems)}; "
            "see what `nvidia-smi` says, or simulate devices with --device cpu"
        )
    return []


def gpus_by_nvml() -> list[Gpu]:
    """The GPUs that NVML lists, in PCI order; NVML stays open.

    Raises:
        RuntimeError: it, or its bindings, cannot be used.
    """
    try:
        import pynvml
    except ImportError:
        raise RuntimeError("NVML: nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            Gpu(
                index=str(index),
                uuid=pynvml.nvmlDeviceGetUUID(handle),
                name=pynvml.nvmlDeviceGetName(handle),
                mig=_mig_devices(pynvml, handle),
            )
            for index, handle in enumerate(handles)
        ]
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVML: {error}") from None


def _mig_devices(pynvml: Any, handle: Any) -> list[str]:
    """UUIDs of the parts that a GPU is cut into."""
    uuids = []
    with suppress(pynvml.NVMLError_NotSupported):  # a GPU that cannot be cut
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(pynvml.NVMLError_NotFound):  # fewer parts than there may be
                uuids.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    return uuids


def _ask_nvidia_smi() -> list[Gpu]:
    listing = run_command(["nvidia-smi", "-L"], seconds=LISTING_SECONDS)
    if listing.returncode:
        raise RuntimeError(f"nvidia-smi -L says: {(listing.stdout + listing.stderr).strip()}")
    gpus: list[Gpu] = []
    for line in listing.stdout.splitlines():
        if gpu := _GPU_LINE.match(line):
            gpus.append(Gpu(index=gpu["index"], uuid=gpu["uuid"], name=gpu["name"]))
        elif (mig := _MIG_LINE.match(line)) and gpus:
            gpus[-1].mig.append(mig["uuid"])
    return gpus


def visible_gpus(installed: Sequence[Gpu], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Which of the installed GPUs a process started here would see, as CUDA_VISIBLE_DEVICES names them.

    Without a mask these are the indices of all GPUs (the ids of its MIG slices, where a GPU is cut into some). A mask
    that is already set is respected as CUDA reads it: up to the first entry that names no installed device.

    Raises:
        RequestError: the mask has numbers that CUDA and we would count in different orders.
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return [name for gpu in installed for name in (gpu.mig or [gpu.index])]
    _refuse_ambiguous(mask, installed, environ)
    visible = []
    for entry in (part.strip() for part in mask.split(",")):
        if _find(entry, installed) is None:
            break
        visible.append(entry)
    return visible


def _refuse_ambiguous(mask: str, installed: Sequence[Gpu], environ: Mapping[str, str]) -> None:
    """CUDA counts the fastest GPU first unless CUDA_DEVICE_ORDER says otherwise; nvidia-smi counts by their slots."""
    has_numbers = any(entry.strip().isdigit() for entry in mask.split(","))
    if has_numbers and len({gpu.name for gpu in installed}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        listed = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in installed)
        raise RequestError(
            f"CUDA_VISIBLE_DEVICES={mask!r} has numbers, and the GPUs of this machine are of different models "
            f"({listed}, as nvidia-smi counts them): CUDA would count the fastest first; set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by the beginning of their UUIDs"
        )


def invisible_gpus(names: Sequence[str]) -> list[str]:
    """Those of `names` that are not visible on this machine, however they are named."""
    installed = installed_gpus()
    visible = {device_id(name, installed) for name in visible_gpus(installed)}
    return [name for name in names if device_id(name, installed) not in visible]


MOST_USED = 0.5
"""Share of a GPU's memory that others may hold; a desktop takes some, another training most."""


def used_gpus(names: Sequence[str]) -> list[str]:
    """Those of `names` whose memory others hold most of, with how much; none if nvidia-smi does not report it."""
    try:
        mebibytes = {uuid: (int(used), int(total)) for uuid, used, total in _queried("memory.used", "memory.total")}
    except (OSError, ValueError, subprocess.SubprocessError):  # no such program, or "[N/A]"
        return []
    installed = installed_gpus()
    occupied = []
    for name in names:
        used, total = mebibytes.get(device_id(name, installed) or "", (0, 1))
        if used > MOST_USED * total:
            occupied.append(f"{name} ({used:,} of {total:,} MiB)")
    return occupied


def gpus_without_slices(names: Sequence[str]) -> list[str]:
    """Those of `names` with MIG on and not cut into any slice: nvidia-smi lists them, and CUDA sees none."""
    try:
        modes = dict(_queried("mig.mode.current"))
    except (OSError, ValueError, subprocess.SubprocessError):  # no such program, or one that does not know the question
        return []
    installed = installed_gpus()
    found = {name: _find(name, installed) for name in names}
    return [name for name, gpu in found.items() if gpu and not gpu.mig and modes.get(gpu.uuid) == "Enabled"]


def gpu_memory(names: Sequence[str], field: str = "memory.total") -> int | None:
    """Bytes of the smallest of these GPUs; None if nvidia-smi does not report all of them."""
    try:
        bytes_of = {uuid: int(mebibytes) << 20 for uuid, mebibytes in _queried(field)}
    except (OSError, ValueError, subprocess.SubprocessError):  # no such program, or "[N/A]"
        return None
    installed = installed_gpus()
    found = [bytes_of.get(device_id(name, installed) or "") for name in names]
    known = [each for each in found if each is not None]
    return min(known) if known and len(known) == len(found) else None


def free_gpu_memory(names: Sequence[str]) -> int | None:
    """The free memory of the GPU that has least, in bytes; None if nvidia-smi does not report it."""
    return gpu_memory(names, "memory.free")


def compute_capabilities(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Name -> (major, minor) compute capability of the GPU it means; without those that are not known."""
    installed = installed_gpus()
    try:
        reported = {uuid: capability.split(".") for uuid, capability in _queried("compute_cap")}
        by_uuid = {uuid: (int(major), int(minor)) for uuid, (major, minor) in reported.items()}
    except subprocess.TimeoutExpired:  # NVML would hang too, and cannot be ended
        return {}
    except (OSError, ValueError, subprocess.SubprocessError):  # no such program, or one that does not know the question
        by_uuid = {}
    by_uuid = by_uuid or _compute_capabilities_by_nvml(installed)
    uuids = {name: _physical_gpu(name, installed) for name in names}
    return {name: by_uuid[uuid] for name, uuid in uuids.items() if uuid in by_uuid}


def _compute_capabilities_by_nvml(installed: Sequence[Gpu]) -> dict[str, tuple[int, int]]:
    try:
        import pynvml
    except ImportError:
        return {}
    capabilities = {}
    with suppress(pynvml.NVMLError):  # nothing more can be asked
        pynvml.nvmlInit()
        for gpu in installed:
            capabilities[gpu.uuid] = pynvml.nvmlDeviceGetCudaComputeCapability(
                pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            )
    return capabilities


def _queried(*fields: str) -> list[list[str]]:
    """What nvidia-smi reports of every GPU: its UUID, then each of the fields."""
    query = ["nvidia-smi", f"--query-gpu={','.join(('uuid', *fields))}", "--format=csv,noheader,nounits"]
    return [line.split(", ") for line in run_command(query, seconds=LISTING_SECONDS).stdout.splitlines()]


def gpu_model(name: str, installed: Sequence[Gpu]) -> str:
    """The model of the GPU that a name means; "" where it is not installed."""
    gpu = _find(name, installed)
    return gpu.name if gpu else ""


def device_id(name: str, installed: Sequence[Gpu]) -> str | None:
    """The full UUID of the GPU or MIG device that an index or (the beginning of) a UUID names."""
    gpu = _find(name, installed)
    if gpu is None:
        return None
    return next((mig for mig in gpu.mig if mig.startswith(name)), gpu.uuid)


def _physical_gpu(name: str, installed: Sequence[Gpu]) -> str:
    """The UUID of the physical GPU behind a name; the name itself where it is not installed."""
    gpu = _find(name, installed)
    return gpu.uuid if gpu else name


def _find(name: str, installed: Sequence[Gpu]) -> Gpu | None:
    """CUDA accepts an index, or any prefix of a UUID that names one device."""
    if name.isdigit():
        return next((gpu for gpu in installed if gpu.index == name), None)
    if not name.startswith(("GPU-", "MIG-")):
        return None
    matches = [gpu for gpu in installed if any(uuid.startswith(name) for uuid in (gpu.uuid, *gpu.mig))]
    return matches[0] if len(matches) == 1 else None
