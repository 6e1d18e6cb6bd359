"""The exchange of a mode as its runs recorded it; what they did not record is assumed, and said."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpcompare.config.run import RunConfig
from dpcompare.models.architectures import MODELS
from dpcompare.models.gradients import Gradients
from dpcompare.projection.exchange import (
    BACKWARD_ENDS,
    Exchange,
    default_buckets,
    in_buckets,
    in_one_pack,
    in_shards,
    ready_shares,
    through_servers,
    through_the_first,
)

FLOAT32_BYTES = 4
ASSUMED_LAYERS = 20


class NotProjectableError(ValueError):
    """An arm of which nothing can be predicted; says why."""


def exchange_of(config: RunConfig, known: Sequence[Gradients], without: Gradients | None) -> Exchange:
    """In which messages a mode exchanges its gradients.

    Args:
        config: of the mode.
        known: what its runs recorded; the first that has messages tells their sizes. Empty: nothing was recorded.
        without: what a run without exchange recorded, which tells best when gradients are ready.
    """
    sizes = next((each.messages for each in known if each.messages), ())
    observed = next((each for each in (without, *known) if each and each.ready), None)
    gradient_bytes = float(known[0].num_bytes) if known else _bytes_by_shapes(config)
    ends = (observed.backward_ends if observed else None) or BACKWARD_ENDS
    match config.mode_row.exchange:
        case "buckets":
            return _buckets(gradient_bytes, sizes, observed, ends)
        case "shards":
            assumed = () if sizes else (f"{ASSUMED_LAYERS} layers of equal size are assumed",)
            layers = sizes or (gradient_bytes / ASSUMED_LAYERS,) * ASSUMED_LAYERS
            on_cpu = config.cluster.device_type == "cpu"
            return in_shards(layers, waits=on_cpu, reduces_by_all_reduce=on_cpu, backward_ends=ends, assumed=assumed)
        case "server":
            return through_servers(gradient_bytes)
        case "first device":
            return through_the_first(gradient_bytes, backward_ends=ends)
        case _:
            return in_one_pack(gradient_bytes, backward_ends=ends)


def _buckets(gradient_bytes: float, sizes: Sequence[int], observed: Gradients | None, ends: float) -> Exchange:
    assumed = []
    if not sizes:
        assumed.append("the buckets are torch's default sizes, since those of the run were not recorded")
    if observed is None:
        assumed.append("gradients are taken to become ready evenly in the backward pass, since no run recorded it")
    buckets = [float(size) for size in sizes] or default_buckets(gradient_bytes)
    shares = ready_shares(buckets, observed.ready if observed else (), backward_ends=ends)
    return in_buckets(buckets, shares, backward_ends=ends, assumed=assumed)


def _bytes_by_shapes(config: RunConfig) -> float:
    """Of all gradients of a model of ours, for results that do not tell."""
    model = MODELS.get(config.workload.model)
    if model is None or config.inputs is None:
        raise NotProjectableError("the size of its gradients is not recorded; measure it again")
    shapes = model.shapes(config.workload.image_size, config.inputs.num_classes)
    count = sum(math.prod(shape) for name, shape in shapes.items() if "running_" not in name)
    return float(count * FLOAT32_BYTES)
