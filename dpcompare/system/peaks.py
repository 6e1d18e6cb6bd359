"""The peaks of GPUs: what their makers promise of operations and memory, by the names that drivers give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

TERA = 1e12


class Peak(NamedTuple):
    """One row of PEAKS, of one GPU."""

    flops: Mapping[str, float]
    """Kind of arithmetic -> operations per second of dense matrices."""
    bandwidth: float
    """Bytes per second of its memory."""
    source: str


def _peak(source: str, bandwidth: float, **flops: float) -> Peak:
    return Peak({kind: TERA * value for kind, value in flops.items()}, TERA * bandwidth, source)


_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture, table 2, and data sheet"
_AMPERE = "NVIDIA A100 Tensor Core GPU data sheet"
_ADA = "NVIDIA Ada GPU Architecture, appendix A, and data sheets"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture, appendix A, and data sheets"

PEAKS: dict[str, Peak] = {
    r"\bH200$": _peak("NVIDIA H200 data sheet", 4.8, float32=66.9, tf32=494.7, bfloat16=989.4, float64=66.9),
    r"H100 (80GB HBM3|SXM)": _peak(_HOPPER, 3.35, float32=66.9, tf32=494.7, bfloat16=989.4, float64=66.9),
    r"H100 PCIe": _peak(_HOPPER, 2.0, float32=51.2, tf32=378.0, bfloat16=756.0, float64=51.2),
    r"A100-SXM4-80GB": _peak(_AMPERE, 2.039, float32=19.5, tf32=156.0, bfloat16=312.0, float64=19.5),
    r"A100.*80GB PCIe": _peak(_AMPERE, 1.935, float32=19.5, tf32=156.0, bfloat16=312.0, float64=19.5),
    r"A100.*40GB": _peak(_AMPERE, 1.555, float32=19.5, tf32=156.0, bfloat16=312.0, float64=19.5),
    r"A10$": _peak("NVIDIA A10 data sheet", 0.6, float32=31.2, tf32=62.5, bfloat16=125.0),
    r"L40S": _peak("NVIDIA L40S data sheet", 0.864, float32=91.6, tf32=183.0, bfloat16=362.0),
    r"L4$": _peak("NVIDIA L4 data sheet", 0.3, float32=30.3, tf32=60.0, bfloat16=121.0),
    r"RTX 4090$": _peak(_ADA, 1.008, float32=82.6, tf32=82.6, bfloat16=165.2),
    r"RTX 3090$": _peak(_GA102, 0.936, float32=35.6, tf32=35.6, bfloat16=71.2),
    r"V100-SXM2": _peak("NVIDIA V100 data sheet", 0.9, float32=15.7, float64=7.8),
    r"T4$": _peak("NVIDIA T4 data sheet", 0.32, float32=8.1),
}
"""Pattern of the name of a GPU -> its peak: dense, without sparsity; in float64 with tensor cores where there are some.
A GPU that is not here has no utilization: `python -m benchmarks.ceilings` measures what it reaches."""


def peak_of(name: str) -> Peak | None:
    """The peaks of a GPU, by the name that its driver gives it; None if the table has none, or for a MIG slice."""
    if " MIG " in name:
        return None
    return next((peak for pattern, peak in PEAKS.items() if re.search(pattern, name)), None)
