"""The state of GPUs: what NVML says of how fast they may run, how they are connected, and what slows them down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from dpcompare.system.devices import device_id, gpus_by_nvml
from dpcompare.system.json_files import Count

SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
"""Bits of NVML's reasons for low clocks that something is wrong with: heat, or the supply of power."""

CLOCK_REASONS = {
    0x01: "idle",
    0x02: "application clocks",
    0x04: "power limit",
    0x10: "sync boost",
    0x100: "display clocks",
    **SLOWDOWNS,
}
"""All of them. A GPU that trains is often at its power limit."""

ANCESTORS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "several NUMA nodes",
}
"""What NVML calls the common ancestor of two GPUs."""

CPU_WORDS, NODE_WORDS = 64, 16
"""Words of 64 bits that NVML may fill with the CPUs and the NUMA nodes near a GPU."""
MOST_NVLINKS = 36
"""NVML_NVLINK_MAX_LINKS of CUDA 13."""
SM_CLOCK, MEMORY_CLOCK = 1, 2
"""NVML_CLOCK_SM, NVML_CLOCK_MEM."""
THERMAL_POLICY = 1
"""NVML_PERF_POLICY_THERMAL."""
BY_NVLINK, BY_WRITING = 2, 1
"""NVML_P2P_CAPS_INDEX_NVLINK, ..._WRITE; of ..._READ the bindings make a tuple by mistake."""
NODE_SCOPE = 0
"""NVML_AFFINITY_SCOPE_NODE."""


class _NvmlValues(BaseModel):
    """Values are None if NVML does not report them: many GPUs, parts of GPUs and containers leave something out."""

    model_config = ConfigDict(frozen=True)


class GpuReading(_NvmlValues):
    """What may change during a run, of the physical GPU."""

    power_limit_watts: float | None = None
    """The lowest of the limits in force."""
    sm_clock_mhz: Count | None = None
    memory_clock_mhz: Count | None = None
    application_sm_clock_mhz: Count | None = None
    application_memory_clock_mhz: Count | None = None
    pcie_generation: Count | None = None
    """The generation of the link at the moment: an idle GPU lowers it."""
    pcie_width: Count | None = None
    """Lanes."""
    clock_reasons: list[str] | None = None
    """Values of CLOCK_REASONS: what keeps the clocks below their maximum at this moment."""
    thermal_slowdown_seconds: float | None = None
    """Since the driver was loaded."""


class GpuState(_NvmlValues):
    """One GPU that a process uses, or a part of one; all but memory and name are of the physical GPU."""

    device: str
    """The device as CUDA_VISIBLE_DEVICES names it."""
    unread: str | None = None
    """Why NVML reported nothing at all."""
    uuid: str | None = None
    name: str | None = None
    """The name of its model."""
    memory_bytes: Count | None = None
    max_sm_clock_mhz: Count | None = None
    max_memory_clock_mhz: Count | None = None
    persistence_mode: bool | None = None
    """Whether the driver stays loaded while nothing uses the GPU."""
    ecc: bool | None = None
    mig: bool | None = None
    """Whether it is cut into parts."""
    numa_nodes: list[Count] | None = None
    """The NUMA nodes of the host's memory that is near it."""
    cpus: str | None = None
    """Those near it, as ranges."""
    links: dict[str, str | None] = {}
    """UUID of each other GPU of the run on this machine -> what connects the two."""
    before: GpuReading = GpuReading()
    """Before training."""
    after: GpuReading | None = None
    """Right after the last measured step."""

    @property
    def settings(self) -> str:
        """What decides how fast it may run, in words."""
        readings = [reading for reading in (self.before, self.after) if reading]
        limits = [_figure(reading.power_limit_watts, "W") for reading in readings]
        clocks = [
            f"{_figure(reading.application_sm_clock_mhz)}/{_figure(reading.application_memory_clock_mhz, 'MHz')}"
            for reading in readings
        ]
        return (
            f"power limit {_then(limits)}, clocks at most {_figure(self.max_sm_clock_mhz)}/"
            f"{_figure(self.max_memory_clock_mhz, 'MHz')}, application clocks {_then(clocks)}, "
            f"ECC {_switch(self.ecc)}, MIG {_switch(self.mig)}"
        )

    @property
    def slowdown(self) -> str | None:
        """What has slowed it down while it trained, heat or the supply of power; None where nothing is known to."""
        if self.after is None:
            return None
        seen = [reason for reason in self.after.clock_reasons or () if reason in SLOWDOWNS.values()]
        before, after = self.before.thermal_slowdown_seconds, self.after.thermal_slowdown_seconds
        if before is not None and after is not None and after > before:
            seen.append(f"thermal slowdown for {after - before:.1f} s of the training")
        return ", ".join(seen) or None


def read_gpus(devices: Sequence[str], machine_devices: Sequence[str]) -> list[GpuState]:
    """The GPUs that a process uses, before it trains.

    Args:
        devices: as CUDA_VISIBLE_DEVICES names them, in PCI order.
        machine_devices: those of the whole run on this machine, to which their links are of interest.
    """
    try:
        installed = gpus_by_nvml()
    except RuntimeError as error:
        return [GpuState(device=device, unread=str(error)) for device in devices]
    peers = [uuid for each in machine_devices if (uuid := device_id(each, installed))]
    states = []
    for device in devices:
        uuid = device_id(device, installed)
        states.append(
            _state(device, uuid, peers) if uuid else GpuState(device=device, unread=f"NVML lists no GPU {device}")
        )
    return states


def read_again(states: Iterable[GpuState]) -> list[GpuState]:
    """The same GPUs with a second reading, after training."""
    return [
        state.model_copy(update={"after": _reading(_physical(state.uuid))}) if state.uuid else state for state in states
    ]


def near_numa_nodes(devices: Sequence[str]) -> list[set[int]]:
    """The NUMA nodes near each GPU, named as in CUDA_VISIBLE_DEVICES; none if NVML does not report them."""
    try:
        installed = gpus_by_nvml()
    except RuntimeError:
        return [set() for _ in devices]
    uuids = [device_id(device, installed) for device in devices]
    return [set(_numa_nodes(_physical(uuid)) or ()) if uuid else set() for uuid in uuids]


def _numa_nodes(gpu: Any) -> list[int] | None:
    return _set_bits(_ask("nvmlDeviceGetMemoryAffinity", gpu, NODE_WORDS, NODE_SCOPE))


def _ask(function: str, *arguments: Any) -> Any:
    """What NVML answers; None where it does not: not for this GPU, not to this user, or not in this release of it."""
    import pynvml

    try:
        return getattr(pynvml, function)(*arguments) if hasattr(pynvml, function) else None
    except (pynvml.NVMLError, TypeError):  # TypeError: bindings of another release, with other arguments
        return None


def _handle(uuid: str) -> Any:
    return _ask("nvmlDeviceGetHandleByUUID", uuid)


def _physical(uuid: str) -> Any:
    """The handle of a GPU; for a part of one that of the whole, since a part knows nothing of clocks and power."""
    handle = _handle(uuid)
    return _ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if uuid.startswith("MIG-") else handle


def _state(device: str, uuid: str, peers: Sequence[str]) -> GpuState:
    handle, gpu = _handle(uuid), _physical(uuid)
    memory = _ask("nvmlDeviceGetMemoryInfo", handle)
    cpus = _set_bits(_ask("nvmlDeviceGetCpuAffinity", gpu, CPU_WORDS))
    return GpuState(
        device=device,
        uuid=uuid,
        name=_ask("nvmlDeviceGetName", handle),
        memory_bytes=memory.total if memory else None,
        max_sm_clock_mhz=_ask("nvmlDeviceGetMaxClockInfo", gpu, SM_CLOCK),
        max_memory_clock_mhz=_ask("nvmlDeviceGetMaxClockInfo", gpu, MEMORY_CLOCK),
        persistence_mode=_enabled(_ask("nvmlDeviceGetPersistenceMode", gpu)),
        ecc=_enabled(_ask("nvmlDeviceGetEccMode", gpu)),
        mig=_enabled(_ask("nvmlDeviceGetMigMode", gpu)),
        numa_nodes=_numa_nodes(gpu),
        cpus=in_ranges(cpus) if cpus else None,
        links={peer: _link(gpu, _physical(peer)) for peer in peers if peer != uuid},
        before=_reading(gpu),
    )


def _reading(gpu: Any) -> GpuReading:
    milliwatts = _ask("nvmlDeviceGetEnforcedPowerLimit", gpu)
    reasons = _ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
    violation = _ask("nvmlDeviceGetViolationStatus", gpu, THERMAL_POLICY)
    return GpuReading(
        power_limit_watts=None if milliwatts is None else milliwatts / 1e3,
        sm_clock_mhz=_ask("nvmlDeviceGetClockInfo", gpu, SM_CLOCK),
        memory_clock_mhz=_ask("nvmlDeviceGetClockInfo", gpu, MEMORY_CLOCK),
        application_sm_clock_mhz=_ask("nvmlDeviceGetApplicationsClock", gpu, SM_CLOCK),
        application_memory_clock_mhz=_ask("nvmlDeviceGetApplicationsClock", gpu, MEMORY_CLOCK),
        pcie_generation=_ask("nvmlDeviceGetCurrPcieLinkGeneration", gpu),
        pcie_width=_ask("nvmlDeviceGetCurrPcieLinkWidth", gpu),
        clock_reasons=None if reasons is None else [name for bit, name in CLOCK_REASONS.items() if reasons & bit],
        thermal_slowdown_seconds=violation.violationTime / 1e9 if violation else None,
    )


def _link(gpu: Any, other: Any) -> str | None:
    """What connects two GPUs: the number of NVLinks, or where on PCIe they meet."""
    if _ask("nvmlDeviceGetP2PStatus", gpu, other, BY_NVLINK) == 0:
        active = [link for link in range(MOST_NVLINKS) if _ask("nvmlDeviceGetNvLinkState", gpu, link) == 1]
        ends = [_bus_id(_ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link)) for link in active]
        # Behind a switch, the remote end of every link is the switch, and each leads to every GPU.
        return f"{ends.count(_bus_id(_ask('nvmlDeviceGetPciInfo', other))) or len(active)} NVLinks"
    ancestor = ANCESTORS.get(_ask("nvmlDeviceGetTopologyCommonAncestor", gpu, other))
    if ancestor is None:
        return None
    is_direct = _ask("nvmlDeviceGetP2PStatus", gpu, other, BY_WRITING) == 0
    return f"PCIe across {ancestor}, {'from peer to peer' if is_direct else 'through the host'}"


def _bus_id(pci: Any) -> str | None:
    return pci.busId if pci else None


def _enabled(mode: Any) -> bool | None:
    """Whether a mode is on: for some modes NVML reports the present one and the one after a restart."""
    present = mode[0] if isinstance(mode, list) else mode
    return None if present is None else bool(present)


def _set_bits(words: Sequence[int] | None) -> list[int] | None:
    if words is None:
        return None
    return [64 * number + bit for number, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def in_ranges(numbers: Iterable[int]) -> str:
    """Numbers as Linux writes lists of CPUs: 0-15,32-47."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _figure(value: float | None, unit: str = "") -> str:
    return "?" if value is None else f"{value:g} {unit}".rstrip()


def _then(words: Sequence[str]) -> str:
    """One, or how it changed."""
    return ", later ".join(dict.fromkeys(words))


def _switch(on: bool | None) -> str:
    return {True: "on", False: "off", None: "?"}[on]
