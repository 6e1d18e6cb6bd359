"""NVIDIA's bindings of NVML, imitated: each GPU is a dictionary of what it answers, and all else is not supported."""

# ruff: noqa: N801, N802, N818 (NVIDIA's names)

from __future__ import annotations

from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


H100 = {
    "Name": "NVIDIA H100 80GB HBM3",
    "MemoryInfo": SimpleNamespace(total=85_520_809_984),
    "EnforcedPowerLimit": 700_000,
    ("ClockInfo", 1): 345,
    ("ClockInfo", 2): 2619,
    ("MaxClockInfo", 1): 1980,
    ("MaxClockInfo", 2): 2619,
    ("ApplicationsClock", 1): 1980,
    ("ApplicationsClock", 2): 2619,
    "PersistenceMode": 1,
    "EccMode": [1, 1],
    "MigMode": [0, 0],
    "CurrPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "CurrentClocksEventReasons": 0x1,
    ("ViolationStatus", 1): SimpleNamespace(violationTime=2_000_000_000),
    ("CpuAffinity", 64): [0x000F_000F, 0x1, *[0] * 62],
    ("MemoryAffinity", 16, 0): [0b10, *[0] * 15],
}


class Nvml:
    """A module in the place of pynvml; a handle is the UUID."""

    NVMLError, NVMLError_NotSupported, NVMLError_NotFound = NVMLError, NVMLError_NotSupported, NVMLError_NotFound

    def __init__(self, gpus, *, pairs=None, mig=None):
        """Args:
        gpus: UUID -> what the GPU answers, in PCI order.
        pairs: (function, UUID, UUID, ...) -> what is answered of two GPUs.
        mig: UUID of a GPU -> its parts.
        """
        self.gpus, self.pairs, self.mig = gpus, pairs or {}, mig or {}

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return len([uuid for uuid in self.gpus if uuid.startswith("GPU-")])

    def nvmlDeviceGetHandleByIndex(self, index):
        return list(self.gpus)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.gpus:  # NVML takes no abbreviation
            raise NVMLError_NotFound
        return uuid

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        if handle not in self.mig:
            raise NVMLError_NotSupported
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(self.mig[handle]):
            raise NVMLError_NotFound
        return self.mig[handle][index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return next(gpu for gpu, parts in self.mig.items() if handle in parts)

    def __getattr__(self, function):
        """Every other function of a GPU, or of two."""
        if not function.startswith("nvmlDeviceGet"):
            raise AttributeError(function)
        name = function.removeprefix("nvmlDeviceGet")

        def answer(handle, *arguments):
            of_pair = self.pairs.get((name, handle, *arguments))
            told = self.gpus[handle].get((name, *arguments) if arguments else name) if of_pair is None else of_pair
            if told is None:
                raise NVMLError_NotSupported
            return told

        return answer
