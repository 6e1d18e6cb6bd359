"""The judge of predictions: it fails where they are off, where cells drifted, and where there are too few."""

import json
from itertools import product

import pytest

from dpcompare.config.workload import Workload
from stress import check_projection
from stress.check_projection import (
    FREE,
    NO_SYNC,
    Campaign,
    inputs,
    judged,
    measure,
    of_their_rounds,
    predicted_and_measured,
)

MODE = "torch:ddp"


def campaign_of(tmp_path, *, cells=12, error=0.03, drift=0.0):
    """Cells of which each was measured to take `error` less than predicted."""
    rows, predictions = [], []
    for number in range(cells):
        nodes, link = 2 + number // 4, f"{1 + number % 4}00mbit"
        predictions.append(
            {
                **{"mode": MODE, "nodes": nodes, "link": link, "computing_seconds": 0.2},
                "predicted": {"the model": 0.5, "without overlap": 0.6},
            }
        )
        base = {"mode": MODE, "nodes": nodes, "round": 1}
        rows.append({**base, "stage": "measured", "link": link, "seconds": 0.5 / (1 + error)})
        rows.append({**base, "stage": "after", "link": "none", "seconds": 0.2 * (1 + drift)})
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Campaign(tmp_path, Workload(), batch=16, rounds=1), predictions


def test_constants_are_fitted_in_the_rounds_of_the_runs_without_exchange():
    cells = [("torch:fsdp", 3, "1gbit"), ("torch:ddp", 2, "1gbit"), ("torch:ddp", 4, "1gbit")]
    planned = inputs(cells)
    for nodes in (2, 3, 4):  # fsdp computes as ddp does
        assert planned.count(("torch:ddp", nodes, NO_SYNC)) == 2
    for mode, link in product(("torch:fsdp", "torch:ddp"), (FREE, "100mbit")):
        assert planned.count((mode, 2, link)) == 1
    assert len(planned) == 10


class Recorded(Campaign):
    """A campaign whose runs take a time that was made up, and are counted."""

    def __init__(self, folder, rounds):
        super().__init__(folder, Workload(model="mlp", image_size=8, dataset="synthetic-mini"), batch=16, rounds=rounds)
        self.ran = []

    def run(self, stage, mode, nodes, link, number):
        key = (stage, mode, nodes, link, number)
        if key not in self.made:
            self.ran.append(key)
            seconds = {NO_SYNC: 0.1, FREE: 0.15}.get(link, 0.3) * (2 if stage == "before" else 1)
            self.made[key] = {
                "seconds": seconds,
                "typical_seconds": seconds,
                "cores": 2,
                "gradients": {"num_bytes": 10**6},
            }
        return self.made[key]


def test_every_run_of_a_study_is_made_once_and_judged_by_what_was_measured_among_the_cells(tmp_path):
    cells = [(MODE, 2, "1gbit"), (MODE, 3, "1gbit")]
    campaign = Recorded(tmp_path, rounds=2)
    latencies = {f"{MODE} {nodes}": 1e-5 for nodes in (2, 3)}
    rows = check_projection.predicted(campaign, cells, latencies)
    # 2 links, and 2 numbers of nodes twice without exchange.
    assert len(campaign.ran) == 2 * (2 + 2 * 2)
    assert {key[0] for key in campaign.ran} == {"before"}
    campaign.ran.clear()
    measure(campaign, cells)
    assert len(campaign.ran) == 2 * (2 + 2 + 2 * 2)
    as_measured_after = of_their_rounds(campaign, cells, latencies)
    for row, after in zip(rows, as_measured_after, strict=True):
        assert row["computing_seconds"] == pytest.approx(0.2)
        assert after < row["predicted"]["the model"]
    campaign.ran.clear()
    measure(campaign, cells)
    assert check_projection.predicted(campaign, cells, latencies) == rows
    assert campaign.ran == []


def test_modes_that_compute_alike_are_predicted_and_measured_before_the_next(tmp_path):
    cells = [(mode, 3, "1gbit") for mode in ("torch:ddp", "tensorflow:multiworker", "torch:fsdp")]
    campaign = Recorded(tmp_path, rounds=1)
    latencies = {f"{mode} {nodes}": 1e-5 for mode, _, _ in cells for nodes in (2, 3)}

    def made(*, stop):
        campaign.ran.clear()
        lines, _ = predicted_and_measured(campaign, cells, latencies, stop)
        return lines, {(stage, mode) for stage, mode, *_ in campaign.ran}

    torch, tensorflow = {"torch:ddp", "torch:fsdp"}, {"tensorflow:multiworker"}
    lines, runs = made(stop=True)
    assert len([line for line in lines if "1gbit" in line]) == 2
    assert runs == {("before", mode) for mode in torch}
    lines, runs = made(stop=True)
    assert len([line for line in lines if "1gbit" in line]) == 1
    assert runs == {(stage, mode) for stage in ("measured", "after") for mode in torch} | {
        ("before", mode) for mode in tensorflow
    }
    lines, runs = made(stop=True)
    assert "0 of 3 cells are valid" in lines[0]  # all computing took half as long as before
    assert runs == {(stage, mode) for stage in ("measured", "after") for mode in tensorflow}
    assert made(stop=False) == (lines, set())


def test_near_predictions_pass_and_every_term_is_judged(tmp_path):
    campaign, predictions = campaign_of(tmp_path)
    lines, passed = judged(campaign, predictions, [0.49] * len(predictions))
    assert passed
    assert lines[0] == (
        "PASSED: 12 of 12 cells are valid, median error 3.0%, largest 3.0%, "
        "with what was measured after, over all cells 0.9% and 0.9%."
    )
    assert lines[4].endswith("| +3.0% | yes | +0.9% |")
    assert "| without overlap | 23.6% | 23.6% |" in lines


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"error": 0.2}, "median error 20.0%"),
        ({"error": 0.07}, "median error 7.0%"),
        ({"drift": 0.11}, "0 of 12 cells are valid"),
        ({"cells": 11}, "11 of 11 cells are valid"),
    ],
)
def test_what_is_off_fails(tmp_path, changes, told):
    campaign, predictions = campaign_of(tmp_path, **changes)
    lines, passed = judged(campaign, predictions, [0.5 / 1.03] * len(predictions))  # which decides nothing
    assert not passed
    assert lines[0].startswith("FAILED: ")
    assert told in lines[0]
