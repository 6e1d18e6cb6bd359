"""The training loop, run by a backend that needs no framework."""

import itertools
import time

import numpy as np
import pytest

from dpcompare.backends.base import Backend
from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.data.batches import BatchReader
from dpcompare.data.digest import combined, digest_of_rows
from dpcompare.data.order import OrderDigest, training_batches
from dpcompare.data.store import open_store
from dpcompare.errors import RequestError
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.results.events import Evaluated, EventLog, Ready, StepsTrained, read_events
from dpcompare.results.result import StepSeconds
from dpcompare.system.energy import EnergyMeter
from dpcompare.training import loop
from dpcompare.training import window as step_log
from tests.support.numpy_backend import NumpyBackend


def train(tmp_path, *, energy=None, steps_per_window=None, backend_class=NumpyBackend, settings=None, **workload):
    chosen = Workload(model="mlp", image_size=8, global_batch_size=32, **workload)
    config = RunConfig(
        framework="torch",
        mode="single",
        workload=chosen,
        cluster=Cluster.partition(device="cpu"),
        steps_per_window=steps_per_window,
        **settings or {},
    )
    backend = backend_class(prepare_inputs(config))
    backend.setup()
    log = EventLog(tmp_path, 0)
    trained = loop.train(backend, open_store(backend.inputs.store), log, tmp_path, energy=energy)
    log.close()
    events = read_events(tmp_path, 1)
    return (
        backend,
        trained,
        {kind: [event for event in events if isinstance(event, kind)] for kind in (Ready, StepsTrained, Evaluated)},
    )


def series(events, name):
    return list(itertools.chain.from_iterable(getattr(event, name) for event in events[StepsTrained]))


def calls_before_the_evaluation(backend):
    """The first step is evaluated too, when it is inspected."""
    last_step = max(at for at, call in enumerate(backend.calls) if call == "train")
    return backend.calls[: backend.calls.index("evaluate", last_step)]


def test_an_epoch_counts_samples_once_and_ends_evaluated(tmp_path):
    _, _, events = train(tmp_path, epochs=2, learning_rate=0.01)
    assert events[Ready][0].steps == 90
    assert sum(series(events, "global_counts")) == 2 * 1438
    assert [(event.epoch, event.count) for event in events[Evaluated]] == [(1, 359), (2, 359)]
    last = events[Evaluated][-1]
    assert last.correct / 359 > 0.8
    assert (len(last.batch_counts), sum(last.batch_counts)) == (12, 359)
    assert sum(last.batch_loss_sums) == pytest.approx(last.loss_sum)
    assert [
        len(series(events, name)) for name in ("losses", "step_seconds", "data_seconds", "host_overhead_seconds")
    ] == [90] * 4
    assert events[StepsTrained][0].joules is None


def test_steps_end_the_run_and_are_followed_by_an_evaluation(tmp_path):
    backend, trained, events = train(tmp_path, steps=7, learning_rate=0.01)
    assert backend.calls.count("train") == 7
    assert [event.epoch for event in events[Evaluated]] == [1]
    expected = OrderDigest()
    for batch in training_batches(1438, 32, seed=0, num_steps=7):
        expected.update(batch)
    assert trained.order_sha256 == expected.hexdigest()


def test_one_batch_is_read_once_and_trained_in_every_step(tmp_path, monkeypatch):
    reads, read = [], BatchReader._read
    monkeypatch.setattr(BatchReader, "_read", lambda *given: reads.append(given[1].step) or read(*given))
    backend, trained, events = train(tmp_path, steps=50, learning_rate=0.01, settings={"reuse_batch": True})
    in_training = reads[: len(reads) - len(events[Evaluated]) * 12]  # an evaluation reads 12 batches
    assert in_training == [0]
    assert series(events, "global_counts") == [32] * 50  # of an epoch of 45 steps the last one has fewer
    assert backend.images_computed == 50 * 32
    losses = series(events, "losses")
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))  # of one batch again and again
    expected = OrderDigest()
    first = next(training_batches(1438, 32, seed=0, num_steps=1))
    for _ in range(50):
        expected.update(first)
    assert trained.order_sha256 == expected.hexdigest()


def test_losses_are_sums_over_the_samples_of_the_step(tmp_path):
    _, _, events = train(tmp_path, epochs=1, learning_rate=1e-9)
    means = np.array(series(events, "losses")) / series(events, "global_counts")
    assert means == pytest.approx(np.full(45, np.log(10)), rel=1e-3)


def test_losses_are_read_in_bulk_and_steps_end_synchronised(tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "SECONDS_BETWEEN_EVENTS", 1e9)
    backend, _, events = train(tmp_path, steps=20, learning_rate=0.01)
    training = calls_before_the_evaluation(backend)
    assert training.count("read") == 4  # after the first step, its inspection and the warm-up, before the evaluation
    assert len(events[StepsTrained]) == 3
    assert training.count("synchronize") == 21


class RunsAhead(NumpyBackend):
    """A device that works on a step for 2 ms, while the host goes on until it asks it to finish."""

    busy_until = 0.0

    def train_step(self, batches, learning_rate):
        self.busy_until = max(self.busy_until, time.perf_counter()) + 0.002
        return super().train_step(batches, learning_rate)

    def synchronize(self, *, drain=False):
        super().synchronize(drain=drain)
        time.sleep(max(0.0, self.busy_until - time.perf_counter()))


def test_the_host_waits_at_the_ends_of_windows_only(tmp_path):
    """Also after the first step, before the steps that count, and before an evaluation."""
    backend, _, events = train(
        tmp_path, steps=20, warmup_steps=6, learning_rate=0.01, steps_per_window=8, backend_class=RunsAhead
    )
    training = calls_before_the_evaluation(backend)
    trained = np.cumsum(np.array(training) == "train")
    waits = [trained[at] for at, call in enumerate(training) if call == "synchronize"]
    assert waits == [0, 1, 6, 8, 16, 20]
    seconds = series(events, "step_seconds")
    assert len(seconds) == 20
    for begin, end in itertools.pairwise(waits):
        assert len(set(seconds[begin:end])) == 1  # equal shares of what was measured
        assert sum(seconds[begin:end]) >= 0.002 * (end - begin)
    assert [step for step, between in enumerate(series(events, "host_overhead_seconds")) if between] == [0, 1, 6, 8, 16]


class TimesItsSteps(RunsAhead):
    """The same with a clock of its own, by which every third step takes as long as four others."""

    def __init__(self, config):
        super().__init__(config)
        self.ends, self.now = [], 0.0

    def train_step(self, batches, learning_rate):
        handle = super().train_step(batches, learning_rate)
        self.now += 0.0004 if self.step % 3 == 0 else 0.0001
        self.ends.append(self.now)
        return handle

    def seconds_between_steps(self):
        ends, self.ends = self.ends, []
        return [second - first for first, second in itertools.pairwise(ends)]


def test_a_clock_of_the_device_times_each_step_of_a_window(tmp_path):
    _, _, events = train(
        tmp_path, steps=20, warmup_steps=6, learning_rate=0.01, steps_per_window=8, backend_class=TimesItsSteps
    )
    seconds = series(events, "step_seconds")
    own = {step: second for step, second in enumerate(seconds, start=1) if step not in (1, 2, 7, 9, 17)}
    assert {step for step, second in own.items() if second == pytest.approx(0.0004)} == {3, 6, 12, 15, 18}
    assert [second for step, second in own.items() if step % 3] == pytest.approx([0.0001] * 10)
    assert min(seconds[at - 1] for at in (7, 9, 17)) > 0.002  # the first of a window has the rest of its time
    assert {event.are_timed for event in events[StepsTrained]} == {None}


def test_without_a_device_clock_no_windowed_step_has_percentiles(tmp_path):
    _, _, events = train(
        tmp_path, steps=20, warmup_steps=6, learning_rate=0.01, steps_per_window=8, backend_class=RunsAhead
    )
    assert False in {event.are_timed for event in events[StepsTrained]}
    windowed = StepSeconds.of([0.1] * 8 + [0.3] * 8, own=[False] * 16)
    assert (windowed.median, windowed.p95, windowed.mad) == (None, None, None)
    assert windowed.mean == windowed.typical == pytest.approx(0.2)
    assert StepSeconds.of([1.0, 2.0, 6.0]).typical == 2.0
    firsts = StepSeconds.of([9.0, 1.0, 2.0, 9.0, 3.0], own=[False, True, True, False, True])
    assert (firsts.median, firsts.p95, firsts.mean) == (2.0, pytest.approx(2.9), pytest.approx(24 / 5))


@pytest.mark.parametrize(("warmup_steps", "trained_before"), [(6, 6), (0, 0)])
def test_the_peak_of_memory_is_that_of_the_measured_steps(tmp_path, warmup_steps, trained_before):
    backend, _, _ = train(tmp_path, steps=9, warmup_steps=warmup_steps, steps_per_window=4)
    before = backend.calls[: backend.calls.index("reset_peak_memory")]
    assert before.count("train") == trained_before
    assert [call for call in before if call != "read"][-1] == "synchronize"  # the device has finished the warm-up
    assert backend.calls.count("reset_peak_memory") == 1


def test_windows_change_nothing_of_what_is_trained(tmp_path):
    losses = [
        series(train(tmp_path / str(steps), epochs=1, learning_rate=0.01, steps_per_window=steps)[2], "losses")
        for steps in (1, 7)
    ]
    assert losses[0] == losses[1]


def test_energy_is_read_around_every_window(tmp_path):
    readings = itertools.count(step=6.0)
    _, _, events = train(
        tmp_path, energy=EnergyMeter([lambda: next(readings)]), steps=12, warmup_steps=4, steps_per_window=4
    )
    assert series(events, "joules") == [6.0] + [2.0] * 3 + [1.5] * 8


def test_energy_is_read_around_every_step(tmp_path):
    readings = itertools.count(step=5.0)
    _, _, events = train(tmp_path, energy=EnergyMeter([lambda: next(readings)]), steps=20)
    assert series(events, "joules") == [5.0] * 20


def test_time_between_steps_is_told_apart_from_evaluation(tmp_path, monkeypatch):
    evaluate = NumpyBackend.evaluate_step
    monkeypatch.setattr(NumpyBackend, "evaluate_step", lambda *arguments: time.sleep(0.05) or evaluate(*arguments))
    _, _, events = train(tmp_path, epochs=2, learning_rate=0.01)
    assert max(series(events, "host_overhead_seconds")) < 0.3  # an evaluation has 12 batches


class Retraces(NumpyBackend):
    """Traces its step in the first one, and again in step 12."""

    num_compilations = 0

    def train_step(self, batches, learning_rate):
        self.num_compilations += self.step in (0, 11)
        return super().train_step(batches, learning_rate)


def test_the_steps_for_which_something_was_compiled_are_logged(tmp_path):
    _, _, events = train(tmp_path, steps=20, learning_rate=0.01, backend_class=Retraces)
    compiled = [step for event in events[StepsTrained] for step in event.compiled_steps or ()]
    assert compiled == [1, 12]


def test_what_is_neither_a_step_nor_between_two_is_told_apart(tmp_path, monkeypatch):
    evaluate = NumpyBackend.evaluate_step
    monkeypatch.setattr(NumpyBackend, "evaluate_step", lambda *arguments: time.sleep(0.01) or evaluate(*arguments))
    _, _, events = train(tmp_path, epochs=2, learning_rate=0.01)
    told = [(event.step, sum(event.apart_seconds)) for event in events[StepsTrained] if event.apart_seconds]
    assert len(told) == 1  # the evaluation after the first epoch: after the last one there is no step
    assert told[0][0] > 45
    assert 0.12 <= told[0][1] < 5  # of 12 batches


class ComputesOn(NumpyBackend):
    """Says that its steps are done, and is not: what is read later waits for it."""

    def read(self, handles):
        if self.step == 20:
            time.sleep(0.2)
        return super().read(handles)


def test_a_device_that_is_not_done_shows_where_losses_are_read(tmp_path):
    _, trained, _ = train(tmp_path, steps=20, learning_rate=0.01, backend_class=ComputesOn)
    assert 0.2 <= trained.computed.backlog_seconds < 10
    (tmp_path / "evaluated").mkdir()
    settings = {"evaluate_every": 20}
    _, trained, _ = train(
        tmp_path / "evaluated", steps=24, learning_rate=0.01, backend_class=ComputesOn, settings=settings
    )
    assert 0.2 <= trained.computed.backlog_seconds < 10
    (tmp_path / "kept").mkdir()
    settings = {"checkpoint_every": 20}
    _, trained, _ = train(tmp_path / "kept", steps=24, learning_rate=0.01, backend_class=ComputesOn, settings=settings)
    assert 0.2 <= trained.computed.backlog_seconds < 10
    (tmp_path / "done").mkdir()
    _, done, _ = train(tmp_path / "done", steps=20, learning_rate=0.01)
    assert done.computed.backlog_seconds < trained.computed.backlog_seconds


def test_a_step_contains_its_wait_for_data(tmp_path):
    _, _, events = train(tmp_path, steps=20, learning_rate=0.01)
    for step, data in zip(series(events, "step_seconds"), series(events, "data_seconds"), strict=True):
        assert 0 <= data <= step


def test_what_the_first_and_last_step_computed_is_recorded(tmp_path):
    backend, trained, events = train(tmp_path, steps=46, learning_rate=0.01)  # the 45th is not full
    computed = trained.computed
    assert (computed.optimizer_steps, computed.images) == (46, 1438 + 32)
    split = open_store(backend.inputs.store).split("train")
    reader = BatchReader(split, data_parallel_rank=0, data_parallel_size=1)
    batches = list(reader.read(training_batches(1438, 32, seed=0, num_steps=46)))
    expected = [combined([digest_of_rows(backend.to_host(backend._to_device(batches[at])), 32)]) for at in (0, 45)]
    assert computed.batch_digests == {1: expected[0], 46: expected[1]}
    assert computed.first_grad_norm_sq > 0
    assert computed.first_evaluation_count == 32
    assert 0 < computed.first_evaluation_loss_sum < series(events, "losses")[0]  # the same batch after one update


class SlowToInspect(NumpyBackend):
    def to_host(self, batch):
        time.sleep(0.3)
        return super().to_host(batch)


def test_no_clock_runs_while_steps_are_inspected(tmp_path):
    backend, _, events = train(tmp_path, steps=20, warmup_steps=0, learning_rate=0.01, backend_class=SlowToInspect)
    assert backend.calls.count("to_host") == 2
    assert sum(series(events, "step_seconds") + series(events, "host_overhead_seconds")) < 0.3


def test_evaluations_come_as_often_as_asked_for(tmp_path):
    _, _, events = train(tmp_path, steps=25, learning_rate=0.01, settings={"evaluate_every": 10})
    assert [event.step for event in events[Evaluated]] == [10, 20, 25]


def test_a_run_ends_at_the_first_evaluation_at_its_target(tmp_path):
    settings = {"evaluate_every": 2}
    _, whole, events = train(tmp_path / "whole", steps=12, learning_rate=0.01, settings=settings)
    accuracies = {event.step: event.correct / event.count for event in events[Evaluated]}
    assert list(accuracies) == [2, 4, 6, 8, 10, 12]
    target = accuracies[8]
    first = next(step for step, accuracy in accuracies.items() if accuracy >= target)
    assert 2 < first <= 8
    settings |= {"target_accuracy": target, "stop_at_target": True}
    backend, stopped, events = train(tmp_path / "stopped", steps=12, learning_rate=0.01, settings=settings)
    assert [event.step for event in events[Evaluated]] == list(range(2, first + 1, 2))
    assert backend.step == len(series(events, "losses")) == first
    assert stopped.order_sha256 == whole.order_sha256  # of the order that both were to have
    assert list(stopped.computed.batch_digests) == [1, first]


def test_processes_train_on_together_once_all_missed_the_target(tmp_path):
    settings = {"evaluate_every": 4, "target_accuracy": 1.0, "stop_at_target": True}
    backend, _, events = train(tmp_path, steps=9, learning_rate=1e-9, settings=settings)
    assert [event.step for event in events[Evaluated]] == [4, 8, 9]
    steps = [at for at, call in enumerate(backend.calls) if call == "train"]
    assert [backend.calls[at - 1] for at in (steps[4], steps[8])] == ["barrier"] * 2


class Resumed(NumpyBackend):
    """Five steps were made before."""

    def setup(self):
        super().setup()
        self.step = 5


def test_a_run_that_goes_on_from_its_target_trains_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_resume", lambda backend: backend.step)
    # No better than chance, at a step that is evaluated in any case.
    settings = {"target_accuracy": 0.05, "stop_at_target": True, "evaluate_every": 5}
    _, _, events = train(tmp_path, steps=8, learning_rate=0.01, backend_class=Resumed, settings=settings)
    assert [event.step for event in events[Evaluated]] == [5]
    assert events[StepsTrained] == []


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path, monkeypatch):
    """A checkpoint is no evaluation: a target that is reached between two of them is found by the second."""
    monkeypatch.setattr(loop, "_resume", lambda backend: backend.step)
    settings = {"target_accuracy": 0.05, "stop_at_target": True, "evaluate_every": 7}
    _, _, events = train(tmp_path, steps=8, learning_rate=0.01, backend_class=Resumed, settings=settings)
    assert [event.step for event in events[Evaluated]] == [7]


def test_a_run_that_goes_on_has_no_figures_of_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_resume", lambda backend: backend.step)
    _, trained, _ = train(tmp_path, steps=8, learning_rate=0.01, backend_class=Resumed)
    assert list(trained.computed.batch_digests) == [6, 8]
    assert trained.computed.first_grad_norm_sq is trained.computed.first_evaluation_loss_sum is None


class Bare(Backend):
    """A backend that writes what must be written, and leaves what is only looked at to its defaults."""

    packages = ("numpy",)


for required in sorted(Backend.__abstractmethods__):
    setattr(Bare, required, getattr(NumpyBackend, required))
Bare._to_device, Bare._forward = NumpyBackend._to_device, NumpyBackend._forward
Bare.__abstractmethods__ = frozenset()


def test_a_backend_of_eleven_methods_trains(tmp_path):
    assert len(Backend.__abstractmethods__) == 11
    _, trained, events = train(tmp_path, steps=3, backend_class=Bare)
    assert len(series(events, "losses")) == 3
    found = trained.computed
    assert (found.optimizer_steps, found.images, found.first_grad_norm_sq) == (None, None, None)
    assert found.batch_digests == {}
    with pytest.raises(RequestError, match="--profile-steps: received with Bare, which keeps no traces"):
        train(tmp_path / "traced", steps=3, backend_class=Bare, settings={"profile_steps": (2, 3)})
