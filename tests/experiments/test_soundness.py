"""Pairs of which most rounds were disturbed, slowed down, too short or not watched: shown, and never claimed."""

import json

import pytest

from dpcompare.experiments.soundness import FEWEST_SECONDS, FEWEST_STEPS, doubt_of
from dpcompare.experiments.statistics import Plan, RatioPair, claims_of, paired_ratio
from dpcompare.report.conditions import parse_condition
from dpcompare.report.formats import as_json, as_markdown
from dpcompare.report.page import as_html
from dpcompare.report.text import as_text
from dpcompare.results.clock import ClockCheck
from tests.support import learning
from tests.support.arms import FAST, SLOW, compared, renamed, runs, single
from tests.support.soundness import DISTURBED, IDLE, changed, load, on_machine, steps_of

# Ratios of steady speeds whose interval of 96% leaves 1 far out.
TORCH = [354.0, 290.0, 410.0, 330.0, 120.0, 500.0]
JAX = [3934.0, 4598.0, 12000.0, 9100.0, 8300.0, 8000.0]


TOO_HOT = on_machine(load(others=0.0, throttles=3))
WRONG_CLOCK = {"clock": ClockCheck(process_rank=0, own_seconds=1.0, least_seconds=2.0, most_seconds=2.1)}


def jax_single(speeds, **changes):
    changes = {"num_nodes": 1, "num_processes": 1, "device_names": ["cpu:0"], "collective": "gloo"} | changes
    return runs("jax", "single", speeds, replicas=1, **changes)


def test_a_busy_machine_does_not_make_jax_23_times_as_fast():
    """All twelve runs are disturbed, and with the load gone torch is the faster one."""
    long_enough = steps_of(300, 0.01)
    shown = compared(single(TORCH, **long_enough, **DISTURBED), jax_single(JAX, **long_enough, **DISTURBED))
    (claim,) = shown.claims
    assert claim.outcome == "disturbed or too short"
    assert claim.sentence == (
        f"DISTURBED in 6 of 6 rounds: no claim. jax single 1x1 was {1 / claim.ratio:.3f} times as fast as torch single "
        "1x1 in what was measured; repeat when the machine is idle."
    )
    assert 1 / claim.ratio > 20
    assert (claim.low, claim.high, claim.confidence) == (None, None, None)
    assert shown.headline == claim.sentence
    for condition in ("ratio<0.97", "ratio>0.97"):
        assert list(parse_condition(condition).where_it_holds(shown)) == [
            f"{condition} cannot be judged for torch single 1x1 / jax single 1x1 (disturbed or too short)"
        ]
    idle = compared(single(TORCH, **long_enough, **IDLE), jax_single(JAX, **long_enough, **IDLE))
    assert idle.claims[0].outcome == "slower"


@pytest.mark.seconds
@pytest.mark.slow
def test_every_format_shows_the_sentence_and_no_interval():
    shown = compared(single(SLOW, **DISTURBED), jax_single(FAST, **DISTURBED))
    sentence = shown.claims[0].sentence
    assert sentence in as_markdown(shown)
    assert sentence in " ".join(as_text(shown, 100).split())
    page = as_html(shown)
    assert f'<li class="disturbed-or-too-short">{sentence}</li>' in page
    assert "interval" not in sentence
    (kept,) = json.loads(as_json(shown))["claims"]
    assert (kept["outcome"], kept["low"], kept["rounds"]) == ("disturbed or too short", None, 6)


def test_a_single_measured_step_is_too_short():
    short = steps_of(1, 0.004)
    shown = compared(single(TORCH, **short), jax_single(JAX, **short))
    assert shown.claims[0].outcome == "disturbed or too short"
    assert shown.headline.startswith(
        "TOO SHORT in 6 of 6 rounds (1 measured step, 0.004 s in the shortest run; 20 steps and 1 s are needed): no "
        "claim. jax single 1x1 was "
    )
    assert shown.headline.endswith(" in what was measured; repeat with --steps 380.")


@pytest.mark.parametrize(
    ("count", "seconds", "is_claimed"),
    [(19, 0.5, False), (20, 0.05, True), (20, 0.049, False), (1000, 0.0009, False), (1000, 0.001, True)],
)
def test_twenty_steps_and_a_second_are_needed(count, seconds, is_claimed):
    measured = steps_of(count, seconds)
    assert (FEWEST_STEPS, FEWEST_SECONDS) == (20, 1.0)
    shown = compared(single(SLOW, **measured), jax_single(FAST, **measured))
    assert (shown.claims[0].outcome == "slower") == is_claimed


def test_an_older_result_is_judged_by_the_steps_that_it_has():
    shown = compared(single(SLOW, step_seconds=None), jax_single(FAST, step_seconds=None))
    assert shown.claims[0].outcome == "slower"
    few = {"step_seconds": None, "measured_steps": 12}
    shown = compared(single(SLOW, **few), jax_single(FAST, **few))
    assert "(12 measured steps in the shortest run; 20 steps and 1 s are needed)" in shown.headline


@pytest.mark.parametrize(
    ("numbers", "outcome"),
    [((), "slower"), ((1, 2, 3), "slower"), ((1, 2, 3, 4), "disturbed or too short")],
)
def test_more_than_half_of_the_rounds_must_be_sound(numbers, outcome):
    """A round counts if either of its runs does, and a run of a round that lacks the other does not."""
    shown = compared(changed(single(SLOW), numbers, **DISTURBED), jax_single(FAST))
    assert shown.claims[0].outcome == outcome
    both = changed(single(SLOW), numbers[:2], **DISTURBED), changed(jax_single(FAST), numbers[2:], **DISTURBED)
    assert compared(*both).claims[0].outcome == outcome


def test_a_round_that_lacks_a_run_is_not_counted():
    one, other = changed(single(SLOW), (1, 2, 3), **DISTURBED), jax_single(FAST)
    assert doubt_of(one.runs, other.runs) is None
    assert doubt_of(one.runs, other.runs[:5]).reason == "DISTURBED in 3 of 5 rounds"
    other.runs[5] = None
    assert doubt_of(one.runs, other.runs).reason == "DISTURBED in 3 of 5 rounds"


@pytest.mark.parametrize(
    ("changes", "reason", "remedy"),
    [
        (TOO_HOT, "SLOWED DOWN in 6 of 6 rounds", "repeat when the devices stay cool"),
        (WRONG_CLOCK, "CLOCK in 6 of 6 rounds", "see the CLOCK warnings of its runs"),
        (
            DISTURBED | WRONG_CLOCK,
            "CLOCK in 6 and DISTURBED in 6 of 6 rounds",
            "see the CLOCK warnings of its runs and repeat when the machine is idle",
        ),
    ],
)
def test_the_reason_comes_first(changes, reason, remedy):
    """A wrong clock is a reason of the fairness sheet too, unless it is the subject."""
    shown = compared(single(SLOW, **changes), jax_single(FAST, **changes), subject=("clock",))
    assert shown.headline.startswith(f"{reason}: no claim. jax single 1x1 was 1.300 times as fast as ")
    assert shown.headline.endswith(f" in what was measured; {remedy}.")


@pytest.mark.parametrize(
    ("changes", "is_doubted"),
    [
        ({}, True),
        ({"clock": ClockCheck(process_rank=0, own_seconds=1.0, least_seconds=0.9, most_seconds=1.1)}, False),
        (IDLE, False),
        (on_machine(None, bound_to_cores=["0-7"]), False),  # a GPU's process, which reads no load
        ({"mode": "parameter-server", "framework": "tensorflow"}, False),  # whose steps return before they are made
        ({"steady_images_per_second": None}, False),  # 0.1.0 watched nothing
        ({"nodes": []}, False),
    ],
)
def test_a_run_that_could_be_watched_and_was_not_is_no_claim(changes, is_doubted):
    unwatched = on_machine(None) | {"steady_images_per_second": 100.0}
    arm = changed(single(SLOW), range(1, 7), **unwatched | changes)
    doubt = doubt_of(arm.runs, arm.runs)
    assert (doubt is not None) == is_doubted
    if doubt:
        assert (doubt.reason, doubt.remedy) == ("NOT WATCHED in 6 of 6 rounds", "repeat with longer runs")


def test_a_first_look_stays_one():
    shown = compared(single(SLOW[:2], **steps_of(3, 0.01)), jax_single(FAST[:2], **steps_of(3, 0.01)), repeats=2)
    assert shown.claims[0].outcome == "too few rounds"
    assert shown.headline == "FIRST LOOK: 2 of 6 rounds, nothing is ranked yet."


def test_an_exploratory_pair_says_why_it_has_no_interval():
    arms = [single(SLOW, **DISTURBED), jax_single(FAST, **DISTURBED), renamed("third", jax_single(FAST))]
    for arm, is_named in zip(arms, (False, True, True), strict=True):
        arm.is_named = is_named
    first = compared(*arms).claims[0]
    assert first.outcome == "exploratory"
    assert first.sentence.endswith("measured ratio 0.769 of steady speed (DISTURBED in 6 of 6 rounds).")
    assert first.low is None


def test_a_pair_that_is_not_sound_takes_its_part_of_the_level():
    """As one with too few rounds: it may be claimed when it has been measured again."""
    sound = RatioPair(first="a", second="b", ratio=paired_ratio(FAST, SLOW))
    arm = single(SLOW, **DISTURBED)
    doubted = RatioPair(first="a", second="c", ratio=paired_ratio(FAST, SLOW[::-1]), doubt=doubt_of(arm.runs, arm.runs))
    claims = claims_of([sound, doubted], Plan())
    assert [claim.outcome for claim in claims] == ["faster", "disturbed or too short"]
    assert claims[0].level == Plan().level / 2


def test_of_many_pairs_those_that_are_not_sound_are_named():
    disturbed = renamed("third", jax_single(SLOW, **DISTURBED))
    shown = compared(single(SLOW), jax_single(SLOW[::-1]), disturbed)
    assert shown.headline.endswith("; 2 of the 3 pairs are not judged: disturbed or too short runs.")
    every = compared(single(SLOW, **DISTURBED), jax_single(FAST, **DISTURBED), disturbed)
    assert every.headline.startswith("DISTURBED in 6 of 6 rounds: no claim. jax single 1x1 was 1.30")
    assert every.headline.endswith(" Nothing is claimed of any of 3 comparable pairs.")


def test_a_speedup_of_disturbed_rounds_has_no_interval():
    twice = [1.8 * speed for speed in SLOW]
    shown = compared(single(SLOW, **DISTURBED), runs("torch", "ddp", twice, **DISTURBED))
    scaling = shown.arms[1].scaling
    assert (scaling.low, scaling.high, scaling.doubt) == (None, None, "DISTURBED in 6 of 6 rounds")
    assert scaling.sentence == shown.headline
    assert scaling.sentence == (
        "DISTURBED in 6 of 6 rounds: no claim; repeat when the machine is idle. torch ddp 2x1 on 2 devices: 1.800 "
        "times the speed of one device (in what was measured), 90% efficient in strong scaling."
    )
    assert list(parse_condition("efficiency<0.5").where_it_holds(shown)) == [
        "efficiency<0.5 cannot be judged for torch ddp 2x1 (DISTURBED in 6 of 6 rounds)"
    ]
    sound = compared(single(SLOW), runs("torch", "ddp", twice))
    assert list(parse_condition("efficiency<0.5").where_it_holds(sound)) == []
    assert sound.arms[1].scaling.low is not None


def test_the_headline_of_speedups_prefers_a_sound_one():
    two, four = ([factor * speed for speed in SLOW] for factor in (1.5, 3.0))
    devices = {"device_names": [f"cpu:{number}" for number in range(4)]}
    busy = runs("torch", "ddp", four, replicas=4, mean_ms=[30.0] * 6, **devices, **DISTURBED)
    shown = compared(single(SLOW), runs("torch", "ddp", two), busy)
    assert [row.scaling.doubt for row in shown.arms[1:]] == [None, "DISTURBED in 6 of 6 rounds"]
    assert shown.headline == shown.arms[1].scaling.sentence


def test_time_to_accuracy_obeys_the_rule_and_accuracy_does_not():
    quick, late = [0.1] * 8, [0.2 + number / 1000 for number in range(8)]
    arms = [
        learning.evaluated(learning.ddp(target=0.7, **DISTURBED), [learning.EARLY] * 8, quick),
        learning.evaluated(learning.multiworker(target=0.7, **DISTURBED), [learning.EARLY] * 8, late),
    ]
    shown = learning.compared(*arms)
    (claim,) = shown.time_to_accuracy.claims
    assert claim.outcome == "disturbed or too short"
    assert claim.sentence.startswith("DISTURBED in 8 of 8 rounds: no claim. torch ddp 2x1 was 2.0")
    assert claim.sentence.endswith(
        " times as fast as tensorflow multiworker 2x1 in training time to an accuracy of 0.7, as far as was measured; "
        "repeat when the machine is idle."
    )
    assert [claim.outcome for claim in shown.learning.claims] == ["the same within the margin", "no difference shown"]


def test_a_target_that_is_reached_at_once_is_too_short():
    arms = [
        learning.evaluated(each(target=0.7), [learning.EARLY] * 8, [seconds] * 8)
        for each, seconds in ((learning.ddp, 0.01), (learning.multiworker, 0.02))
    ]
    (claim,) = learning.compared(*arms).time_to_accuracy.claims
    assert claim.sentence.startswith("TOO SHORT in 8 of 8 rounds (30 measured steps, 0.3 s in the shortest run; ")
    assert claim.sentence.endswith("; repeat with runs that take longer.")
