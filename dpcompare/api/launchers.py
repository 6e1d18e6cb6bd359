"""The devices of a process that trains in a loop of its own, from the variables of its launcher."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from dpcompare.config.cluster import Cluster, Topology
from dpcompare.config.modes import Mode
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.plan import mask_of
from dpcompare.system.devices import available_cores, installed_gpus, visible_gpus

CLUSTER_VARIABLE = "DPCOMPARE_CLUSTER"
"""The cluster of a script that `run_script` starts, as JSON."""


def cluster_here(framework: str, mode: str, row: Mode) -> Cluster:
    """The cluster that a launcher's variables describe; without one, what a run would take by default.

    Several nodes of another launcher than `run_script` are machines, of which this process sees one.
    """
    if described := os.environ.get(CLUSTER_VARIABLE):
        return Cluster.model_validate_json(described)
    if row.launch == "torchrun" and "WORLD_SIZE" in os.environ:
        per_node = _variable("LOCAL_WORLD_SIZE", int)
        return _machines(_variable("WORLD_SIZE", int) // max(1, per_node), per_node)
    if row.launch == "tf_config" and "TF_CONFIG" in os.environ:
        return _machines(_variable("TF_CONFIG", lambda text: len(json.loads(text)["cluster"]["worker"])), None)
    if row.launch == "coordinator" and "JAX_NUM_PROCESSES" in os.environ:
        return _machines(_variable("JAX_NUM_PROCESSES", int), None)
    if not row.multi_device:
        return Cluster.partition(1, 1)
    here = Cluster.partition(1)
    return here if here.device_type == "gpu" else Cluster.partition(*row.default_topology(2), device="cpu")


def _machines(num_nodes: int, per_node: int | None) -> Cluster:
    """So many machines like this one; None: each with all of its visible GPUs, or one CPU device."""
    gpus = visible_gpus(installed_gpus())
    per_node = per_node or len(gpus) or 1
    if num_nodes == 1:
        return Cluster.partition(1, per_node)
    return Cluster.of_machines(num_nodes, per_node, "gpu" if gpus else "cpu", available_cores())


def _variable(name: str, read: Callable[[str], int]) -> int:
    """What a launcher's variable says."""
    expected = {"TF_CONFIG": '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'}
    try:
        return read(os.environ[name])
    except (KeyError, TypeError, ValueError):
        raise RequestError(
            f"{name}: received {os.environ.get(name)!r}, expected {expected.get(name, 'a number, as torchrun sets it')}"
        ) from None


def show_devices(config: RunConfig) -> None:
    """Have this process see the GPUs of its cluster alone, as the processes of a run do.

    Raises:
        RequestError: it has seen others already.
    """
    installed = installed_gpus()
    if CLUSTER_VARIABLE in os.environ or not installed or not config.cluster.simulated:
        return  # masked by `run_script`; without GPUs; or this machine's launcher has masked
    node = config.cluster.nodes[0]
    mask = mask_of(config, node) if len(config.cluster.nodes) == 1 else ",".join(dict.fromkeys(config.cluster.devices))
    wanted = mask.split(",") if config.cluster.device_type == "gpu" else []
    if wanted == visible_gpus(installed):
        return
    torch = sys.modules.get("torch")
    has_looked = (
        torch.cuda.is_initialized() if config.framework == "torch" and torch else config.framework in sys.modules
    )
    if has_looked:
        raise RequestError(
            f"cluster: received {', '.join(config.cluster.devices)} in a process where {config.framework} has looked "
            f"for GPUs already; expected dpcompare.backend to come first, or CUDA_VISIBLE_DEVICES={mask} from its start"
        )
    os.environ |= {"CUDA_VISIBLE_DEVICES": mask, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def refuse_missing_launcher(config: RunConfig) -> None:
    """Refuse a mode of several processes in a script that was not started as one of several."""
    topology: Topology = config.topology
    needed = {"torchrun": "WORLD_SIZE", "tf_config": "TF_CONFIG", "coordinator": "JAX_COORDINATOR_ADDRESS"}
    variable = needed.get(config.launch)
    if variable is None or variable in os.environ:
        return
    how = {
        "torchrun": f"torchrun --nproc-per-node {topology.processes_per_node} SCRIPT.py",
        "tf_config": "one process per worker, each with its TF_CONFIG",
        "coordinator": "one process per node, each with JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID",
    }[config.launch]
    raise RequestError(
        f"{config.framework} {config.mode}: received in a process without {variable}; expected {how}, or "
        f"dpcompare.run_script('SCRIPT.py', '{config.framework}:{config.mode}')"
    )
