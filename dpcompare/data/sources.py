"""Where datasets come from: folders of images, the Stanford Dogs layout, and two built-in ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from dpcompare.data.order import epoch_order
from dpcompare.errors import RequestError

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "val", "valid", "test")
VALIDATION_SHARE = 0.2
"""Share of each class held out where the folder has no validation split."""

LAYOUTS = (
    "expected one folder of images per class (CLASS/*.jpg), the same below train/ and validation/, the original "
    "Stanford Dogs layout (Images/, train_list.mat, test_list.mat), or a store made by `dpcompare data prepare`"
)


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """The image files of a dataset: for each split, (path, class index) of every image."""

    root: Path
    classes: tuple[str, ...]
    splits: dict[str, list[tuple[Path, int]]]


def find_images(root: Path) -> ImageFiles:
    """Recognise the layout of a folder and list its images.

    Raises:
        RequestError: the folder is missing, empty, has one class only or is no dataset.
    """
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise RequestError(f"dataset {str(root)!r} {what}; {LAYOUTS}, or one of the built-in {', '.join(BUILT_IN)}")
    if (root / "Images").is_dir() and (root / "train_list.mat").is_file():
        found = _stanford_dogs(root)
    else:
        found = _image_folder(root)
    if not any(found.splits.values()):
        raise RequestError(f"dataset {str(root)!r} holds no images; {LAYOUTS}")
    if len(found.classes) < 2:
        raise RequestError(
            f"dataset {str(root)!r} has one class only ({found.classes[0]!r}); expected at least 2; {LAYOUTS}"
        )
    for split, images in found.splits.items():
        if not images:
            raise RequestError(
                f"dataset {str(root)!r} has no images in its {split} split; expected at least one per split"
            )
    return found


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())


def _first_named(folders: list[Path], names: Iterable[str]) -> Path | None:
    by_name = {folder.name.lower(): folder for folder in folders}
    return next((by_name[name] for name in names if name in by_name), None)


def _by_class(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    return [
        (path, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()
        for path in _images_below(folder / name)
    ]


def _image_folder(root: Path) -> ImageFiles:
    folders = _subfolders(root)
    train = _first_named(folders, TRAIN_NAMES)
    validation = _first_named(folders, VALIDATION_NAMES) if train else None
    base = train or root
    classes = tuple(folder.name for folder in _subfolders(base) if _images_below(folder))
    if not classes:
        stray = len(_images_below(base))
        detail = f"{stray} images but no folder per class" if stray else "no images"
        raise RequestError(f"{str(base)!r} is not a dataset: it holds {detail}; {LAYOUTS}")
    images = _by_class(base, classes)
    if validation is None:
        return ImageFiles(root=root, classes=classes, splits=_hold_out(images, len(classes)))
    unknown = [
        folder.name for folder in _subfolders(validation) if folder.name not in classes and _images_below(folder)
    ]
    if unknown:
        raise RequestError(
            f"{str(validation)!r} has classes that {str(base)!r} lacks: {', '.join(map(repr, unknown))}; expected "
            "the same class folders in both"
        )
    return ImageFiles(
        root=root, classes=classes, splits={"train": images, "validation": _by_class(validation, classes)}
    )


def _hold_out(images: list[tuple[Path, int]], num_classes: int) -> dict[str, list[tuple[Path, int]]]:
    """Hold out VALIDATION_SHARE of each class, chosen by a fixed permutation of its sorted files."""
    splits: dict[str, list[tuple[Path, int]]] = {"train": [], "validation": []}
    classes: list[list[tuple[Path, int]]] = [[] for _ in range(num_classes)]
    for image in images:
        classes[image[1]].append(image)
    for of_class in classes:
        shuffled = [of_class[i] for i in epoch_order(0, 0, len(of_class))]
        held_out = round(len(of_class) * VALIDATION_SHARE)
        splits["validation"] += sorted(shuffled[:held_out])
        splits["train"] += sorted(shuffled[held_out:])
    return splits


def _stanford_dogs(root: Path) -> ImageFiles:
    """The lists hold paths below Images/ (`n02085620-Chihuahua/n02085620_5927.jpg`) and labels from 1."""
    from scipy.io import loadmat

    splits = {}
    names: dict[int, str] = {}
    for split, file in (("train", "train_list.mat"), ("validation", "test_list.mat")):
        try:
            lists = loadmat(root / file)
            files = [str(entry[0][0]) for entry in lists["file_list"]]
            labels = [int(entry[0]) - 1 for entry in lists["labels"]]
            if len(files) != len(labels):
                raise ValueError(f"{len(files)} files but {len(labels)} labels")
        except Exception as error:  # SciPy's reader raises whatever a broken file leads it to
            raise RequestError(
                f"{str(root / file)!r} cannot be read as a Stanford Dogs list ({type(error).__name__}: {error}); "
                "expected the variables file_list and labels"
            ) from None
        paths = [root / "Images" / relative for relative in files]
        outside = [path for path in paths if ".." in path.parts or not path.is_relative_to(root / "Images")]
        if outside:
            raise RequestError(f"{str(root / file)!r} names a file outside Images/: {str(outside[0])!r}")
        names |= {label: Path(relative).parts[0] for relative, label in zip(files, labels, strict=True)}
        splits[split] = list(zip(paths, labels, strict=True))
    if sorted(names) != list(range(len(names))):
        raise RequestError(f"{str(root)!r}: labels {sorted(names)} of the lists are not 1 to {len(names)} without gaps")
    return ImageFiles(root=root, classes=tuple(names[label] for label in sorted(names)), splits=splits)


@dataclass(frozen=True, kw_only=True)
class ImageArrays:
    """A built-in dataset: for each split, the images and their labels."""

    classes: tuple[str, ...]
    splits: dict[str, tuple[list[Image.Image], npt.NDArray[np.int32]]]


def digits() -> ImageArrays:
    """The 1,797 handwritten digits of 8x8 pixels that ship with scikit-learn (UCI ML, 1998)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = epoch_order(0, 0, len(bunch.target))
    held_out = round(len(order) * VALIDATION_SHARE)
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    rows = {"train": np.sort(order[held_out:]), "validation": np.sort(order[:held_out])}
    return ImageArrays(
        classes=tuple(str(digit) for digit in range(10)),
        splits={
            split: ([Image.fromarray(grey[row]) for row in chosen], bunch.target[chosen].astype(np.int32))
            for split, chosen in rows.items()
        },
    )


def synthetic() -> ImageArrays:
    """1,024 training and 256 validation images of noise, to measure throughput without a dataset."""
    return _noise(train=1024, validation=256)


def synthetic_mini() -> ImageArrays:
    """72 training and 41 validation images of noise, multiples of no usual batch: few steps pass the end of an epoch.

    Made for `dpcompare verify`: noise conditions BatchNorm well, so that rounding grows slowly from step to step.
    """
    return _noise(train=72, validation=41)


def _noise(**counts: int) -> ImageArrays:
    generator = np.random.Generator(np.random.PCG64(0))
    splits = {}
    for split, count in counts.items():
        noise = generator.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
        labels = generator.integers(0, 10, count, dtype=np.int32)
        splits[split] = ([Image.fromarray(image) for image in noise], labels)
    return ImageArrays(classes=tuple(f"class-{label}" for label in range(10)), splits=splits)


BUILT_IN = {"digits": digits, "synthetic": synthetic, "synthetic-mini": synthetic_mini}
