"""The table of settings that tune a framework: they change its speed and nothing of what is trained but its rounding.

`--profile strict` takes what keeps the frameworks alike; `--profile native` what was measured to be fastest on a type
of device, and `--tune NAME=VALUE` overrides it. A new setting is a row of SETTINGS and the one place of its backend
that obeys it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dpcompare.config.workload import Workload
from dpcompare.errors import did_you_mean


@dataclass(frozen=True, kw_only=True)
class TuningOption:
    """A row of SETTINGS; the first value is that of the strict profile, unless it says otherwise."""

    values: tuple[str, ...] = ()
    """On every type of device."""
    gpu_values: tuple[str, ...] = ()
    """Further ones, on GPUs only; a setting that has no others is one of GPUs alone."""
    native: Mapping[str, str]
    """Device type -> the value of the native profile."""
    strict: Mapping[str, str] | None = None
    """Device type -> the value of the strict profile."""
    modes: tuple[str, ...] | None = None
    """Where only some modes have it."""
    not_in: tuple[str, ...] = ()
    """Modes that have it not."""
    only_with: Mapping[str, str] = field(default_factory=dict)
    """Field of a workload -> the value without which the setting would change nothing."""
    changes_precision: bool = False
    """Whether it rounds more coarsely, and not only in another order: `--autotune` leaves it as it is, in all arms."""

    def values_on(self, device_type: str) -> tuple[str, ...]:
        """What it can be on a type of device; nothing where that has no such setting."""
        return self.values + (self.gpu_values if device_type == "gpu" else ())


COMPILE_MODES = {"torch.compile": "default", "reduce-overhead": "reduce-overhead"}
"""Values of `compilation` with which torch compiles -> torch's name of the mode; `reduce-overhead` also records what a
step launches as CUDA graphs, which a GPU then replays without the host."""

# TF32 keeps 10 bits of the mantissa of what is multiplied; in other precisions there is next to nothing to multiply.
TF32 = TuningOption(
    gpu_values=("off", "on"), native={"gpu": "on"}, only_with={"precision": "float32"}, changes_precision=True
)

BY_KERAS = ("keras-fit",)
"""The modes in which Keras decides."""

SETTINGS: dict[str, dict[str, TuningOption]] = {
    "torch": {
        # As TensorFlow on the CPU, where torch's default NCHW takes up to twice the time, because of depthwise
        # convolutions. With ResNet-18 it is faster (docs/evidence/models.md), which autotune finds.
        "memory_layout": TuningOption(
            values=("NCHW", "NHWC"),
            strict={"cpu": "NHWC", "gpu": "NCHW"},
            native={"cpu": "NHWC", "gpu": "NHWC"},
            not_in=BY_KERAS,
        ),
        "tf32": TF32,
        # As TensorFlow, whose Adam is one kernel for a tensor; torch's default on the CPU is ten for each.
        "optimizer_kernels": TuningOption(
            values=("default", "foreach", "fused"),
            strict={"cpu": "fused", "gpu": "default"},
            native={"cpu": "fused", "gpu": "fused"},
            not_in=BY_KERAS,
        ),
        # One kernel for what are a dozen operations by default; it refuses CPU tensors. Unmeasured.
        "batchnorm_kernels": TuningOption(
            gpu_values=("default", "SyncBatchNorm"),
            native={"gpu": "default"},
            modes=("ddp",),
            only_with={"batchnorm": "sync"},
        ),
        "gradient_buckets": TuningOption(
            values=("copies", "views"),
            native={"cpu": "views", "gpu": "views"},
            modes=("ddp",),
        ),
        # Minutes before the first step, then 0.9 to 1.1 times as fast (docs/performance.md): where it pays, autotune
        # finds and remembers it. GPUs: unmeasured.
        "compilation": TuningOption(
            values=("none", "torch.compile"),
            gpu_values=("reduce-overhead",),
            native={"cpu": "none", "gpu": "none"},
            modes=("single", "ddp"),
        ),
    },
    "tensorflow": {
        "tf32": TF32,
        # XLA fails under the strategies: a variable on another device.
        "compilation": TuningOption(values=("none", "XLA"), native={"cpu": "none", "gpu": "none"}, modes=("single",)),
    },
    "jax": {
        "tf32": TF32,
        # On the CPU, XLA's own kernels take several times as long as shifted products for a depthwise convolution, and
        # for one from which less leaves than its filter covers (docs/evidence/models.md).
        "convolutions": TuningOption(
            values=("shifts", "kernel"),
            strict={"cpu": "shifts", "gpu": "kernel"},
            native={"cpu": "shifts", "gpu": "kernel"},
            not_in=BY_KERAS,
        ),
        # Whether a step writes into the memory of the state that it replaces, as the other frameworks do.
        "donation": TuningOption(values=("on", "off"), native={"cpu": "on", "gpu": "on"}, not_in=BY_KERAS),
        # XLA can order a step so that its collectives continue while it computes. Unmeasured.
        "scheduler": TuningOption(gpu_values=("default", "latency-hiding"), native={"gpu": "default"}, not_in=BY_KERAS),
    },
}


RENAMED = {"depthwise_convolution": "convolutions"}
"""Name of a setting in release 0.2.0, whose results and studies still are read -> its name now."""

Value = TypeVar("Value")


def under_new_names(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Settings as this release names them."""
    return {RENAMED.get(name, name): value for name, value in settings.items()}


def tuning_options(
    framework: str, mode: str, device_type: str, workload: Workload | None = None
) -> dict[str, TuningOption]:
    """The settings that a mode has on a type of device, with a workload or, without one, with any."""
    return {
        name: setting
        for name, setting in SETTINGS.get(framework, {}).items()
        if (setting.modes is None or mode in setting.modes)
        and mode not in setting.not_in
        and setting.values_on(device_type)
        and (workload is None or _takes_effect(setting, workload))
    }


def _takes_effect(setting: TuningOption, workload: Workload) -> bool:
    return all(getattr(workload, name) == value for name, value in setting.only_with.items())


def tuning_of(
    framework: str, mode: str, device_type: str, workload: Workload, chosen: Mapping[str, str]
) -> dict[str, str]:
    """The value of every setting of a mode: of the workload's profile, but for those that were chosen."""
    tuning = {}
    for name, setting in tuning_options(framework, mode, device_type, workload).items():
        # In bfloat16 tensor cores take no other layout.
        as_native = workload.profile == "native" or (name == "memory_layout" and workload.precision == "bfloat16")
        by_device = setting.native if as_native else setting.strict or {}
        tuning[name] = chosen.get(name) or by_device.get(device_type, setting.values_on(device_type)[0])
    return tuning


def problems_of(
    framework: str, mode: str, device_type: str, workload: Workload, chosen: Mapping[str, str]
) -> list[str]:
    """What is wrong with chosen settings."""
    known = tuning_options(framework, mode, device_type, workload)
    problems = []
    if chosen and workload.profile != "native":
        problems.append(f"tune: received {', '.join(chosen)} with profile {workload.profile}; expected profile native")
    for name, value in chosen.items():
        if name not in known:
            problems.append(
                f"tune: received {name!r}, expected a setting of {framework} {mode}: {', '.join(known)}"
                f"{_where_else(framework, mode, device_type, name)}.{did_you_mean(name, known)}"
            )
        elif value not in (possible := known[name].values_on(device_type)):
            only = f", which GPUs alone have, on {device_type} devices" if value in known[name].gpu_values else ""
            problems.append(f"tune: received {name}={value}{only}, expected one of {', '.join(possible)}")
    return problems


def _where_else(framework: str, mode: str, device_type: str, name: str) -> str:
    """Why a setting of the mode is not available here, as the end of a sentence."""
    if name not in tuning_options(framework, mode, "gpu"):
        return ""
    if name not in tuning_options(framework, mode, device_type):
        return f" ({name} is one of GPUs alone)"
    needed = " and ".join(f"{option} {value}" for option, value in SETTINGS[framework][name].only_with.items())
    return f" ({name} needs {needed})"
