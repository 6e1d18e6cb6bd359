"""The figures of runs and arms: a row for each says what it is, how it is read from a result, and where it is shown.

A new figure is a field of `RunResult`, filled in where it is measured, and a row here: rounds, arms, the full report,
the page, `--fail-if`, JSON, CSV and Parquet have it then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from dpcompare.experiments.statistics import jitter, mean_speed
from dpcompare.results.computed import Evaluation, TrainingCost
from dpcompare.results.result import RunResult, StepSeconds

MIB = 1024 * 1024

Value = int | float | None
Read = Callable[[RunResult, RunResult | None], Value]
"""From a run, and the run without gradient sync of the same round where there is one."""


def median(values: Sequence[float]) -> float | None:
    """The median over the rounds in which a figure was measured; None if there are none."""
    return float(np.median(values)) if values else None


def _mean_speed(speeds: Sequence[float]) -> float | None:
    mean = mean_speed(speeds)
    return mean.value if mean else None


def _jitter(speeds: Sequence[float]) -> float | None:
    return jitter(speeds) if len(speeds) > 1 else None


@dataclass(frozen=True)
class Column:
    """How the full report and the page show a figure of an arm."""

    title: str
    explanation: str
    form: str = "{:.1f}"
    _: KW_ONLY
    per: float = 1.0
    """The figure is divided by this."""
    is_optional: bool = False
    """Left out where no arm has it."""
    only_gpus: bool = False
    """Shown of GPUs alone; records and results have it of the CPU too."""


@dataclass(frozen=True)
class Figure:
    """One row of FIGURES."""

    unit: str
    """The unit of the value, such as `s` or `images/s`; `1` for a fraction or a number without one."""
    explanation: str
    """What it is, in the table of CSV and Parquet; with `column` its explanation says what the report shows."""
    _: KW_ONLY
    kind: type[int] | type[float] = float
    read: Read | None = None
    """None: the result has it under the name of the figure."""
    per_run: bool = True
    """Whether it is shown of single runs; otherwise of their arm alone."""
    over_rounds: Callable[[Sequence[float]], float | None] | None = None
    """An arm's figure from those of its rounds; None: an arm has no such figure."""
    column: Column | None = None

    def __post_init__(self) -> None:
        if not self.unit or not self.explanation:
            raise TypeError(f"figure {self.explanation or self.unit!r}: expected a unit and an explanation")


def _of_steps(value: Callable[[StepSeconds], float | None]) -> Read:
    """Milliseconds of the measured steps."""

    def read(run: RunResult, _: RunResult | None) -> Value:
        seconds = value(run.step_seconds) if run.step_seconds else None
        return None if seconds is None else 1000 * seconds

    return read


def _of_last_evaluation(value: Callable[[Evaluation], float | None]) -> Read:
    return lambda run, _: value(run.evaluations[-1]) if run.evaluations else None


def _of_target(value: Callable[[TrainingCost], Value]) -> Read:
    return lambda run, _: value(run.cost_of_target) if run.cost_of_target else None


def _cpu_seconds_per_image(run: RunResult) -> float | None:
    """None where the load of a machine is not known; simulated nodes share the machine of the first."""
    loads = [node.load for node in run.nodes if node.load is not None]
    if not loads or run.nodes[0].load is None or run.images_per_second is None:
        return None
    return sum(load.run_cores for load in loads) / run.images_per_second


def _communication_ms(run: RunResult, without_sync: RunResult | None) -> float | None:
    """Paired within the round, as ratios of speeds are."""
    if without_sync is None or run.step_seconds is None or without_sync.step_seconds is None:
        return None
    return 1000 * (run.step_seconds.mean - without_sync.step_seconds.mean)


FIGURES: dict[str, Figure] = {
    # How fast it was.
    "steady_images_per_second": Figure(
        "images/s",
        "of all replicas, by the slowest process, in the median tenth of the measured steps: arms are compared by it",
        read=lambda run, _: run.compared_speed,
        over_rounds=_mean_speed,
        column=Column(
            "images/s",
            "steady speed: of all replicas, by the slowest process, in the median tenth of the measured steps, which a "
            "stall leaves alone; the geometric mean of the rounds, from 12 on trimmed, as ratios are",
        ),
    ),
    "jitter": Figure(
        "images/s",
        "1.4826 x median absolute deviation of steady images per second over the rounds",
        read=lambda run, _: run.compared_speed,
        per_run=False,
        over_rounds=_jitter,
        column=Column("jitter", "1.4826 x median absolute deviation of images/s over the rounds"),
    ),
    "measured_steps": Figure("steps", "steps after the warm-up", kind=int),
    "step_ms": Figure(
        "ms",
        "median step",
        read=_of_steps(lambda step: step.median),
        over_rounds=median,
        column=Column("ms/step", "median step, median of the rounds; none where windows are timed and not their steps"),
    ),
    "step_mean_ms": Figure("ms", "mean step", read=_of_steps(lambda step: step.mean)),
    "step_mad_ms": Figure(
        "ms", "median absolute deviation of the steps, not scaled", read=_of_steps(lambda step: step.mad)
    ),
    "step_p95_ms": Figure(
        "ms",
        "95th percentile of the steps",
        read=_of_steps(lambda step: step.p95),
        over_rounds=median,
        column=Column("p95 (ms)", "95th percentile of the steps"),
    ),
    "images_per_second": Figure(
        "images/s",
        "of all replicas, by the slowest process, over all measured steps, stalls included",
        over_rounds=_mean_speed,
        column=Column("with stalls", "images/s over all measured steps, stalls included; the same mean of the rounds"),
    ),
    "between_steps_ms": Figure(
        "ms",
        "mean time between two steps",
        read=lambda run, _: None if run.host_overhead_seconds is None else 1000 * run.host_overhead_seconds,
    ),
    "between_steps_fraction": Figure(
        "1",
        "part of the time that passes there, which images per second leave out",
        over_rounds=median,
        column=Column("between", "fraction of the time that passes between steps, which images/s leave out", "{:.1%}"),
    ),
    "data_wait_fraction": Figure(
        "1",
        "part of a step spent waiting for data",
        over_rounds=median,
        column=Column("data wait", "fraction of a step spent waiting for data", "{:.1%}"),
    ),
    "communication_ms": Figure(
        "ms",
        "what gradient sync adds to a mean step, where that was measured",
        read=_communication_ms,
        over_rounds=median,
        column=Column(
            "sync (ms)",
            "what gradient sync adds to a mean step, where that was measured (--ablate)",
            is_optional=True,
        ),
    ),
    "time_to_first_step_seconds": Figure(
        "s",
        "from the start of the launch to the end of the first step",
        over_rounds=median,
        column=Column("start (s)", "from the start of the launch to the first step"),
    ),
    "first_step_seconds": Figure("s", "the first step itself"),
    "wall_seconds": Figure("s", "from the start of the launch to its end"),
    # What it took.
    "memory_bytes": Figure(
        "bytes",
        "sum of the processes' peaks of resident memory",
        kind=int,
        read=lambda run, _: run.peak_memory_bytes.total if run.peak_memory_bytes else None,
        over_rounds=median,
        column=Column("memory (MiB)", "sum of the processes' peaks of resident memory", "{:,.0f}", per=MIB),
    ),
    "largest_process_memory_bytes": Figure(
        "bytes",
        "the largest of these peaks",
        kind=int,
        read=lambda run, _: run.peak_memory_bytes.max_process if run.peak_memory_bytes else None,
    ),
    "gpu_memory_bytes": Figure(
        "bytes",
        "peak of all GPUs, from the first measured step on; in JAX from the start",
        kind=int,
        read=lambda run, _: run.peak_device_memory_bytes.total if run.peak_device_memory_bytes else None,
        over_rounds=median,
        column=Column(
            "GPU (MiB)",
            "peak memory of all GPUs, from the first measured step on; in JAX from the start, so that it is not to be "
            "compared with that of other frameworks",
            "{:,.0f}",
            per=MIB,
            is_optional=True,
        ),
    ),
    "joules_per_image": Figure(
        "J",
        "energy over the measured steps",
        over_rounds=median,
        column=Column(
            "J/image",
            "energy over the measured steps, counted by the GPUs, or on the CPU by all packages of the machine",
            "{:.3f}",
            is_optional=True,
        ),
    ),
    "cpu_seconds_per_image": Figure(
        "s",
        "seconds of CPU cores, of all processes of the run together, from the first measured step to the last one",
        read=lambda run, _: _cpu_seconds_per_image(run),
        over_rounds=median,
        column=Column(
            "CPU ms/image",
            "work of the CPU cores for an image: cores that the run took, over images per second; an arm that does "
            "more work than another for the same images shows here",
            per=0.001,
            is_optional=True,
        ),
    ),
    "achieved_flops": Figure(
        "1/s",
        "operations of the model's products per second and device",
        over_rounds=median,
        column=Column(
            "GFLOP/s",
            "operations of the model's products per second and GPU, counted from its shapes, forward and backward",
            "{:,.0f}",
            per=1e9,
            is_optional=True,
            only_gpus=True,
        ),
    ),
    "model_flops_utilization": Figure(
        "1",
        "the same over the peak of the device; empty where that is not known",
        over_rounds=median,
        column=Column(
            "MFU",
            "the same over what the device can do in this precision at most; a model that is bound by memory reaches "
            "little of it",
            "{:.1%}",
            is_optional=True,
        ),
    ),
    "achieved_bandwidth": Figure(
        "bytes/s",
        "bytes of features per second and device that the layers read and write at least",
        over_rounds=median,
        column=Column(
            "GB/s",
            "bytes of features per second and GPU that the layers read and write at least",
            "{:,.0f}",
            per=1e9,
            is_optional=True,
            only_gpus=True,
        ),
    ),
    # What it learnt.
    "steps_trained": Figure(
        "steps", "warm-up and earlier attempts included", kind=int, read=lambda run, _: len(run.train_loss)
    ),
    "last_loss": Figure(
        "1",
        "training loss of the last step",
        read=lambda run, _: run.train_loss[-1] if run.train_loss else None,
        over_rounds=median,
        column=Column("last loss", "training loss of the last step", "{:.4f}"),
    ),
    "evaluation_loss": Figure("1", "of the last evaluation", read=_of_last_evaluation(lambda each: each.loss)),
    "accuracy": Figure(
        "1",
        "of the last evaluation, from 0 to 1",
        read=_of_last_evaluation(lambda each: each.accuracy),
        over_rounds=median,
        column=Column("accuracy", "on the validation split", "{:.3f}"),
    ),
    "steps_to_target": Figure(
        "steps",
        "steps until an evaluation first reached the target accuracy",
        kind=int,
        read=_of_target(lambda cost: cost.step),
    ),
    "seconds_to_target": Figure(
        "s",
        "training seconds until then, without evaluations and checkpoints",
        read=_of_target(lambda cost: cost.seconds),
    ),
    "images_to_target": Figure(
        "images",
        "images until then; one that came again in a later epoch counts again",
        kind=int,
        read=_of_target(lambda cost: cost.images),
    ),
    "joules_to_target": Figure("J", "energy until then", read=_of_target(lambda cost: cost.joules)),
}
"""Name, in JSON, CSV and Parquet -> the figure, in the order in which they are shown."""


def figures_of_run(run: RunResult | None, without_sync: RunResult | None) -> dict[str, Value]:
    """Name -> value of every figure of a run, None where it was not measured; all None of a run that does not count."""
    return {name: None if run is None else _read(name, figure, run, without_sync) for name, figure in FIGURES.items()}


def _read(name: str, figure: Figure, run: RunResult, without_sync: RunResult | None) -> Value:
    value: Value = figure.read(run, without_sync) if figure.read else getattr(run, name)
    return value


def figures_of_arm(runs: Sequence[tuple[RunResult | None, RunResult | None]]) -> dict[str, float | None]:
    """Name -> value of every figure of an arm.

    Args:
        runs: of each round its run, and that without gradient sync.
    """
    rounds = [figures_of_run(*round_runs) for round_runs in runs]
    return {
        name: figure.over_rounds([value for run_figures in rounds if (value := run_figures[name]) is not None])
        for name, figure in FIGURES.items()
        if figure.over_rounds
    }
