"""The order of samples: a function of (seed, epoch), never of the number of replicas."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from dpcompare.data.names import steps_per_epoch


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """The samples of one step over all replicas, always `global_batch_size` rows."""

    step: int
    """From 0; in evaluation, the number of the batch."""
    epoch: int
    indices: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    """1 for a sample, 0 for a padding row, of which the last batch of an epoch may have some."""

    @property
    def count(self) -> int:
        """Samples that count."""
        return int(np.count_nonzero(self.weights))


def epoch_order(seed: int, epoch: int, num_samples: int) -> npt.NDArray[np.int64]:
    """The order of one epoch: a permutation of range(num_samples) drawn from (seed, epoch)."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1, epoch])))
    return generator.permutation(num_samples)


def _cut(order: npt.NDArray[np.int64], global_batch_size: int, *, epoch: int, first_step: int) -> Iterator[GlobalBatch]:
    """Slice b of an order is batch b; the last one is padded from the start of the order, with weight 0."""
    num_batches = steps_per_epoch(len(order), global_batch_size)
    indices = np.resize(order, num_batches * global_batch_size)
    weights = (np.arange(len(indices)) < len(order)).astype(np.float32)
    for number in range(num_batches):
        rows = slice(number * global_batch_size, (number + 1) * global_batch_size)
        yield GlobalBatch(step=first_step + number, epoch=epoch, indices=indices[rows], weights=weights[rows])


def training_batches(num_samples: int, global_batch_size: int, *, seed: int, num_steps: int) -> Iterator[GlobalBatch]:
    """The global batches of steps 0 to num_steps - 1, epoch after epoch; each sample counts once per epoch."""
    epoch_steps = steps_per_epoch(num_samples, global_batch_size)
    for epoch in range(-(-num_steps // epoch_steps)):
        first_step = epoch * epoch_steps
        order = epoch_order(seed, epoch, num_samples)
        batches = _cut(order, global_batch_size, epoch=epoch, first_step=first_step)
        yield from islice(batches, num_steps - first_step)


def evaluation_batches(num_samples: int, global_batch_size: int) -> Iterator[GlobalBatch]:
    """Every sample exactly once, in the order of the store."""
    return _cut(np.arange(num_samples), global_batch_size, epoch=0, first_step=0)


class OrderDigest:
    """sha256 over the samples of every step so far, to show that two runs trained the same ones."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def update(self, batch: GlobalBatch) -> None:
        self._sha256.update(batch.indices.astype("<i8").tobytes())
        self._sha256.update(batch.weights.astype("<f4").tobytes())

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()
