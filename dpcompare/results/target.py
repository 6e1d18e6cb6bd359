"""The accuracy that a run is to reach, and what its training had cost when it did."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from dpcompare.results.evaluation import Evaluation
from dpcompare.system.quantities import Count, Measured


class TrainingCost(BaseModel):
    """What all steps before an evaluation took; evaluations and checkpoints are no part of it."""

    model_config = ConfigDict(frozen=True)

    step: Count
    """Steps before it."""
    images: Count
    """Samples trained before it; one that came again in a later epoch counts again."""
    seconds: Measured | None
    """Of the slowest process, the time between steps included, and the first step with what it compiles; None in a
    run that was resumed, whose earlier attempts are not timed."""
    joules: Measured | None
    """Of all devices; None where a part of it was not counted."""


def reached(evaluations: Sequence[Evaluation], target: float) -> Evaluation | None:
    """The first evaluation at which the target was reached; None where none was."""
    return next((evaluation for evaluation in evaluations if is_reached(evaluation.accuracy, target)), None)


def is_reached(accuracy: float, target: float) -> bool:
    return accuracy >= target
