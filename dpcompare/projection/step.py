"""A step on a cluster: the slowest of many processes, storage, checkpoints and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from dpcompare.projection.exchange import Exchange, Message
from dpcompare.projection.link import Interconnect
from dpcompare.results.steadiness import JITTER_SCALE


@cache
def expected_maximum(count: int) -> float:
    """The expected maximum of this many draws from the standard normal distribution: 0.56 of two, 2.83 of 256.

    The first order statistic from above, by integration of x d(F(x)^n) (David and Nagaraja, Order Statistics, 2003).
    """
    from scipy.special import log_ndtr

    if count < 1:
        raise ValueError(f"count: received {count}, expected at least 1")
    edges = np.linspace(-9.0, 9.0, 9001)
    cumulated = np.exp(count * log_ndtr(edges))
    return float(((edges[1:] + edges[:-1]) / 2 * np.diff(cumulated)).sum())


def slowdown(spread: float, ranks: int, measured_ranks: int = 1) -> float:
    """How many times longer the slowest of many ranks takes than the slowest of those that were measured.

    Args:
        spread: standard deviation of a rank's step, relative to its mean.
        ranks: in the cluster that is predicted.
        measured_ranks: of which the slowest is known.
    """
    measured = 1 + spread * expected_maximum(measured_ranks)
    return max(1.0, (1 + spread * expected_maximum(ranks)) / measured)


def slowest_of_each_step(step_seconds: Sequence[Sequence[float]]) -> float:
    """The median step if all processes waited for the slowest one in each step, as they do where they exchange.

    Args:
        step_seconds: per process, those of the same steps, made without waiting for the others.
    """
    return float(np.median(np.max(step_seconds, axis=0)))


def spread_of(step_seconds: Sequence[Sequence[float]]) -> float:
    """The relative standard deviation of a step, from the steps of each process of one run.

    What differs from step to step within a process and what differs between processes add up. Robust, so that a stall
    is none: by the median absolute deviation of all steps from their process's median.

    Args:
        step_seconds: per process, those of its measured steps, made without waiting for the others.
    """
    processes = [np.asarray(seconds, np.float64) for seconds in step_seconds if len(seconds)]
    if not processes:
        return 0.0
    medians = np.array([np.median(seconds) for seconds in processes])
    residuals = np.concatenate([seconds / median - 1 for seconds, median in zip(processes, medians, strict=True)])
    within = JITTER_SCALE * float(np.median(np.abs(residuals)))
    between = float(medians.std(ddof=1) / medians.mean()) if len(medians) > 1 else 0.0
    return float(np.hypot(within, between))


@dataclass(frozen=True, kw_only=True)
class Interruptions:
    """Checkpoints and failures; each is left out where its figures are None or 0."""

    checkpoint_every: int | None = None
    """Steps."""
    checkpoint_seconds: float = 0.0
    """Seconds of writing a checkpoint, in which no step is made."""
    node_mtbf_seconds: float | None = None
    """Mean time between failures of one node; those of several nodes are independent."""
    restart_seconds: float = 0.0
    """From a failure to the first step after it."""

    def fraction_training(self, step_seconds: float, nodes: int) -> float:
        """The part of the time in which steps are made that count; 0 where failures come faster than restarts.

        A failure costs the restart and, on average, half of what is made between two checkpoints (Young 1974, Daly
        2006).
        """
        fraction = 1.0
        between = 0.0
        if self.checkpoint_every:
            between = self.checkpoint_every * step_seconds
            fraction = between / (between + self.checkpoint_seconds)
        if self.node_mtbf_seconds:
            lost = (self.restart_seconds + between / 2) * nodes / self.node_mtbf_seconds
            fraction *= max(0.0, 1 - lost)
        return fraction


@dataclass(frozen=True, kw_only=True)
class TrainingOverheads:
    """The storage that all nodes read from, and the interruptions."""

    storage_bytes_per_second: float | None = None
    """None: reading keeps up, as it was measured."""
    interruptions: Interruptions = field(default_factory=Interruptions)

    def training(self, work: StepWork, interconnect: Interconnect) -> tuple[Step, float]:
        """A step, and the part of the time in which steps are made that count."""
        step = predict_step(work, interconnect, storage_bytes_per_second=self.storage_bytes_per_second)
        return step, self.interruptions.fraction_training(step.seconds, interconnect.all_nodes)

    def images_per_second(self, work: StepWork, interconnect: Interconnect) -> float:
        """Images per second of all devices, over the whole training."""
        step, fraction = self.training(work, interconnect)
        return step.images_per_second * fraction

    def efficiency(self, work: StepWork, interconnect: Interconnect) -> float:
        """The efficiency of the whole training; see `Step.efficiency`."""
        step, fraction = self.training(work, interconnect)
        return step.efficiency * fraction


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """What every device does in a step: measured of a run, and independent of how many devices there are."""

    computing_seconds: float
    """Seconds of the measured process that is the slowest in a step, without exchange."""
    batch_per_device: float
    exchange: Exchange
    measured_ranks: int = 1
    """Among which the slowest was measured."""
    spread: float = 0.0
    """Relative standard deviation of a process's step; see `spread_of`."""
    fixed_seconds: float = 0.0
    """The part of `computing_seconds` that does not grow with the batch; 0 where only one batch was measured."""
    image_bytes: float = 0.0
    """The bytes that are read per image."""

    def with_batch(self, batch_per_device: float) -> StepWork:
        """The same training with another batch per device: computing grows with it, gradients do not."""
        factor = batch_per_device / self.batch_per_device
        seconds = self.fixed_seconds + (self.computing_seconds - self.fixed_seconds) * factor
        return replace(self, batch_per_device=batch_per_device, computing_seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One predicted step, in parts that add up to `seconds`."""

    computing: float
    """Seconds of the slowest of the processes that were measured, in each step."""
    waiting_for_slowest: float
    """What the slowest of all processes takes longer."""
    exchange: float
    """The part of the exchange that computing does not hide."""
    input: float
    """What reading takes longer than all of that."""
    images: float
    """The images of all devices in the step."""
    training_share: float = 1.0
    """The share of the devices that train; the others are on nodes that hold no replica."""

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting_for_slowest + self.exchange + self.input

    @property
    def images_per_second(self) -> float:
        """Images per second of all devices."""
        return self.images / self.seconds

    @property
    def efficiency(self) -> float:
        """Images per second over those of as many devices that exchange nothing and wait as those measured did."""
        return self.training_share * self.computing / self.seconds


def band(work: StepWork, interconnect: Interconnect) -> dict[str, tuple[StepWork, Interconnect]]:
    """What the ends of a predicted range are computed from: the latency, and how unlike each other processes are.

    Args:
        work: of each device, as measured.
        interconnect: the nodes, and what connects them.

    Returns:
        `low` (of speeds), `typical` and `high`, each as `predict_step` takes it.
    """
    return {
        "low": (work, replace(interconnect, latency="high")),
        "typical": (work, interconnect),
        "high": (replace(work, spread=0.0), replace(interconnect, latency="low")),
    }


def predict_step(work: StepWork, interconnect: Interconnect, *, storage_bytes_per_second: float | None = None) -> Step:
    """One step of a training on a cluster.

    Args:
        work: of each device.
        interconnect: the nodes, and what connects them.
        storage_bytes_per_second: from which all nodes together read; None: reading keeps up, as it was measured.
    """
    ranks = interconnect.ranks
    waits = 1.0 if work.exchange.servers else slowdown(work.spread, ranks, work.measured_ranks)
    slowest = work.computing_seconds * waits
    with_exchange = seconds_with_exchange(work.exchange, slowest, interconnect)
    images = work.batch_per_device * ranks
    reading = images * work.image_bytes / storage_bytes_per_second if storage_bytes_per_second else 0.0
    return Step(
        computing=work.computing_seconds,
        waiting_for_slowest=slowest - work.computing_seconds,
        exchange=with_exchange - slowest,
        input=max(0.0, reading - with_exchange),
        images=images,
        training_share=interconnect.nodes / interconnect.all_nodes,
    )


def seconds_with_exchange(exchange: Exchange, computing_seconds: float, interconnect: Interconnect) -> float:
    """A step of which the messages share one link, in their order, and computing waits for those that it needs."""
    if exchange.servers:
        return _seconds_through_servers(exchange, computing_seconds, interconnect)
    if interconnect.ranks == 1:
        return computing_seconds
    link_free, delay = 0.0, 0.0
    awaited: list[tuple[float, float]] = []
    """(share of the computing, when the message that it waits for ends)"""
    for message in exchange.messages:
        delay = _delay_at(message.ready, delay, awaited, computing_seconds)
        begins = max(link_free, message.ready * computing_seconds + delay)
        link_free = begins + _seconds_of(message, exchange, interconnect)
        awaited.append((message.needed_by, link_free))
    seconds = computing_seconds + _delay_at(1.0, delay, awaited, computing_seconds)
    if exchange.copying == "during transfer":
        copied = sum(interconnect.copying_seconds(each.kind, each.num_bytes) for each in exchange.messages)
        seconds = max(seconds, computing_seconds + copied * interconnect.contention)
    return seconds


def _delay_at(share: float, delay: float, awaited: list[tuple[float, float]], computing_seconds: float) -> float:
    """How late computing is at a share of it, which all messages delay that it needed until then."""
    ends = [ended - needed_by * computing_seconds for needed_by, ended in awaited if needed_by <= share]
    awaited[:] = [each for each in awaited if each[0] > share]
    return max([delay, *ends])


def _seconds_of(message: Message, exchange: Exchange, interconnect: Interconnect) -> float:
    wire = interconnect.wire_seconds(message.kind, message.num_bytes)
    copying = interconnect.copying_seconds(message.kind, message.num_bytes)
    own = wire if exchange.copying == "during transfer" else wire + copying
    return _on_shared_cores(own, copying, interconnect)


def _on_shared_cores(own: float, copying: float, interconnect: Interconnect) -> float:
    """The longer of what one rank takes by itself, and the cores of one machine for the copying of all its ranks.

    Ranks that wait for their wire leave the cores to the others, so the two do not add up: the bounds of operational
    analysis (Denning and Buzen 1978).
    """
    return max(own, copying * interconnect.contention)


def _seconds_through_servers(exchange: Exchange, computing_seconds: float, interconnect: Interconnect) -> float:
    """Each worker pulls parameters and pushes gradients by itself; servers send to all workers what all have pulled."""
    link, copying = interconnect.between, interconnect.copying * exchange.num_bytes
    own = link.seconds(exchange.num_bytes) + interconnect.latency_of(link) + copying
    one_way = _on_shared_cores(own, copying, interconnect)
    at_servers = interconnect.ranks / exchange.servers * link.seconds(exchange.num_bytes)
    return max(computing_seconds + 2 * one_way, at_servers)
