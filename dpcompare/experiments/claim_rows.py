"""Rows of a comparison about several arms: what may be claimed of them, and of what they learned."""

from __future__ import annotations

from typing import Literal, Self

from dpcompare.experiments.accuracy_statistics import LearningOutcome, Measure
from dpcompare.experiments.arm_rows import Shown
from dpcompare.experiments.statistics import Claim, Outcome, Ratio, num_trimmed
from dpcompare.system.type_names import FieldValue


class RatioRow(Shown):
    """One of the seven sentences on the ratio of two arms, and its figures."""

    first: str
    second: str
    outcome: Outcome
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float | None
    """The confidence of the interval from `low` to `high`, at which this pair is judged."""
    standard_error: float | None
    """The standard error of the logarithm of the ratio."""
    rounds: int
    sentence: str

    @property
    def measured(self) -> Ratio | None:
        """The ratio with its error; None where that is not known."""
        if self.ratio is None or self.standard_error is None:
            return None
        return Ratio(
            value=self.ratio,
            standard_error=self.standard_error,
            rounds=self.rounds,
            trimmed=num_trimmed(self.rounds),
        )

    @classmethod
    def of(cls, claim: Claim, **further: FieldValue) -> Self:
        """The row of a claim.

        Args:
            further: the fields that a kind of row has in addition to these.
        """
        ratio = claim.ratio
        low, high = claim.interval or (None, None)
        return cls(
            first=claim.first,
            second=claim.second,
            outcome=claim.outcome,
            ratio=ratio.value if ratio else None,
            low=low,
            high=high,
            confidence=None if claim.interval is None or claim.level is None else 1 - claim.level,
            standard_error=ratio.standard_error if ratio else None,
            rounds=ratio.rounds if ratio else 0,
            sentence=claim.sentence,
            **further,
        )


class ClaimRow(RatioRow):
    """A sentence on the steady images per second of two arms, and how far apart their trainings were."""

    loss_difference: float | None
    """The largest difference of the training loss of a step, between the first completed runs of both."""
    diverged_at: int | None
    """First step, from 1, at which the loss of one of them is finite and that of the other is not."""
    accuracy_difference: float | None
    """Between their last evaluations."""


GateOutcome = Literal["slower", "not slower", "undecided"]


class GateRow(Shown):
    """What a gate says of its candidate, and the figures of the look that said it, or of the last one."""

    candidate: str
    baseline: str
    allowed_loss: float
    """The largest loss of speed that passes, as a part of the baseline's."""
    outcome: GateOutcome
    ratio: float | None
    """The candidate's speed over the baseline's."""
    low: float | None
    high: float | None
    """Ends of the interval of the look: the truth is below `low`, and likewise above `high`, in 1% of such looks."""
    rounds: int
    is_final: bool
    """Whether more rounds cannot change what it says."""
    sentence: str
    advice: str
    """What would decide it; empty where it is decided, or nothing would."""


class LearningRow(Shown):
    """One of the sentences on what two arms learned, and its figures; of loss where `measure` says so."""

    first: str
    second: str
    measure: Measure
    outcome: LearningOutcome
    difference: float | None
    """First - second, mean over the rounds; of accuracy as a fraction of the validation samples."""
    low: float | None
    high: float | None
    confidence: float | None
    """The confidence of the interval from `low` to `high`."""
    standard_error: float | None
    """The standard error of the difference."""
    rounds: int
    sentence: str


class Learning(Shown):
    """What a study says of what its arms learned."""

    varied: str
    """What differs from round to round, in a sentence."""
    margin: float
    """Within which two arms count as equally accurate, as a fraction of the validation samples."""
    headline: str
    claims: list[LearningRow]


class ArmPredictions(Shown):
    """What one arm took the validation samples for, all rounds that kept it together."""

    name: str
    rounds: int
    class_accuracy: list[float | None]
    """Per class, the part of its samples that were recognized; None of a class without samples."""
    confusion: list[list[int]]
    """[label][prediction]: samples."""
    agreement_between_rounds: float | None
    """Part of the samples that two of its rounds take for the same class, mean of all two; None of one round."""


class PredictionAgreement(Shown):
    """How often two arms take a sample for the same class, be it the right one or not."""

    first: str
    second: str
    agreement: float
    """Part of the samples, mean over the rounds in which both kept their predictions."""
    rounds: int
    sentence: str


class PredictionRows(Shown):
    """What the models of a study predict, sample by sample."""

    classes: list[str]
    samples: int
    arms: list[ArmPredictions]
    agreements: list[PredictionAgreement]


class TimeClaimRow(RatioRow):
    """A sentence on the training seconds to the target accuracy, those of the second arm over those of the first."""


class TimeToAccuracy(Shown):
    """Which arms are at the target first."""

    target: float
    """Accuracy, as a fraction of the validation samples."""
    headline: str
    """The sentence of the pair whose times differ most, or what all pairs have in common."""
    claims: list[TimeClaimRow]
    """Claims about the arms that reached it in every round; empty if the rounds repeat one training."""
