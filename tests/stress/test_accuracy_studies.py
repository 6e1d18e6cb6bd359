"""The studies of docs/accuracy.md: that they can be asked for, how they are judged, and what is computed again."""

import json

import pytest

from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.report.formats import as_json
from stress import accuracy_studies
from stress.accuracy_studies import STUDIES, commands, problems, recomputed, shortened, tables
from tests.support.command import invoke
from tests.support.learning import BETTER, SEEDS, compared, ddp, multiworker, saved


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_asked_for(name, tmp_path, photos):
    _, command = next(commands(name, str(photos), 8, tmp_path / "out"))
    done = invoke("compare", *shortened(command), "--dry-run", "--json")
    assert done.code == 0, done.stderr
    rounds = max(8, STUDIES[name].least_rounds)
    assert {run["round"] for run in done.json["runs"]} == set(range(1, rounds + 1))
    assert done.json["runs"][0]["workload"]["image_size"] <= 32


def test_a_try_makes_no_study_larger():
    assert shortened(["--image-size", "8", "--epochs", "10"]) == ["--image-size", "8", "--epochs", "2"]


def report(first, second=SEEDS, **changes):
    return json.loads(as_json(compared(ddp(first), multiworker(second, **changes))))


def test_a_planted_difference_favours_the_more_accurate_arm():
    assert list(problems(STUDIES["planted"], [report(BETTER)])) == []
    for shown in (report(SEEDS), report(SEEDS, BETTER)):  # equal; and better where less was trained
        assert "the difference is not found" in next(problems(STUDIES["planted"], [shown]))
    by_loss = report(BETTER)
    by_loss["learning"]["claims"][0]["outcome"] = "no difference shown"
    assert len(list(problems(STUDIES["planted"], [by_loss]))) == 1


def test_equal_arms_pass_only_where_they_may_be_compared():
    equal, different = report(SEEDS), report(BETTER)
    assert list(problems(STUDIES["identical"], [equal] * 19 + [different])) == []
    assert len(list(problems(STUDIES["identical"], [equal] * 18 + [different] * 2))) == 1
    apart, few = report(SEEDS, workload={"learning_rate": 0.1}), report(SEEDS)
    few["learning"]["claims"][0]["outcome"] = "too few rounds"
    for name, shown in (("identical", apart), ("modes", few), ("batchnorm", equal | {"learning": None})):
        assert len(list(problems(STUDIES[name], [shown]))) == 1


@pytest.fixture
def recorded(tmp_path):
    """A study of two arms and eight rounds on disk, and its report."""
    saved(tmp_path, ddp(BETTER), multiworker())
    return tmp_path, json.loads(as_json(analyse(collect([tmp_path]))))


def test_all_figures_are_computed_again_from_the_result_files(recorded):
    folder, shown = recorded
    found = list(recomputed(folder, shown))
    assert len(found) == 2 * (2 + 1)  # accuracy and loss, of two arms and their difference
    assert all(again.is_same and None not in again.reported for again in found)


@pytest.mark.parametrize("name", ["difference", "standard_error", "low", "high"])
def test_a_figure_that_is_another_one_is_seen(recorded, name):
    folder, shown = recorded
    for number, claim in enumerate(shown["learning"]["claims"]):
        changed = json.loads(json.dumps(shown))
        changed["learning"]["claims"][number][name] = claim[name] * 1.001
        assert sum(not again.is_same for again in recomputed(folder, changed)) == 1


def test_an_arm_whose_mean_or_deviation_is_another_one_is_seen(recorded):
    folder, shown = recorded
    shown["arms"][0]["accuracy_over_seeds"]["mean"] += 0.001
    shown["arms"][1]["loss_over_seeds"]["standard_deviation"] += 0.001
    wrong = [again.what for again in recomputed(folder, shown) if not again.is_same]
    assert wrong == [
        "accuracy of torch ddp 2x1, with its standard deviation",
        "loss of tensorflow multiworker 2x1, with its standard deviation",
    ]


def test_a_table_has_the_arms_and_their_differences_in_points():
    arms, pairs = tables([report(BETTER)])
    assert [row[0] for row in arms.rows] == ["torch ddp 2x1", "tensorflow multiworker 2x1"]
    ((pair, outcome, points, low, high, confidence),) = pairs.rows
    assert (pair, outcome) == ("torch ddp 2x1 - tensorflow multiworker 2x1", "higher")
    assert arms.rows[0][1] - arms.rows[1][1] == pytest.approx(points)
    assert 0 < low < points < high
    assert confidence > 0.9


def test_a_problem_is_exit_code_3(monkeypatch, capsys):
    monkeypatch.setattr(accuracy_studies.subprocess, "run", lambda command, check: None)
    monkeypatch.setattr(accuracy_studies, "report", lambda folder: report(SEEDS))
    monkeypatch.setattr(accuracy_studies, "recomputed", lambda folder, shown: [])
    monkeypatch.setattr("sys.argv", ["accuracy_studies", "planted"])
    monkeypatch.setenv("DPCOMPARE_COMMIT", "a commit")  # git is a command too
    with pytest.raises(SystemExit, match="3"):
        accuracy_studies.main()
    assert "WRONG: the difference is not found" in capsys.readouterr().err
