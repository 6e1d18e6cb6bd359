"""The decisions of a run in its result: put together from its processes, and compared step by step."""

import pytest

from dpcompare.results import decisions as module
from dpcompare.results.decisions import Decisions, contradiction_of, decoded, encoded


def of(digests, *, first_step=0, what="images"):
    return Decisions.of({0: {what: digests}}, first_step=first_step, num_steps=len(digests))


def test_digests_survive_their_text():
    assert decoded(encoded([0, 1, 2**32 - 1, 2**40 + 5])).tolist() == [0, 1, 2**32 - 1, 5]


def test_rows_are_added_up_over_parts_and_rates_are_not():
    parts = {rank: {"learning rate": [7, 8], "labels": [2**32 - 1, 10 * rank]} for rank in range(3)}
    decisions = Decisions.of(parts, first_step=0, num_steps=2)
    assert decoded(decisions.digests["learning rate"]).tolist() == [7, 8]
    assert decoded(decisions.digests["labels"]).tolist() == [2**32 - 3, 30]


@pytest.mark.parametrize(
    "parts",
    [
        {0: {}},
        {0: {"images": [1, 2]}, 1: {}},
        {0: {"images": [1, 2]}, 1: {"images": [1]}},
        {0: {"images": [1, 2]}, 1: {"images": [1, 2], "labels": [1, 2]}},
    ],
)
def test_what_a_process_did_not_record_is_not_known(parts):
    assert Decisions.of(parts, first_step=0, num_steps=2) is None
    assert Decisions.of({0: {"images": []}}, first_step=0, num_steps=0) is None


def test_the_first_step_that_differs_is_named():
    steps = list(range(100, 140))
    changed = [*steps]
    changed[30] += 1
    changed[35] += 1
    assert of(steps).differs_at(of(steps), "images") is None
    assert of(steps).differs_at(of(changed), "images") == "step 31"
    assert of(changed).differs_at(of(steps), "images") == "step 31"


def test_only_steps_that_both_made_are_compared():
    steps = list(range(100, 140))
    assert of(steps).differs_at(of(steps[20:], first_step=20), "images") is None
    assert of(steps).differs_at(of(steps[:10]), "images") is None
    assert of(steps[:10]).differs_at(of([1, 2], first_step=10), "images") is None
    assert of(steps).differs_at(of([0, *steps[21:]], first_step=20), "images") == "step 21"


def test_what_one_run_alone_decides_differs_from_the_start():
    plain, other = of([1, 2]), Decisions.of({0: {"images": [1, 2], "augmentation": [3, 4]}}, first_step=0, num_steps=2)
    assert plain.differs_at(other, "augmentation") == "step 1"
    assert plain.differs_at(other, "dropped features") is None
    assert plain.differs_at(other, "images") is None


def test_a_long_run_keeps_blocks_of_steps(monkeypatch):
    monkeypatch.setattr(module, "MOST_BLOCKS", 8)
    steps = list(range(1000, 1029))
    whole, changed = of(steps), [*steps]
    changed[22] += 1
    assert (whole.steps_per_digest, len(decoded(whole.digests["images"]))) == (4, 8)
    assert whole.differs_at(of(changed), "images") == "one of steps 21 to 24"
    assert (
        whole.differs_at(of(steps[6:14], first_step=6), "images") is None
    )  # stride 1: widened, and cut to whole blocks
    assert whole.differs_at(of([*steps[6:12], 0, 0], first_step=6), "images") is None
    assert whole.differs_at(of([*steps[6:11], 0, *steps[12:14]], first_step=6), "images") == "one of steps 9 to 12"
    last = [*steps[:-1], 0]
    assert whole.differs_at(of(last), "images") == "step 29"


def test_processes_that_decide_otherwise_contradict_each_other():
    same = [(0, {"learning rate": [1, 2], "images": [5, 6]}), (1, {"learning rate": [1, 2], "images": [7, 8]})]
    assert contradiction_of(same, 40) is None
    rates = [same[0], (1, {"learning rate": [1, 3], "images": [7, 8]})]
    assert contradiction_of(rates, 40) == "training processes 0 and 1 differ in the learning rate of step 42"
    stages = [same[0], (0, {"learning rate": [1, 2], "images": [4, 6]})]
    assert contradiction_of(stages, 0) == "training processes 0 and 1 differ in the images of step 1"
