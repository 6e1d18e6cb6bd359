"""Collectives: how long gradients are on the way, by the algorithm that carries them.

Rabenseifner (2004) and Thakur et al. (2005) derive the costs of rings and of halving and doubling; NCCL's own model has
the latencies of its rings and double binary trees (src/graph/tuning.cc).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from dpcompare.projection.link import Latency, Link

Algorithm = Literal["ring", "tree", "halving", "fastest"]
"""`tree`: NCCL's double binary tree. `halving`: recursive halving and doubling. `fastest`: of ring and tree, as NCCL
chooses."""
Kind = Literal["all-reduce", "reduce-scatter", "all-gather"]
LatencyEnd = Literal["low", "typical", "high"]
PAIR_GATHERS_FROM = 512 * 1024
"""Bytes of the whole from which two nodes gather more slowly by Gloo than their link is."""
PAIR_GATHERS = 0.7
"""Part of what their link carries otherwise: 323 to 344 Mbit/s of 0.8 and 2.3 MB on 500mbit, where three and four nodes
have 431 to 462 and all-reduces 469 to 476. By `benchmarks.collectives`, torch 2.14, on simulated links; the cause is
not known."""


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """The nodes of a cluster and what connects them, as a collective sees it."""

    nodes: int
    """That hold replicas."""
    nodes_without_replica: int = 0
    """Such as a parameter server and its chief."""
    ranks_per_node: int = 1
    """Processes or GPUs of a node that take part."""
    between: Link
    """Of each node to the others; its ranks share it."""
    within: Link
    """Between the ranks of a node."""
    algorithm: Algorithm = "ring"
    pair_gathers: float = 1.0
    """Part of its rate that a link carries while two nodes gather much from each other; see PAIR_GATHERS."""
    hierarchical: bool = False
    """Whether gradients are summed within each node first, and then between the nodes."""
    copying: float = 0.0
    """Seconds of CPU time per byte that a rank sends; 0 where GPUs copy by themselves."""
    contention: float = 1.0
    """Processes per core, at least 1: how many times longer copying takes where those of simulated nodes, which share
    the cores of one machine, all copy at once."""
    latency: LatencyEnd = "typical"
    """Which end of the range of each link's latency is taken."""

    @property
    def ranks(self) -> int:
        """That take part in all."""
        return self.nodes * self.ranks_per_node

    @property
    def all_nodes(self) -> int:
        """Those without a replica included."""
        return self.nodes + self.nodes_without_replica

    def with_nodes(self, nodes: int) -> Interconnect:
        """The same links with another number of nodes that hold replicas."""
        return replace(self, nodes=nodes)

    def latency_of(self, link: Link) -> float:
        """Seconds, at the end of its range that is taken."""
        found: Latency = link.latency
        return {"low": found.low, "typical": found.typical, "high": found.high}[self.latency]

    def wire_seconds(self, kind: Kind, num_bytes: float) -> float:
        """How long a collective over all ranks is on the links.

        Args:
            kind: of collective.
            num_bytes: of the whole, which each rank has before or after it.
        """
        if self.ranks == 1:
            return 0.0
        if self.hierarchical and self.nodes > 1 and self.ranks_per_node > 1:
            one_node, one_rank = replace(self, nodes=1), replace(self, ranks_per_node=1)
            # Each rank of a node exchanges its part with those of the other nodes, all of them over the node's link.
            return one_node._flat(kind, num_bytes) + one_rank._flat(kind, num_bytes)
        return self._flat(kind, num_bytes)

    def _flat(self, kind: Kind, num_bytes: float) -> float:
        if self.algorithm == "fastest":
            candidates: tuple[Algorithm, ...] = ("ring", "tree") if kind == "all-reduce" else ("ring",)
            return min(replace(self, algorithm=each)._flat(kind, num_bytes) for each in candidates)
        if self.algorithm == "tree" and kind == "all-reduce":
            return self._slowest_link(2 * num_bytes) + 2 * (
                (self.ranks_per_node - 1) * self.latency_of(self.within) + _doublings(self.nodes) * self._between()
            )
        sent = num_bytes * self.sent_fraction(kind)
        if kind == "all-gather" and self.nodes == self.ranks == 2 and num_bytes >= PAIR_GATHERS_FROM:
            sent /= self.pair_gathers
        passes = 2 if kind == "all-reduce" else 1
        if self.algorithm == "halving":
            steps_between, steps_within = _doublings(self.nodes), _doublings(self.ranks_per_node)
        else:
            steps_between, steps_within = self.nodes - 1, self.ranks - self.nodes
        latency = steps_between * self._between() + steps_within * self.latency_of(self.within)
        return self._slowest_link(sent) + passes * latency

    def _between(self) -> float:
        return self.latency_of(self.between)

    def _slowest_link(self, num_bytes: float) -> float:
        """A ring or tree passes each link of a node once, so the slowest of them sets its pace."""
        seconds = [self.between.seconds(num_bytes)] if self.nodes > 1 else []
        seconds += [self.within.seconds(num_bytes)] if self.ranks_per_node > 1 else []
        return max(seconds, default=0.0)

    def copying_seconds(self, kind: Kind, num_bytes: float) -> float:
        """CPU time of each rank to copy what a collective sends and receives."""
        return self.copying * num_bytes * self.sent_fraction(kind)

    def sent_fraction(self, kind: Kind) -> float:
        """Bytes that each rank of a ring sends, over those of the whole: 2 (n - 1) / n in an all-reduce."""
        passes = 2 if kind == "all-reduce" else 1
        return passes * (self.ranks - 1) / self.ranks


def _doublings(count: int) -> int:
    return math.ceil(math.log2(count))
