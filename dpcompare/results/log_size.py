"""The size of logs, which a model that prints would otherwise let grow until the disk is full."""

from __future__ import annotations

import os
from pathlib import Path

from dpcompare.system.files import no_link

MOST_BYTES = 50_000_000
"""Of a log; beyond that, its middle is left out."""
KEPT_BYTES = 10_000_000
"""Of its beginning, and of its end."""


def cut_logs(folder: Path) -> None:
    """Leave out the middle of logs that are too long, which their processes go on writing at the end (O_APPEND).

    What they write meanwhile may be lost: it is a small part of what is left out.
    """
    with os.scandir(folder) as entries:
        too_long = [entry.path for entry in entries if entry.stat(follow_symlinks=False).st_size > MOST_BYTES]
    for path in too_long:
        with open(path, "r+b", opener=no_link) as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(size - KEPT_BYTES)
            end = log.read(KEPT_BYTES)
            log.truncate(KEPT_BYTES)
        left_out = size - 2 * KEPT_BYTES
        with open(path, "ab", opener=no_link) as log:
            log.write(f"\n[dpcompare has left out {left_out:,} bytes here: the log was too long]\n".encode() + end)
