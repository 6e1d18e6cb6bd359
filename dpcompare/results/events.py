"""Append-only event files, one per training process: progress for the parent, and what survives a crash."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpcompare.results.run_dir import event_path

Event = dict[str, Any]
"""`kind`, `time` (seconds since the epoch), `process_rank`, and the fields of its kind.

| kind | fields |
|---|---|
| start | pid, host, node_rank, local_rank, devices |
| ready | steps, first_step (steps made before, by the checkpoint that it begins from), num_replicas |
| train | step, losses, global_counts, step_seconds, data_seconds (of it, waiting), host_overhead_seconds (before it), and joules where devices count them: one entry per step since the last event |
| evaluate | step, epoch, loss_sum, correct, count |
| checkpoint | step, seconds, bytes (by the process that wrote it) |
| alive | - (it evaluates) |
| end | - |
| error | message, traceback |
| stopped | - (it was asked to end) |
"""

LAST_EVENTS = ("end", "error", "stopped")
"""A process that has ended without one of these was killed, or crashed."""


_LINE = re.compile(rb'(\{"kind".*), "crc32": (\d{1,10})\}')


def _decode(line: bytes) -> Event | None:
    """The event of a line; None where it is not what was written."""
    found = _LINE.fullmatch(line)
    if found is None or zlib.crc32(found[1] + b"}") != int(found[2]):
        return None
    event: Event = json.loads(found[1] + b"}")
    return event


class EventLog:
    """Writes the events of one process; a line is in the file as soon as `append` returns."""

    def __init__(self, run_dir: Path, process_rank: int) -> None:
        path = event_path(run_dir, process_rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._process_rank = process_rank
        self._file = path.open("a", buffering=1)

    def append(self, kind: str, *, time: float, **fields: Any) -> None:
        text = json.dumps({"kind": kind, "time": time, "process_rank": self._process_rank, **fields})
        self._file.write(f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}\n')

    def close(self) -> None:
        self._file.close()


class EventTail:
    """Reads the events of processes of a run as they are written, up to the first damage of a file."""

    damaged: list[int]
    """Ranks whose files are damaged, after a loss of power, say; what comes then cannot be told from rubbish."""

    def __init__(self, run_dir: Path, ranks: Iterable[int]) -> None:
        self._paths = {rank: event_path(run_dir, rank) for rank in ranks}
        self._offsets = dict.fromkeys(self._paths, 0)
        self.damaged = []
        self._files = dict.fromkeys(self._paths, 0)
        """Inodes: a run that begins again begins new files."""

    def new_events(self) -> Iterator[Event]:
        """Events that were completed since the last call, process by process."""
        for rank, path in self._paths.items():
            try:
                with path.open("rb") as file:
                    inode = os.fstat(file.fileno()).st_ino
                    if inode != self._files[rank]:
                        self._files[rank], self._offsets[rank] = inode, 0
                        self.damaged = [other for other in self.damaged if other != rank]
                    if rank in self.damaged:
                        continue
                    file.seek(self._offsets[rank])
                    written = file.read()
            except FileNotFoundError:  # not there yet, or set aside meanwhile
                continue
            *lines, _ = written.split(b"\n")  # a line still being written waits for its end
            for line in lines:
                event = _decode(line)
                if event is None:
                    self.damaged.append(rank)
                    break
                self._offsets[rank] += len(line) + 1
                yield event


def read_events(run_dir: Path, num_processes: int) -> list[Event]:
    """All events of a run so far."""
    return list(EventTail(run_dir, range(num_processes)).new_events())
