"""The engine of network namespaces: every simulated node is a host with an address and a link that can be limited."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dpcompare.config.engines import link_bytes_per_second
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import Engine, NodesEnded, PollExit
from dpcompare.launch.engines.hosts import terminate_on_exit
from dpcompare.launch.outcome import Report
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.results.run_dir import host_log_path
from dpcompare.system.commands import run_command
from dpcompare.system.files import no_link
from dpcompare.system.network_namespace import Network, isolated
from dpcompare.system.processes import die_with_parent
from dpcompare.system.signals import signals_held

LATE_SECONDS = 0.5e-3
"""The delay of timers of a busy kernel: what a link does not send meanwhile, its bucket lets it send afterwards. The
bucket holds that and one packet, and no more, since a real link does not make up for a pause."""
LARGE_PACKET, SMALL_PACKET = 64 * 1024, 16 * 1024
"""Bytes of what Linux hands to a link at once: 64 KiB, and less to slow links, so that their buckets can be small (a
bucket that holds no packet has tc cut it into frames, on cores that compute)."""
HEADERS = 1 / 16
"""The part of a packet that its headers take, at most: 66 bytes for every 1,448."""
QUEUE_SECONDS, QUEUE_BYTES, LONGEST_QUEUE_BYTES = 50e-3, 256 * 1024, 1024**3
"""How much may wait at the limit before packets are dropped: so long, and so many bytes more; tc takes 32 bits."""
COMMAND_SECONDS = 30.0
_MOST_NODES = 200


@contextmanager
def linked_hosts(count: int, rate: str | None) -> Iterator[list[Network]]:
    """Hosts with one link each to a common switch, of this rate or without a limit, and `address` for each rank."""
    # Held by processes, not by names: whatever happens to this one, they are gone with it.
    with ExitStack() as stack:
        switch = stack.enter_context(isolated())
        _ip(switch, "link add switch type bridge")
        _ip(switch, "link set switch up")
        hosts = [stack.enter_context(isolated()) for _ in range(count)]
        size, limit = _limits(rate) if rate else ("", "")
        for rank, host in enumerate(hosts):
            _ip(switch, f"link add node{rank} {size} type veth peer name eth0 {size} netns {host.pid}")
            _ip(switch, f"link set node{rank} master switch up")
            _ip(host, f"addr add {address(rank)}/24 dev eth0")
            _ip(host, "link set eth0 up")
            if limit:
                # What a node sends, on its own side; what it gets, on the side of the switch.
                _in(host, f"tc qdisc add dev eth0 root {limit}")
                _in(switch, f"tc qdisc add dev node{rank} root {limit}")
        yield hosts


def _limits(rate: str) -> tuple[str, str]:
    """The arguments of ip for the packets of a link, and of tc for its rate."""
    bytes_per_second = link_bytes_per_second(rate)
    if bytes_per_second is None:
        raise RequestError(f"--link: received {rate!r}, expected a rate such as 1gbit")
    late = round(LATE_SECONDS * bytes_per_second)
    packet, size = (LARGE_PACKET, "") if late >= LARGE_PACKET else (SMALL_PACKET, f"gso_max_size {SMALL_PACKET}")
    bucket = round(packet * (1 + HEADERS)) + late
    queue = min(QUEUE_BYTES + round(QUEUE_SECONDS * bytes_per_second), LONGEST_QUEUE_BYTES)
    return size, f"tbf rate {rate} burst {bucket}b limit {queue}b"


def address(rank: int) -> str:
    """The address of a host."""
    # Of a network that is reserved for benchmarks (RFC 2544), and reaches nothing from inside the namespaces anyway.
    return f"198.18.0.{rank + 1}"


def _start(host: Network, run_dir: Path, rendezvous: Rendezvous, rank: int) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def before_exec() -> None:
        host.enter()
        die_with_parent(parent)

    with open(host_log_path(run_dir, rank), "ab", opener=no_link) as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "dpcompare.launch.node", str(run_dir)),
                *("--node-rank", str(rank), "--attempt", rendezvous.attempt.id),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,
        )


def _ip(network: Network, command: str) -> None:
    _in(network, f"ip {command}")


def _in(network: Network, command: str) -> None:
    argv = ["nsenter", f"--net=/proc/{network.pid}/ns/net", *command.split()]
    done = run_command(argv, seconds=COMMAND_SECONDS)
    if done.returncode:
        raise RequestError(f"--engine namespaces: `{command}` says: {done.stderr.strip()}")


class Namespaces(Engine):
    """Every simulated node in a network of its own."""

    def check(self, config: RunConfig) -> None:
        if missing := [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]:
            raise RequestError(
                f"--engine namespaces: {', '.join(missing)} not found; install iproute2 and util-linux, or use "
                "--engine local"
            )
        if os.geteuid() != 0:
            raise RequestError("--engine namespaces: links between network namespaces need root; use --engine local")
        if config.cluster.num_nodes > _MOST_NODES:
            raise RequestError(
                f"--nodes: received {config.cluster.num_nodes}, expected at most {_MOST_NODES} namespaces"
            )

    @contextmanager
    def started(self, config: RunConfig, run_dir: Path, rendezvous: Rendezvous, report: Report) -> Iterator[PollExit]:
        with signals_held(), ExitStack() as stack:
            hosts = stack.enter_context(linked_hosts(config.cluster.num_nodes, config.placement.link))
            processes = []
            for rank, host in enumerate(hosts):
                processes.append(stack.enter_context(terminate_on_exit(_start(host, run_dir, rendezvous, rank))))

            def poll_exit() -> NodesEnded | None:
                statuses = [process.poll() for process in processes]
                if None in statuses:
                    return None
                return NodesEnded(why=f"the nodes have ended with {', '.join(map(str, statuses))}")

            yield poll_exit

    def node_identity(self, config: RunConfig, node_rank: int | None) -> tuple[int, str]:
        if node_rank is None:
            raise RequestError("--node-rank: received none; expected that of the namespace that this process is in")
        return node_rank, address(node_rank)
