"""How the nodes of a run find each other where each is a machine of its own: by files in the run directory, which they share."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from dpcompare._version import __version__
from dpcompare.launch.outcome import NodeOutcome
from dpcompare.system.json_files import read_document, write_document

NODES_DIR = "nodes"
ATTEMPT_FILE = "attempt.json"
STOP_FILE = "stop"
ALIVE_FILE = "alive"
SECONDS_BETWEEN_BEATS = 10.0
SECONDS_WITHOUT_BEAT = 180.0
"""After which the nodes take it that who began the run is gone. A shared disk may show a change a minute late."""
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_WORDS = 10.0
SECONDS_TO_CONNECT = 10.0
_GREETING = b"dpcompare"


class RendezvousError(RuntimeError):
    """The nodes do not come together; nothing was trained. The message says who was waited for."""


class AttemptInfo(BaseModel):
    """attempt.json: which attempt of a run the nodes are to take part in."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Names the folder of its files: a node that is left of an attempt before writes elsewhere."""
    dpcompare: str
    """The release that began it."""


class NodeInfo(BaseModel):
    """node-<rank>.json: what a node tells the others of itself."""

    model_config = ConfigDict(frozen=True)

    node_rank: int
    host: str
    """Its own name."""
    address: str
    """By which the others reach it."""
    port: int
    """Free there, for the processes of the framework."""
    versions: dict[str, str]
    """Of dpcompare and of the framework's packages."""


Document = TypeVar("Document", bound=BaseModel)


class Rendezvous:
    """The files of one attempt, nodes/<id>/ in the run directory."""

    def __init__(self, run_dir: Path, attempt: AttemptInfo, num_nodes: int) -> None:
        self._run_dir = run_dir
        self.attempt = attempt
        self.num_nodes = num_nodes
        self._folder = run_dir / NODES_DIR / attempt.id
        self._beat: tuple[float, float] | None = None
        """When the beat was made, by the disk, and first seen, by this machine's own clock."""

    @classmethod
    def open(cls, run_dir: Path, num_nodes: int) -> Rendezvous:
        """Begin an attempt; nodes that are left of one before end."""
        rendezvous = cls(run_dir, AttemptInfo(id=secrets.token_hex(4), dpcompare=__version__), num_nodes)
        rendezvous._folder.mkdir(parents=True)
        rendezvous.beat()
        write_document(rendezvous.attempt, run_dir / NODES_DIR / ATTEMPT_FILE)
        return rendezvous

    def beat(self) -> None:
        """Show the nodes that who began the run is there."""
        (self._folder / ALIVE_FILE).write_text(str(time.time()))

    def stop(self) -> None:
        """Tell all nodes to end."""
        (self._folder / STOP_FILE).touch()

    def write_node_info(self, node_info: NodeInfo) -> None:
        write_document(node_info, self._folder / f"node-{node_info.node_rank}.json")

    def write_outcome(self, end: NodeOutcome) -> None:
        write_document(end, self._folder / f"outcome-{end.node_rank}.json")

    def write_reached(self, node_rank: int) -> None:
        (self._folder / f"reached-{node_rank}").touch()

    def node_infos(self) -> dict[int, NodeInfo]:
        return self._read(NodeInfo, "node")

    def ends(self) -> dict[int, NodeOutcome]:
        return self._read(NodeOutcome, "outcome")

    def reached(self) -> list[int]:
        names = self._names()
        return [rank for rank in range(self.num_nodes) if f"reached-{rank}" in names]

    def why_stopped(self, node_rank: int) -> str | None:
        """What is to end this node: who began all, or another node that has failed or was ended."""
        if STOP_FILE in self._names():
            return "all nodes were told to stop"
        for rank, end in self.ends().items():
            if rank != node_rank and not end.well:
                return f"node {rank} ({end.host}) has failed" if end.failed else f"node {rank} ({end.host}) was ended"
        if read_attempt(self._run_dir).id != self.attempt.id:
            return "another attempt of this run has begun"
        beat, now = (self._folder / ALIVE_FILE).stat().st_mtime, time.monotonic()
        if self._beat is None or self._beat[0] != beat:
            self._beat = beat, now
        if now - self._beat[1] > SECONDS_WITHOUT_BEAT:
            return f"nothing was heard for {SECONDS_WITHOUT_BEAT:.0f} s of the process that began the run"
        return None

    def _names(self) -> set[str]:
        # A listing: a shared disk (NFS) remembers for long that a file was not there.
        return {path.name for path in self._folder.iterdir()}

    def _read(self, kind: type[Document], name: str) -> dict[int, Document]:
        names = self._names()
        paths = {rank: self._folder / f"{name}-{rank}.json" for rank in range(self.num_nodes)}
        return {rank: kind.model_validate_json(path.read_text()) for rank, path in paths.items() if path.name in names}


def is_open(run_dir: Path) -> bool:
    """Whether a run waits, or has waited, for its nodes."""
    return (run_dir / NODES_DIR / ATTEMPT_FILE).is_file()


def read_attempt(run_dir: Path) -> AttemptInfo:
    """The present attempt of a run.

    Raises:
        RequestError: no run waits there for its nodes.
    """
    return read_document(
        AttemptInfo,
        run_dir / NODES_DIR / ATTEMPT_FILE,
        kind="an attempt of a run",
        expected="the directory of a run that `dpcompare run --engine hosts` or `--engine slurm` waits in, on a disk that all its hosts "
        "share",
    )


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """A socket on a free port of this machine's address, which greets whoever connects, to show that it can be reached.

    Raises:
        RendezvousError: it is no address of this machine.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, 0))
        except OSError as error:
            raise RendezvousError(
                f"{address} is to be this machine, and is no address of {socket.gethostname()} ({error.strerror}); expected this "
                "command on the host of that rank"
            ) from None
        listener.listen(128)
        threading.Thread(target=_greet, args=(listener,), name="greeting", daemon=True).start()
        yield listener
        listener.shutdown(socket.SHUT_RDWR)


def _greet(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # closed: all have met
            return
        with connection:
            connection.settimeout(SECONDS_TO_CONNECT)
            try:
                connection.sendall(_GREETING)
                connection.recv(1)  # the other side closes first, or this port would stay in TIME_WAIT
            except OSError:
                continue


def join(
    rendezvous: Rendezvous, own: NodeInfo, seconds: float, report: Callable[[str], None] = lambda line: None
) -> Sequence[NodeInfo]:
    """Wait until all nodes are here and reach each other; returns their cards in the order of the ranks.

    Args:
        own: this node's; its port listens, see `listening`.
        seconds: how long to wait for the others.
        tell: called with a line while it waits.

    Raises:
        RendezvousError: a node has not come, has failed, cannot be reached, or has another release of dpcompare.
    """
    rendezvous.write_node_info(own)
    node_infos = _wait(rendezvous, own, seconds, report, "to begin", rendezvous.node_infos)
    releases = {node_info.versions["dpcompare"] for node_info in node_infos.values()}
    if len(releases) > 1:
        each = ", ".join(
            f"node {node_info.node_rank} ({node_info.host}) {node_info.versions['dpcompare']}"
            for node_info in node_infos.values()
        )
        raise RendezvousError(f"the nodes have different releases of dpcompare: {each}; install the same on all")
    for node_info in node_infos.values():
        if node_info.node_rank != own.node_rank:
            _reach(own, node_info)
    rendezvous.write_reached(own.node_rank)
    _wait(
        rendezvous,
        own,
        SECONDS_TO_CONNECT * rendezvous.num_nodes + seconds,
        report,
        "to reach the others",
        rendezvous.reached,
    )
    return [node_infos[rank] for rank in range(rendezvous.num_nodes)]


Found = TypeVar("Found", dict[int, NodeInfo], list[int])


def _wait(
    rendezvous: Rendezvous,
    own: NodeInfo,
    seconds: float,
    report: Callable[[str], None],
    what: str,
    look: Callable[[], Found],
) -> Found:
    begun = told = time.monotonic()
    while True:
        found = look()
        missing = [rank for rank in range(rendezvous.num_nodes) if rank not in found]
        if not missing:
            return found
        if reason := rendezvous.why_stopped(own.node_rank):
            raise RendezvousError(reason)
        names = ", ".join(f"node {rank}" for rank in missing)
        now = time.monotonic()
        if now - begun > seconds:
            raise RendezvousError(
                f"node {own.node_rank} ({own.host}) has waited {seconds:.0f} s for {names} {what}. Either nothing was started there, "
                "or the run directory is not the same folder there and here: the nodes need one that they share. Allow more with "
                "--start-timeout"
            )
        if now - told > SECONDS_BETWEEN_WORDS:
            report(f"node {own.node_rank} ({own.host}) waits for {names} {what}")
            told = now
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _reach(own: NodeInfo, other: NodeInfo) -> None:
    try:
        with socket.create_connection((other.address, other.port), timeout=SECONDS_TO_CONNECT) as connection:
            connection.settimeout(SECONDS_TO_CONNECT)
            if connection.recv(len(_GREETING)) != _GREETING:
                raise ConnectionError("something else answers there")
    except OSError as error:
        raise RendezvousError(
            f"node {own.node_rank} ({own.host}) cannot reach node {other.node_rank} ({other.host}) at {other.address}:{other.port}: "
            f"{error}. The nodes must reach each other on all ports from 1024 on: open them between the hosts, or name "
            "addresses by which they do"
        ) from None
