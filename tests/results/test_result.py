"""Combining what the processes measured."""

import json
from dataclasses import replace

import pytest

from dpcompare.errors import OtherFormatError, RequestError
from dpcompare.results.aggregate import LaunchEnd, aggregate
from dpcompare.results.computed import ComputedByProcess, Evaluation
from dpcompare.results.events import Evaluated
from dpcompare.results.result import RunResult, StepSeconds
from dpcompare.system.machine import Machine
from tests.support.events import started, trained
from tests.support.recorded import STARTED_AT, aggregated, events, record, recorded_config
from tests.support.results import result


@pytest.fixture
def config():
    return recorded_config()


def test_speed_is_global_and_by_the_slowest_process(config, tmp_path):
    for rank in range(2):
        record(rank).save(tmp_path)
    slow = events(1, seconds=(9.0, 0.2, 0.2, 0.4))
    result = aggregated(config, tmp_path, events(0) + slow)
    assert result.status == "completed"
    assert result.measured_steps == 3  # the warm-up step is left out
    assert result.images_per_second == pytest.approx(3 * 8 / 0.8)
    assert result.steady_images_per_second == pytest.approx(8 / 0.2)
    assert (result.slow_steps.first, result.slow_steps.largest_seconds, result.stall) == (4, 0.4, None)
    assert result.step_seconds.median == 0.2
    assert result.time_to_first_step_seconds == 4.0
    assert result.first_step_seconds == 9.0
    assert result.wall_seconds == 10.0
    assert result.started_at.timestamp() == STARTED_AT
    assert result.data_wait_fraction == pytest.approx(0.03 / 0.8)
    assert result.host_overhead_seconds == pytest.approx(0.002)
    assert result.joules_per_image is None
    assert result.peak_memory_bytes.max_process == 20
    assert result.peak_memory_bytes.total == 30


def test_what_clocks_contradict_is_not_known(config, tmp_path):
    for rank in range(2):
        record(rank).save(tmp_path)
    before = [replace(event, time=event.time - 3600) for rank in range(2) for event in events(rank)]
    result = aggregated(config, tmp_path, before)
    assert result.time_to_first_step_seconds is None
    assert result.first_step_seconds == 1.0
    result.save(tmp_path)
    assert RunResult.load(tmp_path) == result
    set_back = aggregate(
        config, tmp_path, LaunchEnd(status="completed", error=None, started_at=STARTED_AT, ended_at=STARTED_AT - 60)
    )
    assert set_back.wall_seconds is None


@pytest.mark.parametrize("figure", ["time_to_first_step_seconds", "wall_seconds"])
def test_a_negative_duration_of_another_release_is_none(config, tmp_path, figure):
    aggregated(config, tmp_path, events(0) + events(1)).save(tmp_path)
    content = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(content | {figure: -3600.0}))
    assert getattr(RunResult.load(tmp_path), figure) is None


def test_energy_is_that_of_the_measured_steps(config, tmp_path):
    for rank in range(2):
        record(rank).save(tmp_path)
    first, *others = events(0)
    metered = [replace(first, joules=[9.0, 1.0, 2.0, 3.0]), *others]
    assert aggregated(config, tmp_path, metered + events(1)).joules_per_image == pytest.approx(6 / 24)


def test_losses_and_evaluations_are_sums_over_the_processes(config, tmp_path):
    for rank in range(2):
        record(rank).save(tmp_path)
    result = aggregated(config, tmp_path, events(0) + events(1))
    assert result.train_loss == [4.0, 2.0, 1.0, 0.5]
    (evaluation,) = result.evaluations
    assert (evaluation.count, evaluation.loss, evaluation.accuracy) == (359, 2.0, 180 / 359)
    assert (evaluation.median_batch_loss, evaluation.outlier) == (None, None)  # events of an earlier release


def test_what_training_took_until_an_evaluation_is_without_it(config, tmp_path):
    for rank in range(2):
        record(rank).save(tmp_path)
    first, evaluated = events(0)
    slow, other = events(1, seconds=(2.0, 0.1, 0.1, 0.5))
    metered = replace(first, joules=[9.0, 1.0, 2.0, 3.0])
    found = [
        *(metered, replace(evaluated, step=2, correct=30), evaluated),
        *(replace(slow, apart_seconds=[0.0, 0.0, 7.0, 0.0]), replace(other, step=2, correct=30), other),
    ]
    reaching = config.model_copy(update={"target_accuracy": 0.5})
    result = aggregated(reaching, tmp_path, found)
    assert result.status == "completed", result.error
    assert [(cost.step, cost.images, cost.joules) for cost in result.evaluation_costs] == [(2, 16, 10.0), (4, 32, 15.0)]
    between = 0.002
    assert [cost.seconds for cost in result.evaluation_costs] == pytest.approx([2.1 + 2 * between, 2.7 + 4 * between])
    assert result.cost_of_target == result.evaluation_costs[1]  # 60 of 359 are too few
    never = aggregated(config.model_copy(update={"target_accuracy": 0.9}), tmp_path / "never", found)
    assert never.cost_of_target is None


def test_what_is_left_out_where_nothing_was_due_is_counted(config, tmp_path):
    for rank in range(2):
        record(rank).save(tmp_path)
    apart = [0.0, 0.0, 0.35, 0.0]
    first, evaluated = events(0)
    slow, other = events(1, seconds=(2.0, 0.1, 0.1, 0.5))
    booked = [first, evaluated, replace(slow, apart_seconds=apart), other]
    result = aggregated(config, tmp_path, booked)
    assert result.apart_fraction == pytest.approx(0.35 / 0.7)
    assert "time passes between steps" in result.clock_problem
    (tmp_path / "due").mkdir()
    for rank in range(2):
        record(rank).save(tmp_path / "due")
    due = [
        first,
        replace(evaluated, step=2),
        evaluated,
        replace(slow, apart_seconds=apart),
        replace(other, step=2),
        other,
    ]
    assert aggregated(config, tmp_path / "due", due).apart_fraction is None


def test_a_run_that_was_to_end_at_its_target_is_whole_there(config, tmp_path):
    for rank in range(2):
        record(rank).save(tmp_path)
    ending = config.model_copy(update={"target_accuracy": 0.5, "stop_at_target": True})
    found = [
        replace(event, step=2) if isinstance(event, Evaluated) else event
        for rank in range(2)
        for event in events(rank, losses=(16.0, 8.0))
    ]
    result = aggregated(ending, tmp_path, found)
    assert (result.status, len(result.train_loss)) == ("completed", 2)
    too_early = [replace(event, correct=10) if isinstance(event, Evaluated) else event for event in found]
    (tmp_path / "early").mkdir()
    for rank in range(2):
        record(rank).save(tmp_path / "early")
    assert "of 4 steps planned, 2 were logged" in aggregated(ending, tmp_path / "early", too_early).error


@pytest.mark.parametrize(("worst", "is_told"), [(350.0, True), (8.0, False)])
def test_a_sample_that_makes_much_of_an_evaluation_loss_is_told(config, tmp_path, worst, is_told):
    """Twelve batches of a loss of about 1; in one of them is a sample that has the worst."""
    for rank in range(2):
        record(rank).save(tmp_path)
    sums = [16.0, 14.0, 15.0, 17.0, 16.0, 15.0, 16.0, 15.0, 16.0, 14.0, 16.0, 3.0]
    with_worst = [15.0 + worst, *sums[1:]]
    counts = [15] * 11 + [3]
    found = []
    for rank, batches in enumerate((sums, with_worst)):
        trained_steps, evaluated = events(rank, evaluated=(168, 191))
        found += [
            trained_steps,
            replace(evaluated, loss_sum=sum(batches), batch_loss_sums=batches, batch_counts=counts),
        ]
    (evaluation,) = aggregated(config, tmp_path, found).evaluations
    assert evaluation.median_batch_loss == pytest.approx(1.05, abs=0.05)
    assert evaluation.largest_batch_loss == pytest.approx((31 + worst) / 30)
    assert (evaluation.outlier is not None) == is_told
    if is_told:
        assert "it is 1.0333 in the median batch, 12.7 in the worst" in evaluation.outlier


def an_evaluation(**changes):
    """One of which a few samples make much of the loss."""
    fields = {"epoch": 3, "step": 45, "loss": 4.0, "accuracy": 0.5, "count": 359}
    return Evaluation(**fields | {"median_batch_loss": 1.0, "largest_batch_loss": 5.0} | changes)


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"epoch": 1}, False),  # a batch that is merely harder, while the model is far from done
        ({"epoch": 1, "largest_batch_loss": 184.0}, True),
        ({"loss": 1.2}, False),
    ],
)
def test_a_harder_batch_of_the_first_epoch_is_no_outlier(changes, is_told):
    assert (an_evaluation(**changes).outlier is not None) == is_told


@pytest.mark.parametrize(
    ("model", "end"),
    [
        ("toy-cnn", "5 in the worst"),
        ("toy-bn", "; BatchNorm's running statistics may not have settled yet"),
        ("mine:MODEL", "; if the model has BatchNorm, its running statistics may not have settled yet"),
    ],
)
def test_only_a_model_with_batchnorm_has_its_statistics_named(model, end):
    run = result(model=model, evaluations=[an_evaluation()])
    assert run.outlier.endswith(end)
    assert ("BatchNorm" in run.outlier) == (model != "toy-cnn")
    assert result(model=model, evaluations=[]).outlier is None


@pytest.mark.parametrize(
    ("changes", "found", "message"),
    [
        ({"sample_order_sha256": "other"}, events(1), "in different orders"),
        (
            {},
            events(1, evaluated=(150, 208)),
            "each of the 359 validation samples once, but counted \\[358\\]",
        ),
        ({}, events(1, losses=(16.0, 8.0)), "different numbers of steps: \\[4, 2\\]"),
        ({}, events(1, evaluated=None), "each of the 359 validation samples once, but counted \\[\\]"),
        ({"process_rank": 7}, events(1), "of 2 processes planned, 1 left a record"),
    ],
)
def test_processes_that_contradict_each_other_fail_the_run(config, tmp_path, changes, found, message):
    record(0).save(tmp_path)
    record(1, **changes).save(tmp_path)
    result = aggregated(config, tmp_path, events(0) + found)
    assert result.status == "failed"
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(result.error)


@pytest.mark.parametrize(
    ("begun", "recorded", "status"),
    [("aa", ("aa", "aa"), "completed"), ("aa", ("aa", "bb"), "failed"), ("bb", ("aa", "aa"), "failed")],
)
def test_files_of_two_attempts_fail_the_run(config, tmp_path, begun, recorded, status):
    for rank, attempt_id in enumerate(recorded):
        record(rank, attempt_id=attempt_id).save(tmp_path)
    first = [started(process_rank=rank, node_rank=rank, attempt_id=begun) for rank in range(2)]
    result = aggregated(config, tmp_path, [*first, *events(0), *events(1)])
    assert (result.status, result.attempt_id) == (status, "aa")
    assert ("several attempts: aa, bb" in (result.error or "")) is (status == "failed")


def test_a_stall_is_told_from_the_events_of_the_processes(config, tmp_path):
    found = events(0, seconds=(1.0, 0.1, 0.1, 6.0)) + events(1, seconds=(1.0, 0.1, 0.1, 7.0))
    result = aggregated(config, tmp_path, found)
    assert result.stall == "step 4 took 7.0 s, median 0.1 s; without it 80.0 images/s"
    assert result.images_per_second == pytest.approx(24 / 7.2)


def test_auto_leaves_out_the_same_first_steps_of_all_processes(config, tmp_path):
    """5 in any case, and here those 8 more that were slow: found after the run, in the steps of the slowest process."""
    workload = config.workload.model_copy(update={"steps": 50, "warmup_steps": "auto"})
    found = []
    for rank, settled in enumerate((0.1, 0.12)):
        seconds = [9.0] + [3 * settled] * 12 + [settled] * 37
        trained_steps = trained([8.0] * 50, process_rank=rank, step=50, step_seconds=seconds)
        found.append(replace(trained_steps, joules=[7.0] * 13 + [2.0] * 37))
    measured = aggregated(config.model_copy(update={"workload": workload}), tmp_path, found)
    assert (measured.steps_left_out, measured.measured_steps, measured.slow_start) == (13, 37, None)
    assert measured.images_per_second == pytest.approx(8 / 0.12)
    assert measured.joules_per_image == pytest.approx(2.0 / 8)
    assert len(measured.train_loss) == 50
    fixed = config.workload.model_copy(update={"steps": 50, "warmup_steps": 5})
    (tmp_path / "fixed").mkdir()
    told = aggregated(config.model_copy(update={"workload": fixed}), tmp_path / "fixed", found)
    assert (told.steps_left_out, told.measured_steps) == (5, 45)
    assert told.trend.endswith("later ones 0.12 s; use more --warmup-steps, such as 13, or auto")


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        ([1], None),
        ([1, 2], "step 2 traced or compiled again"),
        ([1, 3, 4], "2 steps, the first of them 3, traced or compiled again"),
    ],
)
def test_something_compiled_in_the_measured_time_is_told(config, tmp_path, compiled, said):
    first, *others = events(0)
    found = [replace(first, compiled_steps=compiled), *others, *events(1)]
    result = aggregated(config, tmp_path, found)
    assert result.compiled_steps == compiled
    warnings = [warning.sentence for warning in result.warnings if warning.kind == "RECOMPILED"]
    assert [sentence[: len(said)] for sentence in warnings] == ([said] if said else [])


def test_what_was_measured_before_a_failure_is_kept(config, tmp_path):
    found = events(0, losses=(16.0, 8.0, 4.0), evaluated=None) + events(1, losses=(16.0, 8.0), evaluated=None)
    result = aggregated(config, tmp_path, found, status="failed", error="process 1 died")
    assert (result.status, result.error) == ("failed", "process 1 died")
    assert result.train_loss == [4.0, 2.0]
    assert result.images_per_second is not None


def test_a_run_that_never_trained_has_no_figures(config, tmp_path):
    result = aggregated(config, tmp_path, [], status="failed", error="no start")
    assert result.images_per_second is None
    assert result.step_seconds is None
    assert result.peak_memory_bytes is None
    assert result.train_loss == []


def test_a_result_survives_its_file_with_its_promised_keys(config, tmp_path):
    result = aggregated(config, tmp_path, [], status="interrupted", error="interrupted")
    result.save(tmp_path)
    assert RunResult.load(tmp_path) == result
    contract = """
        dpcompare_version status framework mode num_nodes num_processes num_replicas device_type emulated model dataset
        image_size global_batch_size precision profile images_per_second step_seconds time_to_first_step_seconds
        wall_seconds peak_memory_bytes train_loss evaluations sample_order_sha256 versions config
    """
    assert set(contract.split()) <= set(json.loads((tmp_path / "result.json").read_text()))


@pytest.mark.parametrize("content", [None, "", "{}", "[1", "\x00"])
def test_what_is_no_result_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(RequestError, match=r"result\.json"):
        RunResult.load(tmp_path)


@pytest.mark.parametrize("figure", ["host_overhead_seconds", "images_per_second"])
@pytest.mark.parametrize("value", [1e308, -1.0])
def test_a_figure_that_cannot_have_been_measured_is_refused(config, tmp_path, figure, value):
    """In milliseconds 1e308 seconds are infinite, which JSON does not have."""
    aggregated(config, tmp_path, [], status="interrupted", error="interrupted").save(tmp_path)
    content = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(content | {figure: value}))
    with pytest.raises(RequestError, match=figure):
        RunResult.load(tmp_path)


@pytest.mark.parametrize("number", [1, 3])
def test_a_result_of_another_format_says_who_can_read_it(config, tmp_path, number):
    aggregated(config, tmp_path, [], status="interrupted", error="interrupted").save(tmp_path)
    content = json.loads((tmp_path / "result.json").read_text())
    assert content.pop("format") == 2
    numbered = {"format": number} if number > 1 else {}  # the first had no number
    (tmp_path / "result.json").write_text(json.dumps(content | numbered | {"dpcompare_version": "0.7"}))
    with pytest.raises(OtherFormatError, match=rf"has format {number}, expected 2; dpcompare 0\.7 wrote it"):
        RunResult.load(tmp_path)


def test_a_loss_that_is_not_finite_is_null_and_can_be_read_back(config, tmp_path):
    found = events(0, losses=(16.0, float("nan"))) + events(1, losses=(16.0, float("inf")))
    aggregated(config, tmp_path, found, status="failed", error="diverged").save(tmp_path)
    assert RunResult.load(tmp_path).train_loss == [4.0, None]
    assert "NaN" not in (tmp_path / "result.json").read_text()


def test_step_seconds():
    seconds = StepSeconds.of([1.0, 2.0, 3.0, 10.0])
    assert (seconds.median, seconds.mean, seconds.mad) == (2.5, 4.0, 1.0)


def test_versions_that_differ_between_nodes_are_told(config, tmp_path):
    for rank, version in enumerate(("2.15.0", "2.14.1")):
        record(rank, host=f"h{rank}", versions={"numpy": "2", "torch": version}).save(tmp_path)
    result = aggregated(config, tmp_path, [*events(0), *events(1)])
    assert [(node.node_rank, node.host) for node in result.nodes] == [(0, "h0"), (1, "h1")]
    assert result.differing_versions == {"torch": ["2.15.0", "2.14.1"]}


def test_every_node_says_which_machine_it_was(config, tmp_path):
    machines = [Machine(cpu_model="AMD EPYC 7763", cores=64, memory_bytes=256 << 30), None]
    for rank, machine in enumerate(machines):
        record(rank, host=f"h{rank}", machine=machine).save(tmp_path)
    result = aggregated(config, tmp_path, [*events(0), *events(1)])
    assert [node.machine for node in result.nodes] == machines
    result.save(tmp_path)
    assert RunResult.load(tmp_path).nodes == result.nodes


def computed(**changes):
    fields = {
        "optimizer_steps": 4,
        "images": 16,
        "batch_digests": {1: "ffffffffffffffff", 4: "0000000000000001"},
        "first_grad_norm_sq": 8.0,
        "first_evaluation_loss_sum": 10.0,
        "first_evaluation_count": 4,
    }
    return ComputedByProcess(**fields | changes)


def test_what_was_computed_is_put_together_from_all_processes(config, tmp_path):
    record(0, computed=computed()).save(tmp_path)
    record(1, computed=computed(optimizer_steps=3, images=15, batch_digests={1: "2", 4: "3"})).save(tmp_path)
    found = aggregated(config, tmp_path, [*events(0), *events(1)]).computed
    assert (found.optimizer_steps, found.optimizer_steps_asked) == (3, 4)
    assert (found.images, found.images_asked, found.images_claimed) == (31, 32, 32)
    assert found.batch_digests == {1: "0000000000000001", 4: "0000000000000004"}
    assert (found.first_gradient_norm, found.first_evaluation_loss) == (4.0, 2.5)


@pytest.mark.parametrize("unknown", ["optimizer_steps", "images", "first_grad_norm_sq", "first_evaluation_loss_sum"])
def test_a_figure_that_a_process_does_not_know_is_not_known(config, tmp_path, unknown):
    record(0, computed=computed()).save(tmp_path)
    record(1, computed=computed(**{unknown: None})).save(tmp_path)
    result = aggregated(config, tmp_path, [*events(0), *events(1)])
    names = {"first_grad_norm_sq": "first_gradient_norm", "first_evaluation_loss_sum": "first_evaluation_loss"}
    assert getattr(result.computed, names.get(unknown, unknown)) is None
    result.save(tmp_path)
    assert RunResult.load(tmp_path) == result


def test_without_a_record_what_was_computed_is_unknown(config, tmp_path):
    record(0, computed=computed()).save(tmp_path)
    assert aggregated(config, tmp_path, [*events(0), *events(1)], status="failed").computed is None


def test_a_framework_that_nobody_knows_is_refused(config, tmp_path):
    aggregated(config, tmp_path, [], status="interrupted", error="interrupted").save(tmp_path)
    content = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(content | {"framework": "x"}))
    with pytest.raises(
        RequestError, match=r"the result of a run: framework: unknown framework 'x'; expected one of torch"
    ):
        RunResult.load(tmp_path)
