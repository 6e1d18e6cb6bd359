"""What a projection shows: one document for all formats; every figure of its points is predicted."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from dpcompare._version import __version__
from dpcompare.projection.link import Latency
from dpcompare.system.terminal_text import printable


class _Shown(BaseModel):
    """Names in it are those of the studies, which may be untrusted: none of its texts has control characters."""

    model_config = ConfigDict(frozen=True)

    @field_validator("*", mode="after")
    @classmethod
    def _printable(cls, value: Any) -> Any:
        if isinstance(value, str):
            return printable(value)
        if isinstance(value, list):
            return [cls._printable(each) for each in value]
        if isinstance(value, dict):
            return {printable(name): cls._printable(each) for name, each in value.items()}
        return value


class Range(_Shown):
    """A predicted figure."""

    low: float
    """The figure with the high end of the latency, and the measured spread of processes."""
    typical: float
    """The figure with the typical latency and the measured spread."""
    high: float
    """The figure with the low end of the latency, and no more waiting for the slowest process than was measured."""


class PredictedPoint(_Shown):
    """An arm on one cluster; nothing here was measured."""

    nodes: int
    devices: int
    images_per_second: Range
    efficiency: Range
    """Images per second over those of as many devices that exchange nothing and wait as those measured did."""
    fraction_training: float
    """Part of the time in which steps are made that count: the rest goes to checkpoints and failures."""
    step_ms: float
    step_parts_ms: dict[str, float]
    """Computing, waiting for the slowest, exchange that computing does not hide, and input."""
    dollars_per_million_images: float | None
    extrapolated: bool
    """Whether it is beyond what predictions were compared with."""


class Goal(_Shown):
    """What a goal needs, in a sentence, and as a number."""

    goal: str
    value: float | None
    """None where nothing reaches it."""
    sentence: str


class Conditions(_Shown):
    """What was asked for in addition to nodes and links; None: not asked for."""

    latency: Latency
    """Seconds, of a message between nodes."""
    storage_bytes_per_second: float | None
    checkpoint_every: int | None
    """Steps."""
    checkpoint_seconds: float | None
    node_mtbf_hours: float | None
    restart_seconds: float | None
    dollars_per_device_hour: float | None
    target_efficiency: float | None
    target_throughput: float | None
    """Images per second."""


class PredictedArm(_Shown):
    """One arm of a study on larger clusters."""

    name: str
    framework: str
    mode: str
    measured_nodes: int
    measured_devices_per_node: int
    batch_per_device: float
    computing_ms: float
    """Measured: a step without exchange, as long as its slowest process makes it."""
    measured_step_ms: float | None
    """Measured: a step with exchange on the measured cluster."""
    refitted_step_ms: float | None
    """What the model gives for that cluster."""
    spread: float
    """Measured: relative standard deviation of a process's step."""
    exchanged_bytes: float
    """Bytes of all messages of a step: more than those of the gradients if parameters are gathered too."""
    copying_ns_per_byte: float
    misfit: str | None
    """A sentence that the model is far off the measured step."""
    points: list[PredictedPoint]
    goals: list[Goal]
    assumed: list[str]
    left_out: list[str]
    """On which numbers of nodes that were asked for nothing is predicted, and why."""
    sentence: str


class Projection(_Shown):
    """Everything that a projection shows; every figure of its points is predicted."""

    schema_version: int = 1
    dpcompare_version: str = __version__
    kind: str = "predicted"
    link: str
    intra_link: str
    devices_per_node: int | None
    """None: of each arm as many as were measured."""
    overlap: str
    conditions: Conditions
    verdict: str
    """The verdict of the fairness sheet over the arms that are projected."""
    summary: str
    left_out: dict[str, str]
    """Arm -> why nothing is predicted of it."""
    arms: list[PredictedArm]
    sentences: list[str]
