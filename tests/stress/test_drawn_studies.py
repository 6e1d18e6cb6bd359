"""Studies drawn from rounds of real runs: what is drawn, what the rule withholds, and which claims are right."""

import random
from dataclasses import replace

import pytest

from dpcompare.results.clock import ClockCheck, MachineLoad
from dpcompare.results.result import NodeRecord, StepSeconds
from stress.drawn_studies import DRAWS, Verdict, counted, drawn, rounds_as_run, runs_apart, verdict_of, with_runs_of
from tests.support.arms import FAST, SLOW, compared, renamed, single

BUSY = MachineLoad(
    seconds=4.0,
    cores=2,
    planned_cores=2,
    run_cores=0.4,
    other_cores=1.6,
    stolen_cores=0.0,
    waiting_fraction=None,
    heat_throttles=0,
)
DISTURBED = {"nodes": [NodeRecord(node_rank=0, host="here", device_names=["cpu:0"], versions={}, load=BUSY)]}
TOO_SHORT = {"step_seconds": StepSeconds(median=0.004, p95=0.004, mean=0.004, mad=0.0)}
WRONG_CLOCK = {"clock": ClockCheck(process_rank=0, own_seconds=1.0, least_seconds=2.0, most_seconds=2.1)}


def arms(first=FAST, second=SLOW, *, flawed=(), **changes):
    """Two arms with a run per speed; those of the first one have other fields in flawed rounds, counted from 1."""
    both = renamed("A", single(first)), renamed("B", single(second))
    for number in flawed:
        both[0].runs[number - 1] = both[0].runs[number - 1].model_copy(update=changes)
    return both


@pytest.mark.parametrize("draw", DRAWS.values())
def test_a_study_has_six_rounds_of_which_none_is_drawn_twice(draw):
    for rounds in draw(60, random.Random(1)):
        assert len(set(rounds)) == 6
        assert set(rounds) <= set(range(60))


def test_rounds_as_run_keep_both_runs_together_and_others_do_not():
    for seed in range(20):
        first, second = rounds_as_run(60, random.Random(seed))
        assert first == second
    assert any(set(first) != set(second) for first, second in (runs_apart(60, random.Random(n)) for n in range(20)))


def test_every_round_is_drawn_as_often_as_any_other():
    generator = random.Random(1)
    draws = [index for _ in range(2000) for index in rounds_as_run(10, generator)[0]]
    assert all(abs(draws.count(index) - 1200) < 100 for index in range(10))  # more than four standard deviations


def test_a_study_takes_the_runs_of_its_rounds():
    arm = with_runs_of(arms()[0], [5, 0, 2])
    assert arm.steady_speeds == [FAST[5], FAST[0], FAST[2]]
    assert (arm.plan.rounds, arm.positions, arm.run_dirs) == (3, [6, 1, 3], ["runs/6", "runs/1", "runs/3"])


@pytest.mark.seconds
def test_the_same_seed_draws_the_same_studies():
    half_faster = arms(FAST + FAST, SLOW + FAST)

    def verdicts(seed):
        return list(drawn(half_faster, runs_apart, studies=12, seed=seed))

    first = verdicts(1)
    assert first == verdicts(1)
    assert first != verdicts(2)


def test_fewer_rounds_than_a_study_has_are_refused():
    with pytest.raises(ValueError, match="received 5, expected at least 6"):
        list(drawn(arms(FAST[:5], SLOW[:5]), rounds_as_run, studies=1, seed=1))


CLAIM = Verdict(outcome="faster", without_rule="faster")


@pytest.mark.parametrize(
    ("flawed", "changes", "flaws"),
    [
        (0, {}, None),
        (3, DISTURBED, None),
        (4, DISTURBED, {"DISTURBED"}),
        (4, DISTURBED | TOO_SHORT, {"DISTURBED", "TOO SHORT"}),
    ],
)
def test_more_than_half_flawed_rounds_withhold_a_claim(flawed, changes, flaws):
    withheld = replace(CLAIM, outcome="disturbed or too short", flaws=frozenset(flaws or ()))
    assert verdict_of(arms(flawed=range(1, flawed + 1), **changes)) == (withheld if flaws else CLAIM)


def test_arms_that_the_sheet_refuses_are_claimed_in_no_way():
    refused = Verdict(outcome="NOT COMPARABLE", without_rule="NOT COMPARABLE")
    assert verdict_of(arms(flawed=[1], **WRONG_CLOCK)) == refused


@pytest.mark.parametrize("flawed", [0, 4])
@pytest.mark.parametrize("speeds", [(FAST, SLOW), (SLOW, FAST), (FAST, FAST[::-1])])
def test_a_verdict_is_what_a_report_says_of_the_same_runs(speeds, flawed):
    both = arms(*speeds, flawed=range(1, flawed + 1), **DISTURBED)
    verdict, unflawed = verdict_of(both), compared(*arms(*speeds)).claims[0]
    assert (verdict.outcome, verdict.without_rule) == (compared(*both).claims[0].outcome, unflawed.outcome)


def test_a_round_without_one_of_its_runs_leaves_too_few():
    first, second = arms()
    first.runs[0] = None
    assert verdict_of((first, second)).outcome == "too few rounds"


RIGHT = Verdict(outcome="faster", without_rule="faster")
WRONG = Verdict(outcome="slower", without_rule="slower")
SILENT = Verdict(outcome="no difference shown", without_rule="no difference shown")
SAVED = Verdict(outcome="disturbed or too short", without_rule="slower", flaws=frozenset({"DISTURBED", "TOO SHORT"}))
LOST = Verdict(outcome="disturbed or too short", without_rule="faster", flaws=frozenset({"DISTURBED"}))
REFUSED = Verdict(outcome="NOT COMPARABLE", without_rule="NOT COMPARABLE")


def test_claims_are_counted_with_the_rule_and_without():
    counts = counted([RIGHT] * 3 + [WRONG] + [SILENT] * 2 + [SAVED] * 2 + [LOST, REFUSED, REFUSED, REFUSED], "faster")
    assert counts.figures == {
        "studies": 12,
        "claims": 4,
        "right": 3,
        "withheld": 3,
        "flaws": {"DISTURBED": 3, "TOO SHORT": 2},
        "not_comparable": 3,
        "claims_without_rule": 7,
        "right_without_rule": 4,
        "power": 3 / 12,
        "power_without_rule": 4 / 12,
    }


def test_right_is_the_sign_of_the_truth():
    assert (counted([RIGHT], "faster").right, counted([RIGHT], "slower").right) == (1, 0)


@pytest.mark.parametrize(
    ("verdicts", "is_right"),
    [([RIGHT] * 39 + [WRONG], True), ([RIGHT] * 38 + [WRONG], False), ([SAVED, SILENT], True)],
)
def test_at_most_one_claim_in_forty_may_be_wrong(verdicts, is_right):
    assert counted(verdicts, "faster").is_right == is_right


@pytest.mark.seconds
@pytest.mark.parametrize("draw", DRAWS.values())
def test_load_that_harms_one_arm_is_claimed_wrongly_without_rule(draw):
    """The first arm is the faster one when left alone; all its runs are disturbed and at half their speed."""
    disturbed = arms([speed / 2 for speed in FAST] * 2, SLOW * 2, flawed=range(1, 13), **DISTURBED)
    counts = counted(drawn(disturbed, draw, studies=20, seed=1), "faster")
    assert (counts.claims, counts.withheld, counts.flaws) == (0, 20, {"DISTURBED": 20})
    assert (counts.claims_without_rule, counts.right_without_rule) == (20, 0)
    assert counts.is_right
