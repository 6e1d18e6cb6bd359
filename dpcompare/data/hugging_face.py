"""Datasets that Hugging Face's library `datasets` loads: from its hub, or from a folder in one of its formats."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcompare.data.decode import FileSource, is_inside
from dpcompare.data.names import HUGGING_FACE, is_hugging_face
from dpcompare.data.order import epoch_order
from dpcompare.data.sources import (
    TRAIN_NAMES,
    VALIDATION_NAMES,
    VALIDATION_SHARE,
    EncodedImage,
    ImageFiles,
    ImageList,
)
from dpcompare.errors import RequestError
from dpcompare.system.files import expanded
from dpcompare.system.python_environment import import_extra
from dpcompare.system.terminal_text import pluralize

FORM = "hf:NAME[:CONFIG][,image=COLUMN][,label=COLUMN][,train=SPLIT][,validation=SPLIT]"
CHOICES = ("image", "label", "train", "validation")
"""What a name may choose where there are several."""
SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder that `save_to_disk` wrote: of a dataset with splits, and of one without."""
UNDIVIDED = "all"
"""What the one part of a dataset without splits is called here."""


def find_hugging_face(text: str, *, follow_links: bool = False) -> ImageFiles:
    """Load a dataset and list its images, as they are encoded there: Pillow decodes them like those of a folder.

    Args:
        text: in FORM. NAME is that of a dataset on the hub, or a folder: one that `save_to_disk` wrote, or one that
            `load_dataset` takes.
        follow_links: whether files may be outside of the folder.

    Raises:
        RequestError: it cannot be loaded, or has no images with classes where they are looked for.
    """
    request = _Request.of(text)
    splits, commit, folders = _load(request, follow_links)
    train, validation = _choose_splits(request, splits)
    image, label = _columns(request, splits[train].features)
    if any(splits[validation].features.get(column) != splits[train].features[column] for column in (image, label)):
        raise RequestError(
            f"dataset: the splits {train!r} and {validation!r} of {text!r} differ in their column {image!r} or "
            f"{label!r}; expected both in both, with the same classes in the same order"
        )
    rows = _rows(splits, train, validation)
    labels = {split: _labels(request, split, splits[split], label) for split in {train, validation}}
    left_out = [split for split in splits if split not in (train, validation)]
    return ImageFiles(
        source=text,
        classes=tuple(splits[train].features[label].names),
        splits={
            part: ImageList(labels[split][numbers], partial(_encoded, split, splits[split], image, numbers))
            for part, (split, numbers) in rows.items()
        },
        folders=None if follow_links else folders,
        notes=partial(_notes, train, validation, left_out),
        revision=f"commit {commit}" if commit else f"fingerprints {_fingerprints(splits, (train, validation))}",
    )


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A name in FORM, in its parts."""

    text: str
    name: str
    config: str | None
    choices: Mapping[str, str]

    @classmethod
    def of(cls, text: str) -> _Request:
        named, *choices = text.removeprefix(HUGGING_FACE).split(",")
        name, _, config = named.partition(":")
        pairs = {key: value for key, _, value in (choice.partition("=") for choice in choices)}
        if not name or not all(pairs.values()) or not set(pairs) <= set(CHOICES):
            raise RequestError(f"dataset: received {text!r}, expected {FORM}, such as hf:ylecun/mnist")
        return cls(text=text, name=name, config=config or None, choices=pairs)


def _load(request: _Request, follow_links: bool) -> tuple[dict[str, Any], str | None, Sequence[Path]]:
    """The splits by their names, the commit of a dataset of the hub, and the folders that its images may be in."""
    datasets = import_extra("datasets", extra="hf", needed_by=f"--dataset {HUGGING_FACE}NAME")
    folder = expanded(request.name)
    is_saved = any(os.path.isfile(folder / file) for file in SAVED)  # noqa: PTH113 (pathlib raises for long names)
    if is_saved and request.config:
        raise RequestError(
            f"dataset: {request.text!r} names the config {request.config!r}, but `save_to_disk` wrote {str(folder)!r}, "
            "which has none; leave it out"
        )
    try:
        if is_saved:
            if not follow_links:
                _require_own_parts(folder)
            loaded, commit, folders = datasets.load_from_disk(str(folder)), None, [folder]
        else:
            is_folder = folder.is_dir()
            builder = datasets.load_dataset_builder(str(folder) if is_folder else request.name, request.config)
            folders = [folder, Path(datasets.config.EXTRACTED_DATASETS_PATH)] if is_folder else _of_the_hub(datasets)
            if not follow_links:
                _require_own_files(builder, folder if is_folder else None)
            builder.download_and_prepare()
            loaded, commit = builder.as_dataset(), None if is_folder else builder.hash
    except Exception as error:  # whatever a dataset, its files or the network lead the library to
        raise RequestError(
            f"dataset: {request.text!r} cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())}); "
            f"expected {FORM}, where NAME is a dataset of the hub, or a folder that the library `datasets` reads"
        ) from None
    return dict(loaded) if isinstance(loaded, dict) else {UNDIVIDED: loaded}, commit, folders


def _of_the_hub(datasets: Any) -> list[Path]:
    """The folders into which the library fetches datasets."""
    from huggingface_hub.constants import HF_HUB_CACHE

    config = datasets.config
    return [Path(HF_HUB_CACHE), Path(config.HF_DATASETS_CACHE), Path(config.EXTRACTED_DATASETS_PATH)]


def _require_own_files(builder: Any, folder: Path | None) -> None:
    """Refuse files of this machine outside of a dataset's folder, which its README may name.

    Args:
        builder: of the library `datasets`, before it has read the files.
        folder: of the dataset; None: it is one of the hub, and has no files here.

    Raises:
        ValueError: it names such a file.
    """
    for files in (builder.config.data_files or {}).values():
        for file in map(str, files):
            is_fetched = file.startswith(("hf://", "http://", "https://")) and "::" not in file
            if not is_fetched and ("::" in file or not is_inside(file, [folder] if folder else [])):
                raise ValueError(f"it names the file {file!r}, outside of the dataset")


def _require_own_parts(folder: Path) -> None:
    """Refuse a dataset of `save_to_disk` whose parts are elsewhere.

    Raises:
        ValueError: its splits, or their files, are not in its folder.
    """
    splits = folder / SAVED[0]
    names = json.loads(splits.read_text())["splits"] if splits.is_file() else []
    for part in [folder / name for name in names] if names else [folder]:
        state = part / SAVED[1]
        listed = json.loads(state.read_text())["_data_files"] if state.is_file() else []
        for path in (part, state, *(part / each["filename"] for each in listed)):
            if not is_inside(path, [folder]):
                raise ValueError(f"it names {str(path)!r}, outside of the dataset")


def _choose_splits(request: _Request, splits: Mapping[str, Any]) -> tuple[str, str]:
    """Which split trains and which validates; the same where a part of it is to be held out."""
    for what in ("train", "validation"):
        if (asked := request.choices.get(what)) and asked not in splits:
            raise RequestError(
                f"dataset: {request.text!r} asks for {what}={asked}, which is not a split; expected one of "
                f"{', '.join(splits)}"
            )
    train = request.choices.get("train") or next((name for name in TRAIN_NAMES if name in splits), None)
    if train is None and len(splits) > 1:
        raise RequestError(
            f"dataset: {request.text!r} has the splits {', '.join(splits)}, of which none is called train; choose one, "
            f"such as {request.text},train={next(iter(splits))}"
        )
    train = train or next(iter(splits))
    validation = request.choices.get("validation") or next((name for name in VALIDATION_NAMES if name in splits), train)
    for split in (train, validation):
        if len(splits[split]) < (1 if train != validation else 2):
            raise RequestError(
                f"dataset: split {split!r} of {request.text!r} has {pluralize(len(splits[split]), 'image')}; expected "
                "at least one for training and one for validation"
            )
    return train, validation


def _columns(request: _Request, features: Mapping[str, Any]) -> tuple[str, str]:
    """The column of images and that of classes."""
    datasets = import_extra("datasets", extra="hf", needed_by=f"--dataset {HUGGING_FACE}NAME")
    image = _column(request, features, "image", datasets.Image)
    label = _column(request, features, "label", datasets.ClassLabel)
    if len(features[label].names) < 2:
        raise RequestError(
            f"dataset: column {label!r} of {request.text!r} has the classes {features[label].names}; expected at "
            "least 2"
        )
    return image, label


def _column(request: _Request, features: Mapping[str, Any], what: str, kind: type) -> str:
    found = [name for name, feature in features.items() if isinstance(feature, kind)]
    asked = request.choices.get(what)
    if asked in found:
        return asked
    if asked is None and len(found) == 1:
        return found[0]
    if not found:
        listed = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
        raise RequestError(
            f"dataset: {request.text!r} has no column with the feature {kind.__name__}, but {listed}; give one that "
            "feature with `cast_column`, and write the dataset with `save_to_disk`"
        )
    raise RequestError(
        f"dataset: received {request.text!r}, expected {what}=COLUMN with one of the columns that have the feature "
        f"{kind.__name__}: {', '.join(found)}; such as {request.text.partition(f',{what}=')[0]},{what}={found[0]}"
    )


def _rows(splits: Mapping[str, Any], train: str, validation: str) -> dict[str, tuple[str, npt.NDArray[np.int64]]]:
    """Split of a store -> the split that its images are from, and their rows there."""
    if train != validation:
        return {
            part: (split, np.arange(len(splits[split])))
            for part, split in (("train", train), ("validation", validation))
        }
    order = epoch_order(0, 0, len(splits[train]))
    border = max(1, round(len(order) * VALIDATION_SHARE))
    return {"train": (train, np.sort(order[border:])), "validation": (train, np.sort(order[:border]))}


def _labels(request: _Request, split: str, rows: Any, column: str) -> npt.NDArray[np.int32]:
    """Class indices; the library has -1 or nothing where a label is kept secret."""
    values = [-1 if value is None else value for value in rows.select_columns([column])[:][column]]
    labels = np.array(values, np.int32)
    if missing := int((labels < 0).sum()):
        raise RequestError(
            f"dataset: {missing} of {pluralize(len(labels), 'image')} of split {split!r} of {request.text!r} have no "
            f"label; choose another split with ,validation=SPLIT (that of ,train=: a fifth of it is held out)"
        )
    return labels


def _encoded(split: str, rows: Any, column: str, numbers: npt.NDArray[np.int64]) -> Iterator[Path | EncodedImage]:
    """The images of some rows: files, or what would be in them."""
    datasets = import_extra("datasets", extra="hf", needed_by=f"--dataset {HUGGING_FACE}NAME")
    encoded = rows.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    for number, row in zip(numbers, encoded.select(numbers), strict=True):
        value = row[column] or {"bytes": b"", "path": None}
        if value["bytes"] is None:
            yield Path(value["path"])
        else:
            yield EncodedImage(f"{split}[{number}]", value["bytes"])


def _notes(train: str, validation: str, left_out: Sequence[str]) -> Iterator[str]:
    if train == validation:
        yield f"a fifth of the split {train} is held out as the validation split"
    else:
        yield f"the split {train} is trained on, and {validation} is the validation split"
    if left_out:
        yield f"left out, splits: {', '.join(left_out)}"


def _fingerprints(splits: Mapping[str, Any], names: Sequence[str]) -> str:
    """The library's own hashes of what the splits were made from; it documents them, and has no other name for them."""
    return ", ".join(f"{name} {splits[name]._fingerprint}" for name in dict.fromkeys(names))


class HuggingFace(FileSource):
    """A dataset that the library `datasets` loads, as hf:NAME."""

    @classmethod
    def takes(cls, name: str) -> bool:
        return is_hugging_face(name)

    @property
    def title(self) -> str:
        return Path(self.name).name

    def files(self) -> ImageFiles:
        return find_hugging_face(self.name, follow_links=self.follow_links)
