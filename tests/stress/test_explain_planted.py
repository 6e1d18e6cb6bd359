"""How `stress.explain_planted` tells the true size of launching, without which its verdict would be one on itself."""

import pytest

from dpcompare.experiments.variants import StepParts
from dpcompare.models.architectures import model_of
from stress.explain_planted import (
    CASES,
    LAUNCH_SECONDS,
    LAYERS,
    TINY,
    Found,
    Judged,
    chosen,
    figures_of,
    result_name,
    sizes,
    step_of_no_images,
    table_of,
)

LAUNCHING, PER_IMAGE, PER_BATCH_READ, PER_IMAGE_READ = 2.0, 0.01, 0.5, 0.02
"""Milliseconds."""


def of_batch(images, more=0.0):
    """One round of a run whose input, too, takes a time that does not grow with the batch; its launching takes `more`.

    Times are in milliseconds.
    """
    launching = LAUNCHING + more
    computing = launching + PER_IMAGE * images
    steps = {
        "as it is": computing + PER_BATCH_READ + PER_IMAGE_READ * images,
        "no input": computing,
        "larger batch": launching + PER_IMAGE * 4 * images,
    }
    seconds = {variant: [[milliseconds / 1000] * 20] for variant, milliseconds in steps.items()}
    return Found(parts=StepParts.of([seconds], alone="no input", waits_within=False), explanation=None)


def test_a_line_through_two_batches_meets_a_batch_of_no_images():
    assert step_of_no_images([(8, 2.08), (32, 2.32)]) == pytest.approx(2)


def test_launching_is_judged_without_constant_input():
    cases = chosen(["tiny batches"])
    found = {name: of_batch(case.workload["global_batch_size"]) for name, case in cases.items()}
    true, size, _ = sizes("tiny batches", cases, found)
    assert true == pytest.approx(LAUNCHING)
    assert size == pytest.approx(LAUNCHING)


def test_slow_launches_are_judged_by_what_was_planted():
    cases = chosen(["slow launches"])
    planted = 1000 * LAYERS * LAUNCH_SECONDS
    found = {
        name: of_batch(case.workload["global_batch_size"], planted if name == "slow launches" else 0.0)
        for name, case in cases.items()
    }
    true, size, _ = sizes("slow launches", cases, found)
    assert true == pytest.approx(planted)
    assert size == pytest.approx(planted)


def test_as_many_layers_are_slow_to_launch_as_the_model_has():
    names = model_of(TINY["model"]).shapes(TINY["image_size"], 10)
    assert len({name.rpartition(".")[0] for name in names}) == LAYERS


def test_every_size_is_told_from_cases_that_run():
    assert all(other in CASES for case in CASES.values() for other in case.compared_with)
    assert set(chosen(["slow process"])) == {"slow process", "no fault"}
    assert set(chosen(["slow launches"])) == {"slow launches", "tiny batches", "batches of one", "batches of two"}


def test_what_is_wrong_is_marked_in_the_table():
    cases = [
        Judged(name="healthy", step_milliseconds=1012.3, said="nothing stands out", right=True),
        Judged(
            name="slow input", step_milliseconds=404.4, said="input", true="384 ms", size=384.2, error=0, right=True
        ),
        Judged(
            name="tiny batches", step_milliseconds=1.684, said="input", true="2 ms", size=2.5, error=0.25, right=False
        ),
    ]
    assert table_of(cases).markdown[2:] == [
        "| healthy | 1010 | nothing stands out | - | - | - |",
        "| slow input | 404 | input | 384 ms | 384 | +0.0% |",
        "| tiny batches | 1.68 | input | 2 ms | 2.5 | +25.0% **WRONG** |",
    ]
    assert figures_of(cases) == {"cases": 3, "wrong": 1, "largest_error": "25.0%"}


def test_cases_made_alone_have_a_result_file_of_their_own():
    assert result_name(None) == "explain-planted"
    assert result_name(["slow launches"]) == "explain-planted-slow-launches"
    assert result_name(["healthy, 2 nodes"]) == "explain-planted-healthy-2-nodes"
