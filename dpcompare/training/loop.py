"""The one measured training loop, shared by all backends; nothing else reads the clock of a measurement."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dpcompare.backends.base import Backend
from dpcompare.data.batches import BatchReader
from dpcompare.data.order import OrderDigest, evaluation_batches, steps_per_epoch, training_batches
from dpcompare.data.store import Store
from dpcompare.models.state import TrainingState
from dpcompare.results.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, training_id
from dpcompare.results.events import EventLog
from dpcompare.system.energy import EnergyMeter
from dpcompare.training.reader import training_reader
from dpcompare.training.schedule import learning_rate

SECONDS_BETWEEN_EVENTS = 0.25
SECONDS_BETWEEN_SIGNS = 5.0
"""Of progress, while there is no step to tell of."""


def train(
    backend: Backend,
    store: Store,
    events: EventLog,
    run_dir: Path,
    after_step: Callable[[int], None] = lambda step: None,
    *,
    traces: Path | None = None,
    energy: EnergyMeter | None = None,
) -> str:
    """Train and evaluate the workload of a backend that is set up, from its first step or from a checkpoint.

    What is measured goes to `events` as it happens: see `dpcompare.results.events`. `after_step` is called with the number of
    each finished step, from 1, outside the measured time. `run_dir` gets the checkpoints. `traces` is the folder for a trace of the steps that are to be
    profiled. `energy` counts what the devices of this process take.

    Returns:
        sha256 of the order in which the samples of all steps were trained, those before the checkpoint included.

    Raises:
        NonFiniteError: a loss or a weight is not finite, and the run is to stop then.
    """
    config = backend.config
    workload = backend.workload
    batch_size = workload.global_batch_size
    split = store.split("train")
    num_steps = workload.total_steps(len(split))
    epoch_steps = steps_per_epoch(len(split), batch_size)
    place = {
        "data_parallel_rank": backend.data_parallel_rank,
        "data_parallel_size": backend.data_parallel_size,
        "replicas_per_process": config.replicas_per_process,
    }
    first_step = _begin(backend)
    order = training_batches(len(split), batch_size, seed=workload.seed, num_steps=num_steps)
    digest = OrderDigest()
    for batch in islice(order, first_step):
        digest.update(batch)
    reader = training_reader(workload, split, **place, accumulate=workload.accumulate)
    feed = backend.feed(reader.read(order, digest))
    validation = store.split("validation")
    validation_reader = BatchReader(validation, None, None, **place)
    steps = _StepLog(backend, events)

    def evaluate(step: int) -> None:
        steps.write()
        handles = []
        for batch in backend.feed(validation_reader.read(evaluation_batches(len(validation), batch_size))):
            handles.append(backend.evaluate_step(batch))
            steps.alive()
        loss_sum, correct, count = backend.read(handles).sum(axis=0)
        events.append(
            "evaluate",
            time=time.time(),
            step=step,
            epoch=-(-step // epoch_steps),
            loss_sum=float(loss_sum),
            correct=int(correct),
            count=int(count),
        )

    events.append("ready", time=time.time(), steps=num_steps, first_step=first_step, num_replicas=backend.num_replicas)
    backend.synchronize()
    first_traced, last_traced = config.profile_steps or (0, 0)
    tracing = ExitStack()
    energy = energy or EnergyMeter(())
    previous_end = time.perf_counter()
    for step in range(first_step + 1, num_steps + 1):
        if step == first_traced and traces is not None:
            traces.mkdir(exist_ok=True)
            tracing.enter_context(backend.profile(traces / f"process-{backend.process_rank}.json"))
        rate = learning_rate(workload, step - 1, num_steps)
        joules_before = energy.joules()
        start = time.perf_counter()
        batches = list(islice(feed, workload.accumulate))
        received = time.perf_counter()
        loss = backend.train_step(batches, rate)
        last = step == num_steps
        evaluates = last or step % epoch_steps == 0
        checkpoints = config.checkpoint_every is not None and (last or step % config.checkpoint_every == 0)
        warmed_up = step - first_step == workload.warmup_steps  # the next is the first that counts
        backend.synchronize(drain=evaluates or checkpoints or warmed_up)
        end = time.perf_counter()

        measured = {
            "step_seconds": end - start,
            "data_seconds": received - start,
            "host_overhead_seconds": start - previous_end,
        }
        if joules_before is not None and (joules := energy.joules()) is not None:
            measured["joules"] = joules - joules_before
        previous_end = end
        if step == last_traced:
            tracing.close()
        steps.add(step, loss, batches[0].global_count, **measured)
        after_step(step)
        if evaluates:
            evaluate(step)
            previous_end = time.perf_counter()
        if checkpoints:
            steps.write()
            _checkpoint(backend, events, run_dir, step)
            previous_end = time.perf_counter()
    if first_step == num_steps:  # it was asked for more when this step was made, and may not have been evaluated then
        evaluate(num_steps)
    return digest.hexdigest()


def _begin(backend: Backend) -> int:
    """Load the checkpoint that the run begins from; returns the steps that are behind it."""
    if backend.config.resume is None:
        return 0
    checkpoint = load_checkpoint(backend.config.resume, training=training_id(backend.config))
    backend.load_state(TrainingState(model=checkpoint.model, optimizer=checkpoint.optimizer, step=checkpoint.step))
    return checkpoint.step


def _checkpoint(backend: Backend, events: EventLog, run_dir: Path, step: int) -> None:
    """Have the first process write a checkpoint, and all others wait for it."""
    start = time.perf_counter()
    config = backend.config
    state = backend.state()
    checkpoint = Checkpoint(step=step, training=training_id(config), model=state.model, optimizer=state.optimizer)
    if config.on_nan == "stop":
        for name, tensor in {**checkpoint.model, **checkpoint.optimizer}.items():
            if not np.isfinite(tensor).all():
                raise NonFiniteError(
                    f"after step {step} the values of {name} are not all finite; no checkpoint was written"
                )
    # The run goes on from what the file holds, as one that begins from it: both then agree bit for bit. (torch keeps the
    # running variance in another form while it trains, and replicas have statistics of their own.)
    backend.load_state(state)
    backend.barrier()  # all have told what they measured up to here, or it would be lost where this is gone on from
    if backend.process_rank == 0:
        size = save_checkpoint(checkpoint, run_dir, keep=config.keep_checkpoints)
        events.append("checkpoint", time=time.time(), step=step, seconds=time.perf_counter() - start, bytes=size)
    backend.barrier()


class NonFiniteError(ArithmeticError):
    """Training has left the numbers."""


class _StepLog:
    """Collects steps and writes them a few times per second, reading their losses from the device in bulk."""

    def __init__(self, backend: Backend, events: EventLog) -> None:
        self._backend = backend
        self._events = events
        self._handles: list[Any] = []
        self._columns: dict[str, list[float]] = defaultdict(list)
        self._step = 0
        self._written_at = float("-inf")  # the first step is written at once

    def add(self, step: int, loss: Any, global_count: int, **measured: float) -> None:
        self._step = step
        self._handles.append(loss)
        for name, value in {"global_counts": global_count, **measured}.items():
            self._columns[name].append(value)
        if time.monotonic() - self._written_at >= SECONDS_BETWEEN_EVENTS:
            self.write()

    def write(self) -> None:
        if not self._handles:
            return
        losses = self._backend.read(self._handles).tolist()
        self._events.append("train", time=time.time(), step=self._step, losses=losses, **self._columns)
        self._handles.clear()
        self._columns.clear()
        self._written_at = time.monotonic()
        if self._backend.config.on_nan == "stop" and not all(map(math.isfinite, losses)):
            first = next(index for index, loss in enumerate(losses) if not math.isfinite(loss))
            raise NonFiniteError(
                f"the loss of step {self._step - len(losses) + 1 + first} is {losses[first]} in process "
                f"{self._backend.process_rank}; lower the learning rate, or pass --on-nan continue"
            )

    def alive(self) -> None:
        """Say that there is progress where no step is made."""
        if time.monotonic() - self._written_at >= SECONDS_BETWEEN_SIGNS:
            self._events.append("alive", time=time.time())
            self._written_at = time.monotonic()
