"""The reader of training batches: what a workload makes of the rows of a split."""

from __future__ import annotations

from dpcompare.config.workload import Workload
from dpcompare.data.augmentation import Augmentation
from dpcompare.data.batches import BatchReader
from dpcompare.data.regularization import Regularization
from dpcompare.data.store import Split
from dpcompare.models.architectures import model_of


def training_reader(workload: Workload, split: Split, **place: int) -> BatchReader:
    """A reader with the augmentation and regularization of a workload; `place` is what else BatchReader takes."""
    augmentation = Augmentation(workload.augment, seed=workload.seed, num_samples=len(split), margin=split.margin)
    regularization = None
    if workload.regularization == "shared":
        regularization = Regularization(model_of(workload.model).drops, seed=workload.seed)
    return BatchReader(split, augmentation, regularization, **place)
