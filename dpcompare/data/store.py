"""The prepared store: images decoded and resized once, memory-mapped by every process of every run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpcompare.data.digest import Duplicates, SplitContent, find_duplicates
from dpcompare.errors import RequestError
from dpcompare.system.cache import folder_held
from dpcompare.system.files import sync
from dpcompare.system.terminal_text import pluralize
from dpcompare.system.type_names import Array, FieldValue

MANIFEST = "manifest.json"
FORMAT = 2
SPLITS = ("train", "validation")
_CHUNK_ROWS = 1024
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, of a quota, and of a limit of the size of files."""


class SplitManifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int
    images_sha256: str
    labels_sha256: str


class Manifest(BaseModel):
    """What a store holds and how it was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    source: str
    """Name of a built-in dataset, or the folder the images came from."""
    classes: tuple[str, ...]
    image_size: int
    """Side of the square that a model gets, in pixels."""
    margin: int = Field(default=0, ge=0)
    """Pixels by which the stored squares are larger, of which `crop` leaves out others each time."""
    resize: str
    """How an image becomes a square of `image_size + margin` pixels."""
    decoder: str
    """Library and version that decoded the images: pixels depend on it."""
    skipped: tuple[str, ...] = ()
    """Images left out because they could not be decoded."""
    notes: tuple[str, ...] = ()
    """What of the source was not taken, or taken for something else than its name says."""
    duplicates: Duplicates = Duplicates()
    """Duplicates among its images."""
    revision: str | None = None
    """The version of a Hugging Face dataset: its commit on the hub, or its fingerprint."""
    splits: dict[str, SplitManifest]

    @property
    def sha256(self) -> str:
        """Identity of what is trained on: pixels, labels and classes, but not where they came from."""
        splits = {name: split.model_dump() for name, split in sorted(self.splits.items())}
        content = {"classes": self.classes, "image_size": self.image_size, "splits": splits}
        if self.margin:
            content["margin"] = self.margin
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Split:
    images: npt.NDArray[np.uint8]
    """(count, height, width, 3), memory-mapped; with the margin."""
    labels: npt.NDArray[np.int32]
    sums: npt.NDArray[np.int64]
    """The sum of all values of each image, from which its mean is computed exactly, without reading it again."""
    margin: int = 0
    """Pixels of height and width that a model does not get."""

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(
        self, indices: npt.NDArray[np.int64], corners: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.uint8]:
        """What a model gets of some images, (images, height, width, 3), without the margin.

        Args:
            indices: of the images.
            corners: (images, 2), rows and columns of the margin that are above and to the left; None: half of it.
        """
        if not self.margin:
            return self.images[indices]
        _, height, width, channels = self.images.shape
        cut = np.empty((len(indices), height - self.margin, width - self.margin, channels), np.uint8)
        if corners is None:
            corners = np.full((len(indices), 2), self.margin // 2)
        for row, (index, (top, left)) in enumerate(zip(indices, corners, strict=True)):
            cut[row] = self.images[index, top : top + cut.shape[1], left : left + cut.shape[2]]
        return cut

    @property
    def largest_class_share(self) -> float:
        """The part of the images that is of the largest class: the accuracy of whoever guesses it always."""
        return float(np.bincount(self.labels).max() / len(self.labels))

    @cached_property
    def means(self) -> npt.NDArray[np.float64]:
        """The mean of each image, with its margin, in 0..1."""
        means: npt.NDArray[np.float64] = self.sums / (255 * self.images[0].size)
        return means


@dataclass(frozen=True)
class Store:
    path: Path
    manifest: Manifest

    def split(self, name: str) -> Split:
        images_path, *others = split_files(self.path, name)
        images = np.load(images_path, mmap_mode="r")
        labels, sums = map(np.load, others)
        return Split(images=images, labels=labels, sums=sums, margin=self.manifest.margin)


def split_files(store: Path, split: str) -> tuple[Path, Path, Path]:
    """The files of a split: its images, their labels, and their sums."""
    images, labels, sums = (store / f"{split}-{what}.npy" for what in ("images", "labels", "sums"))
    return images, labels, sums


def is_store(path: Path) -> bool:
    try:
        return (path / MANIFEST).is_file()
    except OSError:  # a name that is too long for one
        return False


def open_store(path: Path, *, verify: bool = False) -> Store:
    """Open a prepared store; with `verify`, read it all once and compare the checksums.

    Raises:
        RequestError: it is not a store, is damaged, or was written by another release of dpcompare.
    """
    remedy = "remove it and prepare it again with `dpcompare data prepare SOURCE DEST`"
    try:
        text = (path / MANIFEST).read_text()
        content = json.loads(text)
        if content.get("format", FORMAT) != FORMAT:
            raise RequestError(
                f"store {path}: received format {content['format']}, expected {FORMAT}; {remedy}, or use the "
                "dpcompare that wrote it"
            )
        store = Store(path, Manifest.model_validate_json(text))  # which refuses names that no document can hold
    except (OSError, ValidationError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{path} is not a readable store ({MANIFEST}: {error}); {remedy}") from None
    if (found := sorted(store.manifest.splits)) != sorted(SPLITS):
        raise RequestError(f"store {path} is damaged: its splits are {found}, expected {', '.join(SPLITS)}; {remedy}")
    for name, expected in store.manifest.splits.items():
        if strange := [file for file in split_files(path, name) if not file.is_file()]:  # a pipe would never end
            raise RequestError(f"store {path} is damaged: {str(strange[0])!r} is missing, or is not a file; {remedy}")
        try:
            split = store.split(name)
        except Exception as error:  # NumPy reads a header with Python's parser, which has many ways to fail
            raise RequestError(f"store {path} is damaged: split {name}: {error}; {remedy}") from None
        if problem := _impossible(split, expected.count, store.manifest):
            raise RequestError(f"store {path} is damaged: split {name} has {problem}; {remedy}")
        if verify and not _is_whole(split, expected):
            raise RequestError(
                f"store {path} is damaged: the checksum of split {name} does not match its manifest; {remedy}"
            )
    return store


def _impossible(split: Split, count: int, manifest: Manifest) -> str | None:
    """What no writer of a store writes: checksums, which are of values alone, may agree with it all the same."""
    size, num_classes = manifest.image_size + manifest.margin, len(manifest.classes)
    for what, array, dtype, shape in (
        ("images", split.images, np.uint8, (count, size, size, 3)),
        ("labels", split.labels, np.int32, (count,)),
        ("sums", split.sums, np.int64, (count,)),
    ):
        found: object = (array.shape, array.dtype) if isinstance(array, np.ndarray) else type(array)
        expected = shape, np.dtype(dtype)
        if found != expected:
            return f"{what} of {found}, expected {expected}"
    if not count or not 0 <= split.labels.min() <= split.labels.max() < num_classes:
        return f"no image, or labels beyond its {pluralize(num_classes, 'class')}"
    return None


class StoreWatch:
    """A watch on a store that is trained on: what is written into its files meanwhile."""

    def __init__(self, path: Path, sha256: str) -> None:
        self._path, self._sha256 = path, sha256
        self._stamps = self._stamp()

    def change(self) -> str | None:
        """What is wrong with the store, where a file of it was touched since; it is read again only then."""
        if self._stamp() == self._stamps:
            return None
        try:
            found = open_store(self._path, verify=True).manifest.sha256
        except RequestError as error:
            return f"the store was changed while it was trained on: {error}"
        if found != self._sha256:
            return f"the store {str(self._path)!r} was replaced by another while it was trained on"
        return None

    def _stamp(self) -> set[tuple[str, int, int, int]]:
        """No file is changed without its change time (inode(7)), which no program can set."""
        found = set()
        for entry in os.scandir(self._path) if self._path.is_dir() else ():
            status = entry.stat(follow_symlinks=False)
            found.add((entry.name, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
        return found


def _is_whole(split: Split, expected: SplitManifest) -> bool:
    images_sha256, sums = _read_images(split.images)
    found = SplitManifest(count=len(split), images_sha256=images_sha256, labels_sha256=_sha256(split.labels))
    return found == expected and np.array_equal(split.sums, sums)


def _sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _read_images(images: npt.NDArray[np.uint8]) -> tuple[str, npt.NDArray[np.int64]]:
    """The checksum of a split's images, and the sum of each."""
    digest = hashlib.sha256()
    sums = [np.empty(0, np.int64)]
    for start in range(0, len(images), _CHUNK_ROWS):
        # A new mapping for each chunk: pages that were read count as memory of the process while they are mapped.
        rows = np.load(str(images.filename), mmap_mode="r") if isinstance(images, np.memmap) else images
        chunk = np.ascontiguousarray(rows[start : start + _CHUNK_ROWS])
        digest.update(chunk.data)
        sums.append(chunk.sum(axis=(1, 2, 3), dtype=np.int64))
    return digest.hexdigest(), np.concatenate(sums)


STALE_SECONDS = 60.0
"""How old a folder at least is that is taken for one of a killed command: a younger one may not yet be held."""
_PREFIX = ".dpcompare-unfinished-"
_MARKER = "may-be-removed-by-dpcompare"
"""A file in each folder of `unfinished`, without which none is removed, whatever its name."""


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """A new folder to prepare something in, held while this lasts, then removed with what is still in it.

    Those of commands that were killed are removed.

    Args:
        folder: where it is made.

    Raises:
        RequestError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        (made / _MARKER).touch()
    except OSError as error:
        raise RequestError(
            f"no store can be written below {str(folder)!r} ({error.strerror}); choose another destination, or "
            "another cache with DPCOMPARE_CACHE_DIR"
        ) from None
    with folder_held(made):
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove folders that `unfinished` has made and no process holds any more."""
    for path in folder.glob(f"{_PREFIX}*"):
        try:
            is_ours = (path / _MARKER).is_file() and not path.is_symlink()
            if not is_ours or time.time() - path.stat().st_mtime < STALE_SECONDS:
                continue
            with folder_held(path) as is_free:
                if is_free:
                    shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:  # another command was faster
            continue


def _reserved(path: Path, shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[np.uint8]]:
    """A new array in a file that has all its blocks: writing into a mapping without room ends by SIGBUS."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


class StoreWriter:
    """Writes a store next to its destination and moves it there as a whole, or not at all.

    Use as a context manager: `images(split, count)` gives the array to fill, `finish(...)` completes the store. Where
    the disk has no room, the context ends with RequestError.
    """

    def __init__(self, destination: Path, image_size: int, margin: int = 0) -> None:
        self._destination = destination
        self._image_size, self._margin = image_size, margin
        self._until_done = ExitStack()

    def __enter__(self) -> StoreWriter:
        self._temporary = self._until_done.enter_context(unfinished(self._destination.parent)) / "store"
        self._temporary.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._until_done.close()
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            folder = self._destination.parent
            named = folder.parent if folder.name.startswith(_PREFIX) else folder
            raise RequestError(
                f"the store cannot be written below {str(named)!r} ({error.strerror}); free some room, or choose "
                "another destination, or another cache with DPCOMPARE_CACHE_DIR"
            ) from None

    @property
    def side(self) -> int:
        """The side of the stored squares, in pixels."""
        return self._image_size + self._margin

    def images_path(self, split: str) -> Path:
        return split_files(self._temporary, split)[0]

    def images(self, split: str, count: int) -> npt.NDArray[np.uint8]:
        """The array of a split's images, to fill."""
        return _reserved(self.images_path(split), (count, self.side, self.side, 3))

    def keep_rows(self, split: str, rows: npt.NDArray[np.int64]) -> None:
        """Keep only these rows of the images of a split, in this order."""
        whole = np.load(self.images_path(split), mmap_mode="r")
        kept_path = self._temporary / "kept.npy"
        kept = _reserved(kept_path, (len(rows), *whole.shape[1:]))
        for start in range(0, len(rows), _CHUNK_ROWS):
            kept[start : start + _CHUNK_ROWS] = whole[rows[start : start + _CHUNK_ROWS]]
        kept.flush()
        kept_path.replace(self.images_path(split))

    def finish(self, labels: Mapping[str, npt.NDArray[np.int32]], **described: FieldValue) -> Store:
        """Write labels, sums and manifest and move the store to its destination; a store already there stays."""
        splits, read = {}, {}
        for split, values in labels.items():
            images = np.load(self.images_path(split), mmap_mode="r")
            images_sha256, sums = _read_images(images)
            read[split] = SplitContent(images, values, sums)
            class_labels = values.astype(np.int32)
            _, *others = split_files(self._temporary, split)
            arrays: tuple[Array, ...] = (class_labels, sums)
            for path, values_of_images in zip(others, arrays, strict=True):
                encoded = BytesIO()  # np.save into a file says less of a full disk
                np.save(encoded, values_of_images)
                path.write_bytes(encoded.getvalue())
            splits[split] = SplitManifest(
                count=len(values), images_sha256=images_sha256, labels_sha256=_sha256(class_labels)
            )
        found = find_duplicates(read)
        described |= {"margin": self._margin, "splits": splits, "duplicates": found}
        manifest = Manifest(image_size=self._image_size, **described)
        # A release that does not know the field reads the store where it says nothing.
        left_out = {"duplicates"} if found == Duplicates() else None
        (self._temporary / MANIFEST).write_text(manifest.model_dump_json(indent=2, exclude=left_out) + "\n")
        for file in (*self._temporary.iterdir(), self._temporary):  # names come last
            sync(file)
        try:
            os.rename(self._temporary, self._destination)  # noqa: PTH104 (Path.rename has no other meaning)
        except OSError:
            # Another process prepared the same store meanwhile.
            if not is_store(self._destination):
                raise
        sync(self._destination.parent)
        return open_store(self._destination)
