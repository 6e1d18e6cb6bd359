"""Host batches and prefetching."""

import threading
import time

import numpy as np
import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.data.augmentation import Augmentation
from dpcompare.data.batches import PREFETCH_DEPTH, BatchReader, prefetch
from dpcompare.data.order import OrderDigest, training_batches
from dpcompare.data.pixels import PIXEL_MEAN, PIXEL_STD
from dpcompare.data.store import Split
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.models.architectures import model_of
from dpcompare.training.schedule import training_reader


@pytest.fixture
def split():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (21, 4, 4, 3), dtype=np.uint8)
    return Split(
        images=images, labels=rng.integers(0, 5, 21, dtype=np.int32), sums=images.sum(axis=(1, 2, 3), dtype=np.int64)
    )


def read(split, num_processes, *, augment=("flip", "contrast")):
    """All global batches of an epoch, put together from the shares of the processes."""
    shares = []
    for rank in range(num_processes):
        augmentation = Augmentation(augment, seed=0, num_samples=len(split))
        reader = BatchReader(split, augmentation, data_parallel_rank=rank, data_parallel_size=num_processes)
        shares.append(list(reader.read(training_batches(len(split), 8, seed=0, num_steps=3))))
    return [
        {
            "images": np.concatenate([share[step].images for share in shares]),
            "labels": np.concatenate([share[step].labels for share in shares]),
            "weights": np.concatenate([share[step].weights for share in shares]),
            "counts": {share[step].global_count for share in shares},
        }
        for step in range(3)
    ]


@pytest.mark.parametrize("num_processes", [2, 4])
def test_the_global_batch_is_the_same_for_any_processes(split, num_processes):
    for alone, combined in zip(read(split, 1), read(split, num_processes), strict=True):
        for name in ("images", "labels", "weights"):
            assert alone[name].tobytes() == combined[name].tobytes()
        assert alone["counts"] == combined["counts"]


def test_pixels_are_normalised_and_padding_rows_weigh_nothing(split):
    batches = read(split, 1, augment=())
    order = list(training_batches(21, 8, seed=0, num_steps=3))
    expected = (split.images[order[0].indices].astype(np.float32) / 255 - PIXEL_MEAN) / PIXEL_STD
    assert batches[0]["images"].dtype == np.float32
    np.testing.assert_allclose(batches[0]["images"], expected, rtol=1e-6)
    assert batches[2]["counts"] == {5}
    assert batches[2]["weights"].tolist() == [1] * 5 + [0] * 3


def test_micro_batches_of_every_replica_make_up_its_share(split):
    """2 replicas x 2 micro-batches: micro-batch m holds the m-th half of each replica's half of the batch."""
    reader = BatchReader(split, None, data_parallel_rank=0, data_parallel_size=1, replicas_per_process=2, accumulate=2)
    first, second = list(reader.read(training_batches(21, 8, seed=0, num_steps=1)))
    (order,) = training_batches(21, 8, seed=0, num_steps=1)
    labels = split.labels[order.indices]
    assert first.labels.tolist() == labels[[0, 1, 4, 5]].tolist()
    assert second.labels.tolist() == labels[[2, 3, 6, 7]].tolist()
    assert first.global_count == second.global_count == 8


def test_the_digest_covers_the_global_batches(split):
    digests = [OrderDigest(), OrderDigest()]
    for rank, digest in enumerate(digests):
        reader = BatchReader(split, None, data_parallel_rank=rank, data_parallel_size=2)
        list(reader.batch_loaders(training_batches(21, 8, seed=0, num_steps=3), digest))
    assert digests[0].hexdigest() == digests[1].hexdigest()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_prefetch_keeps_the_order(num_threads):
    def prepare(item):
        time.sleep(0.002 * (item % 3 == 0))  # those behind it are ready first
        return item * 2

    assert list(prefetch(range(50), prepare, num_threads)) == [item * 2 for item in range(50)]


def test_the_threads_of_prefetch_work_side_by_side():
    together = threading.Barrier(3, timeout=600)

    def prepare(item):
        together.wait()  # no thread passes before three are here
        return item

    assert list(prefetch(range(6), prepare, 3)) == list(range(6))


def test_prefetch_runs_no_further_ahead_than_it_may():
    begun = []
    items = prefetch(iter(int, 1), begun.append, 3)
    next(items)
    time.sleep(0.2)
    assert len(begun) == PREFETCH_DEPTH + 3
    items.close()


def test_epochs_do_not_mix_where_threads_read_side_by_side(split):
    """Batches of two epochs at once: the draws of each sample stay those of its epoch."""
    augmentation = Augmentation(("flip", "brightness", "contrast"), seed=0, num_samples=len(split))
    reader = BatchReader(split, augmentation, data_parallel_rank=0, data_parallel_size=1)

    def order():
        return training_batches(len(split), 8, seed=0, num_steps=60)

    def read(task):
        return task().images.tobytes()

    alone = [batch.images.tobytes() for batch in reader.read(order())]
    assert list(prefetch(reader.batch_loaders(order()), read, 4)) == alone


@pytest.mark.parametrize("num_threads", [1, 3])
def test_an_error_while_preparing_is_raised_in_the_items_turn(num_threads):
    def prepare(item):
        if item == 2:
            raise ValueError("broken item")
        return item

    items = prefetch(range(5), prepare, num_threads)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="broken item"):
        next(items)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_an_error_of_what_is_read_from_is_raised_too(num_threads):
    def items():
        yield 1
        raise ValueError("broken order")

    prepared = prefetch(items(), str, num_threads)
    assert next(prepared) == "1"
    with pytest.raises(ValueError, match="broken order"):
        next(prepared)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_closing_prefetch_ends_its_threads(num_threads):
    items = prefetch(iter(int, 1), str, num_threads)
    next(items)
    items.close()
    assert "prefetch" not in [thread.name for thread in threading.enumerate()]


WORKLOAD = Workload(model="toy-bn", image_size=4, global_batch_size=8, regularization="shared")


def drop_masks_of(split, num_processes=1, accumulate=1, replicas_per_process=1):
    """(step, sample, label) -> drop masks of the rows that count, over two epochs of three batches."""
    found = {}
    for rank in range(num_processes):
        place = {
            "data_parallel_rank": rank,
            "data_parallel_size": num_processes,
            "replicas_per_process": replicas_per_process,
        }
        reader = training_reader(WORKLOAD, split, model_of(WORKLOAD.model).drops, **place, accumulate=accumulate)
        order = training_batches(len(split), 8, seed=0, num_steps=6)
        for number, batch in enumerate(reader.read(order)):
            for row in np.flatnonzero(batch.weights):
                found[number // accumulate, batch.images[row].tobytes()] = batch.drop_masks[row].tolist()
    return found


def test_a_sample_loses_the_same_wherever_it_is_trained(split):
    whole = drop_masks_of(split)
    assert len(whole) == 2 * len(split)
    assert drop_masks_of(split, num_processes=2) == whole
    assert drop_masks_of(split, replicas_per_process=2, accumulate=2) == whole


def test_what_is_dropped_of_a_sample_changes_from_epoch_to_epoch(split):
    whole = drop_masks_of(split)
    first, second = ({image: f for (step, image), f in whole.items() if step // 3 == epoch} for epoch in (0, 1))
    assert first.keys() == second.keys()
    assert sum(first[image] != second[image] for image in first) > len(split) / 2


@pytest.mark.parametrize(("regularization", "layers"), [("off", 0), ("shared", 2)])
def test_only_shared_regularization_has_drops(split, regularization, layers):
    config = RunConfig(
        framework="torch",
        mode="single",
        workload=WORKLOAD.changed(regularization=regularization),
        cluster=Cluster.partition(1, 1, device="cpu"),
    )
    drops = prepare_inputs(config).drops
    assert len(drops) == layers
    reader = training_reader(config.workload, split, drops, data_parallel_rank=0, data_parallel_size=1)
    (batch,) = reader.read(training_batches(len(split), 8, seed=0, num_steps=1))
    assert (batch.drop_masks is not None) == bool(layers)
