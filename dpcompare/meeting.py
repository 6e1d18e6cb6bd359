"""How the nodes of a run find each other where each is a machine of its own: by files in the run directory, which they share."""

from __future__ import annotations

import fcntl
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from dpcompare.documents import write_document
from dpcompare.launcher import Ended, Stall

NODES_DIR = "nodes"
STOP_FILE = "stop"
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_WORDS = 10.0
SECONDS_TO_CONNECT = 10.0
_GREETING = b"dpcompare"
_SIOCGIFADDR = 0x8915  # netdevice(7)


class MeetingError(RuntimeError):
    """The nodes do not come together; nothing was trained. The message says who was waited for."""


class Card(BaseModel):
    """card-<rank>.json: what a node tells the others of itself."""

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


class NodeEnd(BaseModel):
    """end-<rank>.json: how the part of a node ended."""

    model_config = ConfigDict(frozen=True)

    node_rank: int
    host: str
    time: float
    """Seconds since the epoch."""
    status: int | None
    """Exit status (negative: the signal) of its node process; None where it was stopped, or never started."""
    vanished: list[int] = []
    stalled: list[Stall] = []
    out_of_memory: bool = False
    message: str | None = None
    """Why it was never started."""
    stopped: bool = False
    """Whether it was stopped for another's sake."""

    @property
    def failed(self) -> bool:
        return bool(self.status or self.stalled or self.message)


Document = TypeVar("Document", bound=BaseModel)


def open_meeting(run_dir: Path) -> None:
    """Make the place where the nodes meet, without anything of an attempt before."""
    shutil.rmtree(run_dir / NODES_DIR, ignore_errors=True)
    (run_dir / NODES_DIR).mkdir()


def stop_nodes(run_dir: Path) -> None:
    """Tell all nodes to end."""
    (run_dir / NODES_DIR / STOP_FILE).touch()


def write_card(run_dir: Path, card: Card) -> None:
    write_document(card, run_dir / NODES_DIR / f"card-{card.node_rank}.json")


def write_end(run_dir: Path, end: NodeEnd) -> None:
    write_document(end, run_dir / NODES_DIR / f"end-{end.node_rank}.json")


def read_cards(run_dir: Path, num_nodes: int) -> dict[int, Card]:
    return _read(Card, run_dir, "card", num_nodes)


def read_ends(run_dir: Path, num_nodes: int) -> dict[int, NodeEnd]:
    return _read(NodeEnd, run_dir, "end", num_nodes)


def _read(kind: type[Document], run_dir: Path, name: str, num_nodes: int) -> dict[int, Document]:
    paths = {rank: run_dir / NODES_DIR / f"{name}-{rank}.json" for rank in range(num_nodes)}
    return {rank: kind.model_validate_json(path.read_text()) for rank, path in paths.items() if path.is_file()}


def why_stopped(run_dir: Path, num_nodes: int, own_rank: int) -> str | None:
    """What is to end this node: who started all, or another node that has failed."""
    if (run_dir / NODES_DIR / STOP_FILE).exists():
        return "all nodes were told to stop"
    for rank, end in read_ends(run_dir, num_nodes).items():
        if rank != own_rank and end.failed:
            return f"node {rank} ({end.host}) has failed"
    return None


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """A socket on a free port of this machine's address, which greets whoever connects, to show that it can be reached.

    Raises:
        MeetingError: it is no address of this machine.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, 0))
        except OSError as error:
            raise MeetingError(
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


def meet(
    run_dir: Path, own: Card, num_nodes: int, seconds: float, tell: Callable[[str], None] = lambda line: None
) -> Sequence[Card]:
    """Wait until all nodes are here and reach each other; returns their cards in the order of the ranks.

    Args:
        own: this node's; its port listens, see `listening`.
        seconds: how long to wait for the others.
        tell: called with a line while it waits.

    Raises:
        MeetingError: a node has not come, has failed, cannot be reached, or has another release of dpcompare.
    """
    write_card(run_dir, own)
    cards = _wait(run_dir, own, num_nodes, seconds, tell, "to begin", lambda: read_cards(run_dir, num_nodes))
    releases = {card.versions["dpcompare"] for card in cards.values()}
    if len(releases) > 1:
        each = ", ".join(f"node {card.node_rank} ({card.host}) {card.versions['dpcompare']}" for card in cards.values())
        raise MeetingError(f"the nodes have different releases of dpcompare: {each}; install the same on all")
    for card in cards.values():
        if card.node_rank != own.node_rank:
            _reach(own, card)
    (run_dir / NODES_DIR / f"reached-{own.node_rank}").touch()
    reached = lambda: [r for r in range(num_nodes) if (run_dir / NODES_DIR / f"reached-{r}").exists()]  # noqa: E731
    _wait(run_dir, own, num_nodes, SECONDS_TO_CONNECT * num_nodes + seconds, tell, "to reach the others", reached)
    return [cards[rank] for rank in range(num_nodes)]


Found = TypeVar("Found", dict[int, Card], list[int])


def _wait(
    run_dir: Path,
    own: Card,
    num_nodes: int,
    seconds: float,
    tell: Callable[[str], None],
    what: str,
    look: Callable[[], Found],
) -> Found:
    begun = told = time.monotonic()
    while True:
        found = look()
        missing = [rank for rank in range(num_nodes) if rank not in found]
        if not missing:
            return found
        if reason := why_stopped(run_dir, num_nodes, own.node_rank):
            raise MeetingError(reason)
        names = ", ".join(f"node {rank}" for rank in missing)
        now = time.monotonic()
        if now - begun > seconds:
            raise MeetingError(
                f"node {own.node_rank} ({own.host}) has waited {seconds:.0f} s for {names} {what}. Either nothing was started there, "
                f"or {str(run_dir)!r} is not the same folder there and here: the nodes need one that they share. Allow more with "
                "--start-timeout"
            )
        if now - told > SECONDS_BETWEEN_WORDS:
            tell(f"node {own.node_rank} ({own.host}) waits for {names} {what}")
            told = now
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _reach(own: Card, other: Card) -> None:
    try:
        with socket.create_connection((other.address, other.port), timeout=SECONDS_TO_CONNECT) as connection:
            connection.settimeout(SECONDS_TO_CONNECT)
            if connection.recv(len(_GREETING)) != _GREETING:
                raise ConnectionError("something else answers there")
    except OSError as error:
        raise MeetingError(
            f"node {own.node_rank} ({own.host}) cannot reach node {other.node_rank} ({other.host}) at {other.address}:{other.port}: "
            f"{error}. The nodes must reach each other on all ports from 1024 on: open them between the hosts, or name "
            "addresses by which they do"
        ) from None


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 address, which collectives are to use; None where none has it."""
    wanted = socket.inet_aton(socket.gethostbyname(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("16sH22x", name.encode()[:15], socket.AF_INET)
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if answer[20:24] == wanted:
                return name
    return None


def together(ends: Sequence[NodeEnd]) -> Ended:
    """How the processes of all nodes ended, as if they had been started on one machine."""
    ended = Ended()
    for end in sorted(ends, key=lambda each: each.time):
        if end.status is not None:
            ended.nodes[end.node_rank] = end.status
        ended.vanished += end.vanished
        ended.stalled += end.stalled
        ended.out_of_memory |= end.out_of_memory
        if end.message and end.message not in ended.others:
            ended.others.append(end.message)
    return ended
