"""Energy meters, which read the devices' own counters; where there are none, there is no figure."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dpcompare.system.devices import device_id, gpus_by_nvml

POWERCAP = Path("/sys/class/powercap")
"""Linux's counters of Intel's and AMD's packages (RAPL); readable by root only on most systems."""

Counter = Callable[[], float | None]
"""Joules since some moment; None where it cannot be read any more."""


def gpu_counters(gpus: Sequence[str]) -> list[Counter]:
    """One counter per GPU, by NVML; none at all where one of them has none (before Volta, and parts of a GPU)."""
    try:
        import pynvml
    except ImportError:
        return []

    def counter(handle: Any) -> float | None:
        try:
            millijoules: int = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except pynvml.NVMLError:  # no such counter; or later a driver that timed out, which must not end a training
            return None
        return millijoules / 1e3

    try:
        installed = gpus_by_nvml()
        handles = [pynvml.nvmlDeviceGetHandleByUUID(device_id(gpu, installed) or gpu) for gpu in gpus]
    except (RuntimeError, pynvml.NVMLError):  # no driver, or no such GPU
        return []
    counters = [partial(counter, handle) for handle in handles]
    return [] if None in [each() for each in counters] else list(counters)


def package_counters(folder: Path = POWERCAP) -> list[Counter]:
    """One counter per CPU package of this machine; none at all where one cannot be read."""
    zones = sorted(path for path in folder.glob("intel-rapl:*") if re.fullmatch(r"intel-rapl:\d+", path.name))
    try:
        # In addition there may be `psys`, the whole platform, which counts them once more.
        packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        return [_package_counter(package) for package in packages]
    except (OSError, ValueError):
        return []


def _package_counter(package: Path) -> Counter:
    file, wrap = package / "energy_uj", int((package / "max_energy_range_uj").read_text())
    last, total = int(file.read_text()), 0

    def joules() -> float | None:
        nonlocal last, total
        try:
            now = int(file.read_text())
        except OSError:
            return None
        total += (now - last) % (wrap + 1)  # it starts again from 0 every few minutes
        last = now
        return total / 1e6

    return joules


class EnergyMeter:
    """The sum of the counters that one process reads."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._counters = counters

    def joules(self) -> float | None:
        """Joules since some moment; None where nothing is counted, and from the first failure of a counter on."""
        counts = [counter() for counter in self._counters]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            print("an energy counter cannot be read any more: this run has no figure of energy", file=sys.stderr)
            self._counters = ()
        return sum(known) if self._counters else None


def meter_of(device_type: str, devices: Sequence[str], *, counts_packages: bool) -> EnergyMeter:
    """The meter of a training process: its GPUs; on the CPU one process of a machine reads the packages, for all."""
    if device_type == "gpu":
        return EnergyMeter(gpu_counters(devices))
    return EnergyMeter(package_counters() if counts_packages else ())
