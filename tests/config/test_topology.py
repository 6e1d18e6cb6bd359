"""The counts that follow from a mode, a cluster and a number of stages."""

import pytest

from dpcompare.config.cluster import Cluster, Topology
from dpcompare.config.modes import MODES


def topology(framework, mode, nodes, devices, *, stages=1):
    cluster = Cluster.partition(nodes, devices, device="cpu", num_cores=8)
    return Topology(mode=MODES[framework, mode], cluster=cluster, devices_per_replica=stages)


@pytest.mark.parametrize(
    ("mode", "nodes", "devices", "processes", "replicas_per_process", "threads"),
    [
        (("torch", "single"), 1, 1, 1, 1, 8),
        (("torch", "dp"), 1, 4, 1, 4, 8),
        (("torch", "ddp"), 2, 2, 4, 1, 2),
        (("tensorflow", "mirrored"), 1, 4, 1, 4, 8),
        (("tensorflow", "multiworker"), 2, 2, 2, 2, 4),
    ],
)
def test_processes_replicas_and_threads(mode, nodes, devices, processes, replicas_per_process, threads):
    counts = topology(*mode, nodes, devices)
    assert counts.num_processes == len(counts.trainers) == processes
    assert counts.replicas_per_process == replicas_per_process
    assert counts.threads_per_process == threads
    assert counts.num_replicas == nodes * devices


def test_stages_in_process_give_a_process_several_devices():
    in_process = topology("torch", "ddp", 1, 4, stages=2)
    assert (in_process.num_processes, in_process.devices_per_process, in_process.num_replicas) == (2, 2, 2)
    over_processes = topology("torch", "pipeline", 1, 4, stages=2)
    assert (over_processes.num_processes, over_processes.devices_per_process, over_processes.num_replicas) == (4, 1, 2)
    assert over_processes.replicas_per_process == 1


def test_only_the_first_node_with_a_role_runs_a_loop():
    counts = topology("tensorflow", "parameter-server", 4, 1)
    assert (counts.num_processes, counts.trainers, counts.num_replicas) == (4, range(1), 2)


def test_simulated_nodes_are_one_machine():
    assert topology("torch", "ddp", 2, 2).first_of_machines == [0]
    machines = Cluster.of_machines(2, 2, "cpu", num_cores=4)
    assert Topology(mode=MODES["torch", "ddp"], cluster=machines).first_of_machines == [0, 2]
