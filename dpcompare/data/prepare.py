"""The preparation of a store from any source of images."""

from __future__ import annotations

from pathlib import Path

from dpcompare.data.built_in import BuiltIn
from dpcompare.data.custom import Custom
from dpcompare.data.folders import Folder
from dpcompare.data.hugging_face import HuggingFace
from dpcompare.data.sources import Progress, Source
from dpcompare.data.store import Store, StoreWriter
from dpcompare.errors import RequestError
from dpcompare.system.devices import available_cores
from dpcompare.system.type_names import PassedOn

SOURCES: tuple[type[Source], ...] = (BuiltIn, HuggingFace, Custom, Folder)
"""The first that takes a name is the dataset's."""

PIXELS_PER_MARGIN_PIXEL = 7
"""Pixels of the side of what is cut out of an image, for each pixel of its margin for `crop`: 32 for 224, so that
squares of 256 are stored (Krizhevsky et al. 2012, section 4.1)."""


def source_of(name: str, **how: PassedOn) -> Source:
    """The dataset of a name.

    Args:
        name: of a built-in, custom or Hugging Face dataset, or a path.
        how: further fields of Source.
    """
    return next(kind for kind in SOURCES if kind.takes(name))(name, **how)


def margin_of(image_size: int) -> int:
    """The margin for `crop` of images that a model gets at this size, where a run prepares them."""
    return max(1, round(image_size / PIXELS_PER_MARGIN_PIXEL))


def prepare(
    name: str | Path,
    destination: Path,
    image_size: int,
    *,
    margin: int = 0,
    num_processes: int | None = None,
    progress: Progress | None = None,
    **how: PassedOn,
) -> Store:
    """`prepare_source` of the dataset of a name; see `source_of`."""
    source = source_of(str(name), **how)
    return prepare_source(
        source, destination, image_size, margin=margin, num_processes=num_processes, progress=progress
    )


def prepare_source(
    source: Source,
    destination: Path,
    image_size: int,
    *,
    margin: int = 0,
    num_processes: int | None = None,
    progress: Progress | None = None,
) -> Store:
    """Write a store of a dataset.

    Args:
        source: of the images.
        destination: a folder that does not exist yet.
        image_size: side of the square images that a model gets, in pixels.
        margin: pixels by which the stored squares are larger, so that `crop` has something to leave out.
        num_processes: default: one per core.
        progress: called while images are prepared.

    Raises:
        RequestError: the source is not a dataset, the destination exists, or an image cannot be decoded.
    """
    if image_size < 1:
        raise RequestError(f"image size: received {image_size}, expected at least 1 pixel")
    if not 0 <= margin <= image_size:
        raise RequestError(f"margin: received {margin}, expected 0 to {image_size} pixels, the image size")
    if destination.exists():
        raise RequestError(f"{str(destination)!r} already exists; choose another destination, or remove it")
    with StoreWriter(destination, image_size, margin) as writer:
        return source.write(writer, num_processes or available_cores(), progress or (lambda done, total: None))
