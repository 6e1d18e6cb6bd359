"""What every machine of a run does where each node is one: `python -m dpcompare.launch.node RUN_DIR [--node-rank I]`.

It meets the others in the run directory, starts the node process of its rank as a local launch does, and says how that ended.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dpcompare._version import __version__
from dpcompare.backends.availability import require_compiler, require_mode
from dpcompare.config.modes import FRAMEWORKS
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import load_engine
from dpcompare.launch.local import launch
from dpcompare.launch.outcome import Deadlines, LaunchOutcome, NodeOutcome
from dpcompare.launch.plan import Endpoints, NodeProcess, num_ports, plan
from dpcompare.launch.rendezvous import NodeInfo, Rendezvous, RendezvousError, is_open, join, listening, read_attempt
from dpcompare.results.run_dir import CONFIG_FILE
from dpcompare.system.addresses import interface_of
from dpcompare.system.devices import available_cores, installed_gpus, visible_gpus
from dpcompare.system.signals import signals_held, terminated_as_interrupted

SECONDS_BETWEEN_LOOKS = 1.0
"""At what the other nodes say, through a disk that may be slow."""


def run_node(
    run_dir: Path,
    node_rank: int | None,
    attempt_id: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> bool:
    """Do the part of one node of a run that waits for its nodes; returns whether it went well.

    Args:
        run_dir: the run's, which all nodes share.
        node_rank: which node this machine is; None where who started this can tell.
        attempt_id: of the attempt that this was started for; None for the present one.
        tell: called with a line while it waits for the others.

    Raises:
        RequestError: there is no such run, or this machine cannot take part.
        KeyboardInterrupt: it was told to end, and all its processes have.
    """
    attempt = read_attempt(run_dir)
    if attempt_id not in (None, attempt.id):
        raise RequestError(f"attempt {attempt_id} of this run is over; expected to take part in {attempt.id}")
    if attempt.dpcompare != __version__:
        raise RequestError(
            f"{socket.gethostname()} has dpcompare {__version__}, and the run was begun by {attempt.dpcompare}; install the "
            "same release on all hosts"
        )
    config = RunConfig.load(run_dir / CONFIG_FILE)
    rank, address = load_engine(config.placement.engine).node_identity(config, node_rank)
    rendezvous = Rendezvous(run_dir, attempt, config.cluster.num_nodes)
    if rank in rendezvous.node_infos():
        raise RequestError(f"node {rank} has begun already; expected one process per node: another --node-rank?")
    host = socket.gethostname()
    ended, message, stopped = LaunchOutcome(), None, False
    try:
        with terminated_as_interrupted():
            _train(config, rendezvous, run_dir, rank, host, address, report, ended)
            stopped = bool(ended.others)
    except (RequestError, RendezvousError) as error:
        if reason := rendezvous.why_stopped(rank):  # another's failure, which that one tells
            report(reason)
            stopped = True
        else:
            message = str(error)
            report(message)
    except KeyboardInterrupt:
        stopped = True
        raise
    except Exception as error:
        message = f"node {rank} ({host}): {type(error).__name__}: {error}"
        raise
    finally:
        status = ended.nodes.get(rank)
        if stopped and status == -signal.SIGTERM:  # Slurm tells all processes of a step to end, not this one alone
            status = None
        with signals_held():
            end = NodeOutcome(
                node_rank=rank,
                host=host,
                time=time.time(),
                status=status,
                vanished=ended.vanished,
                stalled=ended.stalled,
                out_of_memory=ended.out_of_memory,
                message=message,
                stopped=stopped,
            )
            rendezvous.write_outcome(end)
    return end.well


def _train(
    config: RunConfig,
    rendezvous: Rendezvous,
    run_dir: Path,
    rank: int,
    host: str,
    address: str,
    report: Callable[[str], None],
    ended: LaunchOutcome,
) -> None:
    require_mode(config.framework, config.mode, config.python)
    require_compiler(config.tuning)
    _require_inputs(config, rank, host)
    config = _on_this_machine(config, rank, host)
    with listening(address) as listener:
        node_info = NodeInfo(
            node_rank=rank,
            host=host,
            address=address,
            port=listener.getsockname()[1],
            versions={"dpcompare": __version__, **_versions(config.framework)},
        )
        node_infos = join(rendezvous, node_info, config.start_timeout, report)
    endpoints = Endpoints(
        [node_info.port for node_info in node_infos][: num_ports(config)],
        [node_info.address for node_info in node_infos],
    )
    own = plan(config, run_dir.resolve(), endpoints)[rank]
    own = own.model_copy(update={"env": own.env | _interfaces(address)})
    _launch(config, rendezvous, run_dir, own, ended)


def _launch(config: RunConfig, rendezvous: Rendezvous, run_dir: Path, own: NodeProcess, ended: LaunchOutcome) -> None:
    looked = time.monotonic()

    def stopped_by() -> str | None:
        nonlocal looked
        if time.monotonic() - looked < SECONDS_BETWEEN_LOOKS:
            return None
        looked = time.monotonic()
        return rendezvous.why_stopped(own.node_rank)

    deadlines = Deadlines(start=config.start_timeout, progress=config.progress_timeout)
    launch([own], run_dir, deadlines, stopped_by=stopped_by, ended=ended)


def _require_inputs(config: RunConfig, rank: int, host: str) -> None:
    assert config.inputs is not None
    for path in (config.inputs.store, config.inputs.weights):
        if not path.exists():
            raise RequestError(
                f"node {rank} ({host}) does not see {str(path)!r}, which was prepared for all nodes; set DPCOMPARE_CACHE_DIR to a "
                "folder that all hosts share, on the host that starts the run"
            )


def _on_this_machine(config: RunConfig, rank: int, host: str) -> RunConfig:
    """The config with this machine's GPUs in the place of as many unknown ones.

    Raises:
        RequestError: it has fewer GPUs or cores than the run takes of each node.
    """
    cluster = config.cluster
    if cluster.simulated:
        return config
    cores = cluster.nodes[rank].num_cores
    if available_cores() < cores:  # a thread more than there are cores costs more than it brings
        raise RequestError(
            f"node {rank} ({host}) has {available_cores()} cores for this process, and the run takes {cores} of each node; ask for "
            "fewer with --cores-per-node, or have more of them given to it"
        )
    if cluster.device_type != "gpu":
        return config
    visible = visible_gpus(installed_gpus())
    if len(visible) < cluster.devices_per_node:
        raise RequestError(
            f"node {rank} ({host}) sees {len(visible)} GPUs ({', '.join(visible) or 'none'}), and the run takes "
            f"{cluster.devices_per_node} of each node; ask for fewer with --devices-per-node"
        )
    own = cluster.nodes[rank].model_copy(update={"devices": tuple(visible[: cluster.devices_per_node])})
    nodes = tuple(own if node.rank == rank else node for node in cluster.nodes)
    return config.model_copy(update={"cluster": cluster.model_copy(update={"nodes": nodes})})


def _versions(framework: str) -> dict[str, str]:
    found = {}
    for package in FRAMEWORKS[framework].packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # it belongs to another interpreter, or has another name
            continue
    return found


def _interfaces(address: str) -> dict[str, str]:
    """Which network collectives are to use, unless the user has said so: left alone, they take that of the host's name."""
    interface = interface_of(address)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: interface for name in names if name not in os.environ} if interface else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds for the run to be prepared by another")
    parser.add_argument("--attempt", help="the one that this is started for; default: the present one")
    arguments = parser.parse_args()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    deadline = time.monotonic() + arguments.wait
    while not is_open(arguments.run_dir) and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    try:
        well = run_node(arguments.run_dir, arguments.node_rank, arguments.attempt, report)
    except RequestError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
