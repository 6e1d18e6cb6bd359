"""The engine of plain hosts: one command on each, manually or by ssh."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dpcompare.config.engines import HostsOptions
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import Engine, NodesEnded, PollExit, node_commands, options_of
from dpcompare.launch.outcome import Report
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.system.ports import local_address
from dpcompare.system.processes import kill_groups, wait_for_exit
from dpcompare.system.signals import signals_held

EXIT_SECONDS = 10.0
"""How long the process that started a node may outlive it."""
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
"""BatchMode: no user is there to answer questions."""


@contextmanager
def terminate_on_exit(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with its node, or is killed some seconds after that should have."""
    with signals_held() as signals:
        try:
            yield process
        finally:
            if not wait_for_exit([process], EXIT_SECONDS, signals):
                kill_groups([process])


class Hosts(Engine):
    """One command on each host, manually or by ssh."""

    def check(self, config: RunConfig) -> None:
        if options_of(config, HostsOptions).ssh and shutil.which(SSH[0]) is None:
            raise RequestError(
                "--ssh: ssh is not installed here; install it, or leave --ssh out and type the commands on each host"
            )
        for host in config.placement.hosts:
            local_address(host)

    @contextmanager
    def started(
        self, config: RunConfig, run_dir: Path, rendezvous: Rendezvous, report: Report
    ) -> Iterator[PollExit | None]:
        hosts = config.placement.hosts
        each = list(zip(hosts, node_commands(config, run_dir, rendezvous.attempt.id), strict=True))
        if not options_of(config, HostsOptions).ssh:
            report(f"run one of these on each host, within {config.seconds_to_start:.0f} s:")
            for host, command in each:
                report(f"  on {host}: {command}")
            yield None
            return
        with signals_held(), ExitStack() as stack:
            processes = [
                stack.enter_context(
                    terminate_on_exit(
                        subprocess.Popen([*SSH, host, command], stdin=subprocess.DEVNULL, start_new_session=True)
                    )
                )
                for host, command in each
            ]

            def poll_exit() -> NodesEnded | None:
                statuses = {
                    rank: process.returncode for rank, process in enumerate(processes) if process.poll() is not None
                }
                joined = rendezvous.node_infos() if statuses else {}
                # A node that has joined says itself how it ends; of one that has not, its ssh is all that is known.
                if len(statuses) < len(hosts) and statuses.keys() <= joined.keys():
                    return None
                ended = ", ".join(f"{status} on {hosts[rank]}" for rank, status in statuses.items())
                return NodesEnded(why=f"ssh has ended with {ended}")

            yield poll_exit

    def node_identity(self, config: RunConfig, node_rank: int | None) -> tuple[int, str]:
        num_nodes = config.cluster.num_nodes
        if node_rank is None or not 0 <= node_rank < num_nodes:
            raise RequestError(
                f"--node-rank: received {node_rank}, expected 0 to {num_nodes - 1}: which of the hosts this is"
            )
        return node_rank, local_address(config.placement.hosts[node_rank])
