"""What a study shows: one document that every format renders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, create_model

from dpcompare._version import __version__
from dpcompare.backends.description import NOT_KNOWN
from dpcompare.experiments.accuracy_statistics import LearningOutcome, Measure
from dpcompare.experiments.figures import FIGURES
from dpcompare.experiments.statistics import Claim, Outcome, Ratio, num_trimmed
from dpcompare.results.clock import RunWarning, RunWarningKind
from dpcompare.system.type_names import FieldValue


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class _RunFacts(_Shown):
    number: int
    position: int
    run_dir: str
    failure: str | None
    """Why it does not count; None where it does."""
    warnings: list[RunWarningKind]
    seed: int | None
    """None where it does not count."""


if TYPE_CHECKING:  # the figures are fields too, which pydantic makes from their table

    class _RunFigures(_RunFacts):
        def __getattr__(self, name: str) -> float | None: ...

    class _ArmFigures(_Shown):
        def __getattr__(self, name: str) -> float | None: ...

else:
    _RunFigures = create_model(
        "_RunFigures",
        __base__=_RunFacts,
        **{name: (figure.kind | None, ...) for name, figure in FIGURES.items() if figure.per_run},
    )
    _ArmFigures = create_model(
        "_ArmFigures",
        __base__=_Shown,
        **{name: (float | None, ...) for name, figure in FIGURES.items() if figure.over_rounds},
    )


class Round(_RunFigures):
    """One run of an arm, with its figures; of one that does not count only which it is, and why."""

    @property
    def status(self) -> Literal["completed", "failed"]:
        return "failed" if self.failure else "completed"


class Scaling(_Shown):
    """Several devices against one of the same framework, with the same settings."""

    kind: str
    """`strong`: the same global batch as one device. `weak`: the same batch per replica."""
    baseline: str
    """Name of the arm of one device."""
    num_devices: int
    speedup: float
    """The ratio of steady images per second."""
    low: float | None
    high: float | None
    """Ends of its 95% interval; None with fewer rounds than an interval needs."""
    rounds: int
    efficiency: float
    """The speed-up over the number of devices."""
    suspicious: bool
    """Above 105%: look for an unfair baseline before believing it."""
    doubt: str | None = None
    """Why it has no interval although it has the rounds for one: most of them were disturbed or too short."""
    sentence: str


class SpreadRow(_Shown):
    """A figure of one arm over rounds of different seeds."""

    mean: float
    standard_deviation: float | None
    """Over the rounds, with n - 1; None of one round."""
    low: float | None
    high: float | None
    """Ends of the 95% interval of the mean; None with fewer rounds than an interval needs."""
    rounds: int


class TargetRow(_Shown):
    """What an arm needed to reach the accuracy that was asked for; figures are medians over its rounds."""

    accuracy: float
    """The accuracy that was asked for."""
    rounds: int
    reached: int
    """Rounds in which an evaluation reached it; fewer than all: the arm is censored, and has no figures."""
    timed: int
    """Rounds of which the seconds are known, since they were not resumed."""
    steps: float | None
    """Before the first evaluation that reached it: the lower median, since between two rounds there was none."""
    images: float | None
    seconds: float | None
    """Seconds of training, without evaluations and checkpoints, over the rounds that are timed."""
    joules: float | None
    dollars: float | None = None
    """Of its devices for these seconds, where they have a price."""
    sentence: str
    """What the arm needed, or that it is censored."""

    @property
    def is_censored(self) -> bool:
        return self.reached < self.rounds


class AccuracyPoint(_Shown):
    """The accuracy of an arm after some steps."""

    step: int
    seconds: float | None
    """Seconds of training until then: the median over the rounds for which they are known."""
    timed: int
    """These rounds: those that were not resumed."""
    mean: float
    low: float
    high: float
    """Lowest and highest of the rounds."""
    rounds: int


class Group(_Shown):
    """Arms on the same number of devices, and of one model where a study has several."""

    model: str | None = None
    """Or the study where that is about models; None where all arms are judged together."""
    num_devices: int
    arms: list[str]
    comparable: list[list[str]]
    """Those of them that are comparable with each other, in sets; none where there are no two."""

    @property
    def all_comparable(self) -> bool:
        return len(self.arms) < 2 or self.comparable == [self.arms]


class Curve(_Shown):
    """The training loss over the steps, thinned out; None where it was not finite."""

    steps: list[int]
    losses: list[float | None]


class ArmRow(_ArmFigures):
    """One arm as it is shown: a run config trained once per round, with its figures over its completed rounds."""

    name: str
    source: str
    """The study that it was measured in; empty for a single run."""
    framework: str
    mode: str
    num_nodes: int
    devices_per_node: int
    num_replicas: int
    device_type: str
    model: str
    dataset: str
    image_size: int
    """Pixels of a side."""
    global_batch_size: int
    precision: str
    profile: str
    emulated: bool
    pipeline: str | None
    """Name of its pipeline, the same for arms that differ in their micro-batches alone; None where it has none."""
    micro_batches: int
    """Per step and replica."""
    rounds: int
    accuracy_over_seeds: SpreadRow | None
    """Accuracy of the last evaluation; None if the rounds repeat one training."""
    loss_over_seeds: SpreadRow | None
    """The same of the evaluation loss, over the rounds where it is finite."""
    dollars_per_million_images: float | None = None
    """Of its devices, at the steady speed, where they have a price."""
    to_target: TargetRow | None
    """None where no accuracy was to be reached."""
    accuracy_curve: list[AccuracyPoint]
    step_parts_ms: dict[str, float]
    """A mean step in parts: waiting for data, communication where it was measured, computing; and other, what the loop
    does between two steps, which images per second leave out."""
    scaling: Scaling | None
    rounds_shown: list[Round]
    loss_curve: Curve
    warnings: list[RunWarning]
    """Warnings about its runs, with the round."""
    outliers: list[str]
    """At most one sentence: in how many rounds a few samples make much of the last evaluation loss, and how much."""
    repeated: list[str]
    """Why runs were repeated that something had disturbed: a sentence for each, which is kept and counts no more."""
    failures: list[str]
    ablation_failures: list[str]
    """Failures of the runs without gradient sync, which measure what it costs and nothing else."""

    @property
    def all_failures(self) -> list[str]:
        return self.failures + [f"without gradient sync, {failure}" for failure in self.ablation_failures]


class SettingRow(_Shown):
    """One check of the fairness sheet, with a value per arm that has a completed run."""

    setting: str
    values: list[str]
    equal: bool
    reason: bool
    """Whether it makes the arms not comparable."""

    @property
    def verdict(self) -> str:
        """What the sheet says of a check whose values are not all equal."""
        if self.reason:
            return "NOT COMPARABLE"
        return NOT_KNOWN if any(NOT_KNOWN in value for value in self.values) else "expected to differ"


class RatioRow(_Shown):
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


class GateRow(_Shown):
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


class LearningRow(_Shown):
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


class Learning(_Shown):
    """What a study says of what its arms learned."""

    varied: str
    """What differs from round to round, in a sentence."""
    margin: float
    """Within which two arms count as equally accurate, as a fraction of the validation samples."""
    headline: str
    claims: list[LearningRow]


class ArmPredictions(_Shown):
    """What one arm took the validation samples for, all rounds that kept it together."""

    name: str
    rounds: int
    class_accuracy: list[float | None]
    """Per class, the part of its samples that were recognized; None of a class without samples."""
    confusion: list[list[int]]
    """[label][prediction]: samples."""
    agreement_between_rounds: float | None
    """Part of the samples that two of its rounds take for the same class, mean of all two; None of one round."""


class PredictionAgreement(_Shown):
    """How often two arms take a sample for the same class, be it the right one or not."""

    first: str
    second: str
    agreement: float
    """Part of the samples, mean over the rounds in which both kept their predictions."""
    rounds: int
    sentence: str


class PredictionRows(_Shown):
    """What the models of a study predict, sample by sample."""

    classes: list[str]
    samples: int
    arms: list[ArmPredictions]
    agreements: list[PredictionAgreement]


class TimeClaimRow(RatioRow):
    """A sentence on the training seconds to the target accuracy, those of the second arm over those of the first."""


class TimeToAccuracy(_Shown):
    """Which arms are at the target first."""

    target: float
    """Accuracy, as a fraction of the validation samples."""
    headline: str
    """The sentence of the pair whose times differ most, or what all pairs have in common."""
    claims: list[TimeClaimRow]
    """Claims about the arms that reached it in every round; empty if the rounds repeat one training."""


class NextStep(_Shown):
    """A command that one types after a study."""

    name: str
    """What it is for, such as `settle it`."""
    command: str
    seconds: float | None = None
    """How long it will take; None where that is not known."""

    @property
    def minutes_in_words(self) -> str | None:
        return None if self.seconds is None else f"about {math.ceil(self.seconds / 60)} min"


class Comparison(_Shown):
    """Everything that a report shows."""

    schema_version: int = 3
    """Changes where a key changes its name or meaning; 1 had `waiting_share` for `data_wait_fraction`, 2 ratios
    of mean speeds, each judged at 95%, and `efficiency.value` for `scaling.efficiency`."""
    dpcompare_version: str = __version__
    """Of the dpcompare that compares."""
    measured_by: list[str] = []
    """Versions of the dpcompare that made the runs."""
    partial: bool
    """Whether rounds are missing."""
    repeats: int
    order_seed: int | None
    unchecked: str | None
    """How many runs have figures that were not computed again from their events, for want of them."""
    commands: list[str] = []
    """The command that the study was begun with, then each that has continued it; empty where it is not one study."""
    next_steps: list[NextStep] = []
    """What one may do after it, the most useful first; empty where it is not one study."""
    stopped_by: str | None
    """Why no more rounds were added, where the study added them until its intervals were narrow enough."""
    look_level: float
    """Probability of a false claim that this look at the study may have, all its pairs together."""
    subject: list[str]
    dollars_per_device_hour: float | None = None
    """The price that costs are made from."""
    measured: str
    """Model, data, batch, precision and machine, where the arms share them."""
    machines: list[str] = []
    """A line for each machine: processor, memory, operating system and kernel; empty where no run has nodes."""
    layers: list[str] = []
    """How the layers of a custom model were matched where frameworks call them otherwise, a line for each framework."""
    environments: list[str] = []
    """What each environment has otherwise than the first of its framework, a line for each."""
    headline: str
    gate: GateRow | None = None
    """None where it is not the study of a gate."""
    learning: Learning | None
    """None where the rounds repeat one training, or each arm ends at the accuracy that it was to reach."""
    time_to_accuracy: TimeToAccuracy | None
    """None where the arms have not the same target, or are of several studies."""
    not_judged: list[str]
    """Why accuracies are not judged, or times to accuracy, where one may expect it."""
    predictions: PredictionRows | None
    """None where none were kept."""
    agreement: str | None
    """How closely the arms that are comparable have trained."""
    verdict: str
    """The verdict of the fairness sheet over all arms."""
    summary: str
    reasons: list[str]
    settings: list[SettingRow]
    arms: list[ArmRow]
    groups: list[Group]
    claims: list[ClaimRow]

    @property
    def outcomes(self) -> list[str]:
        """The outcomes of all claims: those on speed, on what was learned, and on time to accuracy."""
        return [
            *(claim.outcome for claim in self.claims),
            *(claim.outcome for claim in (self.learning.claims if self.learning else ())),
            *(claim.outcome for claim in (self.time_to_accuracy.claims if self.time_to_accuracy else ())),
        ]

    @property
    def target_sentences(self) -> list[str]:
        """What each arm needed to its target accuracy, and which of them is there first."""
        needed = [row.to_target.sentence for row in self.arms if row.to_target]
        return [*needed, *(claim.sentence for claim in (self.time_to_accuracy.claims if self.time_to_accuracy else ()))]
