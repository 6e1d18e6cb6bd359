"""Rows of a comparison about one arm: its figures, its rounds, its curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, create_model

from dpcompare.experiments.figures import FIGURES
from dpcompare.results.clock import RunWarning, RunWarningKind


class Shown(BaseModel):
    """A part of what a study shows, which nothing changes."""

    model_config = ConfigDict(frozen=True)


class _RunFacts(Shown):
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

    class _ArmFigures(Shown):
        def __getattr__(self, name: str) -> float | None: ...

else:
    _RunFigures = create_model(
        "_RunFigures",
        __base__=_RunFacts,
        **{name: (figure.kind | None, ...) for name, figure in FIGURES.items() if figure.per_run},
    )
    _ArmFigures = create_model(
        "_ArmFigures",
        __base__=Shown,
        **{name: (float | None, ...) for name, figure in FIGURES.items() if figure.over_rounds},
    )


class Round(_RunFigures):
    """One run of an arm, with its figures; of one that does not count only which it is, and why."""

    @property
    def status(self) -> Literal["completed", "failed"]:
        return "failed" if self.failure else "completed"


class Scaling(Shown):
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


class SpreadRow(Shown):
    """A figure of one arm over rounds of different seeds."""

    mean: float
    standard_deviation: float | None
    """Over the rounds, with n - 1; None of one round."""
    low: float | None
    high: float | None
    """Ends of the 95% interval of the mean; None with fewer rounds than an interval needs."""
    rounds: int


class TargetRow(Shown):
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


class AccuracyPoint(Shown):
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


class Curve(Shown):
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
