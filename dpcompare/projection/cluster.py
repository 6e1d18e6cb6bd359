"""The cluster of a run as the model sees it: what connects its ranks, and the cores that its processes share."""

from __future__ import annotations

import math

from dpcompare.config.run import RunConfig
from dpcompare.projection.collectives import PAIR_GATHERS, Interconnect
from dpcompare.projection.link import Link


def processes_per_core(config: RunConfig, cores: int | None) -> float:
    """Processes with replicas per core of one machine, at least 1; simulated nodes are all on the same one.

    Args:
        config: of the run.
        cores: of the machine; None: not known, so each process is taken to have one of its own.
    """
    if config.cluster.device_type != "cpu" or not cores:
        return 1.0
    nodes = config.cluster.num_nodes - len(config.mode_row.roles) if config.cluster.simulated else 1
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
    roles = len(config.mode_row.roles)
    nodes = config.cluster.num_nodes - roles
    return Interconnect(
        nodes=nodes,
        nodes_without_replica=roles,
        ranks_per_node=config.topology.num_replicas // nodes,
        between=between,
        within=within,
        algorithm="fastest" if collective == "nccl" else "ring",
        pair_gathers=PAIR_GATHERS if collective == "gloo" else 1.0,
        contention=processes_per_core(config, cores),
    )
