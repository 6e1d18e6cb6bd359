"""The layouts in which folders hold images: a folder per class, with or without splits, and that of Stanford Dogs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dpcompare.data.built_in import BUILT_IN
from dpcompare.data.decode import FORMAT_OF, FileSource, is_inside
from dpcompare.data.order import epoch_order
from dpcompare.data.sources import TRAIN_NAMES, VALIDATION_NAMES, VALIDATION_SHARE, ImageFiles, ImageList
from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command
from dpcompare.system.files import expanded
from dpcompare.system.terminal_text import pluralize

LAYOUTS = (
    "expected one folder of images per class (CLASS/*.jpg), the same below train/ and validation/, the original "
    "Stanford Dogs layout (Images/, train_list.mat, test_list.mat), or a store made by `dpcompare data prepare`"
)

ON_HUB = {
    "mnist": "hf:ylecun/mnist",
    "fashion-mnist": "hf:zalando-datasets/fashion_mnist",
    "cifar10": "hf:uoft-cs/cifar10",
    "cifar100": "hf:uoft-cs/cifar100",
}
"""Names that people type -> where that dataset is on the Hugging Face hub."""


def find_images(root: Path, *, follow_links: bool = False) -> ImageFiles:
    """Recognise the layout of a folder and list its images.

    Args:
        root: the folder.
        follow_links: whether links may lead out of it.

    Raises:
        RequestError: the folder is missing, empty, has one class only or is not a dataset; or a link leads out of it.
    """
    if not os.path.isdir(root):  # noqa: PTH112 (pathlib raises for a name that is too long)
        if os.path.exists(root):  # noqa: PTH110 (the same)
            raise RequestError(f"dataset {str(root)!r} is a file, not a folder; {LAYOUTS}")
        on_hub = ON_HUB.get(str(root).lower())
        hint = f" Did you mean {on_hub!r}?" if on_hub else ""
        raise RequestError(
            f"dataset {str(root)!r} does not exist; expected a folder of images, one of the built-in "
            f"{', '.join(BUILT_IN)}, hf:NAME for a dataset of the Hugging Face Hub, or package.module:NAME for your "
            f"own.{hint}"
        )
    folders = None if follow_links else (root,)
    if (root / "Images").is_dir() and (root / "train_list.mat").is_file():
        _require_inside([root / "Images", root / "train_list.mat", root / "test_list.mat"], folders)
        found = _stanford_dogs(root, folders)
    else:
        found = _image_folder(root, folders)
    for name in (str(root), *found.classes):
        _require_utf8(name)
    if not any(map(len, found.splits.values())):
        raise RequestError(f"dataset {str(root)!r} holds no images; {LAYOUTS}")
    if len(found.classes) < 2:
        only = root / found.classes[0]
        is_there = os.path.isdir(only)  # noqa: PTH112 (a list may contain what cannot be the name of a file)
        deeper = [folder.name for folder in _subfolders(only) if _count_images(folder)] if is_there else []
        hint = f" Did you mean {str(only)!r}, which holds {len(deeper)} folders of images?" if len(deeper) > 1 else ""
        raise RequestError(
            f"dataset {str(root)!r} has one class only ({found.classes[0]!r}); expected at least 2; {LAYOUTS}.{hint}"
        )
    for split, images in found.splits.items():
        if not len(images):
            raise RequestError(
                f"dataset {str(root)!r} has no images in its {split} split; expected at least one per split"
            )
    return found


def _require_utf8(name: str) -> None:
    """Refuse a name that no document can hold, before anything is decoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RequestError(
            f"dataset: the name {os.fsencode(name)!r} is not UTF-8; rename the folder, since the names of classes are "
            "recorded"
        ) from None


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _require_inside(paths: Iterable[Path], folders: Sequence[Path] | None) -> None:
    """Refuse links that lead out of the dataset: an untrusted one could put any picture of a machine into the store."""
    for path in paths if folders is not None else ():
        if path.is_symlink() and not is_inside(path, folders or ()):
            raise RequestError(
                f"{str(path)!r} is a link to {os.path.realpath(path)!r}, outside of the dataset; if you trust its "
                "links, pass --follow-links"
            )


def _files_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is below a folder and is not a folder; links to folders are not entered."""
    folders = [os.fspath(folder)]
    while folders:
        listed = folders.pop()
        try:
            entries = os.scandir(listed)
        except OSError as error:
            raise RequestError(
                f"folder {listed!r} of the dataset cannot be listed ({error.strerror}); make it readable, "
                "or move it away"
            ) from None
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 (faster, for millions)


def _image_names(folder: Path) -> Iterator[str]:
    return (entry.path for entry in _files_below(folder) if _suffix(entry.name) in FORMAT_OF and entry.is_file())


def _images_below(folder: Path) -> list[Path]:
    return sorted(map(Path, _image_names(folder)))


def _count_images(folder: Path) -> int:
    return sum(1 for _ in _image_names(folder))


def _first_named(folders: list[Path], names: Iterable[str]) -> Path | None:
    by_name = {folder.name.lower(): folder for folder in folders}
    return next((by_name[name] for name in names if name in by_name), None)


def _by_class(counts: Mapping[Path, int], choose: Callable[[list[Path]], list[Path]] = list) -> ImageList:
    """A number of images of each folder, which is a class: those that `choose` picks from all of its images."""
    labels = np.repeat(np.arange(len(counts), dtype=np.int32), list(counts.values()))
    listed = [folder for folder, count in counts.items() if count]
    return ImageList(labels, lambda: (path for folder in listed for path in choose(_images_below(folder))))


def _image_folder(root: Path, within: Sequence[Path] | None) -> ImageFiles:
    folders = _subfolders(root)
    train = _first_named(folders, TRAIN_NAMES)
    validation = _first_named(folders, VALIDATION_NAMES) if train else None
    base = train or root
    _require_inside((folder for folder in (base, validation) if folder), within)
    _require_inside((link for folder in {base, validation or base} for link in _subfolders(folder)), within)
    counts = {folder: count for folder in _subfolders(base) if (count := _count_images(folder))}
    classes = tuple(folder.name for folder in counts)
    if not classes:
        stray = _count_images(base)
        detail = f"{pluralize(stray, 'image')} but no folder per class" if stray else "no images"
        raise RequestError(f"{str(base)!r} is not a dataset: it holds {detail}; {LAYOUTS}")
    notes = partial(_notes, base, validation, classes)
    if validation is None:
        splits = _hold_out(counts)
        return ImageFiles(source=str(root), classes=classes, splits=splits, folders=within, notes=notes)
    unknown = [
        folder.name for folder in _subfolders(validation) if folder.name not in classes and _count_images(folder)
    ]
    if alike := [name for name in unknown if _normal(name) in map(_normal, classes)]:
        raise RequestError(
            f"{str(validation)!r} and {str(base)!r} spell the name of a class with other characters that look the same "
            f"(Unicode's composed and decomposed letters): {', '.join(map(ascii, alike))}; rename the folder in one"
        )
    if unknown:
        raise RequestError(
            f"{str(validation)!r} has classes that {str(base)!r} lacks: {', '.join(map(repr, unknown))}; expected "
            "the same class folders in both"
        )
    class_folders = [validation / name for name in classes]
    held_out = {folder: _count_images(folder) if folder.is_dir() else 0 for folder in class_folders}
    return ImageFiles(
        source=str(root),
        classes=classes,
        splits={"train": _by_class(counts), "validation": _by_class(held_out)},
        folders=within,
        notes=notes,
    )


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _notes(base: Path, validation: Path | None, classes: Container[str]) -> Iterator[str]:
    if validation and validation.name.lower() == "test":
        yield f"{validation.name}/ is taken as the validation split, since no folder has that name"
    if empty := [folder.name for folder in _subfolders(base) if folder.name not in classes]:
        yield f"left out, without an image: {', '.join(f'{name}/' for name in empty)}"
    suffixes = Counter(
        _suffix(entry.name) or "none"
        for folder in _subfolders(base)
        for entry in _files_below(folder)
        if not entry.name.startswith(".") and _suffix(entry.name) not in FORMAT_OF
    )
    if suffixes:
        listed = ", ".join(f"{suffix}: {count}" for suffix, count in suffixes.most_common())
        yield f"left out, files in formats that are not read (by suffix): {listed}"
    if stray := sum(1 for path in base.iterdir() if path.is_file() and _suffix(path.name) in FORMAT_OF):
        yield f"left out, images next to the class folders: {stray}"


def _hold_out(counts: Mapping[Path, int]) -> dict[str, ImageList]:
    """Hold out VALIDATION_SHARE of each class, chosen by a fixed permutation of its sorted files."""

    def chosen(paths: list[Path], *, held_out: bool) -> list[Path]:
        order = epoch_order(0, 0, len(paths))
        border = round(len(paths) * VALIDATION_SHARE)
        return [paths[row] for row in np.sort(order[:border] if held_out else order[border:])]

    held = {folder: round(count * VALIDATION_SHARE) for folder, count in counts.items()}
    kept = {folder: count - held[folder] for folder, count in counts.items()}
    return {
        "train": _by_class(kept, partial(chosen, held_out=False)),
        "validation": _by_class(held, partial(chosen, held_out=True)),
    }


def _stanford_dogs(root: Path, within: Sequence[Path] | None) -> ImageFiles:
    """The lists hold paths below Images/ (`n02085620-Chihuahua/n02085620_5927.jpg`) and labels from 1."""
    splits = {}
    names: dict[int, str] = {}
    for split, file in (("train", "train_list.mat"), ("validation", "test_list.mat")):
        try:
            files, labels = _listed(root / file)
            if len(files) != len(labels):
                raise ValueError(f"{pluralize(len(files), 'file')} but {pluralize(len(labels), 'label')}")
            if wrong := [label for label in labels if not 0 <= label < np.iinfo(np.int32).max]:
                raise ValueError(f"the label {wrong[0] + 1}")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise RequestError(
                f"{str(root / file)!r} cannot be read as a Stanford Dogs list ({error}); expected the variables "
                "file_list and labels"
            ) from None
        paths = [root / "Images" / relative for relative in files]
        outside = [path for path in paths if not _is_in_a_folder_of(root / "Images", path)]
        if outside:
            raise RequestError(f"{str(root / file)!r} names a file outside the folders of Images/: {str(outside[0])!r}")
        names |= {label: Path(relative).parts[0] for relative, label in zip(files, labels, strict=True)}
        splits[split] = ImageList(np.array(labels, np.int32), partial(iter, paths))
    if sorted(names) != list(range(len(names))):
        raise RequestError(f"{str(root)!r}: labels {sorted(names)} of the lists are not 1 to {len(names)} without gaps")
    classes = tuple(names[label] for label in sorted(names))
    return ImageFiles(source=str(root), classes=classes, splits=splits, folders=within)


_READ_LIST = """\
import json, sys
from scipy.io import loadmat
lists = loadmat(sys.argv[1])
files = [str(entry[0][0]) for entry in lists["file_list"]]
print(json.dumps([files, [int(entry[0]) - 1 for entry in lists["labels"]]]))
"""
LIST_SECONDS = 60.0


def _listed(file: Path) -> tuple[list[str], list[int]]:
    """The paths and labels, from 0, of a list of Stanford Dogs.

    Read in a process of its own: SciPy's reader, which is not made for untrusted files, crashes on some.

    Raises:
        ValueError: it holds none.
        OSError, SubprocessError: that process cannot be started, or does not end.
    """
    done = run_command([sys.executable, "-P", "-c", _READ_LIST, str(file)], seconds=LIST_SECONDS)
    if done.returncode < 0:
        raise ValueError(f"SciPy crashed: {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise ValueError(done.stderr.strip().rpartition("\n")[2])
    files, labels = json.loads(done.stdout)
    return files, labels


def _is_in_a_folder_of(root: Path, path: Path) -> bool:
    """Whether a path is that of a file in a folder below another, by its name alone."""
    return path.is_relative_to(root) and ".." not in path.parts and len(path.relative_to(root).parts) > 1


class Folder(FileSource):
    """A folder of images by its path: whatever no other source takes."""

    @classmethod
    def takes(cls, name: str) -> bool:
        return True

    @property
    def title(self) -> str:
        return Path(self.place).name

    @property
    def place(self) -> str:
        return str(expanded(self.name).resolve())

    def files(self) -> ImageFiles:
        return find_images(expanded(self.name), follow_links=self.follow_links)
