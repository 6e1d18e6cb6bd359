"""What would help a step most, and by how much: the same step with one thing changed at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.exchange import Exchange, default_buckets, in_buckets, ready_shares
from dpcompare.projection.link import Latency
from dpcompare.projection.step import StepWork, predict_step

Change = Literal[
    "a link twice as fast", "half the latency", "twice the batch per device", "gradients exchanged in buckets",
    "equally fast processes", "no exchange",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """One change, and the images per second that the model predicts with it."""

    change: Change
    images_per_second: float
    factor: float
    """Over those without the change."""


def what_helps(work: StepWork, interconnect: Interconnect) -> list[Improvement]:
    """Every change, the one that helps most first. `no exchange` is none that can be made: the most that is to be won.

    Args:
        work: of each device, as measured.
        interconnect: on which it runs.
    """
    changed: dict[Change, tuple[StepWork, Interconnect]] = {
        "a link twice as fast": (work, _with_links(interconnect, 2.0, 1.0)),
        "half the latency": (work, _with_links(interconnect, 1.0, 0.5)),
        "twice the batch per device": (work.with_batch(2 * work.batch_per_device), interconnect),
        "equally fast processes": (replace(work, spread=0.0), interconnect),
        "no exchange": (replace(work, exchange=replace(work.exchange, messages=())), interconnect),
    }
    if work.exchange.copying == "after the wire" and not work.exchange.servers:
        changed["gradients exchanged in buckets"] = (replace(work, exchange=_in_buckets(work.exchange)), interconnect)
    now = predict_step(work, interconnect).images_per_second
    speeds = {change: predict_step(*situation).images_per_second for change, situation in changed.items()}
    found = [
        Improvement(change=change, images_per_second=speed, factor=speed / now) for change, speed in speeds.items()
    ]
    return sorted(found, key=lambda each: each.factor, reverse=True)


def _in_buckets(exchange: Exchange) -> Exchange:
    """The gradients as DistributedDataParallel would exchange them."""
    ends = max((message.needed_by for message in exchange.messages), default=1.0)
    gradients = sum(message.num_bytes for message in exchange.messages if message.kind != "all-gather")
    buckets = default_buckets(gradients)
    return in_buckets(buckets, ready_shares(buckets, backward_ends=ends), backward_ends=ends)


def _with_links(interconnect: Interconnect, speed: float, latency: float) -> Interconnect:
    def changed(delay: Latency) -> Latency:
        return Latency(low=delay.low * latency, typical=delay.typical * latency, high=delay.high * latency)

    between, within = (
        replace(link.times_as_fast(speed), latency=changed(link.latency))
        for link in (interconnect.between, interconnect.within)
    )
    return replace(interconnect, between=between, within=within)
