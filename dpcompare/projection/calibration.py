"""Constants of a machine, fitted to measured steps; the cluster of a run, and the exchange that it recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpcompare.config.run import RunConfig
from dpcompare.models.architectures import MODELS
from dpcompare.models.state import Gradients
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
from dpcompare.projection.link import PAIR_GATHERS, Interconnect, Link
from dpcompare.projection.step import seconds_with_exchange


def processes_per_core(config: RunConfig, cores: int | None) -> float:
    """Processes with replicas per core of one machine, at least 1; simulated nodes are all on the same one.

    Args:
        config: of the run.
        cores: of the machine; None: not known, so each process is taken to have one of its own.
    """
    if config.cluster.device_type != "cpu" or not cores:
        return 1.0
    nodes = config.topology.nodes_with_replicas if config.cluster.simulated else 1
    return max(1.0, nodes * config.topology.processes_per_node / cores)


def cores_per_replica(config: RunConfig, cores: int | None) -> float:
    """On which a replica computes: its part of its process's threads, or of the cores that processes share.

    Of a replica on another device, 1, since no core computes it.

    Args:
        config: of the run.
        cores: of one machine, as `processes_per_core` takes them.
    """
    if config.cluster.device_type != "cpu":
        return 1.0
    topology = config.topology
    return topology.threads_per_process / topology.replicas_per_process / processes_per_core(config, cores)


def times_as_long(measured: float, planned: float = math.inf) -> float:
    """How many times as long a replica computes on other cores than it was measured on.

    In proportion, where they are fewer. More of them are not known to help it, but a whole core instead of a part does.

    Args:
        measured: cores per replica.
        planned: cores per replica; by default as many as it can use.
    """
    return measured / min(planned, max(1.0, measured))


def interconnect_of_run(
    config: RunConfig, *, collective: str, between: Link, within: Link, cores: int | None
) -> Interconnect:
    """What connects the replicas of a run, without the constants that are fitted.

    Args:
        config: of the run.
        collective: which carries its gradients; NCCL chooses among algorithms, the others have rings.
        between: the link of each node to the others.
        within: the link between the devices of a node.
        cores: of one machine, as `processes_per_core` takes them.
    """
    nodes = config.topology.nodes_with_replicas
    return Interconnect(
        nodes=nodes,
        nodes_without_replica=config.mode_row.nodes_without_replica,
        ranks_per_node=config.topology.num_replicas // nodes,
        between=between,
        within=within,
        algorithm="fastest" if collective == "nccl" else "ring",
        pair_gathers=PAIR_GATHERS if collective == "gloo" else 1.0,
        contention=processes_per_core(config, cores),
    )


FLOAT32_BYTES = 4
ASSUMED_LAYERS = 20


class NotProjectableError(ValueError):
    """An arm of which nothing can be predicted; says why."""


def exchange_of(config: RunConfig, known: Sequence[Gradients], without: Gradients | None) -> Exchange:
    """In which messages a mode exchanges its gradients.

    Args:
        config: of the mode.
        known: what its runs recorded; the first that has messages gives their sizes. Empty: nothing was recorded.
        without: what a run without exchange recorded, which shows best when gradients are ready.
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
    """The bytes of all gradients of a built-in model, for results that do not report them."""
    model = MODELS.get(config.workload.model)
    if model is None or config.inputs is None:
        raise NotProjectableError("the size of its gradients is not recorded; measure it again")
    shapes = model.shapes(config.workload.image_size, config.inputs.num_classes)
    count = sum(math.prod(shape) for name, shape in shapes.items() if "running_" not in name)
    return float(count * FLOAT32_BYTES)


MOST_COPYING = 1e-7
"""Seconds per byte: 10 MB/s, slower than any machine copies."""
LEAST_PAYLOAD = 0.5
LARGEST_ERROR = 0.1
"""Relative, of the model at the step that was measured: beyond it, its figures are not to be relied on."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """One cluster on which a step was measured with and without the exchange."""

    exchange: Exchange
    computing_seconds: float
    """Without it."""
    seconds: float
    """Seconds of the step with the exchange."""
    interconnect: Interconnect
    """Its `copying`, and the payload of its link between nodes, are what is fitted."""

    def predicted(self, fitted: Fitted) -> float:
        """Seconds of the step with these constants."""
        return seconds_with_exchange(self.exchange, self.computing_seconds, fitted.applied_to(self.interconnect))

    def error(self, fitted: Fitted) -> float:
        """The error of the prediction, relative to the step that was measured."""
        return self.predicted(fitted) / self.seconds - 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The constants of one collective on one kind of machine."""

    copying: float = 0.0
    """Seconds of CPU time per byte that a rank sends."""
    payload: float | None = None
    """The payload of the link between nodes; None: the one of the link, since no cell was bound by a limited link."""

    def applied_to(self, interconnect: Interconnect) -> Interconnect:
        """An interconnect with these constants."""
        between = interconnect.between
        if self.payload is not None:
            between = replace(between, payload=self.payload)
        return replace(interconnect, copying=self.copying, between=between)


def fit(cells: Sequence[MeasuredCell]) -> Fitted:
    """The constants with which the model comes nearest to measured cells, by the sum of squared relative errors.

    The copying comes from all cells. The payload is fitted only where some link had a limit, and other cells had none
    or another one, since one cell cannot separate the two.
    """
    if not cells:
        return Fitted()
    limits = {cell.interconnect.between.bytes_per_second for cell in cells}
    payload, copying = None, _fitted_copying(cells, None)
    if len(limits) > 1:
        for _ in range(ROUNDS):
            payload = _fitted_payload(cells, copying)
            copying = _fitted_copying(cells, payload)
    return Fitted(copying=copying, payload=payload)


ROUNDS = 3
"""In which one constant after the other is fitted; each moves the other little."""
GRID = 13
"""Values that are tried between two ends."""


def _fitted_copying(cells: Sequence[MeasuredCell], payload: float | None) -> float:
    return _best(lambda value: _squares(cells, Fitted(copying=value, payload=payload)), 0.0, MOST_COPYING)


def _fitted_payload(cells: Sequence[MeasuredCell], copying: float) -> float:
    return _best(lambda value: _squares(cells, Fitted(copying=copying, payload=value)), LEAST_PAYLOAD, 1.0)


def _squares(cells: Sequence[MeasuredCell], fitted: Fitted) -> float:
    return sum(cell.error(fitted) ** 2 for cell in cells)


def _best(error: Callable[[float], float], low: float, high: float) -> float:
    """The value with the least error: on a grid that is drawn closer around it, since the error has kinks."""
    for _ in range(7):
        grid = np.linspace(low, high, GRID)
        best = int(np.argmin([error(float(value)) for value in grid]))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(GRID - 1, best + 1)])
    return (low + high) / 2
