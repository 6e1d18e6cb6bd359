"""The one measured training loop, shared by all backends; only it and its windows read the clock of a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, repeat
from pathlib import Path

import numpy as np

from dpcompare.backends.base import Backend
from dpcompare.data.batches import DeviceBatch, watched
from dpcompare.data.digest import combined
from dpcompare.data.names import steps_per_epoch
from dpcompare.data.order import GlobalBatch, OrderDigest, training_batches
from dpcompare.data.store import Store
from dpcompare.models.state import TrainingState
from dpcompare.results.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, training_id
from dpcompare.results.computed import ComputedByProcess
from dpcompare.results.events import CheckpointSaved, Evaluated, EventLog, Ready
from dpcompare.results.run_dir import trace_path
from dpcompare.system.energy import EnergyMeter
from dpcompare.system.files import atomic_write
from dpcompare.system.processes import MemoryPeak
from dpcompare.training.decisions import EvaluatedRows, StepDecisions
from dpcompare.training.evaluated import Target, evaluate
from dpcompare.training.inspection import Inspection
from dpcompare.training.late_step import LateStepFiles
from dpcompare.training.schedule import learning_rate, training_reader
from dpcompare.training.window import MeasuredStep, NonFiniteError, StepLog, Window


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
    """What a process says of its training when it is done."""

    order_sha256: str
    """sha256 of the order in which the samples of all steps were trained, those before a checkpoint included, and
    those that a run has left out which ended at its target."""
    computed: ComputedByProcess
    largest_class_share: float
    """Of the validation split."""
    memory: MemoryPeak
    """Of this process, but for the state that the late step keeps."""


def train(
    backend: Backend,
    store: Store,
    events: EventLog,
    run_dir: Path,
    after_step: Callable[[int], None] = lambda step: None,
    *,
    energy: EnergyMeter | None = None,
) -> TrainingSummary:
    """Train and evaluate the workload of a backend that is set up, from its first step or from a checkpoint.

    Args:
        backend: set up, and not yet trained.
        store: the prepared dataset.
        events: gets what is measured as it happens; see `dpcompare.results.events`.
        run_dir: gets the checkpoints, and the traces of steps that are to be profiled.
        after_step: called with the number of each step, from 1, that the device was given; between two windows it is
            not in the measured time.
        energy: counts what the devices of this process take.

    Raises:
        NonFiniteError: a loss or a weight is not finite, and the run is to stop then.
    """
    return Trainer(backend, store, events, run_dir, energy or EnergyMeter(())).train(after_step)


class Trainer:
    """The training loop of one process: timed steps, and between them evaluations and checkpoints."""

    def __init__(self, backend: Backend, store: Store, events: EventLog, run_dir: Path, energy: EnergyMeter) -> None:
        self._backend = backend
        self._config, self._workload = backend.config, backend.workload
        self._events, self._run_dir = events, run_dir
        self._split, self._validation = store.split("train"), store.split("validation")
        self._num_steps = self._workload.total_steps(len(self._split))
        self._last_step = self._num_steps
        """An earlier one where the run reaches its target before, and ends there."""
        self._epoch_steps = steps_per_epoch(len(self._split), self._workload.global_batch_size)
        self._place = {
            "data_parallel_rank": backend.data_parallel_rank,
            "data_parallel_size": backend.data_parallel_size,
            "replicas_per_process": self._config.topology.replicas_per_process,
        }
        self._decisions = StepDecisions(self._workload)
        self._log = StepLog(backend, events)
        self._trace = _Trace(backend, run_dir)
        self._batches: list[DeviceBatch] = []
        """The batches of the present step; kept until those of the next have arrived."""
        self._window = Window(backend, energy, previous_end=0.0)
        self._inspection = Inspection(backend)
        self._target = Target(self._config, run_dir)
        self._late_step = LateStepFiles(backend, run_dir, self._num_steps)
        self._memory = MemoryPeak()

    def train(self, after_step: Callable[[int], None]) -> TrainingSummary:
        """Make all steps that are left; see `train` of this module."""
        first_step, digest = _resume(self._backend), OrderDigest()
        feed = self._feed(first_step, digest)
        self._events.append(
            Ready(
                steps=self._num_steps,
                first_step=first_step,
                num_replicas=self._backend.num_replicas,
                data_parallel_rank=self._backend.data_parallel_rank,
            )
        )
        self._inspection.look_at_replicas(first_step)
        self._backend.synchronize()
        self._window.previous_end = time.perf_counter()
        may_be_done = first_step == self._num_steps or self._config.stop_at_target
        if first_step and may_be_done and self._evaluates(first_step):
            self.evaluate(first_step)  # the attempt that made this checkpoint may have ended before it did
        for step in range(first_step + 1, self._last_step + 1):
            evaluates = self._evaluates(step)
            is_first = step == first_step + 1  # in which a framework compiles and tries things out
            warmed_up = step - first_step == self._workload.least_warmup_steps  # the next is the first that counts
            if step - first_step == self._workload.least_warmup_steps + 1:
                self._backend.reset_peak_memory()  # what was tried out in the first steps took more
            self._trace.before(step)
            self.step(feed, step)
            keeps = self._checkpoints(step) or self._late_step.keeps(step)
            self._end_step(step, drain=evaluates or keeps or warmed_up or is_first)
            after_step(step)
            if is_first or step == self._num_steps:
                self._inspection.inspect(step, self._batches)
                if is_first:
                    self._backend.barrier()  # or one that has less to inspect waits for others within its second step
                self._window.previous_end = time.perf_counter()
            if self._late_step.keeps(step):
                self.keep_late_step(step)
            if evaluates:
                self.evaluate(step)
            if self._checkpoints(step):
                self.checkpoint(step)
            if step == self._last_step:
                break
        self._trace.close()
        if self._last_step < self._num_steps:
            if self._batches:
                self._inspection.inspect(self._last_step, self._batches)
            digest = self._digest_of_all()
        return TrainingSummary(
            order_sha256=digest.hexdigest(),
            computed=self._inspection.found(),
            largest_class_share=self._validation.largest_class_share,
            memory=self._memory,
        )

    def step(self, feed: Iterator[DeviceBatch], step: int) -> None:
        """Have the device make a step; returns before it has, and the window waits for it."""
        start = self._window.begin_step()
        self._batches = list(islice(feed, self._workload.accumulate))
        received = time.perf_counter()
        compilations = self._backend.num_compilations
        rate = learning_rate(self._workload, step - 1, self._num_steps)
        loss = self._backend.train_step(self._batches, rate)
        self._window.steps.append(
            MeasuredStep(
                step=step,
                loss=loss,
                global_count=self._batches[0].global_count,
                data_seconds=received - start,
                is_compiled=self._backend.num_compilations > compilations,
                decisions=partial(self._decisions.of_step, step, rate),
            )
        )

    def _end_step(self, step: int, *, drain: bool) -> None:
        """Wait for the device where a window ends, and log its steps."""
        is_edge_of_trace = self._trace.begins_or_ends_after(step)
        if not (drain or step % self._config.window == 0 or is_edge_of_trace):
            return
        before = self._log.reading_seconds
        self._log.add(self._window.close(drain=drain))
        if drain or is_edge_of_trace:  # before what takes long and is no step: the launcher looks when it is written
            self._log.write()
            # Its steps are said to be done: losses that are slow to read show a device that still computes, which
            # would go unseen within an evaluation.
            self._inspection.backlog_seconds += self._log.reading_seconds - before
        if self._trace.after(step):
            self._window.leave_out()

    def evaluate(self, step: int) -> None:
        """Evaluate this process's part of the validation split after `step` steps, which may then be the last."""
        rows = EvaluatedRows()
        batches = evaluate(self._backend, self._split, self._validation, self._log.alive, rows.add)
        loss_sum, correct, count = batches.sum(axis=0)
        self._events.append(
            Evaluated(
                step=step,
                epoch=-(-step // self._epoch_steps),
                loss_sum=float(loss_sum),
                correct=int(correct),
                count=int(count),
                batch_loss_sums=batches[:, 0].tolist(),
                batch_counts=batches[:, 2].astype(int).tolist(),
                rows=combined([rows.digest]),
            )
        )
        if self._target.is_reached(step, self._log.alive):
            self._last_step = step
        elif self._config.stop_at_target:
            self._backend.barrier()  # or one that knows it early waits within its next step for those that know it late
        self._window.leave_out()

    def keep_late_step(self, step: int) -> None:
        """Keep the state before or after the last steps, which are to be repeated."""
        with self._memory.left_out():  # or the first round of a study would seem to need more than the others
            self._late_step.keep(step)
        self._window.leave_out()

    def checkpoint(self, step: int) -> None:
        """Have the first process write a checkpoint, and all others wait for it.

        Raises:
            NonFiniteError: a weight is not finite, and the run is to stop then; nothing was written.
        """
        start = time.perf_counter()
        backend = self._backend
        checkpoint = Checkpoint(training=training_id(self._config), **vars(backend.state()))
        if self._config.on_nan == "stop":
            _require_finite(checkpoint)
        # The run continues from what the file holds, as one that resumes from it does: both then agree bit for bit.
        # (torch keeps the running variance in another form while it trains, and each replica has its statistics;
        # without gradient sync each has its own optimizer slots too.)
        backend.load_state(checkpoint)
        backend.barrier()  # all have logged what they measured up to here, or a run that resumes here would lack it
        if backend.process_rank == 0:
            size = save_checkpoint(checkpoint, self._run_dir, keep=self._config.keep_checkpoints)
            self._events.append(CheckpointSaved(step=step, seconds=time.perf_counter() - start, bytes=size))
        backend.barrier()
        self._window.leave_out()

    def _feed(self, first_step: int, digest: OrderDigest) -> Iterator[DeviceBatch]:
        """The training batches after the first steps; `digest` gets the order of all."""
        workload, order = self._workload, self._order()
        for batch in islice(order, first_step):
            digest.update(batch)
        reader = training_reader(
            workload, self._split, self._config.drops, **self._place, accumulate=workload.accumulate
        )
        if self._config.reuse_batch:
            first = self._backend.prefetch_to_device(reader.batch_loaders(islice(self._order(), 1)))
            for batch in order:
                digest.update(batch)
            return cycle(list(first))
        return self._backend.prefetch_to_device(watched(reader.batch_loaders(order, digest), self._decisions.add))

    def _order(self) -> Iterator[GlobalBatch]:
        """The global batches of all steps."""
        workload = self._workload
        order = training_batches(
            len(self._split), workload.global_batch_size, seed=workload.seed, num_steps=self._num_steps
        )
        return repeat(next(order), self._num_steps) if self._config.reuse_batch else order

    def _digest_of_all(self) -> OrderDigest:
        """The digest of a run that ends early, with the steps that it leaves out: some may have been read ahead."""
        digest = OrderDigest()
        for batch in self._order():
            digest.update(batch)
        return digest

    def _evaluates(self, step: int) -> bool:
        return step == self._num_steps or step % (self._config.evaluate_every or self._epoch_steps) == 0

    def _checkpoints(self, step: int) -> bool:
        every = self._config.checkpoint_every
        return every is not None and (step == self._last_step or step % every == 0)


class _Trace:
    """Traces the steps that are to be profiled, if there are any."""

    def __init__(self, backend: Backend, run_dir: Path) -> None:
        self._backend, self._path = backend, trace_path(run_dir, backend.process_rank)
        self._first, self._last = backend.config.profile_steps or (0, 0)
        self._open = ExitStack()

    def before(self, step: int) -> None:
        if step == self._first:
            self._path.parent.mkdir(exist_ok=True)
            self._open.enter_context(self._backend.profile(self._open.enter_context(atomic_write(self._path))))

    def begins_or_ends_after(self, step: int) -> bool:
        """Whether the device must have finished this step, so that it is in the trace as a whole or not at all."""
        return step in (self._first - 1, self._last)

    def after(self, step: int) -> bool:
        """Write the trace where this step was its last; returns whether it was."""
        if step == self._last:
            self.close()
        return step == self._last

    def close(self) -> None:
        """Write the trace of a run that has ended before the last step of its trace."""
        self._open.close()


def _require_finite(state: TrainingState) -> None:
    for name, tensor in {**state.model, **state.optimizer}.items():
        if not np.isfinite(tensor).all():
            raise NonFiniteError(
                f"after step {state.step} the values of {name} are not all finite; no checkpoint was written"
            )


def _resume(backend: Backend) -> int:
    """Load the checkpoint that the run resumes from; returns the steps trained before."""
    if backend.config.resume is None:
        return 0
    checkpoint = load_checkpoint(backend.config.resume, training=training_id(backend.config))
    backend.load_state(checkpoint)
    return checkpoint.step
