"""Custom datasets: those that a user writes, named `package.module:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from dpcompare.data.decode import DECODER, RESIZE_RULE, resize
from dpcompare.data.names import is_custom_dataset
from dpcompare.data.order import epoch_order
from dpcompare.data.sources import VALIDATION_SHARE, Progress, Source
from dpcompare.data.store import Store, StoreWriter
from dpcompare.errors import RequestError
from dpcompare.system.python_environment import find_object

UNDIVIDED = ""
"""The name of the one part of a dataset that brings no splits."""


@dataclass(frozen=True, kw_only=True)
class CustomDataset:
    """Samples, (image, class index), of each split: items of the user's datasets by their indices."""

    class_names: tuple[str, ...]
    splits: dict[str, tuple[Any, list[int]]]


def custom_dataset(name: str) -> CustomDataset:
    """The dataset of a name: an object with a length, items (image, class index) and class_names, or its factory.

    Or a mapping of `train` and `validation` to such objects; of a single one a fifth is held out. Images are Pillow's,
    or arrays of uint8, (height, width, 3).

    Raises:
        RequestError: there is none.
    """
    parts = _resolve(name)
    class_names, lengths = _check_shape(name, parts)
    splits = _split(parts, lengths)
    if empty := [split for split, (_, indices) in splits.items() if not indices]:
        raise RequestError(
            f"dataset: {name!r} has no samples in its {' and '.join(empty)} split; expected at least one per split"
        )
    return CustomDataset(class_names=class_names, splits=splits)


def _resolve(name: str) -> dict[str, Any]:
    """The user's datasets by their splits, or a single one as UNDIVIDED."""
    found = find_object(name, "dataset")
    if callable(found) and (isinstance(found, type) or not hasattr(found, "__getitem__")):
        try:
            found = found()
        except Exception as error:
            raise RequestError(f"dataset: {name!r} failed ({type(error).__name__}: {error})") from None
    parts = dict(found) if isinstance(found, Mapping) else {UNDIVIDED: found}
    if set(parts) not in ({UNDIVIDED}, {"train", "validation"}):
        raise RequestError(
            f"dataset: {name!r} has the splits {', '.join(map(repr, parts))}; expected train and validation"
        )
    return parts


def _check_shape(name: str, parts: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, int]]:
    """The class names, which all parts must share, and the length of each part."""
    for part in parts.values():
        lacking = [needed for needed in ("__len__", "__getitem__", "class_names") if not hasattr(part, needed)]
        if lacking:
            raise RequestError(
                f"dataset: {name!r} is of type {type(part).__name__}, which lacks {', '.join(lacking)}; expected a "
                "length, items (image, class index), and class_names"
            )
    try:
        class_names = {split: tuple(map(str, part.class_names)) for split, part in parts.items()}
        lengths = {split: len(part) for split, part in parts.items()}
    except Exception as error:  # whatever a user's dataset does
        raise RequestError(
            f"dataset: {name!r} cannot be taken ({type(error).__name__}: {error}); expected a length, and class_names "
            "that are strings"
        ) from None
    if len(set(class_names.values())) > 1:
        raise RequestError(
            f"dataset: {name!r} has other class_names in its splits: {class_names}; expected the same, in the same "
            "order"
        )
    return next(iter(class_names.values())), lengths


def _split(parts: Mapping[str, Any], lengths: Mapping[str, int]) -> dict[str, tuple[Any, list[int]]]:
    """The samples of each split; of an undivided dataset a fifth, drawn once for all, is held out."""
    if UNDIVIDED not in parts:
        return {split: (part, list(range(lengths[split]))) for split, part in parts.items()}
    undivided, length = parts[UNDIVIDED], lengths[UNDIVIDED]
    order = [int(index) for index in epoch_order(0, 0, length)]
    held_out = round(length * VALIDATION_SHARE)
    return {"train": (undivided, sorted(order[held_out:])), "validation": (undivided, sorted(order[:held_out]))}


class Custom(Source):
    """A dataset that a user's code gives, which may give something else each time."""

    has_stamps = False

    @classmethod
    def takes(cls, name: str) -> bool:
        return is_custom_dataset(name)

    def num_train(self) -> int:
        return len(custom_dataset(self.name).splits["train"][1])

    def write(self, writer: StoreWriter, num_processes: int, progress: Progress) -> Store:
        dataset = custom_dataset(self.name)
        total = sum(len(indices) for _, indices in dataset.splits.values())
        labels: dict[str, npt.NDArray[np.int32]] = {}
        done = 0
        for split, (samples, indices) in dataset.splits.items():
            pixels = writer.images(split, len(indices))
            labels[split] = np.zeros(len(indices), np.int32)
            for row, index in enumerate(indices):
                try:
                    pixels[row], labels[split][row] = _item(samples[index], writer.side, len(dataset.class_names))
                except Exception as error:  # whatever a user's dataset does
                    raise RequestError(
                        f"dataset: item {index} of {self.name!r} ({split}) cannot be taken ({type(error).__name__}: "
                        f"{error}); expected (image of Pillow or array of uint8, (height, width, 3); class index)"
                    ) from None
                done += 1
                progress(done, total)
        return writer.finish(labels, source=self.name, classes=dataset.class_names, resize=RESIZE_RULE, decoder=DECODER)


def _item(sample: Any, side: int, num_classes: int) -> tuple[npt.NDArray[np.uint8], int]:
    """The resized image and the class index of a sample.

    Raises:
        ValueError: there is no such class; or whatever the sample makes Pillow raise.
    """
    image, label = sample
    if not 0 <= int(label) < num_classes:
        raise ValueError(f"class index {label} of {num_classes} classes")
    return resize(image if isinstance(image, Image.Image) else Image.fromarray(image), side), int(label)
