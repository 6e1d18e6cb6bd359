"""The trace of some steps in Chrome's format, converted from TensorFlow's profile without TensorBoard."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

PICOSECONDS_PER_MICROSECOND = 1e6


@contextmanager
def chrome_trace(path: Path) -> Iterator[None]:
    """Profile what runs inside and write it to `path`.

    TensorFlow writes planes (a host, a device) of lines (threads, streams) of events in a particular protocol buffer,
    and converters to other formats only come with TensorBoard.
    """
    with tempfile.TemporaryDirectory(prefix="dpcompare-trace-") as folder:
        tf.profiler.experimental.start(folder)
        try:
            yield
        finally:
            tf.profiler.experimental.stop()
        (written,) = Path(folder).rglob("*.xplane.pb")
        space = XSpace()
        space.ParseFromString(written.read_bytes())
    path.write_text(json.dumps({"traceEvents": list(_events(space))}))


def _events(space: Any) -> Iterator[dict[str, Any]]:
    for process, plane in enumerate(space.planes):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": plane.name}}
        for thread, line in enumerate(plane.lines):
            name = {"name": line.display_name or line.name}
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": name}
            for event in line.events:
                yield {
                    "ph": "X",
                    "name": plane.event_metadata[event.metadata_id].name,
                    "pid": process,
                    "tid": thread,
                    "ts": line.timestamp_ns / 1e3 + event.offset_ps / PICOSECONDS_PER_MICROSECOND,
                    "dur": event.duration_ps / PICOSECONDS_PER_MICROSECOND,
                }
