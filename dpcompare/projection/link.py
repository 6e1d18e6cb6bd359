"""How fast links are, and what of that carries gradients: rings, trees, halving and doubling."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from dpcompare.errors import RequestError, did_you_mean

TCP_PAYLOAD = 1448 / 1514
"""What is left of an Ethernet frame of 1,500 bytes after the headers of Ethernet, IP and TCP with timestamps."""
SLOWEST, FASTEST = 1e3 / 8, 1e15 / 8
"""Bytes per second; anything else is a slip of the finger."""
LONGEST_LATENCY = 60.0
"""Seconds; more is a slip of the finger."""
UNCERTAINTY = 2.0
"""Factor by which a latency that was given may be off in either direction."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds from the start of a message until its first byte is there, its software included, as a range."""

    low: float
    typical: float
    high: float

    @classmethod
    def about(cls, seconds: float) -> Latency:
        """Half to twice of what was given."""
        return cls(low=seconds / UNCERTAINTY, typical=seconds, high=seconds * UNCERTAINTY)


NO_LATENCY = Latency(low=0.0, typical=0.0, high=0.0)
NETWORK_LATENCY = Latency(low=2.7e-6, typical=14e-6, high=50e-6)
"""NCCL's own model of a ring over a network has 2.7 us (LL) to 14 us (Simple) per step (its src/graph/tuning.cc); TCP
sockets take about 50."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What connects nodes, or the devices of a node: the same in each direction at once."""

    name: str
    bytes_per_second: float = math.inf
    """Nominal, per node and direction."""
    payload: float = 1.0
    """The part of it that carries gradients."""
    latency: Latency = NO_LATENCY

    def seconds(self, num_bytes: float) -> float:
        """How long it is busy with that many bytes of gradients, latency apart."""
        return num_bytes / (self.bytes_per_second * self.payload)

    def times_as_fast(self, factor: float) -> Link:
        """The same link with another bandwidth."""
        return replace(self, name=f"{factor:g} x {self.name}", bytes_per_second=self.bytes_per_second * factor)


_BITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?)((?i:[kmgt]))((?i:bit)|b|B)(?:/(?i:s)|(?i:ps))?")
"""A lowercase b is a bit, an uppercase B a byte; of the rest the case does not matter."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

NVLINK_LATENCY = Latency(low=0.5e-6, typical=3.4e-6, high=7e-6)
PCIE_LATENCY = Latency(low=1e-6, typical=5.7e-6, high=12e-6)

WITHIN_NODES: dict[str, Link] = {
    link.name: link
    for link in (
        Link(name="nvlink-p100", bytes_per_second=80e9, payload=0.78, latency=NVLINK_LATENCY),
        Link(name="nvlink-v100", bytes_per_second=150e9, payload=0.78, latency=NVLINK_LATENCY),
        Link(name="nvlink-a100", bytes_per_second=300e9, payload=0.78, latency=NVLINK_LATENCY),
        Link(name="nvlink-h100", bytes_per_second=450e9, payload=0.78, latency=NVLINK_LATENCY),
        Link(name="pcie3", bytes_per_second=15.75e9, payload=0.78, latency=PCIE_LATENCY),
        Link(name="pcie4", bytes_per_second=31.5e9, payload=0.78, latency=PCIE_LATENCY),
        Link(name="pcie5", bytes_per_second=63e9, payload=0.78, latency=PCIE_LATENCY),
    )
}
"""Links by their data sheets, per direction. NCCL's model gave an A100 at most 235 of its 300 GB/s (2.10,
src/graph/tuning.cc), hence the payload, which is assumed for the others; the typical latencies are from the same
file."""
ALIASES = {"nvlink": "nvlink-a100", "pcie": "pcie4"}


def rate_of(text: str, option: str) -> float:
    """Bytes per second of a rate such as 100gbit or 100Gb/s (bits), or 12.5GB/s (bytes).

    Raises:
        RequestError: it is not a valid rate.
    """
    found = _RATE.fullmatch(text.strip())
    value = float(found[1]) * _BITS[found[2].lower()] / (1 if found[3] == "B" else 8) if found else 0.0
    if not SLOWEST <= value <= FASTEST:
        raise RequestError(
            f"{option}: received {text!r}, expected a rate such as 100gbit or 12.5GB/s, from 1kbit to 1000tbit"
        )
    return value


def rate_in_words(bytes_per_second: float) -> str:
    """A rate as one types it, in bits: 12.5e9 as 100gbit."""
    bits = 8 * bytes_per_second
    unit = next((unit for unit in "tgm" if bits >= _BITS[unit]), "k")
    return f"{bits / _BITS[unit]:.4g}{unit}bit"


def duration_of(text: str, option: str) -> float:
    """Seconds of a duration such as 5us.

    Raises:
        RequestError: it is not a valid duration.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else math.inf
    if seconds > LONGEST_LATENCY:
        raise RequestError(
            f"{option}: received {text!r}, expected a duration such as 5us, 0.5ms or 2s, of at most "
            f"{LONGEST_LATENCY:g}s"
        )
    return seconds


def duration_in_words(seconds: float) -> str:
    """A duration as one types it: 5e-4 as 500us."""
    rounded = float(f"{seconds:.3g}")  # first, or 999.6us would be 1e+03us
    unit = next((unit for unit in ("s", "ms", "us") if rounded >= _SECONDS[unit]), "ns")
    return f"{rounded / _SECONDS[unit]:.3g}{unit}"


def tcp_link(rate: str, latency: Latency = NO_LATENCY, *, option: str = "--link") -> Link:
    """The link of each node to the others, over TCP, as fast as a rate that `option` was given.

    Raises:
        RequestError: it is not a valid rate.
    """
    return Link(name=rate, bytes_per_second=rate_of(rate, option), payload=TCP_PAYLOAD, latency=latency)


def link_between_nodes(rate: str, latency: str | None = None) -> Link:
    """The link of each node to the others, from what was typed: a rate and a latency.

    Raises:
        RequestError: one of them is not valid.
    """
    return tcp_link(rate, NETWORK_LATENCY if latency is None else Latency.about(duration_of(latency, "--latency")))


def link_within_nodes(text: str) -> Link:
    """The link between the devices of a node, from what was typed: a name of WITHIN_NODES, or a rate.

    Raises:
        RequestError: it is neither.
    """
    name = ALIASES.get(text, text)
    if name in WITHIN_NODES:
        return WITHIN_NODES[name]
    if not _RATE.fullmatch(text.strip()):
        names = (*ALIASES, *WITHIN_NODES)
        raise RequestError(
            f"--intra-link: received {text!r}, expected one of {', '.join(names)}, or a rate such as 200GB/s."
            f"{did_you_mean(text, names)}"
        )
    return Link(name=text, bytes_per_second=rate_of(text, "--intra-link"), latency=PCIE_LATENCY)


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
    """The number of nodes that hold replicas."""
    nodes_without_replica: int = 0
    """Such as a parameter server and its chief."""
    ranks_per_node: int = 1
    """Processes or GPUs of a node that take part."""
    between: Link
    """The link of each node to the others; its ranks share it."""
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
        """The total number of ranks that take part."""
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
