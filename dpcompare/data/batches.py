"""Host batches: one process's rows of a global batch, as the pixels that all frameworks get."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dpcompare.data.augmentation import UNCHANGED, Augmentation, DropMasks, Regularization
from dpcompare.data.order import GlobalBatch, OrderDigest
from dpcompare.data.pixels import Bytes, Tables, look_up, normalised
from dpcompare.data.store import Split
from dpcompare.system.type_names import FrameworkArray

PREFETCH_DEPTH = 2
"""Batches prepared ahead: one in transfer, one waiting."""
INPUT_THREAD = "prefetch"
"""The name of the threads that prepare them."""


@dataclass(frozen=True, kw_only=True)
class HostBatch:
    """A micro-batch of one process; contiguous blocks of its rows go to its replicas."""

    pixels: Bytes
    """(rows, height, width, channels), as the store has them."""
    tables: Tables
    """(rows, channels, 256), or (1, channels, 256) for all rows: what each byte becomes, augmented and normalised."""
    flips: npt.NDArray[np.bool_] | None
    """Rows that are mirrored from left to right; None: none is."""
    labels: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    """1 for a sample, 0 for a padding row."""
    global_count: int
    """Samples of the global batch that count: what the sum of losses is divided by."""
    step: int
    """The step that it is for, from 1; in evaluation, the number of its global batch."""
    indices: npt.NDArray[np.int64]
    """Which image of the split each row is."""
    corners: npt.NDArray[np.int64] | None = None
    """(rows, 2): where each row was cut out of its image; None: out of the centre."""
    drop_masks: DropMasks | None = None
    """What regularization multiplies features by, (rows, features of all its layers); None where it is off."""

    @cached_property
    def images(self) -> npt.NDArray[np.float32]:
        """(rows, height, width, channels), looked up by the host when first asked for; a GPU does so itself."""
        return look_up(self.pixels, self.tables, self.flips)


BatchLoader = Callable[[], HostBatch]
"""Reads a batch when it is called, by whichever thread."""


@dataclass(frozen=True, kw_only=True)
class DeviceBatch:
    """A HostBatch where its backend computes with it: the framework's own arrays, one set per replica."""

    images: FrameworkArray
    labels: FrameworkArray
    weights: FrameworkArray
    global_count: int
    drop_masks: FrameworkArray = None

    @property
    def arrays(self) -> dict[str, FrameworkArray]:
        """Its arrays by their names; without drop masks where it has none."""
        arrays = {"images": self.images, "labels": self.labels, "weights": self.weights}
        return arrays if self.drop_masks is None else arrays | {"drop_masks": self.drop_masks}


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

    def batch_loaders(self, batches: Iterable[GlobalBatch], digest: OrderDigest | None = None) -> Iterator[BatchLoader]:
        """The readings of these batches, micro-batch by micro-batch; several threads may do them side by side."""
        for batch in batches:
            if digest is not None:
                digest.update(batch)
            for rows in self.rows(len(batch.indices)):
                yield partial(self._read, batch, rows)

    def read(self, batches: Iterable[GlobalBatch]) -> Iterator[HostBatch]:
        """These batches, micro-batch by micro-batch."""
        return (load() for load in self.batch_loaders(batches))

    def rows(self, global_batch_size: int) -> npt.NDArray[np.int64]:
        """Positions in the global batch, (micro-batch, row): in each, the replicas' rows one replica after another."""
        shape = (self._data_parallel_size, self._replicas_per_process, self._accumulate, -1)
        local: npt.NDArray[np.int64] = np.arange(global_batch_size).reshape(shape)[self._data_parallel_rank]
        return local.swapaxes(0, 1).reshape(self._accumulate, -1)

    def _read(self, batch: GlobalBatch, rows: npt.NDArray[np.int64]) -> HostBatch:
        indices = batch.indices[rows]
        augmented = UNCHANGED
        if self._augmentation is not None:
            augmented = self._augmentation(epoch=batch.epoch, indices=indices, means=self._split.means[indices])
        drop_masks = None
        if self._regularization is not None:
            drop_masks = self._regularization(step=batch.step, indices=indices)
        return HostBatch(
            pixels=self._split.pixels(indices, augmented.corners),
            tables=normalised(augmented.brightnesses),
            flips=augmented.flips,
            labels=self._split.labels[indices],
            weights=batch.weights[rows],
            global_count=batch.count,
            step=batch.step + 1,
            indices=indices,
            corners=augmented.corners,
            drop_masks=drop_masks,
        )


def watched(batch_loaders: Iterable[BatchLoader], look: Callable[[HostBatch], None]) -> Iterator[BatchLoader]:
    """The same readings; whichever thread reads a batch calls `look` with it."""

    def load_and_look(load: BatchLoader) -> HostBatch:
        batch = load()
        look(batch)
        return batch

    return (partial(load_and_look, load) for load in batch_loaders)


Item = TypeVar("Item")
Prepared = TypeVar("Prepared")


def prefetch(items: Iterable[Item], prepare: Callable[[Item], Prepared], num_threads: int = 1) -> Iterator[Prepared]:
    """`map(prepare, items)`, in its order, worked on by separate threads up to PREFETCH_DEPTH items ahead of them.

    An error in a thread is raised where its item would have come; closing the iterator ends the threads.
    """
    # In C, without a lock of Python's that all threads would wait for: a small model's step takes milliseconds.
    places: queue.SimpleQueue[None] = queue.SimpleQueue()
    promised: queue.SimpleQueue[queue.SimpleQueue[tuple[Prepared | None, BaseException | None]]] = queue.SimpleQueue()
    taking = threading.Lock()
    iterator = iter(items)
    closing = threading.Event()

    def work() -> None:
        while True:
            with taking:
                ready: queue.SimpleQueue[tuple[Prepared | None, BaseException | None]] = queue.SimpleQueue()
                places.get()
                if closing.is_set():
                    places.put(None)  # for the next thread
                    return
                promised.put(ready)
                try:
                    item = next(iterator)
                except Exception as error:  # the end, too; handed to the consumer, which raises it
                    ready.put((None, error))
                    return
            try:
                ready.put((prepare(item), None))
            except Exception as error:
                ready.put((None, error))

    for _ in range(PREFETCH_DEPTH + num_threads - 1):
        places.put(None)
    threads = [threading.Thread(target=work, name=INPUT_THREAD, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        while True:
            prepared, error = promised.get().get()
            places.put(None)
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield prepared  # type: ignore[misc]  # None only goes with an error
    finally:
        closing.set()
        places.put(None)
        for thread in threads:
            thread.join()
