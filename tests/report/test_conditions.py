"""Conditions of --fail-if: on any arm, on any pair, on one pair, and what cannot be judged."""

import pytest

from dpcompare.errors import RequestError
from dpcompare.experiments.cost import priced
from dpcompare.report.conditions import parse_condition
from tests.support.arms import FAST, SLOW, compared, renamed, runs
from tests.support.learning import EARLY, NEVER, SECONDS, ddp, evaluated, multiworker
from tests.support.learning import compared as compared_over_seeds


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("ratio<0.97", False),
        ("ratio>1.2", True),
        ("images_per_second<120", True),
        ("steady_images_per_second<1", False),
        ("steady_images_per_second>1", True),
        ("accuracy<0.4", False),
        ("efficiency<0.5", True),  # there is none, which is not a success
    ],
)
def test_conditions_on_figures(condition, holds):
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    assert bool(list(parse_condition(condition).where_it_holds(shown))) == holds


@pytest.mark.parametrize("text", ["ratio", "speed<3", "ratio<fast", "ratio=1", "ratio<nan"])
def test_conditions_that_are_none_are_refused(text):
    with pytest.raises(RequestError, match=r"--fail-if: received .* expected FIGURE<NUMBER"):
        parse_condition(text)


def test_a_failed_arm_meets_every_condition():
    failed = renamed("third", runs("torch", "ddp", [None] * 6))
    failed.failures = ["round 1: killed"]
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW), failed)
    assert list(parse_condition("images_per_second<50").where_it_holds(shown)) == [
        "images_per_second<50 cannot be judged for third"
    ]


def test_an_arm_that_lacks_the_figure_meets_its_conditions():
    """Such as the speed of runs that ended at their target within the warm-up."""
    lacking = renamed("third", runs("torch", "ddp", FAST))
    lacking.runs = [run.model_copy(update={"images_per_second": None}) for run in lacking.runs]
    shown = compared(runs("torch", "ddp", FAST), lacking)
    assert list(parse_condition("images_per_second<50").where_it_holds(shown)) == [
        "images_per_second<50 cannot be judged for third"
    ]
    assert list(parse_condition("accuracy<0.1").where_it_holds(shown)) == []


def test_noise_meets_no_condition():
    noisy = [speed * (1 + 0.1 * (-1) ** number) for number, speed in enumerate(SLOW)]
    shown = compared(runs("torch", "ddp", noisy), runs("tensorflow", "multiworker", [105.0] * 6))
    assert shown.claims[0].outcome == "no difference shown"
    assert shown.claims[0].ratio < 0.97
    assert list(parse_condition("ratio<0.97").where_it_holds(shown)) == []


def test_an_arm_that_was_not_run_cannot_be_judged():
    missing = renamed("third", runs("torch", "ddp", [None] * 6))
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW), missing)
    assert "accuracy<0.1 cannot be judged for third" in parse_condition("accuracy<0.1").where_it_holds(shown)


def test_where_there_is_nothing_to_judge_a_condition_says_so():
    shown = compared(runs("torch", "ddp", FAST), runs("torch", "ddp", SLOW, precision="bfloat16"))
    (line,) = parse_condition("ratio<0.97").where_it_holds(shown)
    assert line == "ratio<0.97 cannot be judged: there is no ratio here"


PAIR = "torch ddp 2x1 / tensorflow multiworker 2x1"
OTHER_WAY = "tensorflow multiworker 2x1 / torch ddp 2x1"


@pytest.mark.parametrize(
    ("condition", "lines"),
    [
        (f"{PAIR} < 0.97", []),
        (f"{PAIR}>1.2", [f"{PAIR}>1.2 holds for {PAIR}: 1.3"]),
        (f"{OTHER_WAY}<0.97", [f"{OTHER_WAY}<0.97 holds for {OTHER_WAY}: 0.7695"]),
        ("torch:ddp / tensorflow:multiworker>1.2", [f"torch:ddp / tensorflow:multiworker>1.2 holds for {PAIR}: 1.3"]),
    ],
)
def test_a_condition_on_one_pair_is_of_either_way_round(condition, lines):
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW), slowest())
    assert list(parse_condition(condition).where_it_holds(shown)) == lines


def slowest():
    """Which makes pairs that pass all limits."""
    return renamed("slowest", runs("jax", "multiprocess", [1.0] * 6))


def test_a_pair_that_is_not_there_is_refused():
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    with pytest.raises(RequestError, match=f"expected a pair of this study, either way round: {PAIR}"):
        list(parse_condition("torch ddp 2x1 / tensorflow mirrored 1x2<1").where_it_holds(shown))


def test_a_mode_of_several_arms_names_no_pair():
    shown = compared(runs("torch", "ddp", FAST), renamed("another", runs("torch", "ddp", SLOW)))
    with pytest.raises(RequestError, match="received 'torch:ddp / another', expected a pair of this study"):
        list(parse_condition("torch:ddp / another<1").where_it_holds(shown))


def test_a_pair_that_was_not_settled_cannot_be_judged():
    shown = compared(runs("torch", "ddp", FAST[:3]), runs("tensorflow", "multiworker", SLOW[:3]), repeats=3)
    assert list(parse_condition(f"{PAIR}<0.97").where_it_holds(shown)) == [
        f"{PAIR}<0.97 cannot be judged for {PAIR} (too few rounds)"
    ]


def test_an_arm_of_the_pair_that_failed_cannot_be_judged():
    failed, dead = runs("torch", "ddp", [*FAST[:5], None]), renamed("dead", runs("torch", "fsdp", [None] * 6))
    failed.failures, dead.failures = ["round 6: killed"], ["round 1: killed"]
    shown = compared(failed, runs("tensorflow", "multiworker", SLOW), dead)
    assert f"{PAIR}<0.5 cannot be judged for torch ddp 2x1" in parse_condition(f"{PAIR}<0.5").where_it_holds(shown)
    of_dead = parse_condition("tensorflow multiworker 2x1 / dead<0.5")
    assert list(of_dead.where_it_holds(shown)) == [f"{of_dead.text} cannot be judged for dead"]


def test_a_cost_without_a_price_is_refused():
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    with pytest.raises(RequestError, match="without a price; give --price too"):
        list(parse_condition("dollars_per_million_images>3").where_it_holds(shown))


def test_conditions_on_what_a_target_takes_and_costs():
    reached = evaluated(ddp(target=0.7), [EARLY] * 8, SECONDS)
    missed = evaluated(renamed("late", multiworker(target=0.7)), [EARLY] * 7 + [NEVER], SECONDS)
    shown = priced(compared_over_seeds(reached, missed), 3.6)
    seconds, dollars = shown.arms[0].to_target.seconds, shown.arms[0].to_target.dollars
    assert dollars == pytest.approx(3.6 * 2 * seconds / 3600)
    for condition in (f"seconds_to_target>{seconds + 1}", f"dollars_to_target>{dollars + 1}"):
        assert list(parse_condition(condition).where_it_holds(shown)) == [f"{condition} cannot be judged for late"]
    cost = shown.arms[0].dollars_per_million_images
    assert cost == pytest.approx(3.6 * 2 / 3600 / shown.arms[0].steady_images_per_second * 1e6)
    assert list(parse_condition(f"dollars_per_million_images<{cost - 0.01:.3f}").where_it_holds(shown)) == []
    assert len(list(parse_condition(f"dollars_per_million_images<{cost + 0.01:.3f}").where_it_holds(shown))) == 2
