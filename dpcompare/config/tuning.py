"""The table of settings that tune a framework: they change its speed and nothing of what is trained.

`--profile strict` takes what keeps the frameworks alike; `--profile native` what was measured to be fastest on a type
of device, and `--tune NAME=VALUE` overrides it. A new setting is a row of SETTINGS and the one place of its backend
that obeys it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A row of SETTINGS; the first value is that of the strict profile, unless it says otherwise."""

    values: tuple[str, ...]
    native: Mapping[str, str]
    """Device type -> the value of the native profile."""
    strict: Mapping[str, str] | None = None
    """Device type -> the value of the strict profile."""
    modes: tuple[str, ...] | None = None
    """Where only some modes have it."""


SETTINGS: dict[str, dict[str, Setting]] = {
    "torch": {
        # As TensorFlow on the CPU, where torch's default NCHW takes twice the time.
        "memory_layout": Setting(
            values=("NCHW", "NHWC"), strict={"cpu": "NHWC", "gpu": "NCHW"}, native={"cpu": "NHWC", "gpu": "NHWC"}
        ),
        # As TensorFlow, whose Adam is one kernel for a tensor; torch's default on the CPU is ten for each.
        "optimizer_kernels": Setting(
            values=("default", "foreach", "fused"),
            strict={"cpu": "fused", "gpu": "default"},
            native={"cpu": "fused", "gpu": "fused"},
        ),
        "gradient_buckets": Setting(
            values=("copies", "views"),
            native={"cpu": "views", "gpu": "views"},
            modes=("ddp",),
        ),
        # A minute or more before the first step, then 1.2 to 1.3 times as fast (docs/performance.md); GPUs: unmeasured.
        "compilation": Setting(
            values=("none", "torch.compile"), native={"cpu": "torch.compile", "gpu": "none"}, modes=("single", "ddp")
        ),
    },
    "tensorflow": {
        # XLA fails under the strategies: a variable on another device.
        "compilation": Setting(values=("none", "XLA"), native={"cpu": "none", "gpu": "none"}, modes=("single",)),
    },
}


def settings_of(framework: str, mode: str) -> dict[str, Setting]:
    """The settings that a mode has."""
    return {
        name: setting for name, setting in SETTINGS[framework].items() if setting.modes is None or mode in setting.modes
    }


def tuning_of(
    framework: str,
    mode: str,
    profile: Literal["strict", "native"],
    device_type: str,
    precision: str,
    chosen: Mapping[str, str],
) -> dict[str, str]:
    """The value of every setting of a mode: of its profile, but for those that were chosen."""
    tuning = {}
    for name, setting in settings_of(framework, mode).items():
        # In bfloat16 tensor cores take no other layout.
        as_native = profile == "native" or (name == "memory_layout" and precision == "bfloat16")
        by_device = setting.native if as_native else setting.strict or {}
        tuning[name] = chosen.get(name) or by_device.get(device_type, setting.values[0])
    return tuning


def problems_of(framework: str, mode: str, profile: str, chosen: Mapping[str, str]) -> list[str]:
    """What is wrong with chosen settings."""
    if chosen and profile != "native":
        return [f"tune: received {', '.join(chosen)} with profile {profile}; expected profile native"]
    known = settings_of(framework, mode)
    problems = []
    for name, value in chosen.items():
        if name not in known:
            problems.append(f"tune: received {name!r}, expected a setting of {framework} {mode}: {', '.join(known)}")
        elif value not in known[name].values:
            problems.append(f"tune: received {name}={value}, expected one of {', '.join(known[name].values)}")
    return problems
