"""Files of torch.save: read as they are, and refused if their pickle names or reaches anything else."""

import io
import os
import pickle
import sys
import types
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from dpcompare.models.torch_file import is_of_torch, read_torch_file


class Tensor:
    """Pickled as torch does it: a function's name, and a storage by its key."""

    def __init__(self, key, *, offset=0, shape=(), strides=(), kind="FloatStorage", count=0):
        self.storage = key, kind, count
        self.rest = offset, shape, strides, False, OrderedDict()

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, (Storage(self.storage), *self.rest)


class Storage:
    def __init__(self, described):
        self.described = described


class Pickler(pickle.Pickler):
    def persistent_id(self, found):
        if isinstance(found, Storage):
            key, kind, count = found.described
            return "storage", getattr(sys.modules["torch"], kind), key, "cpu", count
        return None


@pytest.fixture
def saved(monkeypatch):
    """A function that writes values, and what is pickled of them, as torch.save does."""

    def global_of(module, name):
        made = type(name, (), {}) if name.endswith("Storage") else lambda *_: None
        made.__module__, made.__qualname__, made.__name__ = module, name, name
        return made

    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for kind in ("FloatStorage", "DoubleStorage", "LongStorage", "BFloat16Storage"):
        setattr(torch, kind, global_of("torch", kind))
    utils._rebuild_tensor_v2 = global_of("torch._utils", "_rebuild_tensor_v2")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def write(state, values=(), *, compression=zipfile.ZIP_STORED, byte_order="little"):
        pickled, file = io.BytesIO(), io.BytesIO()
        Pickler(pickled, protocol=2).dump(state)
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.writestr("model/data.pkl", pickled.getvalue())
            archive.writestr("model/byteorder", byte_order)
            for key, array in enumerate(values):
                archive.writestr(f"model/data/{key}", array.tobytes())
        return file.getvalue()

    return write


SIX = np.arange(6, dtype=np.float32)


def test_tensors_are_read_with_their_strides(saved):
    state = OrderedDict(
        rows=Tensor("0", shape=(2, 3), strides=(3, 1), count=6),
        columns=Tensor("0", shape=(3, 2), strides=(1, 3), count=6),
        part=Tensor("0", offset=4, shape=(2,), strides=(1,), count=6),
        steps=Tensor("1", kind="LongStorage", count=1),
    )
    content = saved(state, [SIX, np.array([7])])
    assert is_of_torch(content)
    found = read_torch_file(content)
    assert found["rows"].tolist() == SIX.reshape(2, 3).tolist()
    assert found["columns"].tolist() == SIX.reshape(2, 3).T.tolist()
    assert found["part"].tolist() == [4, 5]
    assert (found["steps"].shape, int(found["steps"])) == ((), 7)


class Harmful:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"a": Harmful()}, "it names posix.system; expected what torch.save"),
        ({"a": Tensor("0", shape=(7,), strides=(1,), count=6)}, "a tensor reaches beyond its values"),
        ({"a": Tensor("0", shape=(2, 3), strides=(4, 1), count=6)}, "a tensor reaches beyond its values"),
        ({"a": Tensor("0", offset=5, shape=(2,), strides=(-1,), count=6)}, "a tensor reaches beyond its values"),
        ({"a": Tensor("0", shape=(9, 9), strides=(0, 0), count=6)}, "a tensor reaches beyond its values"),
        ({"a": Tensor("0", shape=(6,), strides=(1,), count=600)}, "buffer is smaller than requested size"),
        ({"a": Tensor("9", shape=(6,), strides=(1,), count=6)}, "There is no item named 'model/data/9'"),
        ({"a": Tensor("0", kind="BFloat16Storage", count=6)}, "values of torch.BFloat16Storage; save it in float32"),
        ({"a": 1}, "received something else than tensors by name"),
        ([1], "received something else than tensors by name"),
    ],
)
def test_what_is_no_dictionary_of_tensors_is_refused(saved, state, why):
    with pytest.raises(ValueError, match=why):
        read_torch_file(saved(state, [SIX]))


def test_a_file_of_an_old_torch_is_refused_in_words():
    content = pickle.dumps({"a": 1}, protocol=2)
    assert is_of_torch(content)
    with pytest.raises(ValueError, match=r"as of torch before 1\.6; load it and save it with a newer one"):
        read_torch_file(content)


def test_damaged_and_packed_archives_are_refused(saved):
    state = {"a": Tensor("0", shape=(6,), strides=(1,), count=6)}
    with pytest.raises(ValueError, match="its values are not stored as they are"):
        read_torch_file(saved(state, [SIX], compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(ValueError, match="largest byte first"):
        read_torch_file(saved(state, [SIX], byte_order="big"))
    whole = saved(state, [SIX])
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        if is_of_torch(bytes(damaged)):
            try:
                found = read_torch_file(bytes(damaged))
            except ValueError:
                continue
            assert set(map(type, found.values())) <= {np.ndarray}
