"""The preparation of a store: every image is decoded and resized once, by one library, whatever trains on it later."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, ImageOps

from dpcompare.data.built_in import BUILT_IN
from dpcompare.data.custom import custom_dataset
from dpcompare.data.folders import find_images
from dpcompare.data.hugging_face import find_hugging_face
from dpcompare.data.image_files import opened_image
from dpcompare.data.names import is_custom_dataset, is_hugging_face
from dpcompare.data.sources import EncodedImage, ImageArrays, ImageFiles, ImageList
from dpcompare.data.store import Store, StoreWriter
from dpcompare.errors import RequestError
from dpcompare.system.devices import available_cores
from dpcompare.system.processes import die_with_parent

RESIZE_RULE = (
    "centre square, then bicubic (Pillow) to image_size; "
    "JPEG decoded at 1/2, 1/4 or 1/8 where that leaves twice image_size"
)
PIXELS_PER_MARGIN_PIXEL = 7
"""Of the side of what is cut out of an image, where a margin is made for `crop`: 32 pixels for 224, so that squares of
256 are stored (Krizhevsky et al. 2012, section 4.1)."""
DECODER = f"Pillow {PIL.__version__}"
IMAGES_PER_TASK = 16

Progress = Callable[[int, int], None]
"""Called with (images done, images in all)."""


def resize(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """RESIZE_RULE: an upright RGB square of shape (size, size, 3); `image` itself is turned upright."""
    ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies what is upright already
    upright = image if image.mode == "RGB" else image.convert("RGB")
    side = min(upright.size)
    left, top = ((length - side) // 2 for length in upright.size)
    # Cut before resizing: with ImageOps.fit the pixels outside the square leak into its edges.
    square = upright.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((size, size), Image.Resampling.BICUBIC))


def margin_of(image_size: int) -> int:
    """The margin for `crop` of images that a model gets at this size, where a run prepares them."""
    return max(1, round(image_size / PIXELS_PER_MARGIN_PIXEL))


def prepare(
    source: str | Path,
    destination: Path,
    image_size: int,
    *,
    margin: int = 0,
    skip_corrupt: bool = False,
    follow_links: bool = False,
    largest_batch: int = 1,
    num_processes: int | None = None,
    progress: Progress | None = None,
) -> Store:
    """Write a store of a dataset.

    Args:
        source: the name of a built-in, custom or Hugging Face dataset or a path; see `dpcompare.data.folders`.
        destination: a folder that does not exist yet.
        image_size: side of the square images that a model gets, in pixels.
        margin: pixels by which the stored squares are larger, so that `crop` has something to leave out.
        skip_corrupt: leave out (and list in the manifest) images that cannot be decoded.
        follow_links: whether links in a folder of images may lead out of it.
        largest_batch: images of the largest global batch of the runs that it is for, by which `synthetic` is sized.
        num_processes: default: one per core.

    Raises:
        RequestError: the source is no dataset, the destination exists, or an image cannot be decoded.
    """
    if image_size < 1:
        raise RequestError(f"image size: received {image_size}, expected at least 1 pixel")
    if not 0 <= margin <= image_size:
        raise RequestError(f"margin: received {margin}, expected 0 to {image_size} pixels, the image size")
    if destination.exists():
        raise RequestError(f"{str(destination)!r} already exists; choose another destination, or remove it")
    progress = progress or (lambda done, total: None)
    with StoreWriter(destination, image_size, margin) as writer:
        if str(source) in BUILT_IN:
            return _write_arrays(writer, str(source), BUILT_IN[str(source)](largest_batch))
        if is_custom_dataset(str(source)):
            return _write_custom(writer, str(source), progress)
        files = image_files(source, follow_links=follow_links)
        return _write_files(writer, files, skip_corrupt, num_processes or available_cores(), progress)


def image_files(source: str | Path, *, follow_links: bool = False) -> ImageFiles:
    """The images of a folder, or of a Hugging Face dataset.

    Args:
        source: its path or name.
        follow_links: whether links in a folder may lead out of it.

    Raises:
        RequestError: it is no dataset.
    """
    if is_hugging_face(str(source)):
        return find_hugging_face(str(source), follow_links=follow_links)
    return find_images(Path(source), follow_links=follow_links)


def _write_arrays(writer: StoreWriter, source: str, dataset: ImageArrays) -> Store:
    for split, (images, _) in dataset.splits.items():
        pixels = writer.images(split, len(images))
        for row, image in enumerate(images):
            pixels[row] = resize(image, writer.side)
    labels = {split: labels for split, (_, labels) in dataset.splits.items()}
    return writer.finish(labels, source=source, classes=dataset.classes, resize=RESIZE_RULE, decoder=DECODER)


def _write_custom(writer: StoreWriter, source: str, progress: Progress) -> Store:
    dataset = custom_dataset(source)
    total = sum(len(indices) for _, indices in dataset.splits.values())
    labels: dict[str, npt.NDArray[np.int32]] = {}
    done = 0
    for split, (samples, indices) in dataset.splits.items():
        pixels = writer.images(split, len(indices))
        labels[split] = np.zeros(len(indices), np.int32)
        for row, index in enumerate(indices):
            try:
                image, label = samples[index]
                pixels[row] = resize(image if isinstance(image, Image.Image) else Image.fromarray(image), writer.side)
                if not 0 <= int(label) < len(dataset.class_names):
                    raise ValueError(f"class index {label} of {len(dataset.class_names)} classes")
            except Exception as error:  # whatever a user's dataset does
                raise RequestError(
                    f"dataset: item {index} of {source!r} ({split}) cannot be taken ({type(error).__name__}: {error}); "
                    "expected (image of Pillow or array of uint8, (height, width, 3); class index)"
                ) from None
            labels[split][row] = int(label)
            done += 1
            progress(done, total)
    return writer.finish(labels, source=source, classes=dataset.class_names, resize=RESIZE_RULE, decoder=DECODER)


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
    """With what a name that is not UTF-8 has instead: of what is left out, that is no reason to refuse the rest."""
    return os.fsencode(text).decode(errors="backslashreplace")


@dataclass(frozen=True)
class _Decoded:
    count: int
    broken: dict[int, tuple[Path | EncodedImage, str]]
    """By row: the image, and what was raised."""


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
