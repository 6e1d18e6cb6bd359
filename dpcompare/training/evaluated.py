"""The model as it is evaluated, its predictions, and the end of a training at its target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpcompare.backends.base import Backend, Inspectable
from dpcompare.config.run import RunConfig
from dpcompare.data.batches import BatchLoader, BatchReader, HostBatch, watched
from dpcompare.data.order import evaluation_batches, training_batches
from dpcompare.data.store import Split, Store
from dpcompare.models.state import is_statistic
from dpcompare.results.computed import is_reached
from dpcompare.results.events import Evaluated, EventTail
from dpcompare.results.predictions import save_classes, save_predictions
from dpcompare.training.schedule import training_reader


def statistics_loaders(backend: Backend, split: Split) -> Iterator[BatchLoader]:
    """The first training batches, over which an evaluation recomputes BatchNorm's statistics."""
    workload = backend.workload
    reader = training_reader(
        workload,
        split,
        backend.config.drops,
        data_parallel_rank=backend.data_parallel_rank,
        data_parallel_size=backend.data_parallel_size,
        replicas_per_process=backend.config.topology.replicas_per_process,
        accumulate=workload.accumulate,
    )
    return reader.batch_loaders(
        training_batches(
            len(split), workload.global_batch_size, seed=workload.seed, num_steps=workload.batchnorm_recompute
        )
    )


@contextmanager
def evaluated_model(
    backend: Backend, batch_loaders: Callable[[], Iterable[BatchLoader]], alive: Callable[[], None]
) -> Iterator[None]:
    """Within it a backend has the model that the workload says is evaluated; then it trains on with its own.

    By what every mode has for checkpoints and logits, on the host in names of neither framework, so that the rules are
    the same for all.

    With `weight_average` the parameters are their mean over the steps so far. BatchNorm's running statistics have no
    mean: they are one themselves.

    With `batchnorm_recompute` the running statistics start again from 0: each batch of `batch_loaders` moves them in a
    forward pass of training with the weights that are evaluated, and they are divided by the share
    1 - momentum^batches that these batches then have of them. So neither the initial statistics count nor those of
    earlier weights. Those of replica 0 hold, as in any evaluation.

    Args:
        backend: which all processes evaluate.
        batch_loaders: the micro-batches over which running statistics are recomputed.
        alive: called after each of them.
    """
    workload = backend.workload
    if workload.weight_average is None and not workload.batchnorm_recompute:
        yield
        return
    trained = backend.state()
    evaluated = replace(trained, model=trained.model | trained.average)
    statistics = [name for name in trained.model if is_statistic(name)]
    if workload.batchnorm_recompute and statistics:
        zeros = {name: np.zeros_like(trained.model[name]) for name in statistics}
        backend.load_state(replace(evaluated, model=evaluated.model | zeros))
        num_batches = 0
        for batch in backend.prefetch_to_device(batch_loaders()):
            backend.logits(batch, training=True)
            num_batches += 1
            alive()
        moved = backend.state().model
        share = 1 - workload.batchnorm_momentum**num_batches
        recomputed = {name: (moved[name] / share).astype(moved[name].dtype) for name in statistics}
        evaluated = replace(evaluated, model=evaluated.model | recomputed)
    backend.load_state(evaluated)
    yield
    backend.load_state(trained)


def evaluate(
    backend: Backend,
    train: Split,
    validation: Split,
    alive: Callable[[], None] = lambda: None,
    look: Callable[[HostBatch], None] = lambda batch: None,
) -> npt.NDArray[np.float64]:
    """Evaluate this process's part of the validation split; all processes must.

    Args:
        backend: that is set up.
        train: the split that it trains on, over which BatchNorm's statistics may be recomputed.
        validation: the split that is evaluated.
        alive: called after each batch.
        look: called with each batch by the thread that has read it.

    Returns:
        (batches, 3): of each batch the sum of losses, the samples that were classified correctly, and the samples.
    """
    reader = BatchReader(
        validation,
        data_parallel_rank=backend.data_parallel_rank,
        data_parallel_size=backend.data_parallel_size,
        replicas_per_process=backend.config.topology.replicas_per_process,
    )
    order = evaluation_batches(len(validation), backend.workload.global_batch_size)
    handles = []
    with evaluated_model(backend, partial(statistics_loaders, backend, train), alive):
        for batch in backend.prefetch_to_device(watched(reader.batch_loaders(order), look)):
            handles.append(backend.evaluate_step(batch))
            if len(handles) % backend.config.window == 0:  # or the host would fill the device with batches
                backend.synchronize()
            alive()
        return backend.read(handles)


def keep_predictions(backend: Inspectable, store: Store, run_dir: Path, alive: Callable[[], None]) -> None:
    """Write what this process's model takes its validation samples for; all processes must call it.

    Args:
        backend: that has trained.
        store: the prepared dataset.
        run_dir: gets the file.
        alive: called after each batch.
    """
    split = store.split("validation")
    reader = BatchReader(
        split,
        data_parallel_rank=backend.data_parallel_rank,
        data_parallel_size=backend.data_parallel_size,
        replicas_per_process=backend.config.topology.replicas_per_process,
        accumulate=backend.workload.accumulate,  # as in training: more rows at once may not fit on a GPU
    )
    batches = list(evaluation_batches(len(split), backend.workload.global_batch_size))
    kept = []
    with evaluated_model(backend, partial(statistics_loaders, backend, store.split("train")), alive):
        places = [(batch, positions) for batch in batches for positions in reader.rows(len(batch.indices))]
        for (batch, positions), on_device in zip(
            places, backend.prefetch_to_device(reader.batch_loaders(batches)), strict=True
        ):
            predicted = backend.logits(on_device, training=False).argmax(axis=1)
            # Of the processes of one replica that is split, only the last has logits; rows of padding are no samples.
            rows = positions[: len(predicted)]
            is_sample = batch.weights[rows] > 0
            indices = batch.indices[rows][is_sample]
            alive()
            kept.append(np.stack([indices, split.labels[indices], predicted[is_sample]], axis=1))
    save_predictions(run_dir, backend.process_rank, np.concatenate(kept).astype(np.int64))
    if backend.process_rank == 0:
        save_classes(run_dir, store.manifest.classes)


SECONDS_BETWEEN_LOOKS = 0.02


class Target:
    """The target of a run that ends where it is reached."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self._target = config.target_accuracy if config.stop_at_target else None
        self._trainers = config.topology.trainers
        self._tail = EventTail(run_dir, self._trainers)
        self._parts: dict[int, dict[int, Evaluated]] = {}
        """Step -> rank -> its part of the evaluation."""

    def is_reached(self, step: int, still_waiting: Callable[[], None]) -> bool:
        """Whether the evaluation after a step, which this process has logged, ends the training.

        Each process has evaluated its part of the split, and reads those of the others in their events: these are
        where every process of a run can read them, whatever its framework exchanges gradients with. No clock runs.

        Args:
            step: that was evaluated.
            still_waiting: called again and again until all have evaluated it.
        """
        if self._target is None:
            return False
        while len(parts := self._parts.get(step, {})) < len(self._trainers):
            self._read()
            still_waiting()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        accuracy = sum(part.correct for part in parts.values()) / sum(part.count for part in parts.values())
        return is_reached(accuracy, self._target)

    def _read(self) -> None:
        for event in self._tail.new_events():
            if isinstance(event, Evaluated):
                self._parts.setdefault(event.step, {})[event.process_rank] = event
        if self._tail.damaged:
            raise RuntimeError(
                f"the events of process {self._tail.damaged[0]} are damaged, so its part of an evaluation is not known"
            )
