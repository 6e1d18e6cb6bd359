"""What a study shows: one document that every format renders."""

from __future__ import annotations

from pydantic import Field

from dpcompare._version import __version__
from dpcompare.backends.description import NOT_KNOWN
from dpcompare.experiments.arm_rows import ArmRow, Shown
from dpcompare.experiments.claim_rows import ClaimRow, GateRow, Learning, PredictionRows, TimeToAccuracy
from dpcompare.system.terminal_text import about


class Group(Shown):
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


class SettingRow(Shown):
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


class NextStep(Shown):
    """A command that one types after a study."""

    name: str
    """What it is for, such as `settle it`."""
    command: str
    seconds: float | None = None
    """How long it will take; None where that is not known."""

    @property
    def minutes_in_words(self) -> str | None:
        return None if self.seconds is None else about(self.seconds)


class Comparison(Shown):
    """Everything that a report shows."""

    schema_version: int = 3
    """Changes where a key changes its name or meaning; 1 had `waiting_share` for `data_wait_fraction`, 2 ratios
    of mean speeds, each judged at 95%, and `efficiency.value` for `scaling.efficiency`."""
    dpcompare_version: str = __version__
    """Of the dpcompare that compares."""
    measured_by: list[str] = Field(default_factory=list)
    """Versions of the dpcompare that made the runs."""
    partial: bool
    """Whether rounds are missing."""
    repeats: int
    order_seed: int | None
    unchecked: str | None
    """How many runs have figures that were not computed again from their events, for want of them."""
    commands: list[str] = Field(default_factory=list)
    """The command that the study was begun with, then each that has continued it; empty where it is not one study."""
    next_steps: list[NextStep] = Field(default_factory=list)
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
    machines: list[str] = Field(default_factory=list)
    """A line for each machine: processor, memory, operating system and kernel; empty where no run has nodes."""
    layers: list[str] = Field(default_factory=list)
    """How the layers of a custom model were matched where frameworks call them otherwise, a line for each framework."""
    environments: list[str] = Field(default_factory=list)
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
