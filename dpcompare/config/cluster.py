"""The cluster of a run, and what a mode makes of it: processes and replicas."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from pydantic import model_validator

from dpcompare.config.modes import DEFAULT_REPLICAS, Mode
from dpcompare.config.setting import Config
from dpcompare.errors import RequestError
from dpcompare.system.devices import Gpu, _physical_gpu, available_cores, gpu_model, installed_gpus, visible_gpus
from dpcompare.system.terminal_text import pluralize

DeviceType = Literal["cpu", "gpu", "tpu"]
DeviceChoice = Literal["auto", DeviceType]
"""What may be asked for as the kind of devices."""

MOST_DEVICES = 512
"""More than anybody simulates; a slip of the finger must not take the memory of the machine."""


class Node(Config):
    """One (simulated) machine, with its part of the devices and of the cores."""

    rank: int
    """Position among the nodes, from 0."""
    devices: tuple[str, ...]
    """GPUs as CUDA_VISIBLE_DEVICES names them (index, UUID or MIG id); CPU devices are `cpu:0`, `cpu:1`, ..., TPU cores
    `tpu:0`, `tpu:1`, ..."""
    num_cores: int
    """CPU cores that the processes of this node may use together, at least 1."""


class Cluster(Config):
    """The nodes of a run, all with the same number of devices."""

    device_type: DeviceType
    nodes: tuple[Node, ...]
    simulated: bool = True
    """Whether all nodes are this machine. Otherwise each is a separate machine, which numbers its devices itself."""
    shared: bool = False
    """Whether all devices are one and the same GPU, which emulates as many: what is computed can be proved with it,
    and nothing can be said of speed."""

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    @property
    def devices_per_node(self) -> int:
        return len(self.nodes[0].devices)

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device for node in self.nodes for device in node.devices)

    @property
    def spans_machines(self) -> bool:
        """Whether its nodes are several machines, whose link a run cannot know."""
        return not self.simulated and self.num_nodes > 1

    @property
    def in_words(self) -> str:
        """Such as `2 nodes x 4 GPUs`, which cannot be read the other way round as `2x4` can."""
        return topology_in_words(self.num_nodes, self.devices_per_node, self.device_type)

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        sizes = {len(node.devices) for node in self.nodes}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(
                f"nodes must hold the same number of devices, at least 1, got {sorted(sizes)}; "
                "build a cluster with Cluster.partition()"
            )
        if self.shared and (self.device_type != "gpu" or not self.simulated or len(set(self.devices)) != 1):
            raise ValueError("a shared GPU is one GPU of this machine, named once for each replica")
        if self.simulated and not self.shared and len(set(self.devices)) != len(self.devices):
            raise ValueError(f"each device may be used once, received {', '.join(self.devices)}")
        return self

    @classmethod
    def of_machines(cls, num_nodes: int, devices_per_node: int, device_type: DeviceType, num_cores: int) -> Cluster:
        """A cluster of machines that this process cannot see, of which it knows only the counts.

        Args:
            num_nodes: how many.
            devices_per_node: of each.
            device_type: of all.
            num_cores: CPU cores that the processes of a node share.
        """
        _refuse_impossible(num_nodes, devices_per_node)
        names = [str(index) if device_type == "gpu" else f"cpu:{index}" for index in range(devices_per_node)]
        nodes = tuple(Node(rank=rank, devices=tuple(names), num_cores=num_cores) for rank in range(num_nodes))
        return cls(device_type=device_type, nodes=nodes, simulated=False)

    @classmethod
    def partition(
        cls,
        num_nodes: int = 1,
        devices_per_node: int | None = None,
        *,
        device: DeviceChoice = "auto",
        gpus: Sequence[str] | None = None,
        num_cores: int | None = None,
        share_gpu: bool = False,
    ) -> Cluster:
        """Split the devices of this machine evenly into nodes.

        Args:
            num_nodes: how many nodes to simulate.
            devices_per_node: default: all GPUs shared out evenly, or one CPU device per node.
            device: `auto` takes the GPUs where there are any.
            gpus: the GPUs to plan for, in order; they need not exist on this machine.
            num_cores: CPU cores to share among the nodes; default: what this process may use.
            share_gpu: whether the first GPU takes the place of as many as are asked for, by default of two.

        Raises:
            RequestError: the devices cannot be split as asked.
        """
        if device not in get_args(DeviceChoice):
            raise RequestError(f"device: received {device!r}, expected one of {', '.join(get_args(DeviceChoice))}")
        _refuse_impossible(num_nodes, devices_per_node)
        if gpus is not None and device in ("cpu", "tpu"):
            raise RequestError(
                f"received both a list of GPUs and the device type {device}; leave one of them out "
                "(--gpus implies --device gpu)"
            )
        installed = installed_gpus() if device not in ("cpu", "tpu") else []
        device_type, devices = _devices_to_split(device, gpus, num_nodes * (devices_per_node or 1), installed)
        if share_gpu:
            devices_per_node = devices_per_node or max(1, DEFAULT_REPLICAS // num_nodes)
            devices = _shared(device_type, devices, num_nodes * devices_per_node)
        per_node = devices_per_node or _even_share(devices, num_nodes)
        if num_nodes * per_node > len(devices):
            raise RequestError(
                f"{topology_in_words(num_nodes, per_node)} need {num_nodes * per_node} {device_type} devices, "
                f"but {len(devices)} are visible ({', '.join(devices)}); ask for fewer nodes or devices per "
                "node, or simulate devices with --device cpu"
            )
        devices = devices[: num_nodes * per_node]
        if device_type == "gpu" and not share_gpu:
            _refuse_shared_gpus(devices, per_node, installed)
        cores = max(1, (num_cores or available_cores()) // num_nodes)
        nodes = tuple(
            Node(rank=rank, devices=tuple(devices[rank * per_node : (rank + 1) * per_node]), num_cores=cores)
            for rank in range(num_nodes)
        )
        return cls(device_type=device_type, nodes=nodes, shared=share_gpu)


def topology_in_words(num_nodes: int, devices_per_node: int, device_type: str | None = None) -> str:
    """Such as `2 nodes x 4 GPUs`, `1 node x 2 CPU devices`, or `2 nodes x 1 device` where their type is unknown."""
    return f"{pluralize(num_nodes, 'node')} x {pluralize(devices_per_node, _DEVICE_NOUNS.get(device_type, 'device'))}"


_DEVICE_NOUNS: dict[str | None, str] = {"cpu": "CPU device", "gpu": "GPU", "tpu": "TPU core"}


def _refuse_impossible(num_nodes: int, devices_per_node: int | None) -> None:
    for name, number in (("nodes", num_nodes), ("devices per node", devices_per_node)):
        if number is not None and not isinstance(number, Integral):
            raise RequestError(f"{name}: received {number!r}, expected a whole number")
    if num_nodes < 1:
        raise RequestError(f"nodes: received {num_nodes}, expected at least 1")
    if devices_per_node is not None and devices_per_node < 1:
        raise RequestError(f"devices per node: received {devices_per_node}, expected at least 1")
    if num_nodes * (devices_per_node or 1) > MOST_DEVICES:
        raise RequestError(
            f"received {topology_in_words(num_nodes, devices_per_node or 1)}, "
            f"expected at most {MOST_DEVICES} devices in all"
        )


def _devices_to_split(
    device: str, gpus: Sequence[str] | None, num_cpu_devices: int, installed: Sequence[Gpu]
) -> tuple[DeviceType, list[str]]:
    """The device type and the devices to split; CPU devices and TPU cores are invented, as many as were requested."""
    if gpus is not None:
        if not gpus:
            raise RequestError("GPUs: received an empty list, expected device ids such as 0,1,2,3")
        return "gpu", list(gpus)
    if device == "tpu":
        return "tpu", [f"tpu:{index}" for index in range(num_cpu_devices)]
    if device != "cpu":
        visible = visible_gpus(installed)
        if visible:
            return "gpu", visible
        if device == "gpu":
            mask = os.environ.get("CUDA_VISIBLE_DEVICES")
            reason = "`nvidia-smi -L` lists none" if mask is None else f"CUDA_VISIBLE_DEVICES={mask!r} leaves none"
            raise RequestError(
                f"device gpu was asked for, but no GPU is visible here: {reason}; use --device cpu to "
                "simulate devices on the CPU, or `dpcompare plan --gpus 0,1,...` to plan for another machine"
            )
    return "cpu", [f"cpu:{index}" for index in range(num_cpu_devices)]


def _shared(device_type: DeviceType, devices: Sequence[str], count: int) -> list[str]:
    """One GPU in the place of so many."""
    if device_type != "gpu":
        raise RequestError(
            f"--share-gpu: received with the device type {device_type}, of which as many are simulated as are asked "
            "for; expected a GPU, or leave it out"
        )
    if count == 1:
        raise RequestError(
            "--share-gpu: received for one replica, which needs no other's GPU; ask for several with --nodes and "
            "--devices-per-node, or leave it out"
        )
    return [devices[0]] * count


def _even_share(devices: Sequence[str], num_nodes: int) -> int:
    if len(devices) < num_nodes:
        raise RequestError(
            f"{num_nodes} nodes need at least {num_nodes} devices, but {len(devices)} are visible "
            f"({', '.join(devices)}); ask for fewer nodes, or simulate devices with --device cpu"
        )
    if len(devices) % num_nodes:
        raise RequestError(
            f"{len(devices)} devices do not divide evenly among {num_nodes} nodes; choose a number of nodes that "
            f"divides {len(devices)}, or use fewer devices with --devices-per-node {len(devices) // num_nodes}"
        )
    return len(devices) // num_nodes


def _refuse_shared_gpus(gpus: Sequence[str], per_node: int, installed: Sequence[Gpu]) -> None:
    """Every replica needs a separate physical GPU, and a process sees one MIG slice at most."""
    physical = [_physical_gpu(gpu, installed) for gpu in gpus]
    repeated = sorted({gpu for gpu, where in zip(gpus, physical, strict=True) if physical.count(where) > 1})
    if len(repeated) > 1 and all(gpu.startswith("MIG-") for gpu in repeated):
        raise RequestError(
            f"{', '.join(repeated)} are MIG slices of one GPU, and NCCL uses each physical GPU once: use one slice "
            "(--nodes 1 --devices-per-node 1), or turn MIG off (nvidia-smi -mig 0)"
        )
    if repeated:
        raise RequestError(
            f"received GPUs {','.join(gpus)}, which name a physical GPU more than once ({', '.join(repeated)}); NCCL "
            "uses each once, so every replica needs one of its own: name others with --gpus, or use fewer devices; "
            "--share-gpu emulates several on one, to prove what is computed"
        )
    if per_node > 1 and any(gpu.startswith("MIG-") for gpu in gpus):
        raise RequestError(
            f"a process sees one MIG slice at most; received {per_node} devices per node with MIG slices among them "
            f"({','.join(gpus)}): use one per node (--devices-per-node 1), or turn MIG off (nvidia-smi -mig 0)"
        )
    models = {gpu: gpu_model(gpu, installed) for gpu in gpus}
    if len(set(models.values()) - {""}) > 1:
        named = ", ".join(f"{gpu} ({model or 'unknown'})" for gpu, model in models.items())
        raise RequestError(
            f"GPUs {named} are of different models: each step would wait for the slowest; choose equal ones with --gpus"
        )


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The counts that follow from a mode, a cluster and the size of a replica; all are derived, none is chosen."""

    mode: Mode
    """The row of MODES, which says whether a process drives a device or a node, and which nodes hold no replica."""
    cluster: Cluster
    devices_per_replica: int = 1
    """Devices over which each replica's model is split."""

    @property
    def processes_per_node(self) -> int:
        """Processes that each node runs: one, or one per device, or one per replica that has its devices in process."""
        if self.mode.process_per == "node":
            return 1
        in_process = self.devices_per_replica if self.mode.stage_placement == "in process" else 1
        return self.cluster.devices_per_node // in_process

    @property
    def num_processes(self) -> int:
        """Processes on all nodes; `process_rank` counts them node by node, from 0."""
        return self.cluster.num_nodes * self.processes_per_node

    @property
    def trainers(self) -> range:
        """Ranks of the processes that run the training loop, the first ones; the others serve them."""
        return range(1 if self.mode.nodes_without_replica else self.num_processes)

    @property
    def all_processes_train(self) -> bool:
        """Whether every process runs the training loop."""
        return len(self.trainers) == self.num_processes

    @property
    def first_of_machines(self) -> list[int]:
        """Ranks of the first trainer of each machine; simulated nodes are one machine."""
        return list(range(0, 1 if self.cluster.simulated else len(self.trainers), self.processes_per_node))

    @property
    def nodes_with_replicas(self) -> int:
        """Nodes that train."""
        return self.cluster.num_nodes - self.mode.nodes_without_replica

    @property
    def num_replicas(self) -> int:
        """Copies of the model that train, which all frameworks must agree on."""
        return self.nodes_with_replicas * self.cluster.devices_per_node // self.devices_per_replica

    @property
    def communicates(self) -> bool:
        """Whether anything is sent between processes or replicas in a step."""
        return self.num_processes > 1 or self.num_replicas > 1

    @property
    def devices_per_process(self) -> int:
        """Devices that each process drives."""
        return self.cluster.num_devices // self.num_processes

    @property
    def replicas_per_process(self) -> int:
        """Replicas that each process trains; 1 also where several processes make one replica."""
        return max(1, self.num_replicas // self.num_processes)

    @property
    def threads_per_process(self) -> int:
        """CPU threads that each process may use: the cores of its node divided among the node's processes.

        Without a limit every process takes all cores: two processes with two threads each on two cores train up to
        ten times slower.
        """
        return max(1, self.cluster.nodes[0].num_cores // self.processes_per_node)
