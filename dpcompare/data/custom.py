"""Custom datasets: those that a user writes, named `package.module:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpcompare.data.order import epoch_order
from dpcompare.data.sources import VALIDATION_SHARE
from dpcompare.errors import RequestError
from dpcompare.system.import_path import find_object

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
