"""A digest of rows, however they are divided, and images that are there more than once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from dpcompare.system.terminal_text import pluralize
from dpcompare.system.type_names import Array

_BYTES = 8
MODULUS: int = 2 ** (8 * _BYTES)


def digest_of_rows(arrays: Mapping[str, Array], global_count: int) -> int:
    """The sum, modulo MODULUS, of a hash of each row that counts.

    A sum has no order: micro-batches, replicas and processes may be added in any.

    Args:
        arrays: what a step received, by name, a row per sample; `weights` is 0 for the rows of padding, which are
            left out.
        global_count: what the sum of losses is divided by; part of every hash.
    """
    total = 0
    for row in np.flatnonzero(arrays["weights"]):
        hashed = hashlib.blake2b(str(global_count).encode(), digest_size=_BYTES)
        for name in sorted(arrays):
            hashed.update(arrays[name][row].tobytes())
        total += int.from_bytes(hashed.digest(), "little")
    return total % MODULUS


def combined(digests: list[int]) -> str:
    """The digest of all rows of which these are parts, in hexadecimal."""
    return f"{sum(digests) % MODULUS:0{2 * _BYTES}x}"


class Duplicates(BaseModel):
    """How many images are there more than once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shared: int = 0
    """Images of the validation split whose pixels are those of an image of the train split."""
    repeated: int = 0
    """Images whose pixels are those of an earlier image of the same split and class."""

    def remarks(self) -> Iterator[str]:
        """What they do to the accuracy, a line each; nothing where there are none."""
        if self.shared:
            yield (
                f"{pluralize(self.shared, 'image')} of the validation split {_are(self.shared)} in the train split "
                "too, pixel by pixel: in part, the accuracy is that of images that were trained on"
            )
        if self.repeated:
            repeat = "repeats" if self.repeated == 1 else "repeat"
            yield f"{pluralize(self.repeated, 'image')} {repeat} another of the same split and class"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


@dataclass(frozen=True)
class SplitContent:
    """A split, as far as its images are compared with each other."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int32]
    sums: npt.NDArray[np.int64]
    """The sum of all values of each image."""


def find_duplicates(splits: Mapping[str, SplitContent]) -> Duplicates:
    """Compare all images of `train` and `validation`, in one reading of those that may have a duplicate."""
    values, counts = np.unique(np.concatenate([split.sums for split in splits.values()]), return_counts=True)
    ambiguous = values[counts > 1]  # an image with a sum of its own has no duplicate
    found = {
        name: Counter(
            (int(split.labels[row]), hashlib.blake2b(split.images[row].tobytes(), digest_size=16).digest())
            for row in np.flatnonzero(np.isin(split.sums, ambiguous))
        )
        for name, split in splits.items()
    }
    trained = {digest for _, digest in found["train"]}
    return Duplicates(
        shared=sum(count for (_, digest), count in found["validation"].items() if digest in trained),
        repeated=sum(count - 1 for each in found.values() for count in each.values()),
    )
