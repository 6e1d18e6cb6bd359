"""Plain hosts: one command on each, by hand or by ssh."""

from __future__ import annotations

import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpcompare.config import RunConfig
from dpcompare.engines import StillThere, Tell
from dpcompare.errors import RequestError
from dpcompare.meeting import stop_nodes

QUEUES = False
SECONDS_TO_END = 10.0
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
"""Without questions: nobody is there to answer them."""


def check(config: RunConfig) -> None:
    for host in config.placement.hosts:
        _address(host)


def commands(config: RunConfig, run_dir: Path) -> list[str]:
    """The command of each host, for a shell."""
    return [
        shlex.join([config.python, "-m", "dpcompare.node", str(run_dir), "--node-rank", str(rank)])
        for rank in range(config.cluster.num_nodes)
    ]


@contextmanager
def started(config: RunConfig, run_dir: Path, tell: Tell) -> Iterator[StillThere]:
    hosts = config.placement.hosts
    if not config.placement.ssh:
        tell(f"run one of these on each host, within {config.start_timeout:.0f} s:")
        for host, command in zip(hosts, commands(config, run_dir), strict=True):
            tell(f"  on {host}: {command}")
        try:
            yield lambda: None
        finally:
            stop_nodes(run_dir)
        return
    processes = [
        subprocess.Popen([*SSH, host, command], stdin=subprocess.DEVNULL, start_new_session=True)
        for host, command in zip(hosts, commands(config, run_dir), strict=True)
    ]

    def all_ended() -> str | None:
        statuses = [process.poll() for process in processes]
        if None in statuses:
            return None
        return "ssh has ended with " + ", ".join(
            f"{status} on {host}" for host, status in zip(hosts, statuses, strict=True)
        )

    try:
        yield all_ended
    finally:
        stop_nodes(run_dir)
        for process in processes:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def where_this_is(config: RunConfig, node_rank: int | None) -> tuple[int, str]:
    num_nodes = config.cluster.num_nodes
    if node_rank is None or not 0 <= node_rank < num_nodes:
        raise RequestError(
            f"--node-rank: received {node_rank}, expected 0 to {num_nodes - 1}: which of the hosts this is"
        )
    return node_rank, _address(config.placement.hosts[node_rank])


def _address(host: str) -> str:
    """Its IPv4 address."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise RequestError(
            f"hosts: {host!r} cannot be resolved here ({error.strerror}); expected a name or an IPv4 address that all hosts know"
        ) from None
