"""The runs of a study: what is repeated, and when no more rounds are added."""

import shutil

import pytest

from dpcompare.experiments import study_runs
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.made_runs import LIST_FILE
from dpcompare.experiments.study import Study, open_study
from dpcompare.experiments.study_runs import Watcher, add_rounds, finished_run, run_study
from dpcompare.report.formats import as_markdown
from dpcompare.report.page import as_html
from dpcompare.results.clock import MachineLoad
from dpcompare.results.result import NodeRecord
from tests.support.command import invoke
from tests.support.results import result
from tests.support.studies import arm, study


def test_a_half_written_result_counts_as_not_made(tmp_path):
    (tmp_path / "result.json").write_text('{"status": "comp')
    assert finished_run(tmp_path) is None


def test_rounds_are_added_one_by_one(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(study_runs, "run_study", lambda study, *arguments, **options: made.append(study.repeats))
    widths = iter([0.05, 0.03, 0.019])
    begun = study(repeats=6)
    ended = add_rounds(begun, tmp_path, Watcher(), wide=lambda folder: next(widths), until=0.02, budget_seconds=1e9)
    assert made == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (ended.repeats, ended.looks, ended.adding) == (8, (), False)
    assert ended.stopped_by == "every interval is within 1.9% (2.0% asked for)"
    ended = add_rounds(begun, tmp_path, Watcher(), wide=lambda folder: None, until=0.02, budget_seconds=1e9)
    assert ended.repeats == 6
    assert ended.stopped_by == "there was nothing to wait for: no two arms that run are comparable"


def test_rounds_added_to_a_finished_study_are_another_look(tmp_path, monkeypatch):
    monkeypatch.setattr(study_runs, "run_study", lambda study, *arguments, **options: None)
    monkeypatch.setattr(study_runs, "results", lambda study, folder: [(study.arms[0], 6, result())])
    widths = iter([0.05, 0.03, 0.019])
    ended = add_rounds(
        study(repeats=6), tmp_path, Watcher(), wide=lambda folder: next(widths), until=0.02, budget_seconds=1e9
    )
    assert (ended.repeats, ended.looks) == (8, (6,))


def busy(cores=1.4):
    load = MachineLoad(
        seconds=10.0, cores=2, planned_cores=2, run_cores=2 - cores, other_cores=cores, stolen_cores=0.0,
        waiting_fraction=None, heat_throttles=None,
    )  # fmt: skip
    return [NodeRecord(node_rank=0, host="h", device_names=[], versions={}, load=load)]


OTHERS = "DISTURBED: other processes took 1.4 of 2 cores while this run was measured"


@pytest.fixture
def made(monkeypatch):
    """Studies whose runs are disturbed as planned: {(round, arm): how many times}; returns the runs that were made."""

    def make(request, study_dir, disturbed, status="completed"):
        done = []

        def run(config, run_dir, observe, report, remark, interpreter_of):
            key = (int(run_dir.parent.name[-2:]), run_dir.name)
            done.append(key)
            run_dir.mkdir(parents=True)
            loud = done.count(key) <= disturbed.get(key, 0)
            speed = 100.0 + len(done)
            nodes = busy() if loud else []
            attempt = f"attempt-{len(done)}"
            ended = result(nodes=nodes, num_nodes=1, status=status, images_per_second=speed, attempt_id=attempt)
            ended.save(run_dir)
            return ended

        monkeypatch.setattr(study_runs, "run", run)
        said = []
        watcher = Watcher()
        watcher.run_says = said.append
        open_study(request, study_dir)
        run_study(request, study_dir, watcher)
        return done, said

    return make


def two_arms(repeats):
    return Study(arms=(arm(name="a"), arm(name="b")), repeats=repeats)


@pytest.mark.slow
def test_a_disturbed_run_is_made_again_once_kept_and_told(tmp_path, made):
    request = two_arms(6)
    done, said = made(request, tmp_path / "s", {(2, "a"): 1, (3, "b"): 5})
    assert (done.count((2, "a")), done.count((3, "b")), len(done)) == (2, 2, 14)
    assert said[0] == f"round 2: a: run again, {OTHERS}"
    assert (tmp_path / "s" / "runs" / "round-02" / "a.disturbed-1" / "result.json").is_file()
    shown = analyse(collect([tmp_path / "s"]))
    assert [row.repeated for row in shown.arms] == [[f"round 2: {OTHERS}"], [f"round 3: {OTHERS}"]]
    assert [[warning.kind for warning in row.warnings] for row in shown.arms] == [[], ["DISTURBED"]]
    assert "- REPEATED a: round 2: DISTURBED" in as_markdown(shown)
    assert "REPEATED <strong>a</strong>: round 2: DISTURBED" in as_html(shown)
    again, _ = made(request, tmp_path / "s", {})
    assert again == []


def test_a_short_report_says_once_what_disturbed_most_runs(tmp_path, made):
    made(two_arms(6), tmp_path / "s", {(number, "a"): 9 for number in range(1, 6)})
    short, full = (invoke("report", tmp_path / "s", *options).stdout for options in ((), ("--full",)))
    assert "DISTURBED 5 times, such as a: round 1: " in short
    assert full.count("DISTURBED a: round") == 5


def test_at_most_a_quarter_of_a_study_is_made_again(tmp_path, made):
    everywhere = {(number, name): 9 for number in range(1, 7) for name in "ab"}
    assert len(made(two_arms(6), tmp_path / "six", everywhere)[0]) == 12 + 3
    assert len(made(two_arms(1), tmp_path / "one", everywhere)[0]) == 2 + 1


def test_a_slow_run_that_nothing_has_disturbed_is_not_made_again(tmp_path, made):
    assert len(made(two_arms(6), tmp_path / "slow", {})[0]) == 12
    failed, _ = made(two_arms(6), tmp_path / "failed", {(1, "a"): 9, (1, "b"): 9}, status="failed")
    assert len(failed) == 2  # a run that failed is another matter


def test_another_run_in_the_place_of_one_does_not_count(tmp_path, made):
    made(two_arms(2), tmp_path, {(1, "a"): 1})  # of the two runs of this one the second counts
    before = collect([tmp_path])
    assert [arm.failures for arm in before.arms] == [[], []]
    rounds = tmp_path / "runs"
    shutil.copytree(rounds / "round-01" / "b", rounds / "round-02" / "b", dirs_exist_ok=True)
    first, second = collect([tmp_path]).arms
    assert (len(first.completed), len(second.completed)) == (2, 1)
    (failure,) = second.failures
    assert failure.startswith("round 2: its files are those of another run: received attempt attempt-")
    with (tmp_path / LIST_FILE).open("a") as file:
        file.write('{"round": 2, "arm": "b", "att')  # a loss of power
    assert collect([tmp_path]).arms[1].failures == [failure]
    (tmp_path / LIST_FILE).unlink()  # as an older release leaves it
    assert collect([tmp_path]).arms[1].failures == []
