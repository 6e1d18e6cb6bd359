"""The rendezvous of nodes that are separate machines: files in the run directory, which they share."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from dpcompare._version import __version__
from dpcompare.launch.outcome import NodeOutcome, Report
from dpcompare.system.files import no_link
from dpcompare.system.json_files import read_document, write_document
from dpcompare.system.signals import Deadline

NODES_DIR = "nodes"
ATTEMPT_FILE = "attempt.json"
STOP_FILE = "stop"
ALIVE_FILE = "alive"
BEAT_SECONDS = 10.0
"""How often the process that started the run shows that it is there."""
LOST_BEAT_SECONDS = 180.0
"""After which the nodes assume that it is gone. A shared disk may show a change a minute late."""
JOIN_POLL_SECONDS = 0.2
WAITING_REPORT_SECONDS = 10.0
"""How often a waiting node says whom it waits for."""
CONNECT_SECONDS = 10.0
_GREETING = b"dpcompare"


class RendezvousError(RuntimeError):
    """The nodes cannot join each other; nothing was trained. The message says which node is missing, and why."""


class AttemptInfo(BaseModel):
    """attempt.json: which attempt of a run the nodes are to take part in."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Names the folder of its files: a node that is left over from an earlier attempt writes elsewhere."""
    dpcompare: str
    """The release that started it."""


class NodeInfo(BaseModel):
    """node-<rank>.json: what the other nodes need to know of a node."""

    model_config = ConfigDict(frozen=True)

    node_rank: int
    host: str
    """Its name for itself."""
    address: str
    """The address by which the others reach it."""
    port: int
    """A free one, for the processes of the framework."""
    versions: dict[str, str]
    """The versions of dpcompare and of the framework's packages."""

    def __str__(self) -> str:
        return f"node {self.node_rank} ({self.host})"


Document = TypeVar("Document", bound=BaseModel)


class Rendezvous:
    """The files of one attempt, nodes/<id>/ in the run directory."""

    def __init__(self, run_dir: Path, attempt: AttemptInfo, num_nodes: int) -> None:
        self._run_dir = run_dir
        self.attempt = attempt
        self.num_nodes = num_nodes
        self._folder = run_dir / NODES_DIR / attempt.id
        self._beat: tuple[float, float] | None = None
        """When the last beat was made, by the disk's clock, and first seen, by this machine's."""

    @classmethod
    def open(cls, run_dir: Path, num_nodes: int) -> Rendezvous:
        """Start an attempt; nodes that are left over from an earlier one end."""
        rendezvous = cls(run_dir, AttemptInfo(id=secrets.token_hex(4), dpcompare=__version__), num_nodes)
        rendezvous._folder.mkdir(parents=True)
        rendezvous.beat()
        write_document(rendezvous.attempt, run_dir / NODES_DIR / ATTEMPT_FILE)
        return rendezvous

    def beat(self) -> None:
        """Show the nodes that the process that started the run is there."""
        self._write(ALIVE_FILE, str(time.time()))

    @contextmanager
    def beating(self) -> Iterator[Callable[[], None]]:
        """Within this context a thread beats, whatever holds the others up, such as a terminal that takes no output.

        Yields what raises the OSError that has ended the thread, if one has.
        """
        over = threading.Event()
        errors: list[OSError] = []

        def beat() -> None:
            while not over.wait(BEAT_SECONDS):
                try:
                    self.beat()
                except OSError as error:
                    errors.append(error)
                    return

        def check() -> None:
            if errors:
                raise errors[0]

        threading.Thread(target=beat, name="beat", daemon=True).start()
        try:
            yield check
        finally:
            over.set()

    def stop(self) -> None:
        """Tell all nodes to end."""
        self._write(STOP_FILE)

    def write_node_info(self, node_info: NodeInfo) -> None:
        """Show the other nodes that this one is there."""
        write_document(node_info, self._folder / f"node-{node_info.node_rank}.json")

    def write_outcome(self, outcome: NodeOutcome) -> None:
        """Write how this node ended."""
        write_document(outcome, self._folder / f"outcome-{outcome.node_rank}.json")

    def write_reached(self, node_rank: int) -> None:
        """Write that this node has reached all others."""
        self._write(f"reached-{node_rank}")

    def node_infos(self) -> dict[int, NodeInfo]:
        """The nodes that have joined, by rank."""
        return self._read(NodeInfo, "node")

    def outcomes(self) -> dict[int, NodeOutcome]:
        """The outcomes of the nodes that have ended, by rank."""
        return self._read(NodeOutcome, "outcome")

    def reached(self) -> list[int]:
        """Ranks of the nodes that have reached all others."""
        names = self._names()
        return [rank for rank in range(self.num_nodes) if f"reached-{rank}" in names]

    def why_stopped(self, node_rank: int) -> str | None:
        """Why this node is to stop, such as the failure of another node; None if it is to continue."""
        if STOP_FILE in self._names():
            return "all nodes were stopped"
        for rank, outcome in self.outcomes().items():
            if rank != node_rank and not outcome.succeeded:
                return f"node {rank} ({outcome.host}) {'has failed' if outcome.failed else 'was stopped'}"
        if read_attempt(self._run_dir).id != self.attempt.id:
            return "another attempt of this run has started"
        beat, now = (self._folder / ALIVE_FILE).stat().st_mtime, time.monotonic()
        if self._beat is None or self._beat[0] != beat:
            self._beat = beat, now
        if now - self._beat[1] > LOST_BEAT_SECONDS:
            return f"no sign of life came for {LOST_BEAT_SECONDS:.0f} s from the process that started the run"
        return None

    def _write(self, name: str, text: str = "") -> None:
        with open(self._folder / name, "w", opener=no_link) as file:
            file.write(text)

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
        expected="the directory of a run that `dpcompare run --engine hosts` or `--engine slurm` waits in, on a disk "
        "that all its hosts share",
    )


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """A socket on a free port of this machine's address, which greets whoever connects, to show that it can be reached.

    Raises:
        RendezvousError: it is not an address of this machine.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, 0))
        except OSError as error:
            raise RendezvousError(
                f"{address} is to be this machine, and is not an address of {socket.gethostname()} ({error.strerror}); "
                "expected this command on the host of that rank"
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
            connection.settimeout(CONNECT_SECONDS)
            try:
                connection.sendall(_GREETING)
                connection.recv(1)  # the other side closes first, or this port would stay in TIME_WAIT
            except OSError:
                continue


def join(
    rendezvous: Rendezvous, local: NodeInfo, seconds: float, report: Report = lambda line: None
) -> Sequence[NodeInfo]:
    """Wait until all nodes are here and reach each other; returns what is known of each, in the order of the ranks.

    Args:
        rendezvous: of the attempt.
        local: this node's; its port listens, see `listening`.
        seconds: how long to wait for the others.
        report: called with a line while it waits.

    Raises:
        RendezvousError: a node has not come, has failed, cannot be reached, or has another release of dpcompare.
    """
    rendezvous.write_node_info(local)
    node_infos = _wait(rendezvous, local, seconds, report, "to start", rendezvous.node_infos)
    _require_one_release(node_infos.values())
    for node_info in node_infos.values():
        if node_info.node_rank != local.node_rank:
            _reach(local, node_info)
    rendezvous.write_reached(local.node_rank)
    seconds += CONNECT_SECONDS * rendezvous.num_nodes
    _wait(rendezvous, local, seconds, report, "to reach the others", rendezvous.reached)
    return [node_infos[rank] for rank in range(rendezvous.num_nodes)]


def _require_one_release(node_infos: Iterable[NodeInfo]) -> None:
    releases = {f"{node_info}": node_info.versions["dpcompare"] for node_info in node_infos}
    if len(set(releases.values())) > 1:
        each = ", ".join(f"{name} {release}" for name, release in releases.items())
        raise RendezvousError(f"the nodes have different releases of dpcompare: {each}; install the same on all")


Found = TypeVar("Found", dict[int, NodeInfo], list[int])


def _wait(
    rendezvous: Rendezvous, local: NodeInfo, seconds: float, report: Report, what: str, look: Callable[[], Found]
) -> Found:
    """Wait until `look` finds all ranks."""
    deadline, next_report = Deadline(seconds), Deadline(WAITING_REPORT_SECONDS)
    while True:
        found = look()
        missing = [rank for rank in range(rendezvous.num_nodes) if rank not in found]
        if not missing:
            return found
        if reason := rendezvous.why_stopped(local.node_rank):
            raise RendezvousError(reason)
        names = ", ".join(f"node {rank}" for rank in missing)
        if deadline.passed:
            raise RendezvousError(
                f"{local} has waited {seconds:.0f} s for {names} {what}. Either nothing was started there, or the run "
                "directory is not the same folder there and here: the nodes need one that they share. Allow more with "
                "--start-timeout"
            )
        if next_report.passed:
            report(f"{local} waits for {names} {what}")
            next_report.restart()
        time.sleep(JOIN_POLL_SECONDS)


def _reach(local: NodeInfo, other: NodeInfo) -> None:
    try:
        with socket.create_connection((other.address, other.port), timeout=CONNECT_SECONDS) as connection:
            connection.settimeout(CONNECT_SECONDS)
            if connection.recv(len(_GREETING)) != _GREETING:
                raise ConnectionError("something else answers there")
    except OSError as error:
        raise RendezvousError(
            f"{local} cannot reach {other} at {other.address}:{other.port}: {error}. The nodes must reach each other "
            "on all ports from 1024 on: open them between the hosts, or name addresses by which they do"
        ) from None
