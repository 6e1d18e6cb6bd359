"""The trace of some steps in Chrome's format, which JAX writes among its own."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax


@contextmanager
def chrome_trace(path: Path) -> Iterator[None]:
    """Profile what runs inside and write it to `path`."""
    with tempfile.TemporaryDirectory(prefix="dpcompare-trace-") as folder:
        with jax.profiler.trace(folder):
            yield
        (written,) = Path(folder).rglob("*.trace.json.gz")
        path.write_bytes(gzip.decompress(written.read_bytes()))
