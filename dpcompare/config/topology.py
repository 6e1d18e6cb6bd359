"""The topology of a run: how many processes and replicas a mode makes of a cluster, and what each of them gets."""

from __future__ import annotations

from dataclasses import dataclass

from dpcompare.config.cluster import Cluster
from dpcompare.config.modes import Mode


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The counts that follow from a mode, a cluster and a number of stages; all of them are derived, none is chosen."""

    mode: Mode
    """The row of MODES, which says whether a process drives a device or a node, and which nodes hold no replica."""
    cluster: Cluster
    stages: int = 1
    """Devices over which each replica's model is split."""

    @property
    def processes_per_node(self) -> int:
        """Processes that each node runs: one, or one per device, or one per replica that has its devices in process."""
        if self.mode.process_per == "node":
            return 1
        return self.cluster.devices_per_node // (self.stages if self.mode.stage_placement == "in process" else 1)

    @property
    def num_processes(self) -> int:
        """Processes on all nodes; `process_rank` counts them node by node, from 0."""
        return self.cluster.num_nodes * self.processes_per_node

    @property
    def num_trainers(self) -> int:
        """Processes that run the training loop, the first ones; the others serve them."""
        return 1 if self.mode.roles else self.num_processes

    @property
    def first_of_machines(self) -> list[int]:
        """Ranks of the first trainer of each machine; simulated nodes are one machine."""
        return list(range(0, 1 if self.cluster.simulated else self.num_trainers, self.processes_per_node))

    @property
    def num_replicas(self) -> int:
        """Copies of the model that train, which all frameworks must agree on; nodes with a role hold none."""
        without = len(self.mode.roles) * self.cluster.devices_per_node
        return (self.cluster.num_devices - without) // self.stages

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
