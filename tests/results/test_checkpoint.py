"""Checkpoint files: written whole or not at all, and every damage is seen."""

import errno
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock as Mock

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from dpcompare.results import checkpoint as checkpoints
from dpcompare.results.checkpoint import (
    BrokenCheckpointError,
    decode,
    encode,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from dpcompare.results.run_dir import checkpoint_path, checkpoint_paths
from tests.support.checkpoints import TRAINING, equal, made, sealed


def test_what_is_read_is_what_was_written(tmp_path):
    size = save_checkpoint(made(), tmp_path, keep=2)
    path = checkpoint_path(tmp_path, 3)
    assert path.stat().st_size == size
    assert equal(load_checkpoint(path, training=TRAINING), made())


def test_every_flipped_bit_of_every_byte_is_seen():
    content = encode(made())
    for position in range(len(content)):
        for bit in range(8):
            flipped = content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
            with pytest.raises(BrokenCheckpointError):
                decode(flipped)


def test_every_truncation_and_every_addition_is_seen():
    content = encode(made())
    for length in range(len(content)):
        with pytest.raises(BrokenCheckpointError):
            decode(content[:length])
    with pytest.raises(BrokenCheckpointError):
        decode(content + b"\0")


@pytest.mark.slow
def test_ten_thousand_clean_loads_raise_no_alarm():
    generator = np.random.Generator(np.random.PCG64(0))
    for number in range(10_000):
        values = generator.normal(size=generator.integers(1, 20))
        one = made(step=number + 1, model={"weight": values}, optimizer={})
        assert equal(decode(encode(one)), one)


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 10, 9):
        save_checkpoint(made(step), tmp_path, keep=2)
    assert [path.name for path in checkpoint_paths(tmp_path)] == [f"step-{step:010d}.safetensors" for step in (9, 2)]


def test_damaged_ones_of_later_steps_do_not_displace_good_ones(tmp_path):
    for step in (90, 100):
        save_checkpoint(made(step), tmp_path, keep=2)
    checkpoint_path(tmp_path, 100).write_bytes(b"damaged")
    save_checkpoint(made(95), tmp_path, keep=1)
    assert checkpoint_paths(tmp_path) == [checkpoint_path(tmp_path, 95)]


def test_a_broken_newest_one_gives_way_to_the_one_before(tmp_path):
    for step in (5, 6, 7):
        save_checkpoint(made(step), tmp_path, keep=3)
    newest, middle, _ = checkpoint_paths(tmp_path)
    newest.write_bytes(newest.read_bytes()[:-1])
    save_file({"weight": np.zeros(1)}, middle)
    path, step, problems = newest_checkpoint(tmp_path, training=TRAINING)
    assert (path, step) == (checkpoint_path(tmp_path, 5), 5)
    assert len(problems) == 2
    assert "does not match its checksum" in problems[0]
    assert "has no checksum" in problems[1]
    assert newest_checkpoint(tmp_path / "nowhere", training=TRAINING) == (None, 0, [])


def test_one_of_another_training_is_refused(tmp_path):
    save_checkpoint(made(), tmp_path, keep=1)
    with pytest.raises(BrokenCheckpointError, match="belongs to another model, dataset, seed"):
        load_checkpoint(checkpoint_path(tmp_path, 3), training="b" * 64)


def test_one_of_a_newer_dpcompare_is_refused(monkeypatch):
    monkeypatch.setattr(checkpoints, "FORMAT", 2)
    content = encode(made())
    monkeypatch.setattr(checkpoints, "FORMAT", 1)
    with pytest.raises(BrokenCheckpointError, match="its format is 2, expected at most 1"):
        decode(content)


SAVE = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from dpcompare.results.checkpoint import save_checkpoint
from tests.support.checkpoints import made
stop_at, calls = int(sys.argv[2]), 0

def counted(call):
    def stopped(*arguments, **options):
        global calls
        calls += 1
        if calls == stop_at:
            os._exit(9)
        return call(*arguments, **options)
    return stopped

import io, builtins
for name in ("fsync", "open", "close", "rename", "replace", "unlink", "mkdir", "remove"):
    setattr(os, name, counted(getattr(os, name)))
for name in ("open", "replace", "unlink", "mkdir"):
    setattr(Path, name, counted(getattr(Path, name)))
save_checkpoint(made(2), Path(sys.argv[1]), keep=1)
print(calls)
"""


@pytest.mark.slow
def test_a_crash_at_any_call_leaves_the_old_or_the_new_one(tmp_path):
    """The process dies at the k-th call to the operating system, for all k."""
    code = SAVE.format(root=str(Path(__file__).parents[2]))
    (tmp_path / "whole").mkdir()
    save_checkpoint(made(1), tmp_path / "whole", keep=1)
    whole = subprocess.run([sys.executable, "-c", code, tmp_path / "whole", "0"], capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    num_calls = int(whole.stdout)
    assert num_calls >= 6
    found = []
    for stop_at in range(1, num_calls + 1):
        run_dir = tmp_path / str(stop_at)
        run_dir.mkdir()
        save_checkpoint(made(1), run_dir, keep=1)
        died = subprocess.run([sys.executable, "-c", code, run_dir, str(stop_at)], check=False)
        assert died.returncode == 9
        _, step, problems = newest_checkpoint(run_dir, training=TRAINING)
        assert problems == []
        found.append(step)
    assert set(found) == {1, 2}
    assert found == sorted(found)


CALLS = [
    (os, "fsync"),
    (os, "open"),
    (os, "close"),
    (Path, "open"),
    (Path, "replace"),
    (Path, "unlink"),
    (Path, "mkdir"),
]


class Failing:
    """Counts the calls to the operating system while a checkpoint is saved; one of them may fail."""

    def __init__(self, monkeypatch, error):
        self._monkeypatch = monkeypatch
        self._error = error

    def save(self, run_dir, *, fails_at):
        self.calls = 0
        with self._monkeypatch.context() as patch:
            for owner, name in CALLS:
                patch.setattr(owner, name, self._counted(getattr(owner, name), fails_at))
            save_checkpoint(made(2), run_dir, keep=1)

    def _counted(self, call, fails_at):
        def counted(*arguments, **options):
            self.calls += 1
            if self.calls == fails_at:
                raise OSError(self._error, os.strerror(self._error))
            made = call(*arguments, **options)
            if isinstance(made, io.IOBase):
                made = Mock(wraps=made)
                made.__enter__ = lambda file: file
                made.__exit__ = lambda file, *error: file.close()
                for name in ("write", "flush"):
                    setattr(made, name, self._counted(getattr(made, name), fails_at))
            return made

        return counted


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EACCES], ids=["EIO", "ENOSPC", "EACCES"])
def test_an_error_of_any_call_is_raised_and_leaves_a_checkpoint(tmp_path, monkeypatch, error):
    """The k-th call fails, for all k: the old or the new one stays, whole."""
    failing, found = Failing(monkeypatch, error), []
    (tmp_path / "whole").mkdir()
    save_checkpoint(made(1), tmp_path / "whole", keep=1)
    failing.save(tmp_path / "whole", fails_at=None)
    for fails_at in range(1, failing.calls + 1):
        run_dir = tmp_path / str(fails_at)
        run_dir.mkdir()
        save_checkpoint(made(1), run_dir, keep=1)
        with pytest.raises(OSError, match=os.strerror(error)):
            failing.save(run_dir, fails_at=fails_at)
        _, step, problems = newest_checkpoint(run_dir, training=TRAINING)
        assert problems == []
        assert not list((run_dir / "checkpoints").glob("*.tmp"))
        found.append(step)
    assert set(found) == {1, 2}
    assert found == sorted(found)
    assert len(found) >= 8


def test_file_and_folder_are_on_the_disk_before_the_old_one_goes(tmp_path, monkeypatch):
    save_checkpoint(made(1), tmp_path, keep=1)
    calls = []
    fsync, unlink = os.fsync, Path.unlink

    def note_fsync(handle):
        calls.append(("fsync", Path(f"/proc/self/fd/{handle}").readlink().name))
        fsync(handle)

    def note_unlink(path, *arguments, **options):
        calls.append(("unlink", path.name))
        unlink(path, *arguments, **options)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "unlink", note_unlink)
    save_checkpoint(made(2), tmp_path, keep=1)
    assert calls == [
        ("fsync", "step-0000000002.tmp"),
        ("fsync", "checkpoints"),
        ("unlink", "step-0000000001.safetensors"),
    ]


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def sealed_headers():
    """What passes the checksum and must still be refused."""
    metadata = {"format": "1", "dpcompare_version": "0", "step": "1", "training": "b", "checksum": "0" * 64}
    tensor = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}
    yield {"__metadata__": metadata, "model.w": tensor}  # another training
    for name in ("format", "step", "training"):
        yield {"__metadata__": {key: value for key, value in metadata.items() if key != name}, "model.w": tensor}
    for step in ("0", "-1", "1e3", "x", "", "9" * 5000):
        yield {"__metadata__": metadata | {"step": step}, "model.w": tensor}
    for form in ("2", "x", "-1" * 10):
        yield {"__metadata__": metadata | {"format": form}, "model.w": tensor}
    for change in (
        {"dtype": "O"},
        {"shape": [2**62]},
        {"shape": [-1]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [0, 2**63]},
    ):
        yield {"__metadata__": metadata, "model.w": tensor | change}
    yield {"__metadata__": metadata, "../../evil": tensor}
    yield {"__metadata__": metadata, "w": tensor}
    yield {"__metadata__": metadata, "model.w": None}
    yield {"__metadata__": [metadata]}
    yield [{"__metadata__": metadata}]
    yield {"__metadata__": None, "x": metadata}
    nested = b"[" * 100_000
    yield b'{"__metadata__":{"checksum":"' + b"0" * 64 + b'"},"model.w":' + nested


def hostile_files():
    """One file per idea."""
    good = encode(made())
    header_length = int.from_bytes(good[:8], "little")
    yield "empty", b""
    yield "a pickle", pickle.dumps(Evil())
    yield "a pickle behind a length", (5).to_bytes(8, "little") + pickle.dumps(Evil())
    yield "a zip", b"PK\x03\x04" + bytes(100)
    yield (
        "an npy with an object",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}" + pickle.dumps(Evil()),
    )
    for exponent in range(0, 64, 4):
        yield f"a header of 2^{exponent} bytes", (1 << exponent).to_bytes(8, "little") + good[8:]
    headers = [
        [],
        {},
        None,
        {"__metadata__": None},
        {"__metadata__": {"format": "x"}},
        {"__metadata__": {"checksum": "0" * 64}},
        {"__metadata__": {"checksum": "0" * 64, "format": "1", "step": "-1", "training": "../../etc"}},
        {"model.w": {"dtype": "F64", "shape": [2**62], "data_offsets": [0, 8]}},
        {"model.w": {"dtype": "F64", "shape": [1], "data_offsets": [8, 0]}},
        {"model.w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 2**63]}},
        {"model.w": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}},
        {"model.w": {"dtype": "F64", "shape": [-1], "data_offsets": [0, 8]}},
        {
            "model.a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
            "model.b": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
        },
        {"../../evil": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}},
    ]
    for number, header in enumerate(headers):
        encoded = json.dumps(header).encode()
        yield f"header {number}", len(encoded).to_bytes(8, "little") + encoded + bytes(8)
    for number, header in enumerate(sealed_headers()):
        yield f"sealed {number}", sealed(header)
    for number in range(20):
        noise = np.random.Generator(np.random.PCG64(number)).bytes(200)
        yield f"noise {number}", (number * 7).to_bytes(8, "little") + noise
    yield "deep nesting", (100_000).to_bytes(8, "little") + b"[" * 100_000
    yield "duplicate names", good[: 8 + header_length] + good[8:]


CHECK = """
import json, sys
from pathlib import Path
from dpcompare.results.checkpoint import BrokenCheckpointError, load_checkpoint
MODULES = ("pickle", "exec", "compile", "socket", "subprocess", "import", "ctypes")
CALLS = ("os.system", "os.exec", "os.fork", "os.posix_spawn")
seen = []
def hook(event, arguments):
    if event.split(".")[0] in MODULES or event in CALLS:
        seen.append(event)
refused = 0
paths = sorted(Path(sys.argv[1]).iterdir())
try:  # what is imported with the first error is no event of a file
    load_checkpoint(paths[0], training="a")
except BrokenCheckpointError:
    pass
sys.addaudithook(hook)
for path in paths:
    try:
        load_checkpoint(path, training="a")
    except BrokenCheckpointError:
        refused += 1
print(json.dumps([refused, seen]))
"""


@pytest.mark.process
def test_loading_hostile_files_executes_and_reaches_nothing(tmp_path):
    files = dict(hostile_files())
    assert len(files) >= 50
    (tmp_path / "files").mkdir()
    for number, content in enumerate(files.values()):
        (tmp_path / "files" / f"{number:03d}").write_bytes(content)
    done = subprocess.run([sys.executable, "-c", CHECK, tmp_path / "files"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [len(files), []]
    assert not Path("evil").exists()


def test_a_tensor_of_neither_model_nor_optimizer_is_refused():
    blank = save({"other.w": np.zeros(1)}, metadata={"format": "1", "step": "1", "training": "", "checksum": "0" * 64})
    import hashlib

    content = blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode(), 1)
    with pytest.raises(BrokenCheckpointError, match=r"holds a tensor 'other\.w'"):
        decode(content)
