"""The exchange of a step: which messages each mode sends, in which order, and which of them computing waits for.

All positions in a step are shares of its computing, from 0 to 1: a message can begin when its gradients are `ready`,
and computing does not pass `needed_by` before it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpcompare.projection.link import Kind

FORWARD = 1 / 3
"""Share of the forward pass, where it was not measured: the backward pass computes twice as much."""
BACKWARD_ENDS = 0.95
"""Where it was not measured; what follows is the update."""
FIRST_BUCKET, BUCKET = 1024 * 1024, 25 * 1024 * 1024
"""Bytes after which torch's DistributedDataParallel closes its first and its other buckets (torch/nn/parallel)."""

Copying = Literal["during transfer", "after transfer"]
"""Whether the CPU copies a message while it is on the wire, or the two times add up."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One collective of a step."""

    kind: Kind
    num_bytes: float
    """The bytes of the whole tensor, summed or gathered."""
    ready: float
    needed_by: float


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What the ranks send each other in each step, one message after another."""

    messages: tuple[Message, ...]
    copying: Copying = "during transfer"
    servers: int = 0
    """Nodes that keep the parameters, which workers pull and push without waiting for each other; 0: collectives."""
    assumed: tuple[str, ...] = ()
    """Sentences on what was not measured of it."""

    @property
    def num_bytes(self) -> float:
        """The bytes of all messages."""
        return sum(message.num_bytes for message in self.messages)

    def without_overlap(self) -> Exchange:
        """The same messages, each of which begins where computing waits for it."""
        late = (replace(message, ready=message.needed_by) for message in self.messages)
        return replace(self, messages=tuple(sorted(late, key=lambda message: message.ready)), copying="after transfer")


def in_buckets(
    buckets: Sequence[float], ready: Sequence[float], *, backward_ends: float, assumed: Sequence[str] = ()
) -> Exchange:
    """DistributedDataParallel: an all-reduce per bucket, each when the backward pass has filled it.

    Args:
        buckets: bytes of each, in the order in which they are filled.
        ready: when each is full.
        backward_ends: when the update waits for all of them.
        assumed: what was not measured of it.
    """
    messages = tuple(
        Message(kind="all-reduce", num_bytes=size, ready=min(at, backward_ends), needed_by=backward_ends)
        for size, at in zip(buckets, ready, strict=True)
    )
    return Exchange(messages=messages, assumed=tuple(assumed))


def default_buckets(gradient_bytes: float) -> list[float]:
    """The buckets that DistributedDataParallel makes of that many bytes, as if tensors were small."""
    buckets = [min(gradient_bytes, FIRST_BUCKET)]
    while (left := gradient_bytes - sum(buckets)) > 0:
        buckets.append(min(left, BUCKET))
    return buckets


def ready_shares(
    buckets: Sequence[float], gradients: Sequence[tuple[float, float]] = (), *, backward_ends: float = BACKWARD_ENDS
) -> list[float]:
    """When each bucket is full.

    Args:
        buckets: bytes of each, in the order in which they are filled.
        gradients: (bytes that are ready, share of the computing), growing, as measured; none: gradients become ready
            evenly between the forward pass and the end of the backward pass.
        backward_ends: used where nothing was measured.
    """
    total, filled, shares = sum(buckets), 0.0, []
    for size in buckets:
        filled += size
        if gradients:
            at = next((share for num_bytes, share in gradients if num_bytes >= filled * 0.999), gradients[-1][1])
        else:
            at = FORWARD + (backward_ends - FORWARD) * filled / total
        shares.append(at)
    return shares


def in_one_pack(gradient_bytes: float, *, backward_ends: float = BACKWARD_ENDS) -> Exchange:
    """MultiWorkerMirroredStrategy and MirroredStrategy: one all-reduce of all gradients, after the backward pass."""
    message = Message(kind="all-reduce", num_bytes=gradient_bytes, ready=backward_ends, needed_by=backward_ends)
    return Exchange(messages=(message,), copying="after transfer")


def in_shards(
    layers: Sequence[float],
    *,
    waits: bool,
    reduces_by_all_reduce: bool = False,
    backward_ends: float = BACKWARD_ENDS,
    assumed: Sequence[str] = (),
) -> Exchange:
    """fully_shard: parameters of each layer gathered before its forward and its backward pass, gradients scattered.

    Args:
        layers: bytes of the parameters of each, in the order of the forward pass. Each is taken to compute for as
            long as the others.
        waits: whether computing waits for each message, as on the CPU, where there are no separate streams. On GPUs
            a layer is gathered while the one before it computes.
        reduces_by_all_reduce: whether the collective sums whole gradients and keeps a part, as Gloo does.
        backward_ends: when the update waits for all gradients.
        assumed: what was not measured of it.
    """
    count = len(layers)
    forward = [FORWARD * number / count for number in range(count + 1)]
    backward = [FORWARD + (backward_ends - FORWARD) * number / count for number in range(count + 1)]
    messages = []
    for number, size in enumerate(layers):
        begins = forward[number]
        ready = begins if waits else forward[max(0, number - 1)]
        messages.append(Message(kind="all-gather", num_bytes=size, ready=ready, needed_by=begins))
    kind: Kind = "all-reduce" if reduces_by_all_reduce else "reduce-scatter"
    for number, size in enumerate(reversed(layers)):
        begins, ends = backward[number], backward[number + 1]
        ready = begins if waits else backward[max(0, number - 1)]
        messages.append(Message(kind="all-gather", num_bytes=size, ready=ready, needed_by=begins))
        needed_by = ends if waits else backward_ends
        messages.append(Message(kind=kind, num_bytes=size, ready=ends, needed_by=needed_by))
    in_order = sorted(messages, key=lambda message: message.ready)
    return Exchange(messages=tuple(in_order), copying="after transfer", assumed=tuple(assumed))


def through_servers(parameter_bytes: float, servers: int = 1) -> Exchange:
    """ParameterServerStrategy: every worker pulls all parameters and pushes all gradients in each of its steps."""
    message = Message(kind="all-gather", num_bytes=parameter_bytes, ready=0.0, needed_by=0.0)
    return Exchange(messages=(message,), copying="after transfer", servers=servers)


def through_the_first(parameter_bytes: float, *, backward_ends: float = BACKWARD_ENDS) -> Exchange:
    """nn.DataParallel: the first GPU gives its parameters to the others, and gets their gradients; nothing overlaps.

    Each is on the links of the first GPU as long as half an all-reduce.
    """
    return Exchange(
        messages=(
            Message(kind="all-gather", num_bytes=parameter_bytes, ready=0.0, needed_by=0.0),
            Message(kind="reduce-scatter", num_bytes=parameter_bytes, ready=backward_ends, needed_by=backward_ends),
        ),
        copying="after transfer",
    )
