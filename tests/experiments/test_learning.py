"""What studies with a seed per round say of accuracies, of time to an accuracy, and of predictions."""

import csv
import io
import json
import re

import numpy as np
import pytest

from dpcompare.cli.report import print_comparison, print_summary
from dpcompare.config.workload import Workload
from dpcompare.experiments.collection import collect
from dpcompare.experiments.rounds import confusion
from dpcompare.experiments.study import Study
from dpcompare.report.charts import accuracy_over_seconds, accuracy_over_steps
from dpcompare.report.formats import COLUMNS, as_json, as_markdown
from dpcompare.report.page import as_html
from dpcompare.report.records import as_csv
from dpcompare.report.text import as_text
from dpcompare.results.computed import Evaluation
from dpcompare.results.predictions import Predictions
from tests.support.arms import runs, single
from tests.support.learning import (
    BETTER,
    EARLY,
    LATE,
    NEARLY,
    NEVER,
    SECONDS,
    SEEDS,
    SPEEDS,
    compared,
    ddp,
    evaluated,
    multiworker,
    varied,
)
from tests.support.studies import arm, study


def test_what_a_seed_decides_is_judged_within_each_round():
    rows = {row.setting: row for row in compared(ddp(), multiworker()).settings}
    assert rows["first loss"].equal
    assert rows["first loss"].values[0].count(",") == 7  # another one in each round
    other = multiworker()
    other.runs[3] = other.runs[3].model_copy(update={"train_loss": [2.5] * 45})
    rows = {row.setting: row for row in compared(ddp(), other).settings}
    assert rows["first loss"].reason
    assert not rows["first loss"].equal


def of_accuracy(shown):
    return [made for made in shown.learning.claims if made.measure == "accuracy"]


def test_arms_whose_rounds_have_the_same_seeds_may_be_compared():
    shown = compared(ddp(BETTER), multiworker())
    assert shown.verdict == "COMPARABLE"
    assert [made.outcome for made in shown.claims] == ["no difference shown"]  # of speed
    assert shown.headline.startswith(shown.claims[0].sentence)
    assert "no difference shown, ratio 1.000 of steady speed (96% interval " in shown.headline
    assert shown.learning.headline.startswith("torch ddp 2x1 is 2.8")
    assert [(made.measure, made.outcome) for made in shown.learning.claims] == [
        ("accuracy", "higher"),
        ("loss", "lower"),
    ]
    assert shown.learning.varied == (
        "Each round uses its own seed, shared by all arms; it determines the initial weights and the sample order."
    )
    row = shown.arms[0]
    assert row.accuracy_over_seeds.mean == pytest.approx(np.mean(BETTER))
    assert row.accuracy_over_seeds.standard_deviation == pytest.approx(np.std(BETTER, ddof=1))
    assert shown.agreement is None or "accuracies" not in shown.agreement
    assert "from one seed" not in as_text(shown, 100)


@pytest.mark.slow
def test_the_same_sentence_is_everywhere():
    shown = compared(ddp(BETTER), multiworker())
    markdown, page, document = as_markdown(shown), as_html(shown), json.loads(as_json(shown))
    for number, made in enumerate(shown.learning.claims):
        assert made.sentence in markdown
        assert made.sentence in page
        assert made.sentence == document["learning"]["claims"][number]["sentence"]
    assert "| 83.4% ± " in markdown
    runs_of_csv = list(csv.DictReader(io.StringIO(as_csv(shown))))
    assert [(run["seed"], float(run["accuracy"])) for run in runs_of_csv[:2]] == [("1", 0.83), ("2", 0.84)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classifier", "expected"),
    [
        ("drawn", "the classifier (the weights file has none for these classes), the sample order and the "),
        ("from file", "shared by all arms; it determines the sample order and the "),
    ],
)
def test_every_report_says_what_varies_with_weights_of_a_file(classifier, expected, capsys):
    workload = {"weights": "photos.safetensors", "augment": ["flip"]}
    arms = [ddp(workload=workload), multiworker(workload=workload)]
    for each in arms:
        each.runs = [
            run.model_copy(update={"config": run.config | {"inputs": {"classifier": classifier}}}) for run in each.runs
        ]
    shown = compared(*arms)
    assert shown.learning.varied.endswith(
        f"{expected}augmentation. Every round starts from the weights of photos.safetensors."
    )
    print_comparison(shown)
    assert shown.learning.varied in " ".join(capsys.readouterr().out.split())
    assert shown.learning.varied in as_markdown(shown)
    assert shown.learning.varied in as_html(shown)


def test_one_arm_has_its_accuracy_and_nothing_to_compare():
    assert compared(ddp(BETTER)).learning.headline == (
        f"Only one arm, so there is nothing to compare. Its accuracy: mean {np.mean(BETTER):.1%}, standard deviation "
        f"{np.std(BETTER, ddof=1) * 100:.2f} points, 8 rounds."
    )


def test_one_pair_of_three_is_shown_to_be_equal():
    other = varied(runs("torch", "fabric", SPEEDS), SEEDS[::-1])
    assert "; 1 of the 3 pairs is shown to be equally" in compared(ddp(), multiworker(), other).learning.headline


def test_seeds_that_differ_within_a_round_are_no_pair():
    other = multiworker()
    other.runs[2] = other.runs[2].model_copy(update={"weights_sha256": "of another seed"})
    shown = compared(ddp(), other)
    assert shown.verdict == "NOT COMPARABLE"
    assert of_accuracy(shown)[0].sentence.endswith(
        "are NOT COMPARABLE in accuracy. Settings that differ: initial weights."
    )
    same_seed = [runs("torch", "ddp", SPEEDS), runs("torch", "fabric", SPEEDS)]
    assert compared(*same_seed).learning is None  # rounds that repeat one training


def test_what_decides_speed_alone_is_no_reason():
    slower = compared(ddp(), multiworker(emulated=True, profile="native", measured_steps=39))
    assert slower.claims[0].outcome == "NOT COMPARABLE"
    assert slower.headline.startswith("NOT COMPARABLE: every pair of arms differs in a setting that must be equal")
    assert "No two arms are comparable in speed." in as_text(slower, 100)
    assert of_accuracy(slower)[0].outcome == "the same within the margin"
    assert slower.learning.headline == of_accuracy(slower)[0].sentence
    other = {"workload": {"learning_rate": 0.1}}
    assert "Settings that differ: learning rate." in of_accuracy(compared(ddp(), multiworker(**other)))[0].sentence
    about_it = compared(ddp(BETTER), multiworker(**other), subject=("learning rate",))
    assert of_accuracy(about_it)[0].outcome == "higher"


def test_one_device_is_compared_where_batchnorm_sees_as_much():
    def one(**changes):
        return varied(single(SPEEDS), NEARLY, **changes)

    apart = of_accuracy(compared(one(), ddp()))[0]
    assert "BatchNorm" not in apart.sentence
    assert "batch per replica" in apart.sentence
    together = of_accuracy(compared(one(), ddp(workload={"batchnorm": "sync"})))[0]
    assert together.outcome == "the same within the margin"
    without = of_accuracy(compared(one(model="toy-cnn"), ddp(model="toy-cnn")))[0]
    assert without.outcome == "the same within the margin"


def test_statistics_that_move_twice_a_step_are_of_another_model():
    def one(**workload):
        return varied(single(SPEEDS), NEARLY, workload={"accumulate": 2} | workload)

    twice, once = one(), ddp()  # 16 images are normalised together on both sides
    assert "micro-batches per step" in of_accuracy(compared(twice, once))[0].sentence
    again = {"batchnorm_recompute": 20}
    recomputed = of_accuracy(compared(one(**again), ddp(workload=again)))[0]
    assert recomputed.outcome == "the same within the margin"


@pytest.mark.slow
def test_the_arm_that_needs_less_training_time_is_there_first():
    first = evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS)
    second = evaluated(multiworker(target=0.7), [LATE] * 7 + [EARLY], SECONDS)
    shown = compared(first, second)
    assert (shown.arms[0].to_target.steps, shown.arms[1].to_target.steps) == (30, 45)
    assert shown.arms[0].to_target.seconds == pytest.approx(30 * 0.1)
    assert shown.arms[0].to_target.images == 960
    (made,) = shown.time_to_accuracy.claims
    assert made.outcome == "faster"
    assert made.ratio == pytest.approx(1.5 ** (7 / 8))
    assert made.sentence.startswith(
        "torch ddp 2x1 reaches an accuracy of 0.7 1.426 times as fast as tensorflow multiworker 2x1 (training time; "
    )
    assert made.sentence in as_markdown(shown)
    band = shown.arms[1].accuracy_curve[1]
    assert (band.step, band.low, band.high, band.rounds) == (30, 0.6, 0.75, 8)
    page = as_html(shown)
    assert made.sentence in page
    assert {"accuracy-over-step", "accuracy-over-seconds"} <= set(re.findall(r'id="plot-([\w-]+)"', page))


def test_the_steps_to_a_target_end_where_an_evaluation_was():
    """Half of eight rounds are there after 30 steps and half after 45: after 37 or 38 there was no evaluation."""
    arm = evaluated(ddp(target=0.7), [EARLY, LATE] * 4, SECONDS)
    needed = compared(arm, evaluated(multiworker(target=0.7), [LATE] * 8, SECONDS)).arms[0].to_target
    assert (needed.steps, needed.images) == (30, 960)
    assert needed.sentence.startswith("torch ddp 2x1 reaches an accuracy of 0.7 after 30 steps and ")


def test_an_arm_that_never_gets_there_makes_no_ratio():
    first = evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS)
    second = evaluated(multiworker(target=0.7), [NEVER] * 2 + [EARLY] * 6, SECONDS)
    shown = compared(first, second)
    assert shown.time_to_accuracy.claims == []
    assert shown.target_sentences == [
        "torch ddp 2x1 reaches an accuracy of 0.7 after 30 steps and 3.0 s of training (medians of 8 rounds).",
        "tensorflow multiworker 2x1 missed the target accuracy of 0.7 in 2 of 8 rounds (best in those: 0.600), so its "
        "time to target is censored and left out of the ratios.",
    ]
    assert (shown.arms[1].to_target.reached, shown.arms[1].to_target.seconds) == (6, None)
    assert "6 of 8 reached it" in as_markdown(shown)


def test_a_seed_that_takes_long_is_not_trimmed():
    first = evaluated(varied(runs("torch", "ddp", [100.0] * 12), [0.8] * 12, target=0.7), [EARLY] * 12, [0.1] * 12)
    second = varied(runs("tensorflow", "multiworker", [100.0] * 12), [0.8] * 12, target=0.7)
    evaluated(second, [EARLY] * 10 + [LATE] * 2, [0.1] * 12)
    (made,) = compared(first, second).time_to_accuracy.claims
    assert made.ratio == pytest.approx(1.5 ** (2 / 12))


def test_a_resumed_round_is_told_without_a_ratio_of_times():
    first = evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS)
    second = evaluated(multiworker(target=0.7), [LATE] * 8, SECONDS)
    costs = [cost.model_copy(update={"seconds": None}) for cost in second.runs[2].evaluation_costs]
    second.runs[2] = second.runs[2].model_copy(update={"evaluation_costs": costs})
    shown = compared(first, second)
    assert shown.arms[1].to_target.sentence == (
        "tensorflow multiworker 2x1 reaches an accuracy of 0.7 after 45 steps and 4.5 s of training (medians of 8 "
        "rounds). Its training time is not known in 1 of 8 rounds, because the run was resumed; neither the median nor "
        "a ratio uses such a round."
    )
    (made,) = shown.time_to_accuracy.claims
    assert (made.rounds, made.outcome) == (7, "too few rounds")  # 8 were planned
    needed = {name: COLUMNS[f"to target ({name})"].cell(shown.arms[1]) for name in ("steps", "images", "s")}
    assert needed == {"steps": "45", "images": "1,440", "s": "4.5"}
    assert {(point.timed, point.rounds) for point in shown.arms[1].accuracy_curve} == {(7, 8)}
    over_time = accuracy_over_seconds(shown, shown.arms)
    assert "Those of tensorflow multiworker 2x1 leave out 1 round that had to be resumed." in over_time.explanation
    assert "tensorflow multiworker 2x1, step 45: accuracy" in over_time.chart.to_json()


def test_a_curve_ends_where_the_first_round_does():
    """The rounds that go on are of the slower seeds: the mean of them alone would fall."""
    made = evaluated(ddp(target=0.7, stop_at_target=True), [EARLY] * 7 + [NEVER], SECONDS)
    for number, run in enumerate(made.runs[:7]):
        early = {name: getattr(run, name)[:2] for name in ("evaluations", "evaluation_costs")}
        made.runs[number] = run.model_copy(update=early | {"train_loss": run.train_loss[:30]})
    shown = compared(made)
    assert [(point.step, point.mean) for point in shown.arms[0].accuracy_curve] == [
        (15, pytest.approx((7 * 0.5 + 0.4) / 8)),
        (30, pytest.approx((7 * 0.75 + 0.5) / 8)),
    ]
    assert "a curve ends where the first round of its arm does" in accuracy_over_steps(shown, shown.arms).explanation
    whole = compared(evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS))
    assert "ended earlier" not in accuracy_over_steps(whole, whole.arms).explanation


@pytest.mark.slow
@pytest.mark.parametrize("varies", [True, False])
def test_every_report_says_what_an_arm_needed(varies, capsys):
    """Also of one arm, and of rounds that repeat one training, of which nothing is claimed."""
    made = evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS)
    made.varies_seed = varies
    shown = compared(made)
    print_comparison(shown)
    sentence = "torch ddp 2x1 reaches an accuracy of 0.7 after 30 steps and 3.0 s of training (medians of 8 rounds)."
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert sentence in as_markdown(shown)
    assert sentence in as_html(shown)


def test_accuracies_of_one_seed_are_told_beside_a_target_too():
    arms = [evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS), evaluated(multiworker(target=0.7), [NEVER] * 8, SECONDS)]
    for each in arms:
        each.varies_seed = False
        each.runs = [each.runs[0]] * 8
    assert "use --vary-seed to compare them" in as_text(compared(*arms), 100)


@pytest.mark.parametrize(
    ("accuracies", "said"), [(EARLY, "accuracy 0.7 after 30 steps, 960 images, 3.0 s of training"), (NEVER, "was not")]
)
def test_a_run_says_what_its_target_took(accuracies, said, tmp_path, capsys):
    print_summary(evaluated(ddp(target=0.7), [accuracies] * 8, SECONDS).runs[0], tmp_path)
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_run_with_many_evaluations_shows_ten_of_them(tmp_path, capsys):
    run = ddp().runs[0]
    found = [
        Evaluation(epoch=1, step=10 * number, loss=1.0, accuracy=0.9 if number == 130 else 0.5, count=400)
        for number in range(1, 201)
    ]
    print_summary(run.model_copy(update={"evaluations": found}), tmp_path)
    said = capsys.readouterr().out
    assert said.count("after step") == 10
    assert all(f"after step {step} " in said for step in (10, 1300, 2000))
    assert "10 of 200, with the first, the best and the last; all are in result.json" in " ".join(said.split())
    print_summary(run.model_copy(update={"evaluations": found[:10]}), tmp_path)
    assert "with the first" not in capsys.readouterr().out


def test_the_energy_to_the_target_is_told_where_it_is_counted(tmp_path, capsys):
    run = evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS).runs[0]
    costs = [cost.model_copy(update={"joules": 10.0 * cost.step}) for cost in run.evaluation_costs]
    print_summary(run.model_copy(update={"evaluation_costs": costs}), tmp_path)
    assert "3.0 s of training, 300 J" in " ".join(capsys.readouterr().out.split())


def test_a_resumed_run_that_ends_at_once_says_what_is_unknown(tmp_path, capsys):
    run = evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS).runs[0]
    costs = [cost.model_copy(update={"seconds": None}) for cost in run.evaluation_costs]
    resumed = {"evaluation_costs": costs, "images_per_second": None, "measured_steps": 0}
    print_summary(run.model_copy(update=resumed), tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "after 30 steps, 960 images, seconds not known, since the run was resumed" in said
    assert "speed not measured: no step came after the warm-up" in said


def test_several_studies_are_said_not_to_be_judged_together():
    first, second = ddp(BETTER, target=0.7), multiworker(target=0.7)
    first.source, second.source = "studies/a", "studies/b"
    shown = compared(first, second)
    assert (shown.learning, shown.time_to_accuracy) == (None, None)
    assert shown.not_judged[0].endswith("report each study alone.")


@pytest.mark.slow
def test_runs_that_end_at_their_target_are_compared_by_time(capsys):
    first = evaluated(ddp(target=0.7, stop_at_target=True), [EARLY] * 8, SECONDS)
    second = evaluated(multiworker(target=0.7, stop_at_target=True), [EARLY] * 8, [2 * each for each in SECONDS])
    second.runs = [run.model_copy(update={"train_loss": run.train_loss[:30]}) for run in second.runs]
    shown = compared(first, second)
    assert shown.verdict == "COMPARABLE"
    assert shown.learning is None
    (why,) = shown.not_judged
    assert why.endswith("all end near the same accuracy, so their final accuracies are not compared.")
    print_comparison(shown)
    assert why in " ".join(capsys.readouterr().out.split())
    assert why in as_markdown(shown)
    assert why in as_html(shown)
    assert shown.time_to_accuracy.claims[0].ratio == pytest.approx(2.0)


LABELS = np.array([0, 0, 1, 1, 2, 2])


def predicted(*classes):
    return Predictions(classes=["cat", "dog", "hen"], labels=LABELS, predicted=np.array(classes))


@pytest.mark.seconds
@pytest.mark.slow
def test_predictions_are_counted_by_class_and_compared_by_sample(monkeypatch):
    first, second = ddp(), multiworker()
    right, wrong = predicted(0, 0, 1, 1, 2, 2), predicted(0, 1, 1, 1, 0, 0)
    first.predictions = [right, wrong]
    second.predictions = [right, right]
    shown = compared(first, second).predictions
    assert shown.samples == 6
    assert shown.arms[0].confusion == [[3, 1, 0], [0, 4, 0], [2, 0, 2]]
    assert shown.arms[0].class_accuracy == [0.75, 1.0, 0.5]
    assert shown.arms[0].agreement_between_rounds == pytest.approx(0.5)
    assert shown.agreements[0].sentence == (
        "torch ddp 2x1 and tensorflow multiworker 2x1 predict the same class for 75.0% of the 6 validation samples "
        "(mean of 2 rounds, 50.0% to 100.0%)."
    )
    page = as_html(compared(first, second))
    assert "Confusion matrix of torch ddp 2x1, 2 rounds of 6 samples" in page
    assert "| cat | 75.0% | 100.0% |" in as_markdown(compared(first, second))
    monkeypatch.setattr("dpcompare.report.page.LARGEST_MATRIX", 2)
    large = as_html(compared(first, second))
    assert "The whole matrix of 3 classes is in the JSON" in large
    pairs = re.findall(r"<tr><th scope=\"row\">(\w+)</th><td>(\w+)</td><td class=\"number\">(\d)</td></tr>", large)
    assert pairs == [("hen", "cat", "2"), ("cat", "dog", "1")]  # of the first arm; the second makes no mistake
    assert confusion(LABELS, right.predicted, 3).tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 2]]


def test_each_round_of_a_study_has_its_seed():
    begun = study(arms=(arm(seed=10),), repeats=3, vary_seed=True)
    assert [begun.config_of(number, begun.arms[0]).workload.seed for number in begun.rounds] == [11, 12, 13]
    assert begun.arms[0].config.workload.seed == 10
    assert study(arms=(arm(seed=10),)).config_of(3, arm(seed=10)).workload == Workload(
        model="mlp", image_size=8, steps=4, warmup_steps=1, seed=10
    )


def test_a_study_remembers_its_margin(tmp_path):
    begun = study(arms=(arm(),), repeats=1, vary_seed=True, margin=2.5)
    begun.save(tmp_path)
    assert Study.load(tmp_path).margin == 2.5
    made = begun.run_dir(tmp_path, 1, begun.arms[0])
    made.mkdir(parents=True)
    runs("torch", "single", [100.0], replicas=1).runs[0].save(made)
    (collected,) = collect([tmp_path]).arms
    assert (collected.varies_seed, collected.margin) == (True, 2.5)
