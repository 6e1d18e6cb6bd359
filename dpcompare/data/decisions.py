"""Digests of what the host decides for the rows of a step, which add up over micro-batches and processes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpcompare.data.augmentation import UNCHANGED
from dpcompare.data.batches import HostBatch
from dpcompare.data.pixels import normalised
from dpcompare.system.type_names import Array

UNCHANGED_TABLES = normalised(UNCHANGED.brightnesses)
"""What each byte becomes without augmentation."""

Words = npt.NDArray[np.uint64]

_WORD = 8
"""Bytes of a word."""
_FACTORS: Words = np.random.default_rng(0).integers(0, 2**64, 8, np.uint64) | np.uint64(1)
"""One for each thing that a row's digest is made of; odd, so that no bit of it is lost."""


def mixed(words: Words) -> Words:
    """Words of which every bit depends on all bits of the received ones.

    The last step of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def digest_of_numbers(step: int, numbers: list[float]) -> int:
    """A digest of numbers that a step has, in float64; equal only where every bit is."""
    words = np.array([step, *np.array(numbers, np.float64).view(np.uint64)], np.uint64)
    return int(mixed(_combined(list(words[:, None])))[0])


def digests_of_rows(batch: HostBatch) -> dict[str, int]:
    """What of the rows -> the sum, modulo 2^64, of a digest of each row, which holds its step and its image.

    A sum has no order: it is that of a global batch, however that is divided.

    Args:
        batch: a micro-batch of one process. A row of padding is part of the first digest alone.
    """
    counts = batch.weights > 0
    step = np.full(len(counts), batch.step, np.uint64)
    row = [step, batch.indices.astype(np.uint64)]
    is_sample = [counts.astype(np.uint64), np.full(len(counts), batch.global_count, np.uint64)]
    digests = {
        "images": _sum(_combined([*row, *is_sample])),
        "labels": _sum(_combined([*row, batch.labels.astype(np.int64).view(np.uint64)])[counts]),
    }
    if columns := _changes(batch):
        digests["augmentation"] = _sum(_combined([*row, *columns])[counts])
    if batch.drop_masks is not None:
        digests["dropped features"] = _sum(_combined([*row, _folded(batch.drop_masks)])[counts])
    return digests


def digest_of_evaluated(batch: HostBatch) -> int:
    """The sum, modulo 2^64, of a digest of each sample: which it is, its label, its pixels, and any change of them."""
    counts = batch.weights > 0
    columns = [batch.indices, batch.labels.astype(np.int64).view(np.uint64), _folded(batch.pixels), *_changes(batch)]
    return _sum(_combined([words.astype(np.uint64) for words in columns])[counts])


def _changes(batch: HostBatch) -> list[Words]:
    """Words for each row of what is made of its pixels; none where they are as they are stored, and normalised."""
    num_rows = len(batch.weights)
    moved = [words for words in (batch.flips, batch.corners) if words is not None]
    # Of one row there is one table in any case.
    if not moved and len(batch.tables) == 1 and np.array_equal(batch.tables, UNCHANGED_TABLES):
        return []
    columns = [column for words in moved for column in words.reshape(num_rows, -1).astype(np.uint64).T]
    folded = _folded(batch.tables)
    return [*columns, folded if len(folded) > 1 else folded.repeat(num_rows)]


def _sum(words: Words) -> int:
    return int(mixed(words).sum(dtype=np.uint64))


def _combined(columns: list[Words]) -> Words:
    """One word for each row, in which the columns keep their places."""
    total = np.zeros_like(columns[0])
    for number, column in enumerate(columns):
        total = mixed(total + column * _FACTORS[number])
    return total


def _folded(rows: Array) -> Words:
    """A word for each row, by all of its bytes: the sum of its words, each times a factor of its place."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    if missing := -flat.shape[1] % _WORD:
        flat = np.pad(flat, ((0, 0), (0, missing)))
    words = flat.view(np.uint64)
    # One row after the other: the products of a whole batch of images would take as much memory as the batch.
    factors = _factors(words.shape[1])
    return np.array([(row * factors).sum(dtype=np.uint64) for row in words], np.uint64)


@lru_cache(4)
def _factors(count: int) -> Words:
    return np.random.default_rng(1).integers(0, 2**64, count, np.uint64) | np.uint64(1)
