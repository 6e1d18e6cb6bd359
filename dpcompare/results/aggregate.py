"""The aggregation of what the processes of a run measured into its result."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpcompare.config.run import RunConfig
from dpcompare.results.events import Event
from dpcompare.results.result import (
    Evaluation,
    History,
    NodeRecord,
    PeakMemory,
    ProcessRecord,
    RunResult,
    Status,
    StepSeconds,
)


class Measurements:
    """The events of one process, as the series that a result is computed from."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.series: dict[str, list[float]] = defaultdict(list)
        self.evaluations: list[Event] = []
        self.first_step_at: float | None = None
        self.first_step = 0
        self.num_steps = 0
        for event in events:
            if event["kind"] == "ready":
                self.first_step = self.num_steps = event["first_step"]
            elif event["kind"] == "train":
                self.first_step_at = self.first_step_at or event["time"]
                self.num_steps = event["step"]
                for name in ("losses", "global_counts", "step_seconds", "data_seconds", "host_overhead_seconds"):
                    self.series[name] += event[name]
                self.series["joules"] += event.get("joules", ())
            elif event["kind"] == "evaluate":
                self.evaluations.append(event)


def collect(
    config: RunConfig,
    run_dir: Path,
    events: Sequence[Event],
    history: History,
    *,
    status: Status,
    error: str | None,
    started_at: float,
    ended_at: float,
) -> RunResult:
    """Combine what the processes of a run measured, whether or not it completed.

    Args:
        events: all events of all processes.
        history: of earlier attempts.
        status: how the launch ended; becomes `failed` where the processes contradict each other.
        error: why it did not complete.
        started_at: when the launch began, seconds since the epoch.
        ended_at: when the last process had ended.
    """
    by_rank: dict[int, list[Event]] = {rank: [] for rank in range(config.topology.num_processes)}
    for event in events:
        by_rank[event["process_rank"]].append(event)
    processes = [Measurements(by_rank[rank]) for rank in range(config.topology.num_trainers)]
    records = [
        ProcessRecord.model_validate_json(path.read_text())
        for rank in by_rank
        if (path := ProcessRecord.path(run_dir, rank)).is_file()
    ]
    before = history.evaluations
    evaluations = before + [new for new in _evaluations(processes) if not before or new.step > before[-1].step]
    if status == "completed" and (problem := _contradiction(config, processes, records, evaluations)):
        status, error = "failed", problem
    workload, cluster = config.workload, config.cluster
    return RunResult(
        status=status,
        error=error,
        framework=config.framework,
        mode=config.mode,
        num_nodes=cluster.num_nodes,
        num_processes=config.topology.num_processes,
        num_replicas=config.topology.num_replicas,
        device_type=cluster.device_type,
        device_names=[name for record in records for name in record.device_names],
        emulated=config.emulated,
        collective=records[0].collective if records else None,
        model=workload.model,
        dataset=workload.dataset,
        image_size=workload.image_size,
        global_batch_size=workload.global_batch_size,
        precision=workload.precision,
        profile=workload.profile,
        wall_seconds=ended_at - started_at,
        peak_memory_bytes=_peak(record.peak_memory_bytes for record in records),
        peak_device_memory_bytes=_peak(
            record.peak_device_memory_bytes for record in records if record.peak_device_memory_bytes is not None
        ),
        first_step=len(history.losses),
        attempts=history.attempts,
        train_loss=history.losses + _global_losses(processes),
        evaluations=evaluations,
        sample_order_sha256=records[0].sample_order_sha256 if records else None,
        store_sha256=config.inputs.store_sha256 if config.inputs else None,
        weights_sha256=config.inputs.weights_sha256 if config.inputs else None,
        skipped_images=config.inputs.num_skipped if config.inputs else 0,
        threads_per_process=config.topology.threads_per_process,
        settings=records[0].settings if records else {},
        versions=records[0].versions if records else {},
        nodes=_nodes(records),
        config=config.model_dump(mode="json"),
        **_speed(config, processes, started_at),
    )


def _nodes(records: Sequence[ProcessRecord]) -> list[NodeRecord]:
    of_node: dict[int, list[ProcessRecord]] = {}
    for record in records:
        of_node.setdefault(record.node_rank, []).append(record)
    return [
        NodeRecord(
            node_rank=rank,
            host=own[0].host,
            device_names=[name for record in own for name in record.device_names],
            versions=own[0].versions,
        )
        for rank, own in sorted(of_node.items())
    ]


def _peak(values: Iterable[int]) -> PeakMemory | None:
    each = list(values)
    return PeakMemory(max_process=max(each), total=sum(each)) if each else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _global_losses(processes: Sequence[Measurements]) -> list[float | None]:
    """Per step, the sum of losses over all processes / the samples of the global batch."""
    sums = zip(*(process.series["losses"] for process in processes), strict=False)
    counts = processes[0].series["global_counts"]
    return [_finite(sum(losses) / count) for losses, count in zip(sums, counts, strict=False)]


def _evaluations(processes: Sequence[Measurements]) -> list[Evaluation]:
    combined = []
    for parts in zip(*(process.evaluations for process in processes), strict=False):
        count = sum(part["count"] for part in parts)
        combined.append(
            Evaluation(
                epoch=parts[0]["epoch"],
                step=parts[0]["step"],
                loss=_finite(sum(part["loss_sum"] for part in parts) / count),
                accuracy=sum(part["correct"] for part in parts) / count,
                count=count,
            )
        )
    return combined


def _speed(config: RunConfig, processes: Sequence[Measurements], started_at: float) -> dict[str, Any]:
    """The figures of the clock; none where no step was measured in every process."""
    figures: dict[str, Any] = {}
    first_steps = [process.first_step_at for process in processes]
    if None not in first_steps:
        figures["time_to_first_step_seconds"] = max(filter(None, first_steps)) - started_at
        figures["first_step_seconds"] = max(process.series["step_seconds"][0] for process in processes)
    warmup_steps = config.workload.warmup_steps
    num_steps = min(process.num_steps for process in processes)
    steps_made = num_steps - processes[0].first_step
    if steps_made <= warmup_steps:
        return figures
    measured = slice(warmup_steps, steps_made)

    def seconds_of(process: Measurements) -> list[float]:
        steps = process.series["step_seconds"][measured]
        if not config.mode_row.roles:
            return steps
        # Asynchronous steps return before they are made: what they take is waited for between them, where losses are read.
        return [sum(pair) for pair in zip(steps, process.series["host_overhead_seconds"][measured], strict=True)]

    slowest = max(processes, key=lambda process: sum(seconds_of(process)))
    seconds = seconds_of(slowest)
    images = sum(slowest.series["global_counts"][measured])
    # On the CPU the first process reads the packages of the machine, for all.
    on_cpu = config.cluster.device_type == "cpu"
    metered = [processes[rank] for rank in config.topology.first_of_machines] if on_cpu else processes
    everything = config.topology.num_trainers == config.topology.num_processes or (on_cpu and config.cluster.simulated)
    if everything and all(len(process.series["joules"]) == len(process.series["step_seconds"]) for process in metered):
        figures["joules_per_image"] = sum(sum(process.series["joules"][measured]) for process in metered) / images
    return figures | {
        "images_per_second": images / sum(seconds),
        "measured_steps": len(seconds),
        "step_seconds": StepSeconds.of(seconds),
        "data_wait_fraction": sum(slowest.series["data_seconds"][measured]) / sum(seconds),
        "host_overhead_seconds": 0.0
        if config.mode_row.roles
        else float(np.mean(slowest.series["host_overhead_seconds"][measured])),
    }


def _contradiction(
    config: RunConfig,
    processes: Sequence[Measurements],
    records: Sequence[ProcessRecord],
    evaluations: Sequence[Evaluation],
) -> str | None:
    """What shows that a run which seemed to complete did not do what was asked."""
    if len(records) != config.topology.num_processes:
        return f"{config.topology.num_processes} processes were planned, {len(records)} left a record"
    if len({record.sample_order_sha256 for record in records[: config.topology.num_trainers]}) != 1:
        return "the processes trained the samples in different orders"
    if len({process.num_steps for process in processes}) != 1:
        return f"the processes made different numbers of steps: {[process.num_steps for process in processes]}"
    assert config.inputs is not None
    expected = config.workload.total_steps(config.inputs.num_train)
    if processes[0].num_steps != expected:
        return f"{expected} steps were to be made, {processes[0].num_steps} were told of; is an event file damaged?"
    expected = config.inputs.num_validation
    if not evaluations or any(evaluation.count != expected for evaluation in evaluations):
        counts = [evaluation.count for evaluation in evaluations]
        return f"evaluation must see each of the {expected} validation samples once, but counted {counts}"
    if evaluations[-1].step != processes[0].num_steps:
        return f"the last evaluation is that of step {evaluations[-1].step} of {processes[0].num_steps}"
    return None
