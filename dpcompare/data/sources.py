"""A source of images: how it is named, how many it has, and how it writes them into a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from dpcompare.data.store import Store, StoreWriter
from dpcompare.errors import RequestError

TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "val", "valid", "test")
VALIDATION_SHARE = 0.2
"""Share of each class held out where a source has no validation split."""


Progress = Callable[[int, int], None]
"""Called with (images done, images in all)."""


@dataclass(frozen=True)
class Source(ABC):
    """A dataset that is to be prepared. A class for each way to name one; `dpcompare.data.prepare` lists them."""

    name: str
    """The name that was asked for."""
    _: KW_ONLY
    skip_corrupt: bool = False
    """Leave out, and list in the manifest, images that cannot be decoded."""
    follow_links: bool = False
    """Whether links in a folder of images may lead out of it."""
    largest_batch: int = 1
    """Images of the largest global batch of the runs that it is for, by which `synthetic` is sized."""
    has_stamps = True
    """Whether `stamps` shows that a dataset has changed; otherwise every command prepares it again."""

    @classmethod
    @abstractmethod
    def takes(cls, name: str) -> bool:
        """Whether this class is for datasets of such a name; of several, the first of the list is."""

    @abstractmethod
    def num_train(self) -> int:
        """Images of the training split, counted without preparing them; those that are corrupt are included.

        Raises:
            RequestError: it is not a dataset.
        """

    @abstractmethod
    def write(self, writer: StoreWriter, num_processes: int, progress: Progress) -> Store:
        """Write every image.

        Raises:
            RequestError: it is not a dataset, or an image cannot be decoded.
        """

    @property
    def title(self) -> str:
        """What the cached store is called after."""
        return self.name

    def stamps(self) -> Iterator[str]:
        """Text that changes with the images, where the title does not; see `has_stamps`."""
        return iter(())


@dataclass(frozen=True)
class EncodedImage:
    """An image file that lies inside another file, such as a row of a table."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ImageList:
    """(file, class index) of the images of a split, listed at every reading: a million paths take 600 MiB."""

    labels: npt.NDArray[np.int32]
    files: Callable[[], Iterable[Path | EncodedImage]]
    """Lists as many as there are labels, in their order."""

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Path | EncodedImage, int]]:
        """
        Raises:
            RequestError: there are fewer or more images than there were.
        """
        listed = 0
        for file in self.files():
            if listed < len(self):
                yield file, int(self.labels[listed])
            listed += 1
        if listed != len(self):
            raise RequestError(
                f"the images of a split were {len(self)} and became {listed} while they were read; try again when "
                "nothing writes to the dataset"
            )


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """The image files of a dataset, split by split."""

    source: str
    """The folder that they are in, or the name of the dataset."""
    classes: tuple[str, ...]
    splits: dict[str, ImageList]
    folders: Sequence[Path] | None
    """Which the files must be in, links followed; None: the user allows links that lead anywhere."""
    notes: Callable[[], Iterable[str]] = tuple
    """What of the folder was not taken, or was taken for something else than its name says; walks the whole folder."""
    revision: str | None = None
    """What changes with the images, where they have something of the kind."""

    def stamps(self) -> Iterator[str]:
        """Text that changes with any of the images: their revision, or else a line per file."""
        if self.revision is not None:
            yield self.revision
            return
        for split, images in self.splits.items():
            for file, label in images:
                status = file.stat() if isinstance(file, Path) and file.exists() else None
                stamp = (status.st_size, status.st_mtime_ns) if status else None
                yield f"{split}|{file}|{label}|{stamp}\n"


@dataclass(frozen=True, kw_only=True)
class ImageArrays:
    """A dataset without files: for each split, the images and their labels."""

    classes: tuple[str, ...]
    splits: dict[str, tuple[list[Image.Image], npt.NDArray[np.int32]]]
