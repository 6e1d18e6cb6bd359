"""The trace of some steps in Chrome's format, which JAX writes among its own, with the origin of each instruction."""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

# Numbers of fields in XLA's protocol buffers: xplane.proto, hlo.proto and xla_data.proto of OpenXLA.
NAME_OF_PLANE, WITH_MODULES = 2, b"/host:metadata"
PLANES, EVENT_METADATA, VALUE_OF_MAP, STATISTICS, BYTES = 1, 4, 2, 5, 6
MODULE, NAME, COMPUTATIONS, INSTRUCTIONS, METADATA, OP_NAME = 1, 1, 3, 2, 7, 2


@contextmanager
def chrome_trace(path: Path) -> Iterator[None]:
    """Profile what runs inside and write it to `path`.

    XLA names an instruction by what it became, such as `fusion.7`. `op_name` in the arguments of an event says what
    that was in the program: `jit(step)/transpose(jvp(...))/conv`, so that a reader sees to what it belongs.
    """
    with tempfile.TemporaryDirectory(prefix="dpcompare-trace-") as folder:
        with jax.profiler.trace(folder):
            yield
        (written,) = Path(folder).rglob("*.trace.json.gz")
        trace = json.loads(gzip.decompress(written.read_bytes()))
        names: dict[tuple[str, str], str] = {}
        for profile in Path(folder).rglob("*.xplane.pb"):
            try:
                names |= _op_names(profile.read_bytes())
            except (LookupError, ValueError) as error:  # another format: the trace stays as JAX wrote it
                print(f"JAX's profile could not be read, so the trace has no op_name ({error!r})", file=sys.stderr)
    for event in trace["traceEvents"]:
        arguments = event.get("args", {})
        if op_name := names.get((arguments.get("hlo_module", ""), arguments.get("hlo_op", ""))):
            arguments["op_name"] = op_name
    path.write_text(json.dumps(trace))


def _op_names(profile: bytes) -> dict[tuple[str, str], str]:
    """(module, instruction) -> its origin in the program, of all modules that a profile has."""
    found = {}
    for module in _modules(profile):
        name = dict(_fields(module))[NAME].decode()
        for computation in _parts(module, COMPUTATIONS):
            for instruction in _parts(computation, INSTRUCTIONS):
                fields = dict(_fields(instruction))
                origin = dict(_fields(fields[METADATA])).get(OP_NAME) if METADATA in fields else None
                if origin:
                    found[name, fields[NAME].decode()] = origin.decode()
    return found


def _modules(profile: bytes) -> Iterator[bytes]:
    """The HLO modules, which are a statistic of the metadata of one plane's events."""
    for plane in _parts(profile, PLANES):
        if dict(_fields(plane)).get(NAME_OF_PLANE) != WITH_MODULES:
            continue
        for entry in _parts(plane, EVENT_METADATA):
            for metadata in _parts(entry, VALUE_OF_MAP):
                for statistic in _parts(metadata, STATISTICS):
                    for hlo in _parts(statistic, BYTES):
                        yield from _parts(hlo, MODULE)


def _parts(message: bytes, number: int) -> Iterator[bytes]:
    """The parts of a message that have a number and are messages or texts."""
    return (value for found, value in _fields(message) if found == number and isinstance(value, bytes))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field; JAX brings no reader of these. Protocol Buffers, "Encoding"."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        yield key >> 3, message[at : at + size]
        at += size
