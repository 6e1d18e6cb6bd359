"""Nodes of machines that a test names, and studies whose rounds differ in them."""

from dpcompare.results.result import NodeRecord
from dpcompare.system.machine import Machine

EPYC = Machine(cpu_model="AMD EPYC 7763", cores=2, kernel="Linux 6.1.0-18", operating_system="Debian 12", boot_id="b1")


def on(*hosts, versions=None, **changes):
    """A node on each of these hosts.

    Args:
        hosts: their names.
        versions: of packages.
        changes: of their machine.
    """
    machine = EPYC.model_copy(update={"boot_id": None} | changes)
    return [
        NodeRecord(node_rank=rank, host=host, device_names=["cpu:0"], versions=versions or {}, machine=machine)
        for rank, host in enumerate(hosts)
    ]


def changed_rounds(arm, numbers, **changes):
    """The arm with other fields in the results of these rounds."""
    for number in numbers:
        arm.runs[number - 1] = arm.runs[number - 1].model_copy(update=changes)
    return arm
