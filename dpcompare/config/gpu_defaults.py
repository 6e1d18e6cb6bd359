"""The workload that the command line takes on GPUs where nothing else was asked for: enough to keep them busy."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from dpcompare.models.architectures import model_of
from dpcompare.system.type_names import FieldValue

DATASET = "synthetic"
"""It grows with the global batch: on many GPUs the digits are three steps, after which a run evaluates."""
IMAGES_PER_REPLICA = 64
"""Images of a replica's step; with fewer, a GPU waits for its next kernel to be launched."""
MOST_IMAGES_PER_REPLICA = 128
"""The largest number of images per replica: with more, a GPU of 24 GB may be too small."""
BYTES_PER_IMAGE = 180_000_000
"""The bytes that EfficientNet-B2 takes at 260 px in float32 (estimated)."""
LARGE_MEMORY = 40_000_000_000
"""Bytes from which a GPU takes twice of both: such a one is as much faster (estimated)."""
WARMUP_STEPS = 30
"""In the first ones kernels are chosen and compiled, and clocks change."""
MEASURED_STEPS = 170


def gpu_defaults(
    given: Mapping[str, FieldValue], *, models: Collection[str], replicas: Collection[int], memory: int | None = None
) -> dict[str, FieldValue]:
    """Fields of a `Workload` and their values, for those that were not asked for.

    Runs that are compared share an image size, the largest that one of their models was designed for, and a global
    batch that all their numbers of replicas divide: IMAGES_PER_REPLICA each, but no more than MOST_IMAGES_PER_REPLICA
    for the run that has the fewest.

    Args:
        given: fields of the workload that were asked for.
        models: names, of all runs that are compared; of one alone for a run by itself.
        replicas: numbers of replicas of the same runs.
        memory: bytes that a replica of them has at least; None where it is not known, as on other machines.
    """
    multiple = math.lcm(*replicas)
    factor = 2 if memory is not None and memory >= LARGE_MEMORY else 1
    most = factor * MOST_IMAGES_PER_REPLICA
    if memory is not None:
        most = min(most, max(1, memory // BYTES_PER_IMAGE))
    images = min(factor * IMAGES_PER_REPLICA * multiple, most * min(replicas))
    batch = max(1, images // multiple) * multiple
    defaults: dict[str, Any] = {"dataset": DATASET, "global_batch_size": batch, **_length(given)}
    if native := [size for name in models if (size := model_of(name).native_image_size)]:
        unit = math.lcm(*(model_of(name).multiple_of for name in models))
        defaults["image_size"] = max(native) // unit * unit
    return {name: value for name, value in defaults.items() if name not in given}


def _length(given: Mapping[str, FieldValue]) -> dict[str, int]:
    """Steps, and as many of them for warming up as leave most of what was asked for to be measured."""
    if "epochs" in given:  # whose steps follow from the dataset: the few of any workload
        return {}
    if "steps" in given:
        return {"warmup_steps": min(WARMUP_STEPS, max(0, given["steps"] // 4))}
    warmup_steps = given.get("warmup_steps", "auto")
    return {
        "warmup_steps": WARMUP_STEPS,
        "steps": MEASURED_STEPS + (WARMUP_STEPS if warmup_steps == "auto" else warmup_steps),
    }
