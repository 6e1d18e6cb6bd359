"""From results to what is shown: verdicts, efficiency, and where the time goes."""

import math

import pytest

from dpcompare.errors import RequestError
from dpcompare.experiments.analysis import analyse, widest_interval
from dpcompare.experiments.collection import collect
from dpcompare.experiments.statistics import Plan
from dpcompare.report.conditions import parse_condition
from dpcompare.report.formats import as_markdown
from dpcompare.report.page import as_html
from dpcompare.report.text import as_text, within
from dpcompare.results.computed import Evaluation
from dpcompare.results.result import NodeRecord
from dpcompare.system.gpu_state import GpuReading, GpuState
from tests.support.arms import FAST, SLOW, compared, renamed, runs, single, stalled
from tests.support.results import gpu, on_gpus, result


def test_the_headline_is_the_largest_difference():
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    assert shown.headline == shown.claims[0].sentence
    assert "torch ddp 2x1 is 1.300 times as fast as tensorflow multiworker 2x1 in steady speed (" in shown.headline
    assert shown.verdict == "COMPARABLE"
    assert not shown.partial


@pytest.mark.parametrize(
    ("changes", "setting"),
    [({"precision": "bfloat16"}, "precision"), ({"store_sha256": "other"}, "data"), ({"emulated": True}, "emulation")],
)
def test_an_unfair_knob_takes_the_claim_away_and_is_named(changes, setting):
    shown = compared(runs("torch", "ddp", FAST, **changes), runs("tensorflow", "multiworker", SLOW))
    assert shown.headline.startswith("NOT COMPARABLE: every pair of arms differs in a setting that must be equal")
    assert shown.claims[0].sentence.endswith(f"are NOT COMPARABLE. Settings that differ: {setting}.")
    assert shown.claims[0].ratio is None
    about_it = compared(runs("torch", "ddp", FAST, **changes), runs("torch", "ddp", SLOW), subject=(setting,))
    assert about_it.claims[0].outcome == "faster"


def test_a_knob_that_changed_between_rounds_is_found():
    mixed = runs("torch", "ddp", FAST)
    mixed.runs[3] = runs("torch", "ddp", FAST, weights_sha256="other").runs[3]
    shown = compared(mixed, runs("tensorflow", "multiworker", SLOW))
    assert "initial weights" in shown.claims[0].sentence


def test_a_missing_round_makes_the_study_partial():
    shown = compared(runs("torch", "ddp", [*FAST, None]), runs("tensorflow", "multiworker", [*SLOW, 99.0]), repeats=7)
    assert shown.partial
    assert shown.headline.startswith("PARTIAL (6 of 7 rounds are complete).")
    assert shown.claims[0].rounds == 6


def test_a_partial_study_counts_its_rounds_once():
    pair = runs("torch", "ddp", [130.0, None]), runs("tensorflow", "multiworker", [100.0, None])
    shown = compared(*pair, repeats=2)
    assert shown.headline == "PARTIAL (1 of 2 rounds are complete). Nothing is ranked yet."


def test_strong_scaling_is_against_one_device_alike():
    shown = compared(single(SLOW), runs("torch", "ddp", [2 * speed * 0.9 for speed in SLOW]))
    scaling = shown.arms[1].scaling
    assert (scaling.kind, scaling.suspicious) == ("strong", False)
    assert scaling.efficiency == pytest.approx(0.9)
    assert shown.arms[0].scaling is None


@pytest.mark.parametrize("changes", [{"precision": "bfloat16"}, {"weights_sha256": "other"}])
def test_a_round_with_other_settings_is_told_without_scaling(changes):
    mixed = runs("torch", "ddp", FAST)
    mixed.runs[3] = runs("torch", "ddp", FAST, **changes).runs[3]
    shown = compared(single(SLOW), mixed)
    assert shown.arms[1].scaling is None
    assert shown.claims[0].outcome == "NOT COMPARABLE"
    assert shown.headline.startswith("NOT COMPARABLE")


def test_a_study_of_scaling_alone_has_its_answer_as_headline():
    shown = compared(single(SLOW), runs("torch", "ddp", FAST))
    assert shown.claims == []
    assert shown.headline == shown.arms[1].scaling.sentence
    assert "torch ddp 2x1 on 2 devices: 1.3" in shown.headline
    early = compared(single(SLOW[:1]), runs("torch", "ddp", FAST[:1]), repeats=1)
    assert early.headline.startswith("FIRST LOOK: 1 of 6 rounds. torch ddp 2x1 on 2 devices: 1.3")
    cut = compared(single([100.0, None]), runs("torch", "ddp", [130.0, None]), repeats=2)
    assert cut.headline.startswith("PARTIAL (1 of 2 rounds are complete). torch ddp 2x1 on 2 devices: 1.3")
    assert cut.headline.endswith(" Nothing is claimed yet.")
    emulated = compared(single(SLOW), runs("torch", "ddp", FAST, emulated=True))
    slower = runs("torch", "fabric", SLOW)
    assert "torch fabric" in compared(single(SLOW), runs("torch", "ddp", FAST), slower).arms[2].scaling.sentence
    assert emulated.arms[1].scaling is not None


def test_arms_without_a_common_round_are_not_one_arm_alone():
    shown = compared(single([*SLOW[:1], None]), runs("torch", "ddp", [None, *FAST[:1]]), repeats=2)
    assert shown.arms[1].scaling is None
    assert len(shown.claims) == 1
    assert "One arm alone" not in shown.headline


def test_sets_of_arms_that_may_be_compared_are_each_named():
    arms = [runs("torch", "ddp", FAST), runs("torch", "fabric", FAST)]
    others = [runs("torch", mode, SLOW, precision="bfloat16") for mode in ("accelerate", "fsdp")]
    shown = compared(*arms, *others)
    assert [len(found) for found in shown.groups[0].comparable] == [2, 2]
    assert within(shown.groups[0], shown) == (
        "Torch ddp 2x1, torch fabric 2x1; and torch accelerate 2x1, torch fsdp 2x1 are comparable."
    )


def test_failed_runs_are_the_reason_for_too_few_rounds():
    failed = runs("torch", "ddp", [*FAST[:2], None])
    failed.failures = ["round 3: killed"]
    shown = compared(failed, runs("torch", "fabric", SLOW[:3]), repeats=3)
    assert shown.headline == (
        "Too few rounds to claim anything about speed: runs have failed, and at most 2 of 6 are complete."
    )


def test_one_gpu_has_no_links_and_is_a_baseline_for_several():
    of_one, of_two = on_gpus(gpu(links={})), on_gpus(gpu(), gpu())
    described = {"device_type": "gpu", "device_names": ["NVIDIA H100"]}
    one = single(SLOW, nodes=of_one.nodes, **described)
    two = runs("torch", "ddp", FAST, nodes=of_two.nodes, **described | {"device_names": ["NVIDIA H100"] * 2})
    assert compared(one, two).arms[1].scaling.kind == "strong"


def test_weak_scaling_has_the_same_batch_per_replica():
    shown = compared(single(SLOW, global_batch_size=16, sample_order_sha256="x"), runs("torch", "ddp", SLOW))
    assert shown.arms[1].scaling.kind == "weak"
    assert shown.arms[1].scaling.efficiency == pytest.approx(0.5)


def test_an_efficiency_above_105_percent_is_suspicious():
    shown = compared(single(SLOW), runs("torch", "ddp", [2.2 * speed for speed in SLOW]))
    assert shown.arms[1].scaling.suspicious
    assert "SUSPICIOUS" in as_markdown(shown)


@pytest.mark.parametrize("changes", [{"precision": "bfloat16"}, {"store_sha256": "other"}])
def test_a_baseline_with_other_settings_is_none(changes):
    shown = compared(single(SLOW, **changes), runs("torch", "ddp", FAST))
    assert shown.arms[1].scaling is None


def test_communication_is_what_gradient_sync_adds_to_a_step():
    arm = runs("torch", "ddp", [100.0] * 3, mean_ms=[50.0, 60.0, 70.0])
    arm.without_sync = runs("torch", "ddp", [100.0] * 3, mean_ms=[40.0, 45.0, 62.0]).runs
    row = compared(arm, repeats=3).arms[0]
    assert row.communication_ms == pytest.approx(10.0)
    assert row.step_parts_ms == pytest.approx({"waiting for data": 6.0, "communication": 10.0, "computing": 44.0})
    alone = compared(runs("torch", "ddp", [100.0] * 3), repeats=3).arms[0]
    assert alone.communication_ms is None
    assert "communication" not in alone.step_parts_ms


def evaluation(accuracy):
    return Evaluation(epoch=1, step=45, loss=1.0, accuracy=accuracy, count=359)


def test_how_closely_comparable_arms_have_trained_is_said():
    first = runs("torch", "ddp", FAST, train_loss=[2.0, 1.5, 1.2, None])
    second = runs("tensorflow", "multiworker", SLOW, train_loss=[2.0, 1.5, 1.23, 1.0])
    shown = compared(first, second)
    assert "training losses differ by at most 0.03 in any step and accuracies by at most 0.0%" in shown.agreement
    assert shown.agreement in as_markdown(shown)
    assert (
        "An accuracy on 359 samples has a standard error of 2.6%, and all rounds repeat one training, so they do not "
        "show how far rounding alone moves it: no arm can be called more accurate." in shown.agreement
    )
    first.runs[3] = runs(
        "torch", "ddp", FAST[:1], train_loss=[2.0, 1.5, 1.2, 1.0], evaluations=[evaluation(0.52)]
    ).runs[0]
    moved = compared(first, second).agreement
    assert "rounds of one arm, which differ in rounding alone, differ by up to 2.0%: no arm" in moved
    better = runs("tensorflow", "multiworker", SLOW, train_loss=[2.0, 1.5, 1.2, 1.0], evaluations=[evaluation(0.7)])
    assert "differ by up to 2.0%: look for the reason." in compared(first, better).agreement
    unmoved = compared(runs("torch", "ddp", FAST, train_loss=[2.0, 1.5, 1.2, 1.0]), better)
    assert "one training per arm cannot tell which is more accurate; use --vary-seed." in (unmoved.agreement)
    assert "Accuracies are from one seed, and rounding alone can move them; use --vary-seed to compare them." in (
        as_text(unmoved, 200)
    )
    assert "Accuracies are" not in as_text(shown, 200)  # they are equal
    assert "diverge: from step 4 the loss of one is not finite" in shown.agreement
    at_once = compared(runs("torch", "ddp", FAST, train_loss=[None] * 4), second)
    assert at_once.agreement is None  # they have not computed the same
    assert any(reason.startswith("first loss: not known against 2;") for reason in at_once.reasons)
    unfair = compared(first, runs("tensorflow", "multiworker", SLOW, precision="bfloat16"))
    assert unfair.agreement is None


def test_directories_that_hold_nothing_to_report_are_refused(tmp_path):
    with pytest.raises(RequestError, match="is neither a study nor a run"):
        collect([tmp_path])
    (tmp_path / "result.json").write_text('{"half": ')
    with pytest.raises(RequestError, match="is not the result of a run"):
        collect([tmp_path])
    with pytest.raises(RequestError, match=rf"result\.json' is a file; expected its directory: '{tmp_path}'$"):
        collect([tmp_path / "result.json"])
    result(status="failed", error="process 0 (log):\nTraceback (most recent call last):\nValueError: too bad").save(
        tmp_path
    )
    with pytest.raises(RequestError, match=r"none of the runs has completed.*ValueError: too bad"):
        collect([tmp_path])


def test_results_of_several_machines_are_merged(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        result().save(tmp_path / name)
    shown = analyse(collect([tmp_path / "one", tmp_path / "two"]))
    assert [row.name for row in shown.arms] == ["one: torch ddp 2x1", "two: torch ddp 2x1"]
    with pytest.raises(RequestError, match="the same directory was given twice"):
        collect([tmp_path / "one", tmp_path / "two" / ".." / "one"])
    with pytest.raises(RequestError, match="--subject: received colour, expected an option"):
        collect([tmp_path / "one"], subject=["colour"])


def test_the_widest_interval_is_of_comparable_arms_that_run():
    fair = [runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW)]
    assert widest_interval(compared(*fair)) == pytest.approx(0.0127, abs=1e-4)  # 96% of one pair
    assert widest_interval(compared(fair[0], runs("torch", "ddp", SLOW, precision="bfloat16"))) is None
    assert (
        widest_interval(compared(runs("torch", "ddp", FAST[:3]), runs("tensorflow", "multiworker", SLOW[:3])))
        == math.inf
    )
    fair[1].failures = ["round 3: killed"]
    assert widest_interval(compared(*fair)) is None


def test_arms_of_different_studies_are_not_paired():
    """A machine that is 5% slower on the second day would make every arm of that day slower."""
    first, second = runs("torch", "ddp", SLOW), runs("tensorflow", "multiworker", [0.95 * speed for speed in SLOW])
    assert compared(first, second).claims[0].outcome == "faster"
    first.source, second.source = "monday/modes", "tuesday/modes"
    apart = compared(first, second)
    assert apart.claims[0].sentence.endswith("are NOT COMPARABLE. Settings that differ: study.")
    assert apart.verdict == "NOT COMPARABLE"
    assert "measure all arms in one" in apart.reasons[-1]
    baseline = single(SLOW)
    baseline.source = "tuesday/modes"
    assert compared(baseline, first).arms[1].scaling is None


def test_directories_of_one_name_are_told_apart(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "modes").mkdir(parents=True)
        result().save(tmp_path / name / "modes")
    shown = analyse(collect([tmp_path / "a" / "modes", tmp_path / "b" / "modes"]))
    assert [row.name for row in shown.arms] == ["a/modes: torch ddp 2x1", "b/modes: torch ddp 2x1"]


def test_a_run_of_another_release_with_other_settings_is_refused(tmp_path):
    made = result()
    made.model_copy(update={"config": made.config | {"colour": "blue"}}).save(tmp_path)
    with pytest.raises(RequestError, match=r"with settings that .* does not know \(1 of them\)"):
        collect([tmp_path])


def test_a_failed_run_without_sync_is_said():
    arm = runs("torch", "ddp", FAST)
    arm.ablation_failures = ["round 1: killed"]
    shown = compared(arm, runs("tensorflow", "multiworker", SLOW))
    assert "- FAILED torch ddp 2x1: without gradient sync, round 1: killed" in as_markdown(shown)
    assert widest_interval(shown) is not None  # the arm itself is in good health


@pytest.mark.slow
def test_a_gpu_that_was_slowed_down_is_named_with_its_round():
    fast = runs("torch", "ddp", FAST)
    hot = GpuState(device="3", name="NVIDIA H100", after=GpuReading(clock_reasons=["power limit", "power brake"]))
    node = NodeRecord(node_rank=1, host="h", device_names=[], versions={}, gpus=[hot])
    fast.runs[1] = fast.runs[1].model_copy(update={"nodes": [node]})
    shown = compared(fast, runs("tensorflow", "multiworker", SLOW))
    sentence = "round 2: GPU 3 (NVIDIA H100) of node 1 was slowed down: power brake"
    assert [[warning.sentence for warning in row.warnings] for row in shown.arms] == [[sentence], []]
    assert sentence in as_html(shown)
    assert f"- SLOWED DOWN torch ddp 2x1: {sentence}" in as_markdown(shown)


@pytest.mark.slow
def test_a_stall_is_named_everywhere_and_changes_no_claim():
    quiet = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    shown = compared(stalled(runs("torch", "ddp", FAST), 3), runs("tensorflow", "multiworker", SLOW))
    sentence = "round 3: step 15 took 20.0 s, median 0.29 s; without it 110.9 images/s"
    assert [[(warning.kind, warning.sentence) for warning in row.warnings] for row in shown.arms] == [
        [("STALLED", sentence)],
        [],
    ]
    assert f"- STALLED torch ddp 2x1: {sentence}" in as_markdown(shown)
    assert sentence in as_html(shown)
    assert shown.claims[0].sentence == quiet.claims[0].sentence
    assert shown.arms[0].rounds_shown[2].images_per_second == 22.0
    assert list(parse_condition("unstable").where_it_holds(quiet)) == []
    assert list(parse_condition(" unstable ").where_it_holds(shown)) == [
        f"unstable holds for torch ddp 2x1: STALLED: {sentence}"
    ]


def test_an_arm_without_runs_is_not_stable():
    missing = renamed("third", runs("torch", "ddp", [None] * 6))
    shown = compared(runs("torch", "ddp", FAST), missing)
    assert list(parse_condition("unstable").where_it_holds(shown)) == ["unstable cannot be judged for third"]


def slightly_faster(name):
    """1% faster than SLOW, which one pair alone shows and one pair of several does not."""
    noise = [1.010, 1.006, 1.013, 1.011, 1.002, 1.015]
    return renamed(name, runs("torch", "ddp", [speed * each for speed, each in zip(SLOW, noise, strict=True)]))


def test_the_pairs_of_a_study_are_judged_together():
    alone = compared(slightly_faster("b"), renamed("a", runs("torch", "ddp", SLOW)))
    assert alone.claims[0].outcome == "faster"
    others = [renamed(name, runs("torch", "ddp", SLOW[::-1])) for name in "cdef"]
    together = compared(slightly_faster("b"), renamed("a", runs("torch", "ddp", SLOW)), *others)
    assert together.claims[0].outcome == "no difference shown"
    assert together.claims[0].low < 1 < together.claims[0].high
    assert together.claims[0].confidence == pytest.approx(1 - 0.04 / 15)


def test_a_pair_that_was_named_beforehand_is_judged_alone():
    arms = [slightly_faster("b"), *(renamed(name, runs("torch", "ddp", SLOW)) for name in "acdef")]
    for arm in arms:
        arm.is_named = arm.name in "ab"
    shown = compared(*arms)
    assert shown.headline.startswith(f"{shown.claims[0].sentence} All other pairs are exploratory")
    assert shown.claims[0].outcome == "faster"
    assert {made.outcome for made in shown.claims[1:]} == {"exploratory"}
    alone = compared(slightly_faster("b"), renamed("a", runs("torch", "ddp", SLOW)))
    assert widest_interval(shown) == widest_interval(alone)
    assert list(parse_condition("ratio>1").where_it_holds(shown)) == ["ratio>1 holds for b / a: 1.009"]
    assert "exploratory, since another pair" in as_markdown(shown)
    arms[0].runs = [None] * 6
    assert "The pair that was named beforehand is not comparable, so nothing is claimed." in compared(*arms).headline


def test_the_pairs_of_another_study_do_not_count():
    of_two = [slightly_faster("b"), renamed("a", runs("torch", "ddp", SLOW))]
    others = [renamed(name, runs("torch", "ddp", SLOW[::-1])) for name in "cdef"]
    for arm in others:
        arm.source = "tuesday"
    shown = compared(*of_two, *others)
    assert (shown.claims[0].first, shown.claims[0].outcome) == ("b", "faster")


def test_a_study_that_was_looked_at_is_judged_more_strictly():
    pair = [slightly_faster("b"), renamed("a", runs("torch", "ddp", SLOW))]
    for arm in pair:
        arm.plan = Plan(looks=2)
    shown = compared(*pair)
    assert shown.claims[0].outcome == "no difference shown"
    assert "(99.84% interval " in shown.claims[0].sentence


def test_a_study_that_lacks_a_run_without_sync_is_partial():
    arm = runs("torch", "ddp", FAST)
    arm.without_sync = [*arm.runs[:5], None]
    assert compared(arm).headline.startswith("PARTIAL (5 of 6 rounds are complete).")


def test_a_clear_claim_among_many_says_of_how_many():
    shown = compared(
        runs("torch", "ddp", FAST),
        runs("tensorflow", "multiworker", SLOW),
        renamed("third", runs("torch", "ddp", SLOW)),
    )
    assert shown.headline.endswith("It is the largest difference of 3 comparable pairs, judged together at 95%.")


def test_pairs_with_too_few_rounds_are_not_called_equal():
    few = renamed("third", runs("torch", "ddp", [*SLOW[:3], None, None, None]))
    shown = compared(runs("torch", "ddp", SLOW), runs("tensorflow", "multiworker", SLOW[::-1]), few)
    assert "; 2 of the 3 pairs are not judged: too few rounds." in shown.headline


def test_what_one_study_is_about_excuses_no_other():
    pair = [runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW, precision="bfloat16")]
    other = [
        renamed(f"other {arm.name}", arm)
        for arm in (runs("torch", "ddp", FAST), runs("torch", "ddp", SLOW, precision="bfloat16"))
    ]
    for arm in pair:
        arm.source, arm.subject = "monday", ("precision",)
    for arm in other:
        arm.source = "tuesday"
    shown = compared(*pair, *other)
    outcomes = {(made.first, made.second): made.outcome for made in shown.claims}
    assert outcomes[pair[0].name, pair[1].name] == "faster"
    assert outcomes[other[0].name, other[1].name] == "NOT COMPARABLE"


def test_the_sheet_shows_what_changed_between_rounds():
    arm = runs("torch", "ddp", FAST)
    arm.runs[3] = arm.runs[3].model_copy(update={"precision": "bfloat16"})
    shown = compared(arm, runs("tensorflow", "multiworker", SLOW))
    (row,) = (row for row in shown.settings if row.setting == "precision")
    assert row.values == ["float32, bfloat16", "float32"]
    assert row.verdict == "NOT COMPARABLE"
    verdicts = {row.setting: row.verdict for row in shown.settings if not row.equal}
    assert verdicts["framework"] == "expected to differ"


def test_a_figure_that_one_arm_lacks_is_not_called_expected():
    known, lacking = (runs("torch", mode, FAST) for mode in ("ddp", "fabric"))
    lacking.runs = [run.model_copy(update={"computed": None}) for run in lacking.runs]
    verdicts = {row.setting: row.verdict for row in compared(known, lacking).settings if not row.equal}
    assert verdicts["optimizer steps"] == "not known"
    assert verdicts["mode"] == "expected to differ"


def test_an_arm_alone_is_the_one_that_ran():
    failed = runs("tensorflow", "multiworker", [None])
    failed.failures = ["round 1: killed"]
    shown = compared(failed, runs("torch", "ddp", [100.0]), repeats=1)
    assert shown.headline == "One arm alone: torch ddp 2x1."


def test_releases_that_measure_otherwise_are_not_ranked():
    shown = compared(runs("torch", "ddp", FAST, dpcompare_version="9.9.0"), runs("torch", "ddp", SLOW))
    assert shown.claims[0].sentence.endswith("NOT COMPARABLE. Settings that differ: dpcompare.")


def test_outliers_are_said_once_with_the_number_of_rounds():
    arm = runs("torch", "ddp", FAST)
    for number, loss in ((1, 2.0), (2, 9.0), (4, 3.0)):
        last = Evaluation(
            epoch=3, step=45, loss=loss, accuracy=0.5, count=359, median_batch_loss=1.0, largest_batch_loss=30.0
        )
        arm.runs[number - 1] = arm.runs[number - 1].model_copy(update={"model": "toy-cnn", "evaluations": [last]})
    shown = compared(arm)
    assert shown.arms[0].outliers == [
        "in 3 of 6 rounds, such as: a few samples make up most of the evaluation loss of 9.0000: it is 1.0000 in the "
        "median batch, 30 in the worst"
    ]
    alone = compared(runs("torch", "ddp", FAST[:1]), repeats=1)
    assert alone.arms[0].outliers == []
    single_round = runs("torch", "ddp", FAST[:1])
    single_round.runs[0] = arm.runs[1]
    assert compared(single_round, repeats=1).arms[0].outliers[0].startswith("a few samples make up most of the ")
