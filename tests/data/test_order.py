"""The order of the samples."""

import numpy as np
import pytest

from dpcompare.data.names import parts_trained, samples_trained, steps_per_epoch
from dpcompare.data.order import OrderDigest, epoch_order, evaluation_batches, training_batches


def digest(batches):
    order = OrderDigest()
    for batch in batches:
        order.update(batch)
    return order.hexdigest()


def test_an_epoch_is_a_permutation_drawn_from_seed_and_epoch():
    assert sorted(epoch_order(3, 1, 100)) == list(range(100))
    assert np.array_equal(epoch_order(3, 1, 100), epoch_order(3, 1, 100))
    assert not np.array_equal(epoch_order(3, 1, 100), epoch_order(3, 2, 100))
    assert not np.array_equal(epoch_order(3, 1, 100), epoch_order(4, 1, 100))


def test_the_order_is_the_same_in_every_release():
    assert epoch_order(0, 0, 10).tolist() == [9, 1, 3, 8, 7, 6, 0, 4, 2, 5]


@pytest.mark.parametrize(("num_samples", "batch_size"), [(100, 8), (96, 8), (3, 8), (1, 1)])
def test_every_sample_counts_once_per_epoch(num_samples, batch_size):
    steps = steps_per_epoch(num_samples, batch_size)
    batches = list(training_batches(num_samples, batch_size, seed=0, num_steps=2 * steps))
    assert [batch.epoch for batch in batches] == [0] * steps + [1] * steps
    for epoch in range(2):
        of_epoch = batches[epoch * steps : (epoch + 1) * steps]
        counted = np.concatenate([batch.indices[batch.weights == 1] for batch in of_epoch])
        assert sorted(counted) == list(range(num_samples))
        assert sum(batch.count for batch in of_epoch) == num_samples
        assert {len(batch.indices) for batch in of_epoch} == {batch_size}


def test_steps_cut_an_epoch_short():
    assert len(list(training_batches(100, 8, seed=0, num_steps=5))) == 5


def test_evaluation_sees_every_sample_once_in_order():
    batches = list(evaluation_batches(341, 32))
    counted = np.concatenate([batch.indices[batch.weights == 1] for batch in batches])
    assert counted.tolist() == list(range(341))


def test_the_digest_notices_a_swapped_pair_and_a_weight():
    batches = list(training_batches(64, 8, seed=0, num_steps=8))
    reference = digest(batches)
    assert reference == digest(training_batches(64, 8, seed=0, num_steps=8))
    batches[3].indices[[0, 1]] = batches[3].indices[[1, 0]]
    assert digest(batches) != reference
    batches[3].indices[[0, 1]] = batches[3].indices[[1, 0]]
    batches[5].weights[2] = 0
    assert digest(batches) != reference


def test_steps_are_counted_over_all_epochs():
    assert [(batch.step, batch.epoch) for batch in training_batches(20, 8, seed=0, num_steps=7)] == [
        (0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("num_samples", "num_parts", "num_steps"), [(20, 2, 7), (20, 4, 7), (24, 4, 6), (17, 4, 3)])
def test_parts_without_a_sample_are_not_trained(num_samples, num_parts, num_steps):
    batches = training_batches(num_samples, 8, seed=0, num_steps=num_steps)
    counted = sum(part.any() for batch in batches for part in np.split(batch.weights, num_parts))
    assert parts_trained(num_samples, 8, num_parts=num_parts, num_steps=num_steps) == counted


@pytest.mark.parametrize(("num_samples", "num_steps"), [(20, 0), (20, 2), (20, 3), (20, 7), (24, 6), (5, 2)])
def test_samples_of_the_first_steps_count_without_padding(num_samples, num_steps):
    counted = sum(batch.count for batch in training_batches(num_samples, 8, seed=0, num_steps=num_steps))
    assert samples_trained(num_samples, 8, num_steps=num_steps) == counted
