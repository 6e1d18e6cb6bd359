"""What each mode exchanges, as data from which pictures are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Device:
    """What computes, and which parts of the model it keeps between two steps."""

    name: str
    task: str
    held: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Process:
    """A training process and the devices that it drives."""

    name: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine and its processes."""

    name: str
    processes: tuple[Process, ...]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What goes from some devices to others, drawn as a line that connects them."""

    kind: str
    label: str
    senders: frozenset[int]
    receivers: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Nodes side by side, below them a line per exchange, and a sentence."""

    title: str
    nodes: tuple[Node, ...]
    exchanges: tuple[Exchange, ...]
    update: str
    """A sentence: who updates what."""


ALL = frozenset(range(4))
"""The devices of a picture, and the parts of its model."""
NONE: frozenset[int] = frozenset()


def _gpus(*numbers: int, held: Sequence[frozenset[int]] = (ALL,) * 4) -> tuple[Device, ...]:
    return tuple(Device(name=f"GPU {number}", held=held[number], task="1/4 of the batch") for number in numbers)


def _one_process(*held: frozenset[int]) -> tuple[Node, ...]:
    return (Node(name="node 0", processes=(Process(name="one process", devices=_gpus(0, 1, 2, 3, held=held)),)),)


def _process_per_device(*held: frozenset[int]) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=f"node {rank}",
            processes=tuple(
                Process(name=f"rank {number}", devices=_gpus(number, held=held)) for number in (2 * rank, 2 * rank + 1)
            ),
        )
        for rank in range(2)
    )


def _process_per_node(name: str) -> tuple[Node, ...]:
    return tuple(
        Node(name=f"node {rank}", processes=(Process(name=f"{name} {rank}", devices=_gpus(2 * rank, 2 * rank + 1)),))
        for rank in range(2)
    )


def _roles() -> tuple[Node, ...]:
    tasks = (
        ("coordinator", "reads all batches", NONE),
        ("parameter server", "keeps the model", ALL),
        ("worker 0", "1/2 of the batch", NONE),
        ("worker 1", "1/2 of the batch", NONE),
    )
    return tuple(
        Node(
            name=f"node {rank}",
            processes=(Process(name="one process", devices=(Device(name=name, task=task, held=held),)),),
        )
        for rank, (name, task, held) in enumerate(tasks)
    )


def _all_reduce(label: str) -> Exchange:
    return Exchange(kind="gradients", label=label, senders=ALL, receivers=ALL)


EXCHANGES = {
    "dp": Picture(
        title="dp: one process, and GPU 0 in the middle",
        nodes=_one_process(ALL, NONE, NONE, NONE),
        exchanges=(
            Exchange(
                kind="parameters",
                label="parameters and images: from GPU 0 to the others, again in every step",
                senders=frozenset({0}),
                receivers=frozenset({1, 2, 3}),
            ),
            Exchange(
                kind="gradients",
                label="outputs and gradients: to GPU 0, which adds the gradients up",
                senders=frozenset({1, 2, 3}),
                receivers=frozenset({0}),
            ),
        ),
        update="Update: on GPU 0 alone. The copies of the others last for one step.",
    ),
    "ddp": Picture(
        title="ddp: a process per device",
        nodes=_process_per_device(ALL, ALL, ALL, ALL),
        exchanges=(
            _all_reduce("gradients: all-reduced bucket by bucket, while the backward pass computes the next ones"),
        ),
        update="Update: the same in every process, each on its own copy.",
    ),
    "mirrored": Picture(
        title="mirrored: one process, and all devices alike",
        nodes=_one_process(ALL, ALL, ALL, ALL),
        exchanges=(_all_reduce("gradients: all-reduced over the devices of the node"),),
        update="Update: the same on every device, each on its own copy.",
    ),
    "multiworker": Picture(
        title="multiworker: a process per node",
        nodes=_process_per_node("worker"),
        exchanges=(_all_reduce("gradients: all-reduced over the devices of all nodes"),),
        update="Update: the same on every device, each on its own copy.",
    ),
    "fsdp": Picture(
        title="fsdp: a process per device, which keeps a part of the model",
        nodes=_process_per_device(*(frozenset({number}) for number in range(4))),
        exchanges=(
            Exchange(
                kind="parameters",
                label="parameters: a layer is all-gathered when it computes, forward and backward, then dropped again",
                senders=ALL,
                receivers=ALL,
            ),
            _all_reduce("gradients: reduce-scattered, so that each process gets the sum of its part only"),
        ),
        update="Update: every process updates the part that it keeps.",
    ),
    "parameter-server": Picture(
        title="parameter-server: workers that do not wait for each other",
        nodes=_roles(),
        exchanges=(
            Exchange(
                kind="data",
                label="a part of the batch: to the next free worker",
                senders=frozenset({0}),
                receivers=frozenset({2, 3}),
            ),
            Exchange(
                kind="parameters",
                label="parameters: read by a worker when its update starts",
                senders=frozenset({1}),
                receivers=frozenset({2, 3}),
            ),
            Exchange(
                kind="gradients",
                label="gradients: applied as they come, without those of the other worker",
                senders=frozenset({2, 3}),
                receivers=frozenset({1}),
            ),
        ),
        update="Update: one per worker and part, so the parameters may have changed in between (staleness).",
    ),
    "spmd": Picture(
        title="spmd: one process, and one program on all devices",
        nodes=_one_process(ALL, ALL, ALL, ALL),
        exchanges=(_all_reduce("gradients: all-reduced over the devices of the node, within the compiled step"),),
        update="Update: the same on every device, each on its own copy.",
    ),
    "multiprocess": Picture(
        title="multiprocess: a process per node, and one program on all devices",
        nodes=_process_per_node("process"),
        exchanges=(_all_reduce("gradients: all-reduced over the devices of all nodes, within the compiled step"),),
        update="Update: the same on every device, each on its own copy.",
    ),
}
