"""The answers that a page begins with: up to three sentences with their intervals, first what the study is about."""

from __future__ import annotations

from dataclasses import dataclass

from dpcompare.experiments.comparison import Comparison


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer."""

    about: str
    sentence: str
    section: str
    """The part of the page that has its figures."""


def answers_of(comparison: Comparison) -> list[Answer]:
    """Accuracy and time to accuracy first if the study is about them: speed is always measured."""
    answers = []
    if comparison.learning:
        answers.append(Answer(about="Accuracy", sentence=comparison.learning.headline, section="learning"))
    if comparison.time_to_accuracy:
        sentence = comparison.time_to_accuracy.headline
        answers.append(Answer(about="Time to accuracy", sentence=sentence, section="time-to-accuracy"))
    answers.append(Answer(about="Speed", sentence=comparison.headline, section="claims"))
    return answers
