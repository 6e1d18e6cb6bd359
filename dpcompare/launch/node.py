"""One node of a run whose nodes are separate machines: `python -m dpcompare.launch.node RUN_DIR [--node-rank I]`.

It joins the others in the run directory, launches the node process of its rank as a local run does, and writes how that
ended.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpcompare._version import __version__
from dpcompare.backends.availability import require_compiler, require_devices, require_mode
from dpcompare.backends.cuda_wheels import require_cuda
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.run import PreparedRun
from dpcompare.errors import RequestError
from dpcompare.launch.engines import load_engine
from dpcompare.launch.local import launch
from dpcompare.launch.outcome import Deadlines, LaunchOutcome, NodeOutcome, Report
from dpcompare.launch.plan import Endpoints, num_ports, plan
from dpcompare.launch.rendezvous import NodeInfo, Rendezvous, RendezvousError, is_open, join, listening, read_attempt
from dpcompare.results.run_dir import attempt_config_path
from dpcompare.system.devices import available_cores, installed_gpus, visible_gpus
from dpcompare.system.files import reject_links
from dpcompare.system.ports import interface_of
from dpcompare.system.signals import Deadline, signals_held, terminated_as_interrupted
from dpcompare.system.terminal_text import keep_stderr_from_failing, pluralize

STOP_POLL_SECONDS = 1.0
"""How often a node reads whether it is to stop, through a disk that may be slow."""


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """A node of a run, as the machine that is this node knows it."""

    config: PreparedRun
    run_dir: Path
    """Shared by all nodes."""
    rendezvous: Rendezvous
    rank: int
    host: str
    """Its name for itself."""
    address: str
    """The address by which the other nodes reach it."""
    report: Report
    """Called with a line for what a person on this host may want to read."""

    def __str__(self) -> str:
        return f"node {self.rank} ({self.host})"


def run_node(
    run_dir: Path,
    node_rank: int | None,
    attempt_id: str | None = None,
    report: Report = lambda line: None,
) -> bool:
    """Do the part of one node of a run that waits for its nodes; returns whether it succeeded.

    Args:
        run_dir: the directory of the run, which all nodes share.
        node_rank: which node this machine is; None where the engine knows.
        attempt_id: the attempt that this was started for; None for the present one.
        report: called with a line while it waits for the others, and for what went wrong.

    Raises:
        RequestError: there is no such run, or this machine cannot take part.
        KeyboardInterrupt: it was interrupted, and all its processes have ended.
    """
    node = _node_context(run_dir, node_rank, attempt_id, report)
    outcome = LaunchOutcome()
    raised: BaseException | None = None
    try:
        with terminated_as_interrupted():
            _join_and_launch(node, outcome)
    except BaseException as error:
        raised = error
        if not isinstance(error, (RequestError, RendezvousError)):
            raise
    finally:  # whatever happened, the others learn of it
        with signals_held():
            node_outcome = _node_outcome(node, outcome, raised)
            node.rendezvous.write_outcome(node_outcome)
    return node_outcome.succeeded


def _node_context(run_dir: Path, node_rank: int | None, attempt_id: str | None, report: Report) -> NodeContext:
    reject_links(run_dir, "the run directory")
    attempt = read_attempt(run_dir)
    host = socket.gethostname()
    if attempt_id not in (None, attempt.id):
        raise RequestError(f"attempt {attempt_id} of this run is over; expected to take part in {attempt.id}")
    if attempt.dpcompare != __version__:
        raise RequestError(
            f"{host} has dpcompare {__version__}, and the run was started by {attempt.dpcompare}; install the same "
            "release on all hosts"
        )
    config = PreparedRun.load(attempt_config_path(run_dir))
    rank, address = load_engine(config.placement.engine).node_identity(config, node_rank)
    rendezvous = Rendezvous(run_dir, attempt, config.cluster.num_nodes)
    if rank in rendezvous.node_infos():
        raise RequestError(f"node {rank} has joined already; expected one process per node: is it another --node-rank?")
    return NodeContext(
        config=config,
        run_dir=run_dir,
        rendezvous=rendezvous,
        rank=rank,
        host=host,
        address=address,
        report=report,
    )


def _node_outcome(node: NodeContext, outcome: LaunchOutcome, raised: BaseException | None) -> NodeOutcome:
    message, stopped = _explain(node, outcome, raised)
    status = outcome.nodes.get(node.rank)
    if stopped and status == -signal.SIGTERM:  # Slurm ends all processes of a step, not this one alone
        status = None
    return NodeOutcome(
        node_rank=node.rank,
        host=node.host,
        time=time.time(),
        status=status,
        vanished=outcome.vanished,
        stalled=outcome.stalled,
        out_of_memory=bool(outcome.out_of_memory),
        message=message,
        stopped=stopped,
    )


def _failure_of_another(node: NodeContext) -> str | None:
    """Why this node was to stop, which another one reports itself; None where that cannot be read."""
    try:
        return node.rendezvous.why_stopped(node.rank)
    except (OSError, ValueError):  # a shared disk; what this node met is known all the same
        return None


def _explain(node: NodeContext, outcome: LaunchOutcome, raised: BaseException | None) -> tuple[str | None, bool]:
    """Why the node failed before its process ended, if it did, and whether it was stopped instead."""
    match raised:
        case None:
            return None, bool(outcome.reasons)
        case KeyboardInterrupt():
            return None, True
        case RequestError() | RendezvousError():
            reason = _failure_of_another(node)
            node.report(reason or str(raised))
            return (None, True) if reason else (str(raised), False)
        case Exception():
            return f"{node}: {type(raised).__name__}: {raised}", False
        case _:
            return None, False


def _join_and_launch(node: NodeContext, outcome: LaunchOutcome) -> None:
    """Wait for the other nodes, then launch the node process of this one; `outcome` is filled."""
    require_mode(node.config.framework, node.config.mode, node.config.python)
    require_compiler(node.config.tuning)
    cluster, topology = node.config.cluster, node.config.topology
    require_devices(node.config.framework, cluster.device_type, topology.devices_per_process)
    _require_inputs(node)
    config = _with_local_gpus(node)
    endpoints = _endpoints(node, _join(node))
    node_process = plan(config, node.run_dir.resolve(), endpoints)[node.rank]
    network = _interfaces(node.address) | _nccl_between_namespaces(node)
    node_process = node_process.model_copy(update={"env": node_process.env | network})
    deadlines = Deadlines(start=config.seconds_to_start, progress=config.progress_timeout)
    launch([node_process], node.run_dir, deadlines, stopped_by=_stopped_by(node), outcome=outcome)


def _join(node: NodeContext) -> Sequence[NodeInfo]:
    with listening(node.address) as listener:
        node_info = NodeInfo(
            node_rank=node.rank,
            host=node.host,
            address=node.address,
            port=listener.getsockname()[1],
            versions={"dpcompare": __version__, **installed_versions(FRAMEWORKS[node.config.framework].packages)},
        )
        return join(node.rendezvous, node_info, node.config.seconds_to_start, node.report)


def _endpoints(node: NodeContext, node_infos: Sequence[NodeInfo]) -> Endpoints:
    ports = [node_info.port for node_info in node_infos]
    return Endpoints(ports[: num_ports(node.config)], [node_info.address for node_info in node_infos])


def _stopped_by(node: NodeContext) -> Callable[[], str | None]:
    next_look = Deadline(STOP_POLL_SECONDS)

    def stopped_by() -> str | None:
        if not next_look.passed:
            return None
        next_look.restart()
        return node.rendezvous.why_stopped(node.rank)

    return stopped_by


def _require_inputs(node: NodeContext) -> None:
    for path in (node.config.inputs.store, node.config.inputs.weights):
        if not path.exists():
            raise RequestError(
                f"{node} does not see {str(path)!r}, which was prepared for all nodes; set DPCOMPARE_CACHE_DIR to a "
                "folder that all hosts share, on the host that starts the run"
            )


def _with_local_gpus(node: NodeContext) -> PreparedRun:
    """The config with this machine's GPUs in the place of as many unknown ones.

    Raises:
        RequestError: it has fewer GPUs or cores than the run takes of each node.
    """
    cluster = node.config.cluster
    if cluster.simulated:
        return node.config
    cores = cluster.nodes[node.rank].num_cores
    if available_cores() < cores:  # a thread more than there are cores costs more than it brings
        raise RequestError(
            f"{node} has {pluralize(available_cores(), 'core')} for this process, and the run takes {cores} of each "
            "node; ask for fewer with --cores-per-node, or have more of them given to it"
        )
    if cluster.device_type != "gpu":
        return node.config
    require_cuda(node.config.framework, node.config.python)
    visible = visible_gpus(installed_gpus())
    if len(visible) < cluster.devices_per_node:
        raise RequestError(
            f"{node} sees {pluralize(len(visible), 'GPU')} ({', '.join(visible) or 'none'}), and the run takes "
            f"{cluster.devices_per_node} of each node; ask for fewer with --devices-per-node"
        )
    local = cluster.nodes[node.rank].changed(devices=tuple(visible[: cluster.devices_per_node]))
    nodes = tuple(local if each.rank == node.rank else each for each in cluster.nodes)
    return node.config.changed(cluster=cluster.changed(nodes=nodes))


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, of those that this interpreter has."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # it belongs to another interpreter, or has another name
            continue
    return found


def _interfaces(address: str) -> dict[str, str]:
    """The network for collectives, unless the user chose one: by default they take that of the host's name."""
    interface = interface_of(address)
    if not interface:
        return {}
    # NCCL takes every interface whose name begins so, but for "=".
    chosen = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: value for name, value in chosen.items() if name not in os.environ}


def _nccl_between_namespaces(node: NodeContext) -> dict[str, str]:
    """Has NCCL use the network between namespaces.

    It distinguishes hosts by hostname and boot id, so it would take all nodes for one, and look for its peers on Unix
    sockets that a namespace keeps to itself, or go by the machine's own links and round `--link`.
    """
    if node.config.placement.engine != "namespaces":
        return {}
    return {"NCCL_HOSTID": f"node{node.rank}", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}


def main() -> None:
    """Run the command line of this module: exit code 0, 1 (failed), 2 (refused) or 130 (interrupted)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds for the run to be prepared by another")
    parser.add_argument("--attempt", help="the attempt that this is started for; default: the present one")
    arguments = parser.parse_args()
    keep_stderr_from_failing()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    deadline = Deadline(arguments.wait)
    while not is_open(arguments.run_dir) and not deadline.passed:
        time.sleep(STOP_POLL_SECONDS)
    try:
        succeeded = run_node(arguments.run_dir, arguments.node_rank, arguments.attempt, report)
    except RequestError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
