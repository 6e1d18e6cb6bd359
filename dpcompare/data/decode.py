"""Opening, decoding and resizing the images of a dataset: once, by one library."""

from __future__ import annotations

import os
import stat
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, ImageOps, UnidentifiedImageError

from dpcompare.data.sources import EncodedImage, ImageFiles, ImageList, Progress, Source
from dpcompare.data.store import Store, StoreWriter
from dpcompare.errors import RequestError
from dpcompare.system.processes import die_with_parent

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
        OSError: it cannot be read, is not an image in one of FORMATS, not a file, or in none of the folders.
        Exception: whatever Pillow's readers raise for a broken file.
    """
    with BytesIO(file.content) if isinstance(file, EncodedImage) else _opened(file, folders) as content:
        try:
            opened = Image.open(content, formats=FORMATS)
        except UnidentifiedImageError:
            raise OSError(f"its content is not one of {', '.join(FORMATS)}") from None
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


RESIZE_RULE = (
    "centre square, then bicubic (Pillow) to image_size; "
    "JPEG decoded at 1/2, 1/4 or 1/8 where that leaves twice image_size"
)
DECODER = f"Pillow {PIL.__version__}"
IMAGES_PER_TASK = 16


def resize(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """RESIZE_RULE: an upright RGB square of shape (size, size, 3); `image` itself is turned upright."""
    ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies what is upright already
    upright = image if image.mode == "RGB" else image.convert("RGB")
    side = min(upright.size)
    left, top = ((length - side) // 2 for length in upright.size)
    # Cut before resizing: with ImageOps.fit the pixels outside the square leak into its edges.
    square = upright.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((size, size), Image.Resampling.BICUBIC))


class FileSource(Source):
    """A source of image files: one that says where they are."""

    @abstractmethod
    def files(self) -> ImageFiles:
        """Its images.

        Raises:
            RequestError: it is not a dataset.
        """

    def num_train(self) -> int:
        return len(self.files().splits["train"])

    def stamps(self) -> Iterator[str]:
        """Where it is, and its revision or a line per file."""
        yield self.place
        yield from self.files().stamps()

    @property
    def place(self) -> str:
        """What distinguishes it from others of the same title."""
        return self.name

    def write(self, writer: StoreWriter, num_processes: int, progress: Progress) -> Store:
        return _write_files(writer, self.files(), self.skip_corrupt, num_processes, progress)


def _write_files(
    writer: StoreWriter,
    files: ImageFiles,
    skip_corrupt: bool,
    num_processes: int,
    progress: Progress,
) -> Store:
    total = sum(map(len, files.splits.values()))
    done = 0
    corrupt: list[str] = []
    labels = {}
    for split, images in files.splits.items():
        writer.images(split, len(images))
        good = np.ones(len(images), bool)
        for decoded in _decode_all(writer.images_path(split), images, files.folders, writer.side, num_processes):
            for row, (file, error) in decoded.broken.items():
                if not skip_corrupt:
                    raise RequestError(
                        f"image {str(file)!r} cannot be decoded: {error}; replace or remove it, or pass "
                        "--skip-corrupt to leave such images out and count them"
                    )
                good[row] = False
                corrupt.append(_as_utf8(str(file).removeprefix(f"{files.source}{os.sep}")))
            done += decoded.count
            progress(done, total)
        if not good.any():
            raise RequestError(f"no image of the {split} split of {files.source!r} can be decoded")
        if not good.all():
            writer.keep_rows(split, np.flatnonzero(good))
        labels[split] = images.labels[good]
    return writer.finish(
        labels,
        source=files.source,
        classes=files.classes,
        resize=RESIZE_RULE,
        decoder=DECODER,
        skipped=tuple(corrupt),
        notes=tuple(map(_as_utf8, files.notes())),
        revision=files.revision,
    )


def _as_utf8(text: str) -> str:
    """The name of an image that is left out, with escapes for what is not UTF-8: no reason to refuse the rest."""
    return os.fsencode(text).decode(errors="backslashreplace")


@dataclass(frozen=True)
class _Decoded:
    count: int
    broken: dict[int, tuple[Path | EncodedImage, str]]
    """Row -> the image, and what was raised."""


def _decode_all(
    target: Path, images: ImageList, folders: Sequence[Path] | None, side: int, num_processes: int
) -> Iterator[_Decoded]:
    """Decode image i into row i of `target`, task by task in their order."""
    starts = range(0, len(images), IMAGES_PER_TASK)
    files = (file for file, _ in images)
    tasks = ((target, start, list(islice(files, IMAGES_PER_TASK)), folders, side) for start in starts)
    if num_processes == 1 or len(starts) == 1:
        yield from map(_decode, tasks)
        return
    # joblib's processes, unlike multiprocessing's, neither fork a threaded parent nor run the caller's script again.
    # Imported here: it would be a tenth of the time that dpcompare adds to a start, and few runs prepare a dataset.
    import joblib
    from joblib.externals.loky import BrokenProcessPool, get_reusable_executor

    with joblib.Parallel(
        min(num_processes, len(starts)),
        return_as="generator",
        batch_size=1,
        initializer=die_with_parent,  # also under SIGKILL, after which they would wait five minutes for work
        initargs=(os.getpid(),),
    ) as parallel:
        try:
            yield from parallel(joblib.delayed(_decode)(task) for task in tasks)
        except BrokenProcessPool:
            raise RequestError(
                "a process that decodes images was killed or crashed, most likely because memory ran out; nothing "
                "was kept: prepare the dataset again when there is more, or look for an image that crashes Pillow"
            ) from None
        finally:
            get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _decode(task: tuple[Path, int, Sequence[Path | EncodedImage], Sequence[Path] | None, int]) -> _Decoded:
    target, start, files, folders, side = task
    rows = np.load(target, mmap_mode="r+")
    broken = {}
    for row, file in enumerate(files, start):
        try:
            with opened_image(file, folders) as image:
                # Most of the time goes into decoding; libjpeg leaves out what bicubic would average away.
                image.draft("RGB", (2 * side, 2 * side))
                rows[row] = resize(image, side)
        except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
            broken[row] = file, f"{type(error).__name__}: {error}"
    return _Decoded(len(files), broken)
