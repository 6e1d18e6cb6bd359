"""A gate: what it answers after how many rounds, and what it says where it cannot answer."""

import numpy as np
import pytest

from dpcompare.errors import RunFailedError
from dpcompare.experiments import gate_runs
from dpcompare.experiments.comparison import GateRow
from dpcompare.experiments.gate import LOOKS, WRONG_PER_LOOK, gate_row, gate_study
from dpcompare.experiments.gate_runs import run_gate
from dpcompare.experiments.study import Arm, Study
from dpcompare.experiments.study_runs import Watcher
from tests.experiments.test_soundness import DISTURBED, changed, steps_of
from tests.support.arms import renamed, single
from tests.support.results import result


def arms(ratios, **changes):
    """A candidate with these speeds, as parts of a baseline's."""
    new = renamed("new", single([100 * ratio for ratio in ratios], **changes))
    return new, renamed("old", single([100.0] * len(ratios), **changes))


def judged(ratios, allowed=0.02, inequality=None):
    return gate_row(*arms(ratios), allowed, inequality)


NOISE = [0.995, 1.005, 0.997, 1.003, 1.0, 1.0, 0.996, 1.004]


def test_an_arm_that_keeps_its_speed_passes_at_the_first_look():
    row = judged(NOISE)
    assert (row.outcome, row.rounds) == ("not slower", 6)
    assert row.sentence == (
        "new is not slower than old by more than 2%: ratio 1.000 of steady speed, at least "
        f"{row.low:.3f} with 99% confidence (6 rounds)."
    )
    assert 0.98 < row.low < 1


def test_a_loss_above_the_allowed_one_fails():
    row = judged([0.95 * each for each in NOISE])
    assert (row.outcome, row.rounds) == ("slower", 6)
    assert row.sentence.startswith("new is slower than old by more than 2%: ratio 0.950 of steady speed, at most ")
    assert row.high < 0.98
    assert judged([0.95 * each for each in NOISE], allowed=0.1).outcome == "not slower"


def test_the_first_look_that_answers_is_the_answer():
    wide = [0.9, 1.1, 0.93, 1.07, 0.95, 1.05]
    row = judged(wide + [1.0] * 42, allowed=0.05)
    assert row.outcome == "not slower"
    assert row.rounds in LOOKS[1:]
    # Whatever came later.
    assert judged(NOISE[:6] + [0.5] * 42).outcome == "not slower"


def test_what_is_undecided_says_how_many_rounds_would_decide():
    row = judged([0.96, 1.0, 0.97, 1.02, 0.99, 0.98, 1.0])
    assert (row.outcome, row.rounds, row.is_final) == ("undecided", 6, False)
    assert row.sentence.startswith("UNDECIDED whether new is slower than old by more than 2%: ratio 0.986 of steady ")
    assert "rounds like these would be needed, and a gate has at most 48" in row.sentence
    near = judged([0.98, 1.02, 0.985, 1.02, 0.995, 1.0])
    assert near.sentence.endswith("rounds like these would decide: give more time (--budget).")
    exact = judged([0.98 * each for each in (0.99, 1 / 0.99, 0.98, 1 / 0.98, 1.0, 1.0)])
    assert "No number of rounds like these would decide" in exact.sentence


def test_fewer_rounds_than_a_look_needs_answer_nothing():
    row = judged(NOISE[:5])
    assert (row.outcome, row.ratio) == ("undecided", None)
    assert row.sentence.endswith("a gate needs 6 rounds, and has 5.")


def test_arms_that_are_not_comparable_end_a_gate():
    row = judged(NOISE, inequality="Settings that differ: precision.")
    assert (row.outcome, row.is_final) == ("undecided", True)
    assert row.sentence.endswith("they are NOT COMPARABLE. Settings that differ: precision.")


def test_rounds_that_are_not_sound_decide_nothing():
    new, old = arms([0.5] * 6)
    row = gate_row(changed(new, range(1, 5), **DISTURBED), old, 0.02, None)
    assert (row.outcome, row.is_final, row.high) == ("undecided", False, None)
    assert "DISTURBED in 4 of 6 rounds" in row.sentence
    # Of runs that are too short more would be too short, too.
    short = gate_row(*arms([0.5] * 6, **steps_of(5, 0.1)), 0.02, None)
    assert (short.outcome, short.is_final) == ("undecided", True)


def test_all_looks_together_are_wrong_in_a_twentieth_of_the_worst_cases():
    generator = np.random.default_rng(1)
    gates = 400
    wrong = {"slower": 0, "not slower": 0}
    for _ in range(gates):
        row = judged(list(0.98 * np.exp(generator.normal(0, 0.02, LOOKS[-1]))))
        if row.outcome != "undecided":
            wrong[row.outcome] += 1
    assert 1 - (1 - WRONG_PER_LOOK) ** len(LOOKS) < 0.08
    assert max(wrong.values()) <= 30  # 4.4% are 18; more than 30 come once in a thousand such tests


class TestRounds:
    """Which rounds a gate makes: a study whose runs are made up."""

    @pytest.fixture
    def made(self, monkeypatch):
        """Rounds that were made, and what the gate says after each."""
        found = {"rounds": [], "says": lambda number: "undecided", "failures": []}

        def run_study(study, study_dir, watcher, *, report_from):
            found["rounds"].append((study.repeats, study.looks, study.adding))

        def row(study_dir):
            number = found["rounds"][-1][0]
            outcome = found["says"](number) if number in LOOKS else "undecided"
            fields = {"candidate": "new", "baseline": "old", "allowed_loss": 0.02, "rounds": number, "ratio": None}
            return GateRow(**fields, outcome=outcome, low=None, high=None, is_final=outcome == "", sentence="so far")

        monkeypatch.setattr(gate_runs, "run_study", run_study)
        monkeypatch.setattr(gate_runs, "_row", row)
        return found

    @pytest.fixture
    def study(self):
        config = result().config
        return gate_study(Arm(name="new", config=config), Arm(name="old", config=config), 0.02)

    def test_rounds_are_added_until_a_look_decides(self, made, study, tmp_path):
        made["says"] = lambda number: "slower" if number == 11 else "undecided"
        ended = run_gate(study, tmp_path, Watcher(), budget_seconds=1e9)
        assert [number for number, _, _ in made["rounds"]] == list(range(1, 12))
        assert made["rounds"][-1] == (11, (6, 8), True)  # each is a look at the claims of a report, too
        assert (ended.adding, ended.stopped_by) == (False, "the gate was decided")
        assert Study.load(tmp_path) == ended

    def test_the_last_look_and_the_budget_end_it(self, made, study, tmp_path):
        ended = run_gate(study, tmp_path, Watcher(), budget_seconds=1e9)
        assert (ended.repeats, ended.stopped_by) == (48, "there were 48")
        ended = run_gate(study, tmp_path, Watcher(), budget_seconds=0)
        assert (ended.repeats, ended.stopped_by) == (1, "the time was up (0 min)")

    def test_it_continues_with_the_round_that_was_interrupted(self, made, study, tmp_path):
        made["says"] = lambda number: "not slower" if number == 8 else "undecided"
        run_gate(study.changed(repeats=7, looks=(6,)), tmp_path, Watcher(), budget_seconds=1e9)
        assert made["rounds"] == [(7, (6,), True), (8, (6,), True)]


def test_a_gate_has_two_arms():
    config = result().config
    with pytest.raises(ValueError, match="a gate has two arms, received a"):
        Study(arms=(Arm(name="a", config=config),), repeats=1, allowed_loss=0.02)


def test_a_failed_run_ends_a_gate(tmp_path, monkeypatch):
    from tests.support.arms import compared

    new, old = arms(NOISE)
    new.failures.append("round 2: out of memory")
    monkeypatch.setattr(gate_runs, "collect", lambda paths: None)
    monkeypatch.setattr(gate_runs, "analyse", lambda collection: compared(new, old))
    with pytest.raises(RunFailedError, match="new: round 2: out of memory"):
        gate_runs._row(tmp_path)
