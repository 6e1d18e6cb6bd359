"""The size of logs, which a model that prints would otherwise let grow until the disk is full."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from dpcompare.system.files import no_link

MOST_BYTES = 50_000_000
"""Of a log; beyond that, its middle is left out."""
KEPT_BYTES = 10_000_000
"""Of its beginning, and of its end."""


LEFT_OUT = b"\n[dpcompare has left out the middle of this log, which was too long]\n"


def cut_logs(folder: Path, nodes: Collection[int]) -> None:
    """Leave out the middle of logs that are too long, which their processes go on writing at the end (O_APPEND).

    What they write meanwhile may be lost: it is a small part of what is left out.

    Args:
        folder: of the logs.
        nodes: whose logs they are.
    """
    own = tuple(f"node{node}{end}" for node in nodes for end in ("-", "."))
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(own) and entry.stat(follow_symlinks=False).st_size > MOST_BYTES:
                _cut(entry.path)


def _cut(path: str) -> None:
    with open(path, "r+b", opener=no_link) as log:
        log.seek(-KEPT_BYTES, os.SEEK_END)
        end = log.read(KEPT_BYTES)
        log.truncate(KEPT_BYTES)
    with open(path, "ab", opener=no_link) as log:
        log.write(LEFT_OUT + end)
