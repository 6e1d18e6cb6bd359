"""Figures that are computed again from the events, and those that no run can have measured."""

import json
import math
import shutil

import pytest

from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.results.events import Evaluated, EventLog, EventTail
from dpcompare.results.history import close_attempt
from dpcompare.results.recompute import contradictions
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import event_path
from tests.support.command import invoke
from tests.support.events import ready, trained
from tests.support.recorded import aggregated, events, record, recorded_config, recorded_run

ATTEMPT = {"first_step": 0, "last_step": 2, "status": "failed", "error": "killed", "framework": "torch"}
ATTEMPT |= {"mode": "ddp", "num_replicas": 2, "images_per_second": 80.0}


@pytest.fixture
def config():
    return recorded_config()


@pytest.fixture
def run_dir(config, tmp_path):
    return recorded_run(config, tmp_path / "run")


def altered(run_dir, **changes):
    path = run_dir / "result.json"
    content = json.loads(path.read_text())
    for name, value in changes.items():
        *parts, last = name.split("__")
        holder = content
        for part in parts:
            holder = holder[int(part) if part.isdigit() else part]
        holder[last] = value
    path.write_text(json.dumps(content))


def test_an_untouched_result_is_what_its_events_give(config, run_dir):
    assert contradictions(RunResult.load(run_dir), config, run_dir) == []
    reported = invoke("report", run_dir)
    assert reported.code == 0
    assert "as written in result.json" not in reported.stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"images_per_second": 800.0},
        {"steady_images_per_second": 800.0},
        {"step_seconds__median": 0.01},
        {"train_loss": [1.0, 0.9, 0.8, 0.7]},
        {"evaluations__0__accuracy": 0.99},
        {"sample_order_sha256": "cba"},
        {"settings__tf32": True},
        {"peak_memory_bytes__total": 1},
        {"global_batch_size": 16},
        {"config__workload__warmup_steps": 0},
        {"attempts": [ATTEMPT]},
    ],
)
def test_a_figure_that_its_events_contradict_is_not_shown(run_dir, tmp_path, changes):
    altered(run_dir, **changes)
    alone = invoke("report", run_dir, "--fail-if", "images_per_second<1")
    assert alone.code == 2  # nothing else is there to be reported
    assert "does not match the events next to it" in alone.stderr
    assert "800.0" not in alone.stdout


def test_figures_that_were_deleted_are_missed(config, run_dir):
    """Such as those of a stall, without which nothing would be said of it."""
    content = json.loads((run_dir / "result.json").read_text())
    for name in ("slow_steps", "step_seconds", "between_steps_fraction", "nodes"):
        less = {key: value for key, value in content.items() if key != name}
        (run_dir / "result.json").write_text(json.dumps(less))
        (told,) = contradictions(RunResult.load(run_dir), config, run_dir)
        assert told.startswith(name)


def test_a_run_that_failed_does_not_become_one_that_completed(config, tmp_path):
    config.save(tmp_path / "config.json")
    for rank in range(2):
        record(rank).save(tmp_path)
    found = [event for rank in range(2) for event in events(rank, losses=(8.0, 4.0, 2.0), evaluated=None)]
    aggregated(config, tmp_path, found, status="failed", error="process 1 died").save(tmp_path)
    altered(tmp_path, status="completed", error=None)
    reported = invoke("report", tmp_path)
    assert reported.code == 2
    assert "result.json says that it completed, but of 4 steps planned, 3 were logged" in reported.stderr


@pytest.mark.parametrize("name", ["config.json", "attempt-config.json"])
def test_a_config_is_that_of_its_attempt(config, run_dir, name):
    config.save(run_dir / name)
    altered(run_dir, config__workload__learning_rate=0.5, config__workload__seed=7)
    told = contradictions(RunResult.load(run_dir), RunConfig.model_validate(RunResult.load(run_dir).config), run_dir)
    assert told == [
        f"config.workload.learning_rate (0.5, by {name} 0.001)",
        f"config.workload.seed (7, by {name} 0)",
    ]
    (run_dir / name).unlink()
    (run_dir / "config.json").unlink(missing_ok=True)
    assert "holds no readable config.json" in invoke("report", run_dir).stderr


def test_a_condition_is_not_passed_by_a_run_that_does_not_count(run_dir, tmp_path, config):
    other = recorded_run(config, tmp_path / "other")
    altered(run_dir, images_per_second=800.0)
    reported = invoke("report", run_dir, other, "--fail-if", "images_per_second<1")
    assert reported.code == 3
    assert "cannot be judged for run" in reported.stderr
    assert "images_per_second (800, by the events 80)" in reported.stdout


def test_figures_of_earlier_attempts_are_those_of_their_events(config, run_dir):
    longer = config.model_copy(update={"workload": config.workload.model_copy(update={"steps": 6})})
    (run_dir / "logs").mkdir()
    close_attempt(run_dir, longer, step=3)
    for rank in range(2):
        record(rank).save(run_dir)
    made = {"step": 6, "time": 1003.0}
    evaluated = {"step": 6, "epoch": 1, "loss_sum": 359.0, "correct": 90}
    found = [
        event
        for rank, count in enumerate((150, 209))
        for event in (
            ready(steps=6, first_step=3, process_rank=rank),
            trained([2.0, 1.0, 1.0], process_rank=rank, **made),
            Evaluated(process_rank=rank, count=count, **evaluated),
        )
    ]
    aggregated(longer, run_dir, found).save(run_dir)
    assert contradictions(RunResult.load(run_dir), longer, run_dir) == []
    for rank in range(2):  # late, by nodes of a launcher that was killed
        EventLog(run_dir / "attempts" / "01", rank).append(trained([0.5], process_rank=rank, step=5, time=1006.0))
    assert contradictions(RunResult.load(run_dir), longer, run_dir) == []
    history = json.loads((run_dir / "history.json").read_text())
    history["losses"][1] = 0.1
    history["attempts"][0]["mode"] = "single"
    (run_dir / "history.json").write_text(json.dumps(history))
    altered(run_dir, train_loss=history["losses"] + [0.5, 0.25, 0.25], attempts=history["attempts"])
    told = contradictions(RunResult.load(run_dir), longer, run_dir)
    assert told == ["history.json.losses", "history.json.attempts"]
    shutil.rmtree(run_dir / "attempts")  # then there is nothing to compare with
    assert contradictions(RunResult.load(run_dir), longer, run_dir) is None


def test_a_result_without_events_says_so(run_dir):
    for rank in range(2):
        event_path(run_dir, rank).unlink()
    (run_dir / "events").rmdir()
    altered(run_dir, images_per_second=800.0)
    reported = invoke("report", run_dir, "--markdown", "-")
    assert reported.code == 0
    assert "The figures of 1 of 1 runs are as written in result.json" in reported.stdout


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0])
@pytest.mark.parametrize(
    "name", ["images_per_second", "steady_images_per_second", "step_seconds__mean", "num_replicas"]
)
def test_impossible_figures_are_refused(run_dir, name, value):
    if (name, value) == ("step_seconds__mean", 0.0):
        value = math.nan
    altered(run_dir, **{name: value})
    with pytest.raises(RequestError, match=name.split("__")[-1]):
        RunResult.load(run_dir)
    reported = invoke("report", run_dir, "--fail-if", "images_per_second<100")
    assert reported.code == 2
    assert "Traceback" not in reported.stderr


@pytest.mark.parametrize("name", ["measured_steps", "peak_memory_bytes__total", "evaluations__0__step"])
def test_integers_that_are_no_float_are_refused(run_dir, name):
    altered(run_dir, **{name: 10**400})
    reported = invoke("report", run_dir)
    assert reported.code == 2
    assert "Traceback" not in reported.stderr
    assert name.split("__")[-1] in reported.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"step_seconds": ["0.1x"]},
        {"step_seconds": [0.0, 0.0], "step": 2},
        {"step_seconds": []},
        {"data_seconds": {"a": 1}},
        {"step": "one"},
        {"global_counts": [-8]},
        {"process_rank": 5},
    ],
)
def test_events_that_make_no_sense_are_an_error_in_words(run_dir, changes):
    """Their checksums are right: anybody can compute those."""
    path = event_path(run_dir, 0)
    path.unlink()
    log = EventLog(run_dir, 0)
    log._process_rank = changes.get("process_rank", 0)
    log.append(trained([8.0, 8.0], **({"step": 2} | changes)))
    log.close()
    reported = invoke("report", run_dir)
    assert reported.code == 2
    assert "Traceback" not in reported.stderr
    if "process_rank" in changes:
        tail = EventTail(run_dir, [0])
        assert (list(tail.new_events()), tail.damaged) == ([], [0])
