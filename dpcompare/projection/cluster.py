"""The cluster of a run as the model sees it: what connects its ranks, and the cores that its processes share."""

from __future__ import annotations

from dpcompare.config.run import RunConfig
from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.link import Link


def processes_per_core(config: RunConfig, cores: int | None) -> float:
    """Of one machine, at least 1; simulated nodes are all on the same one.

    Args:
        config: of the run.
        cores: of the machine; None: not known, so each process is taken to have one of its own.
    """
    if config.cluster.device_type != "cpu" or not cores:
        return 1.0
    topology = config.topology
    sharing = topology.num_processes if config.cluster.simulated else topology.processes_per_node
    return max(1.0, sharing / cores)


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
    nodes = config.cluster.num_nodes - len(config.mode_row.roles)
    return Interconnect(
        nodes=nodes,
        ranks_per_node=config.topology.num_replicas // nodes,
        between=between,
        within=within,
        algorithm="fastest" if collective == "nccl" else "ring",
        contention=processes_per_core(config, cores),
    )
