"""Append-only event files, one per training process: progress for the parent, and what survives a crash."""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError

from dpcompare.errors import RequestError
from dpcompare.results.run_dir import event_path
from dpcompare.system.files import no_link
from dpcompare.system.json_files import Count, Duration, Measured, Number


def _now() -> float:
    return time.time()


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a training process; each kind of event is a subclass."""

    kind: ClassVar[str]
    """Its name in the file."""
    time: float = field(default_factory=_now)
    """When it happened, seconds since the epoch."""
    process_rank: int = 0
    """The process it happened in: that of the `EventLog` that writes it."""


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The process runs; the framework is not yet loaded."""

    kind = "start"
    pid: int
    host: str
    node_rank: int
    local_rank: int
    devices: Sequence[str]
    """The process's devices, as the plan names them."""
    attempt_id: str | None = None
    """Of the attempt that it was started for; None in results before 0.2.0, and of a generated script."""


@dataclass(frozen=True, kw_only=True)
class Ready(Event):
    """The backend is set up; training starts."""

    kind = "ready"
    steps: Number
    """Steps of the whole training, those before `first_step` included."""
    first_step: Count
    """Steps trained before this attempt: those of the checkpoint it resumes from, else 0."""
    num_replicas: Number
    """Replicas over all processes."""
    data_parallel_rank: Count = 0
    """Which part of every global batch this process reads, from 0; processes of one replica read the same."""


@dataclass(frozen=True, kw_only=True)
class StepsTrained(Event):
    """Steps were trained since the last such event; each series has one entry per step."""

    kind = "train"
    step: Number
    """The last of these steps, counted from 1."""
    losses: Sequence[float]
    """Sums of the losses of this process's samples."""
    global_counts: Sequence[Number]
    """Samples of the global batch, all processes together."""
    step_seconds: Annotated[Sequence[Duration], Field(min_length=1)]
    data_seconds: Sequence[Measured]
    """The part of `step_seconds` spent waiting for the batch."""
    host_overhead_seconds: Sequence[float]
    """Between the end of the step before and the start of this one; not part of `step_seconds`."""
    compiled_steps: Sequence[Number] | None = None
    """Numbers of those for which the framework traced or compiled something; None: there were none."""
    apart_seconds: Sequence[float] | None = None
    """Evaluations, checkpoints and the writing of traces before each step, part of neither; None: there were none."""
    joules: Sequence[float] | None = None
    """Energy of the metered devices; None where they have no counter."""
    decisions: Mapping[str, str] | None = None
    """What the host of this process decided for these steps, in the form of `Decisions.digests`; None in results before
    0.2.0."""
    are_timed: bool | None = None
    """False: seconds of some are an equal share of their window's. None: each step has its own, or in results before
    0.2.0 that is not known."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """This process has evaluated its part of the validation split."""

    kind = "evaluate"
    step: Count
    """Steps trained before it."""
    epoch: Count
    """Epochs started before it."""
    loss_sum: float
    correct: Count
    count: Count
    """Samples that `loss_sum` and `correct` are over."""
    batch_loss_sums: Sequence[float] = ()
    """`loss_sum` of each batch."""
    batch_counts: Sequence[Count] = ()
    """`count` of each batch."""
    rows: str | None = None
    """The digest of its samples in hexadecimal, see `dpcompare.data.decisions`; None in results before 0.2.0."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is on the disk; only the process that wrote it logs this."""

    kind = "checkpoint"
    step: Count
    seconds: float
    """From the end of the step until the file was written."""
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class Alive(Event):
    """There is progress, but no step to log: the process evaluates, or serves the others."""

    kind = "alive"


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """The work of the process is done."""

    kind = "end"


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """An exception ended the process."""

    kind = "error"
    message: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """SIGTERM ended the process."""

    kind = "stopped"


LAST_EVENTS = (Ended, Failed, Stopped)
"""A process that has ended without one of these was killed, or crashed."""

_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in Event.__subclasses__()}
_LINE = re.compile(rb'(\{"kind".*), "crc32": (\d{1,10})\}')


class _DamagedError(ValueError):
    """A line is not what was written."""


def _encode(event: Event, process_rank: int) -> str:
    fields = {name: value for name, value in vars(event).items() if value is not None}
    text = json.dumps({"kind": event.kind, **fields, "process_rank": process_rank})
    return f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}\n'


def _decode(line: bytes) -> Event | None:
    """The event of a line; None for a kind that only a newer version knows.

    Such kinds, and such fields of a known kind, are skipped: what this version reads is complete without them.

    Raises:
        _DamagedError: the line does not match its checksum.
        RequestError: another version wrote it, without a field that is needed or with values of other types.
    """
    found = _LINE.fullmatch(line)
    if found is None or zlib.crc32(found[1] + b"}") != int(found[2]):
        raise _DamagedError
    try:
        fields: dict[str, Any] = json.loads(found[1] + b"}")
    except (ValueError, RecursionError):
        raise _DamagedError from None
    name = fields.pop("kind")
    if not isinstance(name, str):
        raise _DamagedError
    kind = _KINDS.get(name)
    if kind is None:
        return None
    try:
        return _reader(kind.kind).validate_python(fields)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise RequestError(
            f"an event of kind {kind.kind!r} has the fields {', '.join(fields)}, expected those of this version of "
            f"dpcompare ({problems}); read the run with the version that wrote it"
        ) from None


@cache
def _reader(kind: str) -> TypeAdapter[Event]:
    return TypeAdapter(_KINDS[kind])


class EventLog:
    """Writes the events of one process; a line is in the file as soon as `append` returns."""

    def __init__(self, run_dir: Path, process_rank: int) -> None:
        path = event_path(run_dir, process_rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._process_rank = process_rank
        self._file = open(path, "a", buffering=1, opener=no_link)  # noqa: SIM115 (open while the process trains)

    def append(self, event: Event) -> None:
        self._file.write(_encode(event, self._process_rank))

    def close(self) -> None:
        self._file.close()


class EventTail:
    """Reads the events of processes of a run as they are written, up to the first damage of a file."""

    damaged: list[int]
    """Ranks whose files are damaged, after a loss of power, say; what follows the damage is not trusted."""

    def __init__(self, run_dir: Path, ranks: Iterable[int]) -> None:
        self._paths = {rank: event_path(run_dir, rank) for rank in ranks}
        self._offsets = dict.fromkeys(self._paths, 0)
        self.damaged = []
        self._files = dict.fromkeys(self._paths, 0)
        """Inodes: a run that starts again writes new files."""

    def new_events(self) -> Iterator[Event]:
        """Events that were completed since the last call, process by process."""
        for rank in self._paths:
            for line in self._new_lines(rank):
                try:
                    event = _decode(line)
                    if event is not None and event.process_rank != rank:
                        raise _DamagedError
                except _DamagedError:
                    self.damaged.append(rank)
                    break
                self._offsets[rank] += len(line) + 1
                if event is not None:
                    yield event

    def _new_lines(self, rank: int) -> list[bytes]:
        """Lines that were completed since the last one that was read."""
        try:
            with open(self._paths[rank], "rb", opener=no_link) as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._files[rank]:
                    self._files[rank], self._offsets[rank] = inode, 0
                    self.damaged = [other for other in self.damaged if other != rank]
                if rank in self.damaged:
                    return []
                file.seek(self._offsets[rank])
                written = file.read()
        except FileNotFoundError:  # not there yet, or set aside meanwhile
            return []
        *lines, _ = written.split(b"\n")  # a line still being written waits for its end
        return lines


def read_events(run_dir: Path, num_processes: int) -> list[Event]:
    """All events of a run so far."""
    return list(EventTail(run_dir, range(num_processes)).new_events())
