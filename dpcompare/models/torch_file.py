"""Tensors of a file that `torch.save` wrote, read without torch: its pickle may name nothing but tensors."""

from __future__ import annotations

import io
import math
import pickle
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from dpcompare.models.state import State
from dpcompare.system.type_names import Array

PICKLE = "data.pkl"
"""In the archive's only folder, in which `data/KEY` holds the values of a storage."""
PICKLES = b"\x80\x02"
"""How torch's pickles begin: with the number of their protocol."""
STORAGES = {
    **{"FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "BoolStorage": "?"},
    **{"LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1"},
}
"""torch's class of a storage -> NumPy's type of its values."""
EXPECTED = "expected what torch.save(model.state_dict(), path) writes"
DAMAGED = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, EOFError, LookupError, TypeError, AttributeError),
    *(RuntimeError, OverflowError, MemoryError),
)
"""What reading a damaged file raises."""


def is_of_torch(content: bytes) -> bool:
    """Whether a file is of `torch.save`: an archive, or the pickle that it wrote before there were archives."""
    if content.startswith(PICKLES):
        return True
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return any(name.rpartition("/")[2] == PICKLE for name in archive.namelist())
    except DAMAGED:
        return False


def read_torch_file(content: bytes) -> State:
    """The tensors of an archive by their names.

    Raises:
        ValueError: it is damaged, or holds anything else than tensors by name.
    """
    if content.startswith(PICKLES):
        raise ValueError(
            "it is a pickle without an archive, as of torch before 1.6; load it and save it with a newer one"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            state = _Reader(archive).load()
    except DAMAGED as error:
        raise ValueError(f"{error or type(error).__name__}; {EXPECTED}") from error
    if not isinstance(state, Mapping) or not all(isinstance(value, np.ndarray) for value in state.values()):
        raise ValueError(f"received something else than tensors by name; {EXPECTED}")
    return dict(state)


class _Reader(pickle.Unpickler):
    """A pickle runs what it names: so it may name the three functions and the types below, which make arrays alone."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        (name,) = (name for name in archive.namelist() if name.rpartition("/")[2] == PICKLE)
        super().__init__(io.BytesIO(archive.read(name)))
        self._archive, self._folder = archive, name.removesuffix(PICKLE)
        byte_order = f"{self._folder}byteorder"
        if byte_order in archive.namelist() and archive.read(byte_order) != b"little":
            raise ValueError("its numbers have their largest byte first; save it on another machine")

    def find_class(self, module: str, name: str) -> Any:
        """What a name of the pickle stands for."""
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if module == "torch" and name.endswith("Storage"):
            raise ValueError(f"it has values of torch.{name}; save it in float32")
        if (module, name) not in known:
            _refuse(f"it names {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Array:
        """The values of a storage: ("storage", type, key, device, number of values)."""
        kind, values, key, _, count = pid
        info = self._archive.getinfo(f"{self._folder}data/{key}")
        if kind != "storage" or info.compress_type != zipfile.ZIP_STORED:
            _refuse("its values are not stored as they are")
        return np.frombuffer(self._archive.read(info), f"<{values}", count)


def _tensor(storage: Array, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any) -> Array:
    """The part of a storage that is a tensor; strides count values."""
    last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    if math.prod(shape) > storage.size or min((offset, *shape, *strides)) < 0 or last >= max(storage.size, 1):
        _refuse("a tensor reaches beyond its values")
    in_bytes = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], tuple(shape), in_bytes).copy()


def _refuse(what: str) -> NoReturn:
    raise ValueError(f"{what}; {EXPECTED}")
