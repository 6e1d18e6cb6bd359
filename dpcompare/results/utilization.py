"""How much of a device a run used: operations and bytes per second that its model takes at least, against its peaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpcompare.config.run import RunConfig
from dpcompare.models.costs import training_flops, values_moved
from dpcompare.system.peaks import peak_of

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
"""Of a feature, by precision."""


def utilization_figures(
    config: RunConfig, images_per_second: float | None, device_names: Sequence[str], *, tf32: bool
) -> dict[str, Any]:
    """The figures of a run; nothing without a speed, or for a custom model, of which nothing is known.

    Args:
        config: of the run, whose inputs are prepared.
        images_per_second: of all replicas.
        device_names: of all of its devices, as the framework reports them.
        tf32: whether products of float32 were rounded to TF32.
    """
    workload = config.workload
    if config.inputs is None or images_per_second is None:
        return {}
    asked = workload.model, workload.image_size, config.inputs.num_classes
    flops, values = training_flops(*asked), values_moved(*asked)
    if flops is None or values is None:
        return {}
    per_device = images_per_second / (1 if config.cluster.shared else config.topology.num_replicas * config.stages)
    peaks = {name: peak_of(name) for name in device_names}
    peak = next(iter(peaks.values()), None) if len(peaks) == 1 and not config.cluster.shared else None
    kind = "tf32" if tf32 and workload.precision == "float32" else workload.precision
    most = peak.flops.get(kind) if peak else None
    return {
        "flops_per_image": flops,
        "achieved_flops": per_device * flops,
        "achieved_bandwidth": per_device * values * BYTES[workload.precision],
        "model_flops_utilization": per_device * flops / most if most else None,
        "bandwidth_utilization": per_device * values * BYTES[workload.precision] / peak.bandwidth if peak else None,
        "peak_source": f"{peak.source}: {most / 1e12:g} TFLOP/s in {kind}" if peak and most else None,
    }
