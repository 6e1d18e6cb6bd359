"""A safetensors file that holds its own checksum, so that damage of any byte is noticed where it is read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpcompare.models.state import State
from dpcompare.system.files import no_link

_NO_CHECKSUM = "0" * 64
_CHECKSUM = re.compile(rb'"checksum":"([0-9a-f]{64})"')


class DamagedError(ValueError):
    """Not a file of `seal`, or not the one that was written."""


def seal(tensors: State, metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with its checksum in the metadata: sha256 of the file with zeros in the checksum's place.

    The same tensors and metadata make the same bytes.
    """
    blank = _with_metadata(save(tensors), {**metadata, "checksum": _NO_CHECKSUM})
    checksum = hashlib.sha256(blank).hexdigest()
    return blank.replace(f'"checksum":"{_NO_CHECKSUM}"'.encode(), f'"checksum":"{checksum}"'.encode(), 1)


def _with_metadata(content: bytes, metadata: Mapping[str, str]) -> bytes:
    """The same safetensors file with other metadata, sorted, which the library writes in any order."""
    end = 8 + int.from_bytes(content[:8], "little")
    tensors = {name: entry for name, entry in json.loads(content[8:end]).items() if name != "__metadata__"}
    header = {"__metadata__": dict(sorted(metadata.items())), **tensors}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + content[end:]


def sha256_of(content: bytes) -> str:
    """The sha256 of what a file of `seal` holds: that of the file without its checksum, as it once was written."""
    metadata, _ = unseal(content)
    del metadata["checksum"]
    return hashlib.sha256(_with_metadata(content, metadata)).hexdigest()


def read_weights(path: Path) -> State:
    """The initial weights in a file of the cache.

    Raises:
        DamagedError: it is not what was written.
    """
    try:
        return unseal(_content(path))[1]
    except DamagedError as error:
        raise DamagedError(f"{str(path)!r} was damaged since the run began: {error}; run it again") from None


def is_whole(path: Path) -> bool:
    """Whether a file is there as `seal` made it."""
    try:
        unseal(_content(path))
    except (OSError, DamagedError):
        return False
    return True


def _content(path: Path) -> bytes:
    """The content of a file of the cache, which others may write: a pipe in its place would never end."""
    with open(path, "rb", opener=no_link) as file:
        return file.read()


def unseal(content: bytes) -> tuple[dict[str, str], State]:
    """The metadata and the tensors in the bytes of a file of `seal`. Nothing in it is ever executed.

    Raises:
        DamagedError: it is not such a file, or a byte has changed since it was written.
    """
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]
    if len(content) < 8 or len(header) < length:
        raise DamagedError("it was cut off")
    found = _CHECKSUM.search(content, 8, 8 + length)
    if found is None:
        raise DamagedError("it has no checksum, so dpcompare has not written it")
    blank = content[: found.start(1)] + _NO_CHECKSUM.encode() + content[found.end(1) :]
    if hashlib.sha256(blank).hexdigest().encode() != found[1]:
        raise DamagedError("its content does not match its checksum: it was damaged or cut off")
    try:
        entries, tensors = json.loads(header), load(content)
        # In the order of the file: that of `load` differs from process to process.
        return entries["__metadata__"], {name: tensors[name] for name in entries if name in tensors}
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"it holds no tensors ({type(error).__name__}: {error})") from None
