"""What a change of its exchange would bring a step: the same step with one thing changed at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.exchange import Exchange, default_buckets, in_buckets, ready_shares
from dpcompare.projection.step import StepWork, predict_step

Change = Literal["a link twice as fast", "gradients in buckets"]


def what_helps(work: StepWork, interconnect: Interconnect) -> dict[Change, float]:
    """How many times as many images per second each change brings; buckets only where gradients are in one pack.

    Args:
        work: of each device, as measured.
        interconnect: on which it runs.
    """
    between, within = (link.times_as_fast(2.0) for link in (interconnect.between, interconnect.within))
    faster = replace(interconnect, between=between, within=within)
    changed: dict[Change, tuple[StepWork, Interconnect]] = {"a link twice as fast": (work, faster)}
    if work.exchange.copying == "after the wire" and not work.exchange.servers:
        changed["gradients in buckets"] = (replace(work, exchange=_in_buckets(work.exchange)), interconnect)
    now = predict_step(work, interconnect).images_per_second
    return {change: predict_step(*situation).images_per_second / now for change, situation in changed.items()}


def _in_buckets(exchange: Exchange) -> Exchange:
    """The gradients as DistributedDataParallel would exchange them."""
    ends = max((message.needed_by for message in exchange.messages), default=1.0)
    gradients = sum(message.num_bytes for message in exchange.messages if message.kind != "all-gather")
    buckets = default_buckets(gradients)
    return in_buckets(buckets, ready_shares(buckets, backward_ends=ends), backward_ends=ends)
