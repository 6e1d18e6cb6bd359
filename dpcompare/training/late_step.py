"""The last steps of a run, kept while it trains, and repeated afterwards from what it kept."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from dpcompare.backends.base import Backend
from dpcompare.data.order import training_batches
from dpcompare.data.store import Store
from dpcompare.models.state import State
from dpcompare.results.events import Alive, EventLog, Ready
from dpcompare.results.late_step import LATE_STEPS, state_of, tensors_of, why_not
from dpcompare.results.run_dir import LATE_STEP_AFTER, LATE_STEP_AGAIN, LATE_STEP_BEFORE, late_step_dir
from dpcompare.system.files import atomic_write
from dpcompare.training.schedule import learning_rate, training_reader


class LateStepFiles:
    """Keeps the state of a run before its last steps and after them, if it is to be repeated."""

    def __init__(self, backend: Backend, run_dir: Path, num_steps: int) -> None:
        is_kept = bool(backend.config.late_step) and why_not(backend.config) is None
        self._files = {num_steps - LATE_STEPS: LATE_STEP_BEFORE, num_steps: LATE_STEP_AFTER} if is_kept else {}
        self._backend, self._folder = backend, late_step_dir(run_dir)

    def keeps(self, step: int) -> bool:
        """Whether the state after so many steps is kept."""
        return step in self._files

    def keep(self, step: int) -> None:
        """Write the state after so many steps; all processes must call it."""
        state = self._backend.state()
        if self._backend.process_rank == 0:
            with suppress(
                OSError, SafetensorError
            ):  # a full disk, say, is no reason to lose the run: its late step is left out
                _save(tensors_of(state), self._folder / self._files[step])
        self._backend.barrier()


def make_again(backend: Backend, store: Store, events: EventLog, run_dir: Path) -> None:
    """Make the last steps of a run again, from the state that it kept.

    Args:
        backend: one device in float64, set up with the workload of the run.
        store: of the run.
        events: gets signs of progress.
        run_dir: the folder that has the state, and gets the tensors and losses after these steps.
    """
    split, workload = store.split("train"), backend.workload
    num_steps = workload.total_steps(len(split))
    first_step = num_steps - LATE_STEPS
    events.append(Ready(steps=num_steps, first_step=first_step, num_replicas=1))
    backend.load_state(state_of(load_file(run_dir / LATE_STEP_BEFORE), first_step))
    reader = training_reader(
        workload,
        split,
        backend.config.drops,
        data_parallel_rank=0,
        data_parallel_size=1,
        accumulate=workload.accumulate,
    )
    order = training_batches(len(split), workload.global_batch_size, seed=workload.seed, num_steps=num_steps)
    batches = backend.prefetch_to_device(reader.batch_loaders(islice(order, first_step, None)))
    losses = []
    for step in range(first_step, num_steps):
        step_batches = list(islice(batches, workload.accumulate))
        handle = backend.train_step(step_batches, learning_rate(workload, step, num_steps))
        losses.append(backend.read([handle])[0].item() / step_batches[0].global_count)
        events.append(Alive())
    _save(tensors_of(backend.state()) | {"losses": np.array(losses)}, run_dir / LATE_STEP_AGAIN)


def _save(tensors: State, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path) as temporary:
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, temporary)
