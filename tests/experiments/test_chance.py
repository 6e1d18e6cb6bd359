"""Two models that have learned nothing are not called equally accurate."""

import numpy as np
import pytest

from dpcompare.experiments.chance import Chance, chance_of, is_above_chance
from dpcompare.results.computed import Evaluation
from dpcompare.results.predictions import Predictions
from tests.support.learning import NEARLY, SEEDS, compared, ddp, multiworker

TEN = Chance(share=0.1, num_classes=10)
GUESSED = [0.102] * 8


def of_classes(arm, num_classes=10, *, count=400, **settings):
    """The same arm, whose results say how many classes there are."""
    arm.runs = [
        run.model_copy(
            update={
                "config": run.config | {"inputs": {"num_classes": num_classes}},
                "settings": run.settings | settings,
                "evaluations": [
                    Evaluation(epoch=1, step=45, loss=1.0, accuracy=run.evaluations[-1].accuracy, count=count)
                ],
            }
        )
        for run in arm.runs
    ]
    return arm


def of_accuracy(shown):
    return next(claim for claim in shown.learning.claims if claim.measure == "accuracy")


def test_two_models_at_chance_are_not_called_equally_accurate():
    """Both guess one class in all rounds, so that their difference is 0 without any spread."""
    shown = compared(of_classes(ddp(GUESSED)), of_classes(multiworker(GUESSED)))
    claim = of_accuracy(shown)
    assert claim.outcome == "not above chance"
    assert claim.sentence == (
        "Accuracy not judged: neither torch ddp 2x1 nor tensorflow multiworker 2x1 is shown to be above chance (10.2% "
        "and 10.2% on 10 classes, chance is 10.0%)."
    )
    assert shown.learning.headline == claim.sentence


def test_models_that_have_learned_are_judged_as_before():
    shown = compared(of_classes(ddp(SEEDS)), of_classes(multiworker(NEARLY)))
    assert of_accuracy(shown).outcome == "the same within the margin"
    assert of_accuracy(shown).sentence == of_accuracy(compared(ddp(SEEDS), multiworker(NEARLY))).sentence


def test_one_arm_above_chance_is_enough_to_be_judged():
    shown = compared(of_classes(ddp(SEEDS)), of_classes(multiworker(GUESSED)))
    assert of_accuracy(shown).outcome == "higher"


def test_the_largest_class_is_what_guessing_reaches():
    """22% on ten classes is nothing where one class has 21% of the samples."""
    guesses = [0.21, 0.22, 0.23, 0.22, 0.21, 0.22, 0.23, 0.22]
    pair = [of_classes(each(guesses), largest_class_share=0.21) for each in (ddp, multiworker)]
    assert "(22.0% and 22.0% on 10 classes, chance is 21.0%)" in of_accuracy(compared(*pair)).sentence
    even = [of_classes(each(guesses)) for each in (ddp, multiworker)]
    assert of_accuracy(compared(*even)).outcome == "the same within the margin"


@pytest.mark.parametrize(("recorded", "share"), [(0.3, 0.3), (0.01, 0.1), ("large", 0.1), (7.0, 0.1), (None, 0.1)])
def test_a_share_that_cannot_be_is_not_believed(recorded, share):
    assert chance_of(of_classes(ddp(), largest_class_share=recorded)) == Chance(share=share, num_classes=10)


def test_kept_predictions_have_the_labels_of_an_older_result():
    arm = of_classes(ddp())
    labels = np.array([0, 0, 0, 1])
    arm.predictions = [None, Predictions(classes=["a", "b"], labels=labels, predicted=labels)]
    assert chance_of(arm).share == 0.75


def test_without_known_classes_nothing_is_said_of_chance():
    assert chance_of(ddp()) is None
    assert of_accuracy(compared(ddp(GUESSED), multiworker(GUESSED))).outcome == "the same within the margin"


@pytest.mark.parametrize(
    ("accuracies", "num_samples", "is_above"),
    [
        ([0.102] * 6, 359, False),  # an interval without width lies above chance, and the samples do not
        ([0.13] * 6, 359, False),
        ([0.14] * 6, 359, True),
        ([0.102] * 6, 100_000, True),
        ([0.05, 0.5, 0.05, 0.5, 0.05, 0.5], 10_000, False),  # which seeds are above chance is luck
        ([0.14], 359, True),  # too few rounds for an interval
        ([0.0] * 6, 359, False),
        ([], 359, False),
    ],
)
def test_rounds_and_samples_must_both_show_it(accuracies, num_samples, is_above):
    """By scipy.stats.binom, of 359 guesses 47 or more are right in 3.5% of cases, and 48 or more in 2.4%."""
    assert is_above_chance(accuracies, num_samples, TEN) == is_above


def test_of_many_arms_at_chance_no_pair_is_judged():
    third = of_classes(ddp(GUESSED))
    third.name = "third"
    shown = compared(of_classes(ddp(GUESSED)), of_classes(multiworker(GUESSED)), third)
    assert shown.learning.headline == "Accuracy not judged: no comparable arm is shown to be above chance."
    mixed = compared(of_classes(ddp(GUESSED)), of_classes(multiworker(GUESSED)), of_classes(renamed(ddp(SEEDS))))
    assert {claim.outcome for claim in mixed.learning.claims if claim.measure == "accuracy"} == {
        "not above chance",
        "lower",
    }


def renamed(arm):
    arm.name = "other"
    return arm
