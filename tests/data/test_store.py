"""Prepared stores: written whole or not at all, and checked."""

import contextlib
import json
import os
import shutil

import numpy as np
import pytest

from dpcompare.data.prepare import prepare
from dpcompare.data.store import MANIFEST, StoreWatch, StoreWriter, open_store
from dpcompare.errors import RequestError


@pytest.fixture
def store(tmp_path):
    return prepare("digits", tmp_path / "store", 8)


def test_a_store_describes_itself(store):
    manifest = store.manifest
    assert manifest.source == "digits"
    assert manifest.classes == tuple("0123456789")
    assert {name: split.count for name, split in manifest.splits.items()} == {
        "train": 1438,
        "validation": 359,
    }
    assert "Pillow" in manifest.decoder
    assert "bicubic" in manifest.resize


def test_images_are_memory_mapped(store):
    split = store.split("train")
    assert isinstance(split.images, np.memmap)
    assert split.images.shape == (1438, 8, 8, 3)
    assert split.images.dtype == np.uint8


@pytest.mark.seconds
def test_the_identity_depends_on_the_data_and_not_on_the_place(store, tmp_path):
    again = prepare("digits", tmp_path / "again", 8)
    other = prepare("digits", tmp_path / "other", 9)
    assert again.manifest.sha256 == store.manifest.sha256 != other.manifest.sha256


def test_one_flipped_byte_is_noticed(store):
    path = store.path / "train-images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    open_store(store.path)
    with pytest.raises(RequestError, match="checksum of split train does not match"):
        open_store(store.path, verify=True)


@pytest.mark.parametrize("name", ["labels", "sums"])
def test_one_flipped_bit_in_the_type_of_an_array_is_noticed(store, name):
    """The checksums are of values: read the other way round, all bytes are as they were."""
    path = store.path / f"train-{name}.npy"
    content = path.read_bytes()
    assert content.count(b"'<i") == 1
    path.write_bytes(content.replace(b"'<i", b"'>i"))
    with pytest.raises(RequestError, match=f"split train has {name} of"):
        open_store(store.path, verify=True)


def test_a_changed_label_is_noticed(store):
    labels = np.load(store.path / "train-labels.npy")
    labels[0] += 1
    np.save(store.path / "train-labels.npy", labels)
    with pytest.raises(RequestError, match="checksum of split train does not match"):
        open_store(store.path, verify=True)


def test_a_truncated_store_is_noticed(store):
    path = store.path / "validation-images.npy"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RequestError, match="damaged: split validation"):
        open_store(store.path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a readable store"),
        ("[]", "not a readable store"),
        ("{}", "not a readable store"),
        (json.dumps({"format": 99}), "received format 99, expected 2"),
    ],
)
def test_a_broken_manifest_is_named(store, content, message):
    (store.path / MANIFEST).write_text(content)
    with pytest.raises(RequestError, match=message):
        open_store(store.path)


def test_nothing_is_left_of_a_store_that_failed(tmp_path):
    with contextlib.suppress(KeyboardInterrupt), StoreWriter(tmp_path / "store", 8) as writer:
        writer.images("train", 5)
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_overwritten_in_place_is_noticed(tmp_path):
    store = prepare("synthetic-mini", tmp_path / "store", 8)
    watch = StoreWatch(store.path, store.manifest.sha256)
    images = store.path / "train-images.npy"
    assert watch.change() is None
    images.chmod(0o600)  # touched, and the same
    assert watch.change() is None
    with images.open("r+b") as file:
        file.seek(1000)
        file.write(b"other")
    os.utime(images, ns=(0, 0))
    assert "the store was changed while it was trained on" in watch.change()
    assert "is damaged" in watch.change()
    shutil.rmtree(store.path)
    assert "was changed" in watch.change()
    prepare("synthetic-mini", tmp_path / "store", 12)
    assert "was replaced by another" in watch.change()


@pytest.mark.parametrize("name", ["train-images.npy", "validation-labels.npy", "train-sums.npy"])
def test_a_pipe_in_a_store_is_refused(tmp_path, name):
    store = prepare("synthetic-mini", tmp_path / "store", 8)
    (store.path / name).unlink()
    os.mkfifo(store.path / name)
    with pytest.raises(RequestError, match=rf"{name}' is missing, or is no file"):
        open_store(store.path)
