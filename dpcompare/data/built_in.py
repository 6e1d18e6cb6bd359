"""The datasets that come with dpcompare: handwritten digits, and noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from dpcompare.data.decode import DECODER, RESIZE_RULE, resize
from dpcompare.data.order import epoch_order
from dpcompare.data.sources import VALIDATION_SHARE, ImageArrays, Progress, Source
from dpcompare.data.store import Store, StoreWriter


def digits() -> ImageArrays:
    """The 1,797 handwritten digits of 8x8 pixels that ship with scikit-learn (UCI ML, 1998)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = epoch_order(0, 0, len(bunch.target))
    held_out = round(len(order) * VALIDATION_SHARE)
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    rows = {"train": np.sort(order[held_out:]), "validation": np.sort(order[:held_out])}
    return ImageArrays(
        classes=tuple(str(digit) for digit in range(10)),
        splits={
            split: ([Image.fromarray(grey[row]) for row in chosen], bunch.target[chosen].astype(np.int32))
            for split, chosen in rows.items()
        },
    )


def num_synthetic(largest_batch: int) -> int:
    """Training images of `synthetic`: so many that an epoch, after which a run evaluates, has 16 steps or more."""
    return max(1024, 16 * largest_batch)


def batch_of_synthetic(num_train: int) -> int:
    """A largest batch for which `synthetic` has so many training images."""
    return num_train // 16


def synthetic(largest_batch: int) -> ImageArrays:
    """Images of noise to measure throughput without a dataset: `num_synthetic` for training and 256 for validation."""
    return _noise(train=num_synthetic(largest_batch), validation=256)


def synthetic_mini() -> ImageArrays:
    """72 training and 41 validation images of noise, multiples of no usual batch: few steps pass the end of an epoch.

    Made for `dpcompare verify`: noise conditions BatchNorm well, so that rounding grows slowly from step to step.
    """
    return _noise(train=72, validation=41)


def synthetic_many() -> ImageArrays:
    """66 training and 41 validation images of noise in 300 classes: more than a label of 8 bits tells apart.

    Made for the groups of `dpcompare verify` that cross options, whose last batch of an epoch it does not fill.
    """
    return _noise(train=66, validation=41, num_classes=300)


def _noise(*, train: int, validation: int, num_classes: int = 10) -> ImageArrays:
    generator = np.random.Generator(np.random.PCG64(0))
    splits = {}
    for split, count in {"train": train, "validation": validation}.items():
        noise = generator.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
        labels = generator.integers(0, num_classes, count, dtype=np.int32)
        splits[split] = ([Image.fromarray(image) for image in noise], labels)
    return ImageArrays(classes=tuple(f"class-{label}" for label in range(num_classes)), splits=splits)


BUILT_IN: dict[str, Callable[[int], ImageArrays]] = {
    "digits": lambda largest_batch: digits(),
    "synthetic": synthetic,
    "synthetic-mini": lambda largest_batch: synthetic_mini(),
    "synthetic-many": lambda largest_batch: synthetic_many(),
}
"""Name -> the dataset for runs whose global batches have at most that many images; only `synthetic` depends on it."""


class BuiltIn(Source):
    """A dataset that comes with dpcompare."""

    @classmethod
    def takes(cls, name: str) -> bool:
        return name in BUILT_IN

    @property
    def title(self) -> str:
        return f"synthetic-{self.num_train()}" if self.name == "synthetic" else self.name

    def num_train(self) -> int:
        if self.name == "synthetic":  # not made to be counted
            return num_synthetic(self.largest_batch)
        return len(BUILT_IN[self.name](self.largest_batch).splits["train"][1])

    def write(self, writer: StoreWriter, num_processes: int, progress: Progress) -> Store:
        dataset = BUILT_IN[self.name](self.largest_batch)
        for split, (images, _) in dataset.splits.items():
            pixels = writer.images(split, len(images))
            for row, image in enumerate(images):
                pixels[row] = resize(image, writer.side)
        labels = {split: labels for split, (_, labels) in dataset.splits.items()}
        return writer.finish(labels, source=self.name, classes=dataset.classes, resize=RESIZE_RULE, decoder=DECODER)
