"""The judge of predictions: it fails where they are off, where the machine's speed changed, where there are too few."""

from itertools import product

import pytest

from dpcompare.config.workload import Workload
from stress.check_projection import (
    FREE,
    NO_SYNC,
    Campaign,
    inputs,
    outcome_of,
    predicted,
    predicted_and_measured,
    rounds_of,
)
from stress.judged_predictions import MODEL, JudgedRound

DDP = "torch:ddp"
STUDY = [(mode, 3, "1gbit") for mode in (DDP, "tensorflow:multiworker", "torch:fsdp")]


def judged_round(*, error=0.03, drift=0.0):
    """It was measured to take `error` less than predicted, and computing changed by `drift`."""
    return JudgedRound(
        predicted={MODEL: 0.5, "without overlap": 0.6},
        as_measured_after=0.49,
        seconds=0.5 / (1 + error),
        computing=(0.2, 0.2 * (1 + drift)),
    )


def cells_of(rounds, count=12):
    return {(DDP, 2 + number // 4, f"{1 + number % 4}00mbit"): list(rounds) for number in range(count)}


def test_constants_are_fitted_in_rounds_without_exchange():
    cells = [("torch:fsdp", 3, "1gbit"), (DDP, 2, "1gbit"), (DDP, 4, "1gbit")]
    planned = inputs(cells)
    for nodes in (2, 3, 4):  # fsdp computes as ddp does
        assert planned.count((DDP, nodes, NO_SYNC)) == 2
    for mode, link in product(("torch:fsdp", DDP), (FREE, "100mbit")):
        assert planned.count((mode, 2, link)) == 1
    assert len(planned) == 10


class Recorded(Campaign):
    """A campaign whose runs take a time that was made up, and are counted; the machine becomes slower or faster."""

    def __init__(self, folder, rounds, slower_each_round=1.0):
        super().__init__(folder, Workload(model="mlp", image_size=8, dataset="synthetic-mini"), batch=16, rounds=rounds)
        self.ran = []
        self._slower = slower_each_round

    def run(self, number, mode, nodes, link, repetition):
        key = (number, mode, nodes, link, repetition)
        if key not in self.made:
            self.ran.append(key)
            seconds = {NO_SYNC: 0.1, FREE: 0.15}.get(link, 0.3) * self._slower**number
            self.made[key] = {
                "seconds": seconds,
                "typical_seconds": seconds,
                "cores": 2,
                "gradients": {"num_bytes": 10**6},
            }
        return self.made[key]


def latencies_of(cells):
    return {f"{mode} {nodes}": 1e-5 for mode, most, _ in cells for nodes in range(2, most + 1)}


@pytest.mark.process
def test_a_round_is_predicted_from_itself_and_judged_by_the_next(tmp_path):
    cells = [(DDP, 2, "1gbit"), (DDP, 3, "1gbit")]
    campaign = Recorded(tmp_path, rounds=2, slower_each_round=2.0)
    latencies = latencies_of(cells)
    first = predicted(campaign, cells, 1, latencies)
    # 2 links, and 2 numbers of nodes twice without exchange; no cell.
    assert len(campaign.ran) == 2 + 2 * 2
    assert {(number, link) for number, _, _, link, _ in campaign.ran} == {(1, FREE), (1, "100mbit"), (1, NO_SYNC)}
    assert predicted_and_measured(campaign, cells, latencies, stop_before_measuring=False).status == "failed"
    second = predicted(campaign, cells, 2, latencies)
    for rounds, before, after in zip(rounds_of(campaign, cells, latencies).values(), first, second, strict=True):
        assert before["computing_seconds"] == pytest.approx(0.2)
        assert rounds[0].computing == pytest.approx((0.2, 0.4))
        assert rounds[0].predicted == before["predicted"]
        assert rounds[0].as_measured_after == pytest.approx(after["predicted"][MODEL])


@pytest.mark.process
@pytest.mark.slow
def test_every_run_of_a_study_is_made_once(tmp_path):
    latencies = latencies_of(STUDY)
    campaign = Recorded(tmp_path, rounds=2)
    outcome = predicted_and_measured(campaign, STUDY, latencies, stop_before_measuring=False)
    # Inputs come a last time after the last round: of torch 2 x 2 without exchange and 2 of each of its two modes.
    assert len(campaign.ran) == len(set(campaign.ran)) == 3 * (8 + 6) + 2 * len(STUDY)
    campaign.ran.clear()
    assert predicted_and_measured(campaign, STUDY, latencies, stop_before_measuring=False) == outcome
    assert campaign.ran == []


@pytest.mark.process
@pytest.mark.slow
def test_modes_alike_are_measured_first_and_rounds_predicted(
    tmp_path,
):
    campaign = Recorded(tmp_path, rounds=2)
    latencies = latencies_of(STUDY)

    def until_it_stops():
        campaign.ran.clear()
        outcome = predicted_and_measured(campaign, STUDY, latencies, stop_before_measuring=True)
        return outcome, {(number, mode.split(":")[0], link == "1gbit") for number, mode, _, link, _ in campaign.ran}

    outcome, runs = until_it_stops()
    assert outcome.status == "open"
    assert outcome.tables[0].title.startswith("Round 1: ")
    assert len(outcome.tables[0].rows) == 2
    assert runs == {(1, "torch", False)}
    outcome, runs = until_it_stops()
    assert outcome.tables[0].title.startswith("Round 2: ")
    assert runs == {(1, "torch", True), (2, "torch", False)}
    outcome, runs = until_it_stops()
    assert outcome.tables[0].title.startswith("Round 1: ")
    assert len(outcome.tables[0].rows) == 1
    assert runs == {(2, "torch", True), (3, "torch", False), (1, "tensorflow", False)}
    stopped, _ = until_it_stops()
    outcome, runs = until_it_stops()
    assert "3 of 3 cells are valid" in outcome.tables[0].title
    assert runs == {(2, "tensorflow", True), (3, "tensorflow", False)}
    assert outcome.figures.keys() == stopped.figures.keys()  # a page that quotes one can always be filled in
    assert until_it_stops() == (outcome, set())


@pytest.mark.process
def test_what_was_measured_is_not_predicted_afterwards(tmp_path):
    latencies = latencies_of(STUDY)
    campaign = Recorded(tmp_path, rounds=1)
    predicted_and_measured(campaign, STUDY, latencies, stop_before_measuring=False)
    with pytest.raises(SystemExit, match=r"has measured .* in round 1, which can no longer be predicted"):
        predicted_and_measured(campaign, STUDY[:1], latencies, stop_before_measuring=False)


def test_a_study_of_an_older_version_is_refused(tmp_path):
    (tmp_path / "runs.jsonl").write_text('{"stage": "before", "mode": "torch:ddp"}\n')
    with pytest.raises(SystemExit, match="holds a study of an older version"):
        Recorded(tmp_path, rounds=1)


def test_near_predictions_pass_and_every_term_is_judged():
    outcome = outcome_of(cells_of([judged_round()]), "others took cores of 1 of 9 runs")
    assert outcome.status == "passed"
    cells, variants = outcome.tables
    assert cells.title == (
        "PASSED: 12 of 12 cells are valid, others took cores of 1 of 9 runs, median error 3.0%, largest 3.0%, "
        "with what was measured after, over all cells 0.9% and 0.9%."
    )
    assert cells.markdown[4] == ("| torch:ddp | 2 | 100mbit | 0.200, 0.200 | 0.500 | 0.485 | +3.0% | 1 of 1 | +0.9% |")
    assert "| without overlap | 23.6% | 23.6% |" in variants.markdown
    assert outcome.figures == {"cells": 12, "valid_cells": 12, "median_error": "3.0%", "largest_error": "3.0%"}


def test_only_rounds_of_a_machine_at_one_speed_judge_a_cell():
    rounds = [judged_round(), judged_round(error=0.5, drift=0.11), judged_round(error=0.01, drift=-0.09)]
    outcome = outcome_of(cells_of(rounds), "")
    assert outcome.status == "passed"
    assert "median error 2.0%" in outcome.tables[0].title
    assert outcome.tables[0].markdown[4].endswith("| +2.0% | 2 of 3 | +0.9% |")
    assert outcome.figures["median_error"] == "2.0%"


@pytest.mark.parametrize(
    ("rounds", "count", "told"),
    [
        ([judged_round(error=0.2)], 12, "median error 20.0%"),
        ([judged_round(error=0.07)], 12, "median error 7.0%"),
        ([judged_round(drift=0.11)], 12, "0 of 12 cells are valid"),
        ([judged_round(), judged_round(drift=0.11)], 12, "0 of 12 cells are valid"),
        ([judged_round()], 11, "11 of 11 cells are valid"),
    ],
)
def test_what_is_off_fails(rounds, count, told):
    outcome = outcome_of(cells_of(rounds, count), "")
    assert outcome.status == "failed"
    assert outcome.tables[0].title.startswith("FAILED: ")
    assert told in outcome.tables[0].title
