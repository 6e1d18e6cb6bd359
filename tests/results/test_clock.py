"""The check of a run's clock: with planted seconds, and with real processes whose clocks are broken."""

from pathlib import Path

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.experiments.fairness import compare
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.results.aggregate import LaunchEnd, aggregate
from dpcompare.results.clock import (
    ClockCheck,
    Seen,
    Watched,
    check_clocks,
    fraction_between_steps,
    long_backlog,
    much_between_steps,
)
from dpcompare.results.run_dir import CONFIG_FILE
from dpcompare.results.series import ProcessSeries
from stress.clock_faults import HALF_SPEED
from stress.disturbances import Stopper
from stress.injection import injected, write_sitecustomize
from tests.support.events import ready, trained
from tests.support.processes import launch, node
from tests.support.results import result

REPOSITORY = Path(__file__).parents[2]


def series(seconds, *, before=0, apart=None):
    """A process with an event per step, 2 ms between steps, after `before` steps of earlier attempts."""
    events = [ready(steps=before + len(seconds), first_step=before)]
    for number, each in enumerate(seconds, start=1):
        left_out = [apart[number]] if apart and number in apart else None
        events.append(trained([1.0], step=before + number, step_seconds=[each], apart_seconds=left_out))
    return ProcessSeries(events)


def watched(first, last):
    return Watched(first=Seen(**first), last=Seen(**last))


def check(run_dir, *processes):
    (run_dir / "events").mkdir(exist_ok=True)
    for rank, (_, seen) in enumerate(processes):
        if seen is not None:
            seen.save(run_dir, rank)
    return check_clocks(run_dir, [measured for measured, _ in processes])


def looks(seconds, *, late=0.05, before=0):
    """The launcher looks every 50 ms; its clock, that of another machine, shows something else than ours."""
    return watched(
        {"step": before + 2, "after": 7000.0, "by": 7000.05},
        {"step": before + 12, "after": 7000.0 + seconds, "by": 7000.0 + seconds + late},
    )


def test_seconds_that_add_up_are_no_contradiction(tmp_path):
    """10 steps of 0.5 s and 2 ms, an evaluation of 3 s among them; resumed after 40 steps."""
    measured = series([9.0] + [0.5] * 11, before=40, apart={6: 3.0})
    found = check(tmp_path, (measured, looks(8.0, before=40)))
    assert found.own_seconds == pytest.approx(8.02)
    assert (found.least_seconds, found.most_seconds) == (pytest.approx(7.95), pytest.approx(8.05))
    assert (found.difference, found.contradiction) == (0.0, None)


@pytest.mark.parametrize("speed", [0.5, 0.9, 1.1, 2.0])
def test_a_clock_at_another_speed_contradicts_the_launchers(tmp_path, speed):
    healthy = series([0.5] * 12), looks(5.02)
    found = check(tmp_path, healthy, (series([0.5 * speed] * 12), looks(5.02)))
    assert found.process_rank == 1
    assert found.contradiction == (
        f"by the clock of process 1 its steps, evaluations and checkpoints took {5 * speed + 0.02:.1f} s, by that of "
        "the launcher 5.0 to 5.1 s"
    )


@pytest.mark.parametrize(("own", "contradicts"), [(0.29, False), (0.31, True)])
def test_a_tenth_of_a_second_contradicts_nothing(own, contradicts):
    """A process of a very short run may wait that long for a core before it writes its event."""
    found = ClockCheck(process_rank=0, own_seconds=own, least_seconds=0.1, most_seconds=0.2)
    assert (found.contradiction is not None) == contradicts


def test_a_launcher_that_was_stopped_itself_contradicts_nobody(tmp_path):
    """It did not look for 5 s: its bounds are that wide."""
    assert check(tmp_path, (series([0.5] * 12), looks(5.02, late=5.0))).contradiction is None


def test_a_run_that_nobody_watched_is_not_checked(tmp_path):
    assert check(tmp_path, (series([0.5] * 12), None)) is None


def test_a_step_without_its_forward_pass_shows_between_steps():
    assert fraction_between_steps([0.2] * 40, [0.1] * 40) == pytest.approx(1 / 3)
    one_stall = [0.0001] * 39 + [20.0]
    assert fraction_between_steps([0.2] * 40, one_stall) < 0.001


WRONG = ClockCheck(process_rank=0, own_seconds=5.0, least_seconds=9.9, most_seconds=10.1)
RIGHT = ClockCheck(process_rank=0, own_seconds=5.0, least_seconds=4.9, most_seconds=5.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clock": WRONG}, "by that of the launcher 9.9 to 10.1 s"),
        ({"between_steps_fraction": 0.31}, "31% of the time passes between steps"),
        ({"between_steps_fraction": 0.02, "apart_fraction": 0.06}, "8% of the time passes between steps"),
        (
            {"backlog_seconds": 1.5},
            "the devices computed for another 1.5 s after the clock had stopped",
        ),
    ],
)
def test_a_run_with_a_wrong_clock_is_not_compared(changes, words):
    quiet = result(clock=RIGHT, between_steps_fraction=0.018)
    other = result("tensorflow", "multiworker")  # which was not watched
    assert compare([quiet, other]).verdict == "COMPARABLE"
    in_computed = {name: changes[name] for name in changes if name == "backlog_seconds"}
    changed = other.model_copy(
        update={**changes, "computed": other.computed.model_copy(update=in_computed)} if in_computed else changes
    )
    (reason,) = compare([quiet, changed]).reasons
    assert reason.startswith("clock: its seconds add up against ")
    assert words in reason
    assert [warning.kind for warning in changed.warnings] == ["CLOCK"]


@pytest.mark.parametrize(
    ("fraction", "step_seconds", "is_much"),
    [(0.04, 1.0, False), (0.06, 1.0, True), (0.06, 0.005, False), (0.15, 0.005, True), (0.5, None, True)],
)
def test_a_little_between_short_steps_is_no_fault(fraction, step_seconds, is_much):
    assert (much_between_steps(fraction, step_seconds) is not None) == is_much


@pytest.mark.parametrize(
    ("fraction", "judged", "is_much"),
    [
        (0.22, {"num_steps": 2}, False),
        (0.42, {"num_steps": 2}, True),
        (0.22, {"num_steps": 19}, False),
        (0.1, {"on_gpu": True}, False),
        (0.22, {"on_gpu": True}, True),
    ],
)
def test_few_steps_and_gpus_have_limits_of_their_own(fraction, judged, is_much):
    assert (much_between_steps(fraction, 0.1, **judged) is not None) == is_much


@pytest.mark.parametrize(
    ("backlog", "measured", "is_long"), [(0.2, 1.0, False), (0.4, 1.0, True), (0.4, 60.0, False), (2.0, 60.0, True)]
)
def test_a_backlog_is_judged_by_what_was_measured(backlog, measured, is_long):
    assert (long_backlog(backlog, measured) is not None) == is_long


TRAIN = """
import os, time
from pathlib import Path
from dpcompare.config.run import RunConfig
from dpcompare.data.store import open_store
from dpcompare.results.events import Ended, EventLog, Started
from dpcompare.training import loop
from tests.support.numpy_backend import NumpyBackend

class Slow(NumpyBackend):
    def _forward(self, batch):
        time.sleep(0.01)
        return super()._forward(batch)

    def train_step(self, batches, learning_rate):
        loss = super().train_step(batches, learning_rate)
        time.sleep(0.01)
        return loss

config = RunConfig.load(Path("config.json"))
backend, log = Slow(config), EventLog(Path.cwd(), 0)
log.append(Started(pid=os.getpid(), host="here", node_rank=0, local_rank=0, devices=["cpu:0"]))
backend.setup()
loop.train(backend, open_store(config.inputs.store), log, Path.cwd())
log.append(Ended())
"""

LATE_TIMER = """
def inject(module):
    make = module.Trainer.step
    def step(self, feed, number):
        forward = self._backend._forward
        def late(batch):
            done = forward(batch)
            self._window._start = module.time.perf_counter()
            return done
        self._backend._forward = late
        make(self, feed, number)
        self._backend._forward = forward
    module.Trainer.step = step
"""


@pytest.fixture(scope="module")
def config():
    """Two epochs, so that there is an evaluation before the last step."""
    workload = Workload(model="mlp", image_size=8, global_batch_size=32, epochs=2)
    return prepare_inputs(
        RunConfig(framework="torch", mode="single", workload=workload, cluster=Cluster.partition(device="cpu"))
    )


STOPPED_SECONDS = 1.5


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (None, None),
        (
            ("dpcompare.training.window", injected(HALF_SPEED)),
            "by the clock of process 0 its steps, evaluations and checkpoints",
        ),
        (("dpcompare.training.loop", LATE_TIMER), "% of the time passes between steps"),
    ],
    ids=["stopped", "half speed", "late timer"],
)
def test_the_clock_of_a_real_process_is_checked_by_its_launcher(config, tmp_path, fault, words):
    """The loop and the launcher as they are; only what the process computes needs no framework.

    A healthy clock goes on while its process is stopped: that is a stall and nothing else.
    """
    config.save(tmp_path / CONFIG_FILE)
    if fault:
        write_sitecustomize(tmp_path, *fault)
    stop = Stopper(STOPPED_SECONDS)
    training = node(0, TRAIN, PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    outcome = launch(tmp_path, training, **{} if fault else {"observe": stop})
    log = (tmp_path / "logs" / "node0.log").read_text()
    assert outcome.nodes == {0: 0}, log
    measured = aggregate(config, tmp_path, LaunchEnd(status="completed", error=None, started_at=0.0, ended_at=1.0))
    assert measured.clock is not None
    problem = measured.clock_problem
    if fault:
        assert words in problem
    else:
        assert problem is None
        assert "STALLED" in {warning.kind for warning in measured.warnings}
        assert measured.slow_steps.largest_seconds > 0.9 * STOPPED_SECONDS
