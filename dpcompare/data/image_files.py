"""How a file of a dataset is opened: as a picture of a known format, decided by its content, and nowhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from dpcompare.data.sources import EncodedImage

FORMAT_OF = {
    **{".bmp": "BMP", ".gif": "GIF", ".jpeg": "JPEG", ".jpg": "JPEG", ".png": "PNG", ".ppm": "PPM"},
    **{".tif": "TIFF", ".tiff": "TIFF", ".webp": "WEBP"},
}  # fmt: skip
"""Suffix of the files that are taken for images -> Pillow's name of the format. Any of the formats may have any of the
suffixes, since people rename files; no other format is opened: Pillow hands PostScript to the program `gs`."""
FORMATS = tuple(sorted(set(FORMAT_OF.values())))


@contextmanager
def opened_image(file: Path | EncodedImage, folders: Sequence[Path] | None) -> Iterator[Image.Image]:
    """An image of a dataset, whose pixels are not decoded yet.

    Args:
        file: to open.
        folders: which the file must be in, links followed; None: anywhere.

    Raises:
        OSError: it cannot be read, is no image in one of FORMATS, no file, or in none of the folders.
        Exception: whatever Pillow's readers raise for a broken file.
    """
    with BytesIO(file.content) if isinstance(file, EncodedImage) else _opened(file, folders) as content:
        try:
            opened = Image.open(content, formats=FORMATS)
        except UnidentifiedImageError:
            raise OSError(f"its content is none of {', '.join(FORMATS)}") from None
        with opened as image:
            yield image


def _opened(file: Path, folders: Sequence[Path] | None) -> BinaryIO:
    path = os.path.realpath(file)
    if folders is not None and not is_inside(path, folders):
        raise PermissionError(f"it leads to {path!r}, outside of the dataset (read all the same with --follow-links)")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)  # a pipe would be waited for
    opened = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        opened.close()
        raise OSError("it is a pipe, a device or a socket; expected a file")
    return opened


def is_inside(path: str | Path, folders: Sequence[Path]) -> bool:
    """Whether a path, its links followed, is in one of some folders."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)
