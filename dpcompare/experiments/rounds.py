"""The runs of an arm, round by round, with every figure that reports show of them."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from dpcompare.experiments.collection import ArmRuns
from dpcompare.experiments.comparison import Round
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import printable


def rounds_of(arm: ArmRuns) -> list[Round]:
    """Those that were run; a run that was interrupted is made again, and is not among them."""
    rounds = zip(arm.positions, arm.run_dirs, arm.steady_speeds, strict=True)
    runs = zip_longest(arm.runs, arm.without_sync)
    return [
        Round(
            number=number,
            position=position,
            run_dir=printable(run_dir),
            failure=arm.failure_of(number),
            remarks=list(dict.fromkeys(remark.kind for remark in run.remarks)) if run else [],
            steady_images_per_second=steady,
            communication_ms=_communication_ms(run, without_sync),
            **_figures(run),
        )
        for number, ((position, run_dir, steady), (run, without_sync)) in enumerate(
            zip(rounds, runs, strict=True), start=1
        )
        if run_dir or arm.failure_of(number)
    ]


def _communication_ms(run: RunResult | None, without_sync: RunResult | None) -> float | None:
    """Paired within the round, as ratios of speeds are."""
    if run is None or without_sync is None or run.step_seconds is None or without_sync.step_seconds is None:
        return None
    return 1000 * (run.step_seconds.mean - without_sync.step_seconds.mean)


def _figures(run: RunResult | None) -> dict[str, Any]:
    """Fields of a Round; all None where it has no run that counts."""
    step = run.step_seconds if run else None
    memory = run.peak_memory_bytes if run else None
    gpu_memory = run.peak_device_memory_bytes if run else None
    evaluation = run.evaluations[-1] if run and run.evaluations else None
    cost = run.cost_of_target if run else None
    between = run.host_overhead_seconds if run else None
    as_written = (
        "images_per_second", "measured_steps", "data_wait_fraction", "between_steps_fraction",
        "time_to_first_step_seconds", "first_step_seconds", "wall_seconds", "joules_per_image",
        "achieved_flops", "model_flops_utilization", "achieved_bandwidth",
    )  # fmt: skip
    return {name: getattr(run, name, None) for name in as_written} | {
        "seed": run.config["workload"].get("seed") if run else None,
        "step_ms": _milliseconds(step.median if step else None),
        "step_mean_ms": _milliseconds(step.mean if step else None),
        "step_mad_ms": _milliseconds(step.mad if step else None),
        "step_p95_ms": _milliseconds(step.p95 if step else None),
        "between_steps_ms": None if between is None else 1000 * between,
        "memory_bytes": memory.total if memory else None,
        "largest_process_memory_bytes": memory.max_process if memory else None,
        "gpu_memory_bytes": gpu_memory.total if gpu_memory else None,
        "steps_trained": len(run.train_loss) if run else None,
        "last_loss": run.train_loss[-1] if run and run.train_loss else None,
        "evaluation_loss": evaluation.loss if evaluation else None,
        "accuracy": evaluation.accuracy if evaluation else None,
        "steps_to_target": cost.step if cost else None,
        "seconds_to_target": cost.seconds if cost else None,
        "images_to_target": cost.images if cost else None,
        "joules_to_target": cost.joules if cost else None,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
