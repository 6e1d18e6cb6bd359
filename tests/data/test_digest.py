"""The digest of what a training step received: the same however a batch is divided, and another for any change."""

import numpy as np
import pytest

from dpcompare.data.augmentation import Augmentation
from dpcompare.data.batches import BatchReader
from dpcompare.data.digest import combined, digest_of_rows
from dpcompare.data.order import training_batches
from dpcompare.data.store import Split


@pytest.fixture
def split():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (62, 4, 4, 3), dtype=np.uint8)
    labels = rng.integers(0, 5, 62, dtype=np.int32)
    return Split(images=images, labels=labels, sums=images.sum(axis=(1, 2, 3), dtype=np.int64))


def arrays_of(batch):
    return {"images": batch.images, "labels": batch.labels, "weights": batch.weights}


def digest_of_last_step(split, *, data_parallel_size, **division):
    """The last step of an epoch, of which 30 of 32 rows count."""
    augmentation = Augmentation(("flip", "contrast"), seed=0, num_samples=len(split))
    *_, last = training_batches(len(split), 32, seed=0, num_steps=2)
    parts = []
    for rank in range(data_parallel_size):
        place = {"data_parallel_rank": rank, "data_parallel_size": data_parallel_size}
        reader = BatchReader(split, augmentation, **place, **division)
        parts += [digest_of_rows(arrays_of(batch), batch.global_count) for batch in reader.read([last])]
    return combined(parts)


def test_the_division_of_a_batch_does_not_matter(split):
    whole = digest_of_last_step(split, data_parallel_size=1)
    assert len(whole) == 16
    for processes, replicas, micro_batches in ((2, 1, 1), (1, 4, 1), (2, 2, 2), (8, 1, 1), (1, 1, 4)):
        division = {"replicas_per_process": replicas, "accumulate": micro_batches}
        assert digest_of_last_step(split, data_parallel_size=processes, **division) == whole


def rows(**changes):
    generator = np.random.default_rng(0)
    arrays = {
        "images": generator.random((4, 8, 8, 3), np.float32),
        "labels": np.arange(4, dtype=np.int32),
        "weights": np.array([1, 1, 1, 0], np.float32),
        "drop_masks": generator.random((4, 5)),
    }
    return {name: changes.get(name, lambda array: array)(array.copy()) for name, array in arrays.items()}


def put(index, value):
    def change(array):
        array[index] = value
        return array

    return change


CHANGES = {
    "one pixel by a rounding": {"images": lambda array: put((1, 2, 3, 0), array[1, 2, 3, 0] * (1 + 2**-23))(array)},
    "one label": {"labels": put(2, 9)},
    "the labels of two rows": {"labels": put([0, 1], [1, 0])},
    "one weight": {"weights": put(0, 0)},
    "a row of padding that counts": {"weights": put(3, 1)},
    "one drop mask": {"drop_masks": put((0, 0), 0)},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_any_change_of_a_row_that_counts_shows(changes):
    assert digest_of_rows(rows(**changes), 3) != digest_of_rows(rows(), 3)


def test_what_the_losses_are_divided_by_shows():
    assert digest_of_rows(rows(), 4) != digest_of_rows(rows(), 3)


def test_what_padding_holds_does_not_matter():
    other = rows(images=put(3, 0.5), labels=put(3, 7), drop_masks=put(3, 2.0))
    assert digest_of_rows(other, 3) == digest_of_rows(rows(), 3)
