"""What this machine is: its processors, memory, operating system and kernel, and whether it is a virtual one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dpcompare.system.json_files import Number
from dpcompare.system.terminal_text import joined, pluralize

_NAMELESS = frozenset({"", "unknown", "none", "not specified", "to be filled by o.e.m.", "system product name"})
"""What a kernel or a maker writes where there is no name, in lower case."""

_IMPLEMENTERS = {
    0x41: "ARM",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}
"""The makers of cores on ARM, by the number that /proc/cpuinfo has of each."""
_PARTS = {
    0x41: {
        0xD03: "Cortex-A53",
        0xD08: "Cortex-A72",
        0xD0B: "Cortex-A76",
        0xD0C: "Neoverse-N1",
        0xD40: "Neoverse-V1",
        0xD49: "Neoverse-N2",
        0xD4F: "Neoverse-V2",
    },
}
"""Maker -> number -> name of the cores that servers and small computers have; others are shown by their number."""

_HYPERVISORS = (
    *("amazon ec2", "bochs", "google compute engine", "kvm", "openstack", "parallels", "qemu", "rhev"),
    *("virtual machine", "virtualbox", "vmware", "xen"),
)
"""What the firmware's names of a virtual machine hold, in lower case."""
_BARE_METAL = ".metal"
"""The end of the product's name where a cloud rents the machine itself."""


class Machine(BaseModel):
    """What a machine is, as its kernel says it; in a container that is the machine below it.

    None is not known: the kernel does not report it, or a container hides it.
    """

    model_config = ConfigDict(frozen=True)

    cpu_model: str | None = None
    """The name of the processor; several kinds of cores are joined by +."""
    sockets: Number | None = None
    cores: Number | None = None
    """Cores of all sockets, whichever of them this process may use."""
    threads: Number | None = None
    """Hardware threads of all cores that are online."""
    memory_bytes: Number | None = None
    operating_system: str | None = None
    """The distribution; in a container its own."""
    kernel: str | None = None
    """Such as `Linux 6.1.0-18-amd64`."""
    architecture: str | None = None
    """Such as `x86_64`."""
    product: str | None = None
    """Maker and product, as the firmware names them."""
    is_virtual: bool | None = None
    boot_id: str | None = None
    """A random number of the kernel since it was started: containers with names of their own share it."""

    @property
    def in_words(self) -> str:
        """All of it in one line; what is not known is said."""
        virtual = {True: "virtual machine", False: "no virtual machine", None: None}[self.is_virtual]
        parts: dict[str, str | None] = {
            "CPU model": self.cpu_model,
            "sockets": _counted(self.sockets, "socket"),
            "cores": _counted(self.cores, "core"),
            "threads": _counted(self.threads, "thread"),
            "memory": f"{self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes else None,
            "operating system": self.operating_system,
            "kernel": self.kernel,
            "architecture": self.architecture,
            "whether it is virtual": virtual,
        }
        known = [*filter(None, parts.values()), *filter(None, (self.product,))]
        unknown = [name for name, value in parts.items() if not value]
        return ", ".join([*known, *([f"{joined(unknown)} not known"] if unknown else [])])


def _counted(number: int | None, noun: str) -> str | None:
    return None if number is None else pluralize(number, noun)


def this_machine(root: Path = Path("/"), uname: os.uname_result | None = None) -> Machine:
    """The machine that this process is on.

    Args:
        root: what /proc, /sys and /etc are below.
        uname: what the kernel says of itself; default: what it says now.
    """
    uname = uname or os.uname()
    processors = list(_processors(root / "proc" / "cpuinfo"))
    topologies = _topologies(root / "sys" / "devices" / "system" / "cpu")
    product = _product(root)
    return Machine(
        cpu_model=_cpu_model(processors, root),
        sockets=_sockets(processors, topologies),
        cores=_cores(processors, topologies),
        threads=len(topologies) or len(processors) or None,
        memory_bytes=_memory_bytes(root / "proc" / "meminfo"),
        operating_system=_operating_system(root),
        kernel=f"{uname.sysname} {uname.release}",
        architecture=uname.machine,
        product=product,
        is_virtual=_is_virtual(processors, root, product),
        boot_id=_text(root / "proc" / "sys" / "kernel" / "random" / "boot_id"),
    )


def _text(path: Path) -> str | None:
    """What a file of the kernel says; None where it is missing, may not be read, or says nothing."""
    try:
        text = path.read_text(errors="replace").strip().strip("\0")
    except OSError:
        return None
    return None if text.lower() in _NAMELESS else text


def _processors(cpuinfo: Path) -> Iterator[dict[str, str]]:
    """Key -> value of each logical processor; what ARM has once for all of them is in each."""
    blocks = [_pairs(block) for block in re.split(r"\n\s*\n", _text(cpuinfo) or "")]
    common = {key: value for block in blocks if "processor" not in block for key, value in block.items()}
    yield from (common | block for block in blocks if "processor" in block)


def _pairs(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def _cpu_model(processors: Sequence[Mapping[str, str]], root: Path) -> str | None:
    """The name that the kernel has; on ARM that of the cores, or of what they are part of."""
    names = dict.fromkeys(filter(None, map(_name_of_core, processors)))
    if names:
        return " + ".join(names)
    hardware = next((each["Hardware"] for each in processors if each.get("Hardware")), None)
    return hardware or _text(root / "proc" / "device-tree" / "model")


def _name_of_core(processor: Mapping[str, str]) -> str | None:
    for key in ("model name", "cpu model", "cpu", "uarch"):  # x86, MIPS, POWER, RISC-V
        name = " ".join(processor.get(key, "").split())
        if name.lower() not in _NAMELESS:
            return name
    try:
        implementer, part = (int(processor[key], 16) for key in ("CPU implementer", "CPU part"))
    except (KeyError, ValueError):  # none of ARM's
        return None
    maker = _IMPLEMENTERS.get(implementer, f"implementer {implementer:#x}")
    return f"{maker} {_PARTS.get(implementer, {}).get(part, f'part {part:#x}')}"


@dataclass(frozen=True)
class _Topology:
    """The place of a logical processor."""

    package: int | None
    """The number of its socket; None where the kernel does not know it, as in many virtual machines on ARM."""
    core: str | None
    """The logical processors that share its core."""


def _topologies(cpus: Path) -> list[_Topology]:
    """The place of each logical processor that is online."""
    folders = sorted(cpus.glob("cpu[0-9]*/topology"))
    return [
        _Topology(
            package=_number(_text(folder / "physical_package_id")),
            core=_text(folder / "core_cpus_list") or _text(folder / "thread_siblings_list"),
        )
        for folder in folders
    ]


def _number(text: str | None) -> int | None:
    """A number from 0; None of -1, which the kernel writes where it has none."""
    return int(text) if text is not None and text.isdecimal() else None


def _sockets(processors: Sequence[Mapping[str, str]], topologies: Sequence[_Topology]) -> int | None:
    packages: set[int | str | None] = {topology.package for topology in topologies}
    if not packages or None in packages:
        packages = {processor.get("physical id") for processor in processors}
    return None if None in packages else len(packages) or None


def _cores(processors: Sequence[Mapping[str, str]], topologies: Sequence[_Topology]) -> int | None:
    groups: set[object] = {topology.core for topology in topologies}
    if not groups or None in groups:
        places = [(processor.get("physical id"), processor.get("core id")) for processor in processors]
        groups = {None if None in place else place for place in places}
    return None if None in groups else len(groups) or None


def _memory_bytes(meminfo: Path) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(meminfo) or "", re.MULTILINE)
    return 1024 * int(found[1]) or None if found else None


def _operating_system(root: Path) -> str | None:
    """The distribution's own name for itself, os-release(5)."""
    for file in (root / "etc" / "os-release", root / "usr" / "lib" / "os-release"):
        pairs = dict(line.split("=", 1) for line in (_text(file) or "").splitlines() if "=" in line)
        if name := pairs.get("PRETTY_NAME", pairs.get("NAME", "")).strip("\"'"):
            return name
    return None


def _product(root: Path) -> str | None:
    """What the firmware calls the machine, where a container does not hide it."""
    names = root / "sys" / "class" / "dmi" / "id"
    maker, name = (_text(names / file) or "" for file in ("sys_vendor", "product_name"))
    words = name if name.startswith(maker) else f"{maker} {name}".strip()
    return words or _text(root / "proc" / "device-tree" / "model")


def _is_virtual(processors: Sequence[Mapping[str, str]], root: Path, product: str | None) -> bool | None:
    """By the processor's own flag, which x86 has, the hypervisor's files, or the names of the firmware."""
    if any("hypervisor" in processor.get("flags", "").split() for processor in processors):
        return True
    if _text(root / "sys" / "hypervisor" / "type"):
        return True
    name = (product or "").lower()
    if any(word in name for word in _HYPERVISORS):
        return not name.endswith(_BARE_METAL)
    return False if any(processor.get("flags") for processor in processors) or product else None
