"""What every machine of a run does where each node is one: `python -m dpcompare.node RUN_DIR [--node-rank I]`.

It meets the others in the run directory, starts the node process of its rank as a local launch does, and says how that ended.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dpcompare
from dpcompare.backends import FRAMEWORKS, require_compiler, require_framework
from dpcompare.cluster import installed_gpus, visible_gpus
from dpcompare.config import RunConfig
from dpcompare.engines import load_engine
from dpcompare.errors import RequestError
from dpcompare.launcher import Deadlines, Ended, launch
from dpcompare.meeting import (
    NODES_DIR,
    Card,
    MeetingError,
    NodeEnd,
    interface_of,
    listening,
    meet,
    read_cards,
    why_stopped,
    write_end,
)
from dpcompare.planning import Meeting, NodeProcess, num_ports, plan
from dpcompare.processes import terminated_as_interrupted, uninterrupted
from dpcompare.result import CONFIG_FILE

SECONDS_BETWEEN_LOOKS = 1.0
"""At what the other nodes say, through a disk that may be slow."""


def take_part(run_dir: Path, node_rank: int | None, tell: Callable[[str], None] = lambda line: None) -> bool:
    """Do the part of one node of a run that waits for its nodes; returns whether it went well.

    Args:
        run_dir: the run's, which all nodes share.
        node_rank: which node this machine is; None where who started this can tell.
        tell: called with a line while it waits for the others.

    Raises:
        RequestError: there is no such run, or this machine cannot take part.
        KeyboardInterrupt: it was told to end, and all its processes have.
    """
    config = RunConfig.load(run_dir / CONFIG_FILE)
    engine = load_engine(config.placement.engine)
    rank, address = engine.where_this_is(config, node_rank)
    if not (run_dir / NODES_DIR).is_dir():
        raise RequestError(
            f"{str(run_dir)!r} waits for no nodes; expected the directory of a run that `dpcompare run --engine "
            f"{config.placement.engine}` has prepared, on a disk that all hosts share"
        )
    if rank in read_cards(run_dir, config.cluster.num_nodes):
        raise RequestError(f"node {rank} has begun already; expected one process per node: another --node-rank?")
    host = socket.gethostname()
    ended, message, stopped = Ended(), None, True
    try:
        with terminated_as_interrupted():
            try:
                ended = _train(config, run_dir, rank, host, address, tell)
                stopped = bool(ended.others)
            except (RequestError, MeetingError) as error:
                message, stopped = str(error), False
                if why_stopped(run_dir, config.cluster.num_nodes, rank):  # another's failure, which that one tells
                    tell(message)
                    message, stopped = None, True
    finally:
        with uninterrupted():
            end = NodeEnd(
                node_rank=rank,
                host=host,
                time=time.time(),
                status=ended.nodes.get(rank),
                vanished=ended.vanished,
                stalled=ended.stalled,
                out_of_memory=ended.out_of_memory,
                message=message,
                stopped=stopped,
            )
            write_end(run_dir, end)
    if message:
        tell(message)
    return end.status == 0 and not end.failed


def _train(config: RunConfig, run_dir: Path, rank: int, host: str, address: str, tell: Callable[[str], None]) -> Ended:
    require_framework(config.framework, config.python)
    require_compiler(config.tuning)
    _require_inputs(config, rank, host)
    config = _with_own_devices(config, rank, host)
    with listening(address) as listener:
        card = Card(
            node_rank=rank,
            host=host,
            address=address,
            port=listener.getsockname()[1],
            versions={"dpcompare": dpcompare.__version__, **_versions(config.framework)},
        )
        cards = meet(run_dir, card, config.cluster.num_nodes, config.start_timeout, tell)
    meeting = Meeting([card.port for card in cards][: num_ports(config)], [card.address for card in cards])
    own = plan(config, run_dir.resolve(), meeting)[rank]
    own = own.model_copy(update={"env": own.env | _interfaces(address)})
    return _launched(config, run_dir, own)


def _launched(config: RunConfig, run_dir: Path, own: NodeProcess) -> Ended:
    looked = time.monotonic()

    def stopped_by() -> str | None:
        nonlocal looked
        if time.monotonic() - looked < SECONDS_BETWEEN_LOOKS:
            return None
        looked = time.monotonic()
        return why_stopped(run_dir, config.cluster.num_nodes, own.node_rank)

    deadlines = Deadlines(start=config.start_timeout, progress=config.progress_timeout)
    return launch([own], run_dir, deadlines, stopped_by=stopped_by)


def _require_inputs(config: RunConfig, rank: int, host: str) -> None:
    assert config.inputs is not None
    for path in (config.inputs.store, config.inputs.weights):
        if not path.exists():
            raise RequestError(
                f"node {rank} ({host}) does not see {str(path)!r}, which was prepared for all nodes; set DPCOMPARE_CACHE_DIR to a "
                "folder that all hosts share, on the host that starts the run"
            )


def _with_own_devices(config: RunConfig, rank: int, host: str) -> RunConfig:
    """The config with this machine's GPUs in the place of as many unknown ones."""
    cluster = config.cluster
    if cluster.simulated or cluster.device_type != "gpu":
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
        except (
            importlib.metadata.PackageNotFoundError
        ):  # in the environment of another interpreter, or under another name
            continue
    return found


def _interfaces(address: str) -> dict[str, str]:
    """Which network collectives are to use: left alone, they take that of the host's name."""
    interface = interface_of(address)
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int)
    arguments = parser.parse_args()
    try:
        well = take_part(arguments.run_dir, arguments.node_rank, lambda line: print(line, file=sys.stderr, flush=True))
    except RequestError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
