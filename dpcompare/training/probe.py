"""The probe: a training that also writes the arrays in which two modes could differ, for `dpcompare verify`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from dpcompare.backends.base import Inspectable
from dpcompare.data.order import training_batches
from dpcompare.data.store import Store
from dpcompare.results.events import EventLog
from dpcompare.results.predictions import Arrays
from dpcompare.results.run_dir import probe_path
from dpcompare.system.files import atomic_write
from dpcompare.system.python_environment import is_custom
from dpcompare.training import loop
from dpcompare.training.schedule import training_reader


def run(backend: Inspectable, store: Store, events: EventLog, run_dir: Path) -> loop.TrainingSummary:
    """Train as `loop.train` does, and write RUN_DIR/probe-<rank>.safetensors.

    Every process writes its rows of the first batch and their logits; process 0 also writes the tensors of the model
    at the start (`initial.`), after the first step (`stepped.`) and at the end (`trained.`), what the optimizer
    remembers after the first step (`slots.`): with SGD its momentum then is the gradient; and any mean of the weights
    at the end (`averaged.`).
    """
    arrays: Arrays = {}
    initial = backend.state()
    split = store.split("train")
    workload = backend.workload
    reader = training_reader(
        workload,
        split,
        backend.config.drops,
        data_parallel_rank=backend.data_parallel_rank,
        data_parallel_size=backend.data_parallel_size,
    )
    order = training_batches(len(split), workload.global_batch_size, seed=workload.seed, num_steps=1)
    (first,) = backend.prefetch_to_device(reader.batch_loaders(order))
    arrays |= {f"rows.{name}": array for name, array in (backend.to_host(first) or {}).items()}
    if is_custom(workload.model):
        activations = backend.activations(first)
        arrays |= {f"activation.{number:04d}.{name}": array for number, (name, array) in enumerate(activations.items())}
    arrays["evaluation_logits"] = backend.logits(first, training=False)
    arrays["training_logits"] = backend.logits(first, training=True)
    backend.load_state(initial)  # the forward pass in training mode has moved BatchNorm's statistics

    captured: dict[str, Arrays] = {"initial": initial.model}

    def after_step(step: int) -> None:
        if step == 1:
            state = backend.state()
            captured["stepped"], captured["slots"] = state.model, state.optimizer

    trained = loop.train(backend, store, events, run_dir, after_step)
    end = backend.state()
    captured["trained"], captured["averaged"] = end.model, end.average
    if backend.process_rank == 0:
        arrays |= {f"{when}.{name}": array for when, state in captured.items() for name, array in state.items()}
    with atomic_write(probe_path(run_dir, backend.process_rank)) as path:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    return trained
