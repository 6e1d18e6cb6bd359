"""What every step gets: the batches of its workload, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpcompare.config.workload import Workload
from dpcompare.data.augmentation import Augmentation, Regularization
from dpcompare.data.batches import BatchReader
from dpcompare.data.store import Split
from dpcompare.models.spec import Drop


def training_reader(workload: Workload, split: Split, drops: Sequence[Drop], **place: int) -> BatchReader:
    """A reader with the augmentation and regularization of a run.

    Args:
        workload: of the run.
        split: that it trains on.
        drops: of the run, `RunConfig.drops`.
        place: what else BatchReader takes.
    """
    augmentation = Augmentation(workload.augment, seed=workload.seed, num_samples=len(split), margin=split.margin)
    regularization = Regularization(drops, seed=workload.seed) if drops else None
    return BatchReader(split, augmentation, regularization, **place)


GOYAL_BATCH_SIZE = 256
"""The batch size that the linear scaling rule counts from (Goyal et al. 2017, section 2.1)."""


def peak_learning_rate(workload: Workload) -> float:
    """The learning rate after the warm-up; `scale_lr="linear"` multiplies it by global_batch_size / 256.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1.
    """
    if workload.scale_lr == "linear":
        return workload.learning_rate * workload.global_batch_size / GOYAL_BATCH_SIZE
    return workload.learning_rate


def learning_rate(workload: Workload, step: int, num_steps: int) -> float:
    """The learning rate of `step` (from 0) of `num_steps`.

    Warm-up: linear from peak / n at step 0 to the peak at step n - 1 (Goyal et al. 2017, section 2.2, counted so that
    no step is lost to a rate of 0). Then constant, or cosine to 0 after the last step (Loshchilov and Hutter 2017,
    equation 5, without restarts).
    """
    peak = peak_learning_rate(workload)
    warmup = workload.lr_warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if workload.schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (num_steps - warmup)))
    return peak
