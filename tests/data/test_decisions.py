"""The digests of what the host decides: the same however a batch is divided, and another for any change."""

from dataclasses import replace

import numpy as np
import pytest

from dpcompare.data.augmentation import Augmentation, Regularization
from dpcompare.data.batches import BatchReader
from dpcompare.data.decisions import UNCHANGED_TABLES, digest_of_evaluated, digest_of_numbers, digests_of_rows
from dpcompare.data.digest import MODULUS
from dpcompare.data.order import evaluation_batches, training_batches
from dpcompare.data.store import Split
from dpcompare.models.spec import Drop

ALL = ("flip", "brightness", "contrast", "crop")


@pytest.fixture
def split():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (62, 7, 7, 3), dtype=np.uint8)
    labels = rng.integers(0, 5, 62, dtype=np.int32)
    return Split(images=images, labels=labels, sums=images.sum(axis=(1, 2, 3), dtype=np.int64), margin=2)


def batches_of_last_step(split, *, data_parallel_size=1, augment=ALL, **division):
    """The last step of an epoch, of which 30 of 32 rows count."""
    augmentation = Augmentation(augment, seed=0, num_samples=len(split), margin=split.margin)
    regularization = Regularization([Drop(name="dropout", kind="dropout", features=40, rate=0.5)], seed=0)
    *_, last = training_batches(len(split), 32, seed=0, num_steps=2)
    for rank in range(data_parallel_size):
        place = {"data_parallel_rank": rank, "data_parallel_size": data_parallel_size}
        yield from BatchReader(split, augmentation, regularization, **place, **division).read([last])


def total(batches):
    sums = {}
    for batch in batches:
        for what, digest in digests_of_rows(batch).items():
            sums[what] = (sums.get(what, 0) + digest) % MODULUS
    return sums


def test_the_division_of_a_batch_does_not_matter(split):
    whole = total(batches_of_last_step(split))
    assert list(whole) == ["images", "labels", "augmentation", "dropped features"]
    for processes, replicas, micro_batches in ((2, 1, 1), (1, 4, 1), (2, 2, 2), (8, 1, 1), (1, 1, 4)):
        division = {"replicas_per_process": replicas, "accumulate": micro_batches}
        assert total(batches_of_last_step(split, data_parallel_size=processes, **division)) == whole


def test_what_a_workload_does_not_have_is_left_out(split):
    (batch,) = batches_of_last_step(split, augment=())
    assert list(digests_of_rows(replace(batch, drop_masks=None))) == ["images", "labels"]


def test_one_row_alone_is_known_to_be_augmented(split):
    """Its table could be that of all rows."""
    (batch,) = batches_of_last_step(split, augment=("brightness",))
    one = {
        name: getattr(batch, name)[:1] for name in ("pixels", "tables", "labels", "weights", "indices", "drop_masks")
    }
    assert "augmentation" in digests_of_rows(replace(batch, **one))


def exchanged(array):
    other = array.copy()
    other[[0, 1]] = other[[1, 0]]
    return other


def one_bit(array):
    other = array.copy()
    other.reshape(-1).view(np.uint8)[-1] ^= 1
    return other


CHANGES = [
    ("indices", lambda indices: (indices + 1) % 62, {"images", "labels", "augmentation", "dropped features"}),
    ("labels", exchanged, {"labels"}),
    ("corners", exchanged, {"augmentation"}),
    ("tables", exchanged, {"augmentation"}),
    ("tables", lambda tables: np.concatenate([one_bit(tables[:1]), tables[1:]]), {"augmentation"}),
    ("flips", lambda flips: ~flips, {"augmentation"}),
    ("drop_masks", exchanged, {"dropped features"}),
    ("step", lambda step: step + 1, {"images", "labels", "augmentation", "dropped features"}),
    ("global_count", lambda count: count - 1, {"images"}),
]


@pytest.mark.parametrize(("field", "change", "differ"), CHANGES)
def test_a_change_shows_in_the_digest_of_its_name(split, field, change, differ):
    (batch,) = batches_of_last_step(split)
    assert batch.labels[0] != batch.labels[1]
    before, after = digests_of_rows(batch), digests_of_rows(replace(batch, **{field: change(getattr(batch, field))}))
    assert {what for what in before if before[what] != after[what]} == differ


def test_a_row_of_padding_is_counted_as_such_alone(split):
    (batch,) = batches_of_last_step(split)
    assert batch.weights[-1] == 0
    labels = batch.labels.copy()
    labels[-1] += 1
    assert digests_of_rows(replace(batch, labels=labels)) == digests_of_rows(batch)
    weights = np.ones_like(batch.weights)
    assert digests_of_rows(replace(batch, weights=weights))["images"] != digests_of_rows(batch)["images"]


def test_a_rate_differs_by_its_last_bit_and_its_step():
    rate = 0.01
    others = [digest_of_numbers(9, [np.nextafter(rate, 1)]), digest_of_numbers(10, [rate]), digest_of_numbers(9, [0.0])]
    assert len({digest_of_numbers(9, [rate]), *others}) == 4
    assert digest_of_numbers(9, [rate]) == digest_of_numbers(9, [0.01])
    assert 0 <= digest_of_numbers(9, [-rate]) < MODULUS


def evaluated(split, batch_size, **changes):
    reader = BatchReader(split, data_parallel_rank=0, data_parallel_size=1)
    batches = reader.read(evaluation_batches(len(split), batch_size))
    return sum(digest_of_evaluated(replace(batch, **changes)) for batch in batches) % MODULUS


def test_an_evaluation_is_the_same_in_batches_of_any_size(split):
    whole = evaluated(split, 62)
    assert [evaluated(split, size) for size in (1, 7, 32)] == [whole] * 3
    brighter = replace(split, images=one_bit(split.images[:, ::-1])[:, ::-1])
    assert evaluated(brighter, 32) == whole  # in the margin, which is cut away
    assert evaluated(replace(split, images=one_bit(split.images[:, :6, :6])), 32) != whole
    assert evaluated(replace(split, labels=exchanged(split.labels)), 32) != whole


@pytest.mark.parametrize("changes", [{"tables": UNCHANGED_TABLES * 2}, {"flips": np.ones(62, bool)}])
def test_what_is_made_of_evaluated_pixels_is_in_their_digest(split, changes):
    assert evaluated(split, 62, tables=UNCHANGED_TABLES) == evaluated(split, 62)
    assert evaluated(split, 62, **changes) != evaluated(split, 62)
