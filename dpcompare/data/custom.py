"""Custom datasets: those that a user names as `package.module:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpcompare.data.order import epoch_order
from dpcompare.data.sources import VALIDATION_SHARE
from dpcompare.errors import RequestError
from dpcompare.system.import_path import find_object


@dataclass(frozen=True, kw_only=True)
class CustomDataset:
    """Samples, (image, class index), of each split: items of the user's datasets by their indices."""

    class_names: tuple[str, ...]
    splits: dict[str, tuple[Any, list[int]]]


def custom_dataset(name: str) -> CustomDataset:
    """The dataset of a name: an object with a length, items (image, class index) and class_names.

    Or a mapping of `train` and `validation` to such objects (of a single one a fifth is held out), or a function that
    returns either. Images are Pillow's, or arrays of uint8, (height, width, 3).

    Raises:
        RequestError: there is none.
    """
    found = find_object(name, "dataset")
    if callable(found) and (isinstance(found, type) or not hasattr(found, "__getitem__")):
        try:
            found = found()
        except Exception as error:
            raise RequestError(f"dataset: {name!r} failed ({type(error).__name__}: {error})") from None
    parts = dict(found) if isinstance(found, Mapping) else {"": found}
    if set(parts) not in ({""}, {"train", "validation"}):
        raise RequestError(
            f"dataset: {name!r} has the splits {', '.join(map(repr, parts))}; expected train and validation"
        )
    for part in parts.values():
        lacking = [needed for needed in ("__len__", "__getitem__", "class_names") if not hasattr(part, needed)]
        if lacking:
            raise RequestError(
                f"dataset: {name!r} is of type {type(part).__name__}, which lacks {', '.join(lacking)}; expected a "
                "length, items (image, class index), and class_names"
            )
    try:
        named = {split: tuple(map(str, part.class_names)) for split, part in parts.items()}
        lengths = {split: len(part) for split, part in parts.items()}
    except Exception as error:  # whatever a user's dataset does
        raise RequestError(
            f"dataset: {name!r} cannot be taken ({type(error).__name__}: {error}); expected a "
            "length, and class_names that are strings"
        ) from None
    if len(set(named.values())) > 1:
        raise RequestError(
            f"dataset: {name!r} has other class_names in its splits: {named}; expected the same, in the same order"
        )
    whole = parts.get("")
    if whole is None:
        splits = {split: (part, list(range(lengths[split]))) for split, part in parts.items()}
    else:
        order = [int(index) for index in epoch_order(0, 0, lengths[""])]
        held_out = round(lengths[""] * VALIDATION_SHARE)
        splits = {"train": (whole, sorted(order[held_out:])), "validation": (whole, sorted(order[:held_out]))}
    if empty := [split for split, (_, indices) in splits.items() if not indices]:
        raise RequestError(
            f"dataset: {name!r} has no samples in its {' and '.join(empty)} split; expected at least one per split"
        )
    return CustomDataset(class_names=next(iter(named.values())), splits=splits)
