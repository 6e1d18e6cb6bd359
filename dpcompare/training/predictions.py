"""The predictions of a trained model for the validation split, each process of its part; no clock runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from dpcompare.backends.base import Inspectable
from dpcompare.data.batches import BatchReader
from dpcompare.data.order import evaluation_batches
from dpcompare.data.store import Store
from dpcompare.results.predictions import save_classes, save_predictions
from dpcompare.training.evaluated import evaluated_model, reads_of_statistics


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
    with evaluated_model(backend, partial(reads_of_statistics, backend, store.split("train")), alive):
        places = [(batch, positions) for batch in batches for positions in reader.rows(len(batch.indices))]
        for (batch, positions), on_device in zip(places, backend.feed(reader.reads(batches)), strict=True):
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
