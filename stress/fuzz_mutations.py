"""Changes to bytes that keep their structure, so that fuzzing comes past the first check of a format."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

INTERESTING = (
    None, True, False, 0, 1, -1, 2, 3, 0.5, 1e308, -0.0, 2**31, 2**63, 10**30, float("nan"), float("inf"), "", "0", "1",
    "nan", "torch", "tensorflow", "ddp", "parameter-server", "fsdp", "pipeline", "gpu", "tpu", "auto", "native",
    "slurm", "kubernetes", "hosts", "evil:Net", "..", "/etc/passwd", "\x1b[31m", "\ud800", "a\nb", "$(id)",
    [], {}, [[]], [{}],
)  # fmt: skip
"""Values in the place of others."""


def mutated(document: Any, generator: Random) -> Any:
    """A JSON document of which some values are others, twice there, or gone."""
    document = json.loads(json.dumps(document))
    for _ in range(generator.randint(1, 4)):
        parent, key = None, None
        place = document
        while isinstance(place, (dict, list)) and place:
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            parent, key = place, generator.choice(keys)
            place = parent[key]
            if generator.random() < 0.3:
                break
        if parent is None:
            continue
        action = generator.randrange(5)
        if action == 0:
            del parent[key]
        elif action == 1 and isinstance(parent, list):
            parent.append(parent[key])
        elif action == 2 and isinstance(parent[key], (int, float)):
            parent[key] = parent[key] * generator.choice([-1, 2, 10, 1e-9, 1e9]) + generator.choice([0, 1, -1])
        elif action == 3:
            parent[key] = [parent[key]] if generator.random() < 0.5 else str(parent[key])
        else:
            parent[key] = generator.choice(INTERESTING)
    return document


Mutation = Callable[[bytes, Random], bytes]


def mutated_json(content: bytes, generator: Random) -> bytes:
    """The same as `mutated`; what is not JSON stays as it is."""
    try:
        return json.dumps(mutated(json.loads(content), generator)).encode()
    except (ValueError, RecursionError):
        return content


def mutated_line(content: bytes, generator: Random) -> bytes:
    """One line of JSON is another, moved, or twice there."""
    lines = content.splitlines() or [b""]
    at = generator.randrange(len(lines))
    if generator.random() < 0.2:
        lines.insert(generator.randrange(len(lines)), lines[at])
    else:
        lines[at] = mutated_json(lines[at], generator)
    return b"\n".join(lines)


def mutated_header(content: bytes, generator: Random) -> bytes:
    """A safetensors file with another header."""
    length = int.from_bytes(content[:8], "little")
    header = mutated_json(content[8 : 8 + length], generator).replace(b'": "', b'":"')
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def with_line_checksum(line: bytes) -> bytes:
    """A line of events with its checksum, as anybody can compute it."""
    return line[:-1] + b', "crc32": %d}' % zlib.crc32(line) if line.endswith(b"}") else line


def with_file_checksum(content: bytes) -> bytes:
    """A checkpoint whose checksum is right whatever it holds, as anybody can compute it."""
    if not (found := re.search(rb'"checksum":"([0-9a-f]{64})"', content)):
        return content
    blank = content[: found.start(1)] + b"0" * 64 + content[found.end(1) :]
    return content[: found.start(1)] + hashlib.sha256(blank).hexdigest().encode() + content[found.end(1) :]
