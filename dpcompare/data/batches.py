"""Host batches: one process's rows of a global batch, as the pixels that both frameworks get."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpcompare.data.augmentation import Augmentation
from dpcompare.data.order import GlobalBatch, OrderDigest
from dpcompare.data.regularization import DropMasks, Regularization
from dpcompare.data.store import Split

# The usual per-channel statistics of ImageNet, for pixels in 0..1 (red, green, blue).
PIXEL_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
PIXEL_STD = np.array([0.229, 0.224, 0.225], np.float32)

PREFETCH_DEPTH = 2
"""Batches prepared ahead: one in transfer, one waiting."""


@dataclass(frozen=True, kw_only=True)
class HostBatch:
    """A micro-batch of one process; contiguous blocks of its rows go to its replicas."""

    images: npt.NDArray[np.float32]
    """(rows, height, width, channels), normalised."""
    labels: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    """1 for a sample, 0 for a padding row."""
    global_count: int
    """Samples of the global batch that count: what the sum of losses is divided by."""
    drop_masks: DropMasks | None = None
    """What regularization multiplies features by, (rows, features of all its layers); None where it is off."""


@dataclass(frozen=True, kw_only=True)
class DeviceBatch:
    """A HostBatch where its backend computes with it: the framework's own arrays, one set per replica."""

    images: Any
    labels: Any
    weights: Any
    global_count: int
    drop_masks: Any = None


class BatchReader:
    """Reads one process's part of global batches from a split of the store, a micro-batch at a time."""

    def __init__(
        self,
        split: Split,
        augmentation: Augmentation | None = None,
        regularization: Regularization | None = None,
        *,
        data_parallel_rank: int,
        data_parallel_size: int,
        replicas_per_process: int = 1,
        accumulate: int = 1,
    ) -> None:
        """Args:
        split: what to read.
        augmentation: None for evaluation.
        regularization: None for evaluation, or where it is off.
        data_parallel_rank: which part of every global batch to read, from 0.
        data_parallel_size: into how many parts a global batch is divided.
        replicas_per_process: replicas that take contiguous rows of the process's part.
        accumulate: micro-batches that each replica's part is cut into.
        """
        self._split = split
        self._augmentation = augmentation
        self._regularization = regularization
        self._data_parallel_rank = data_parallel_rank
        self._data_parallel_size = data_parallel_size
        self._replicas_per_process = replicas_per_process
        self._accumulate = accumulate

    def read(self, batches: Iterable[GlobalBatch], digest: OrderDigest | None = None) -> Iterator[HostBatch]:
        for batch in batches:
            if digest is not None:
                digest.update(batch)
            for rows in self._rows(len(batch.indices)):
                yield self._read(batch, rows)

    def _rows(self, global_batch_size: int) -> npt.NDArray[np.int64]:
        """Positions in the global batch, (micro-batch, row): in each, the replicas' rows one replica after another."""
        shape = (self._data_parallel_size, self._replicas_per_process, self._accumulate, -1)
        local: npt.NDArray[np.int64] = np.arange(global_batch_size).reshape(shape)[self._data_parallel_rank]
        return local.swapaxes(0, 1).reshape(self._accumulate, -1)

    def _read(self, batch: GlobalBatch, rows: npt.NDArray[np.int64]) -> HostBatch:
        indices = batch.indices[rows]
        pixels = np.divide(self._split.images[indices], np.float32(255), dtype=np.float32)
        if self._augmentation is not None:
            pixels = self._augmentation(pixels, epoch=batch.epoch, indices=indices)
        drop_masks = None
        if self._regularization is not None:
            drop_masks = self._regularization(step=batch.step, indices=indices)
        return HostBatch(
            images=_normalised(pixels),
            labels=self._split.labels[indices],
            weights=batch.weights[rows],
            global_count=batch.count,
            drop_masks=drop_masks,
        )


def _normalised(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(pixels - PIXEL_MEAN) / PIXEL_STD, in place.

    Image by image: NumPy takes ten times as long where an innermost axis has 3 elements.
    """
    images = pixels.reshape(len(pixels), -1)
    mean, std = _of_image(images.shape[1] // len(PIXEL_MEAN))
    images -= mean
    images /= std
    return pixels


@cache
def _of_image(num_pixels: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Mean and standard deviation of every value of an image."""
    return np.tile(PIXEL_MEAN, num_pixels), np.tile(PIXEL_STD, num_pixels)


Item = TypeVar("Item")
Prepared = TypeVar("Prepared")


def prefetch(items: Iterable[Item], prepare: Callable[[Item], Prepared]) -> Iterator[Prepared]:
    """`map(prepare, items)`, worked on by a separate thread up to PREFETCH_DEPTH items ahead.

    An error in the thread is raised where its item would have come; closing the iterator ends the thread.
    """
    # In C, without a lock of Python's that both threads would wait for: a small model's step takes milliseconds.
    places: queue.SimpleQueue[bool] = queue.SimpleQueue()
    ready: queue.SimpleQueue[tuple[Prepared | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            for item in items:
                if not places.get():
                    return
                ready.put((prepare(item), None))
            ready.put((None, StopIteration()))
        except Exception as error:  # handed to the consumer, which raises it
            ready.put((None, error))

    for _ in range(PREFETCH_DEPTH):
        places.put(True)
    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            prepared, error = ready.get()
            places.put(True)
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield prepared  # type: ignore[misc]  # None only goes with an error
    finally:
        places.put(False)
        thread.join()
