"""The aggregation of what the processes of a run measured into its result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dpcompare.config.run import RunConfig
from dpcompare.data.digest import combined
from dpcompare.results.attempts import History, ProcessRecord, Status
from dpcompare.results.clock import MachineLoad
from dpcompare.results.computed import Computed, Evaluation, reached, utilization_figures
from dpcompare.results.decisions import Decisions, contradiction_of
from dpcompare.results.events import Evaluated, Event, Started, read_events
from dpcompare.results.observed import OtherVariables
from dpcompare.results.result import NodeRecord, PeakMemory, RunResult
from dpcompare.results.run_dir import process_record_path
from dpcompare.results.series import ProcessSeries, series_of_trainers
from dpcompare.results.timing import clock_of, evaluation_costs, first_step_figures, joules_per_image, speed_figures
from dpcompare.system.json_files import read_document
from dpcompare.system.terminal_text import pluralize


@dataclass(frozen=True, kw_only=True)
class LaunchEnd:
    """How the launch of an attempt ended."""

    status: Status
    error: str | None
    """Why it did not complete."""
    started_at: float
    """When the launch started, seconds since the epoch."""
    ended_at: float
    """When the last process had ended."""


def aggregate(config: RunConfig, run_dir: Path, end: LaunchEnd, history: History | None = None) -> RunResult:
    """Combine what the processes of a run left in its directory, whether or not it completed.

    A launch that completed still becomes a failed run where its processes contradict each other.

    Args:
        config: of the attempt.
        run_dir: holds its events and the records of its processes.
        end: how its launch ended.
        history: of the attempts before it; default: that of the directory.

    Raises:
        RequestError: the files are those of another version of dpcompare.
    """
    history = history or History.load(run_dir)
    events = read_events(run_dir, config.topology.num_processes)
    processes = series_of_trainers(config, events)
    records = [
        read_document(ProcessRecord, path, kind="the record of a process", expected="a run directory")
        for rank in range(config.topology.num_processes)
        if (path := process_record_path(run_dir, rank)).is_file()
    ]
    before = history.evaluations
    evaluations = before + [new for new in _evaluations(processes) if not before or new.step > before[-1].step]
    status, error = end.status, end.error
    if status == "completed":
        problem = _mixture(events, records) or _contradiction(config, processes, records, evaluations)
        status, error = ("failed", problem) if problem else (status, error)
    speeds = speed_figures(config, processes)
    device_names = [name for record in records for name in record.device_names]
    return RunResult(
        status=status,
        error=error,
        attempt_id=records[0].attempt_id if records else None,
        **_asked(config),
        device_names=device_names,
        collective=records[0].collective if records else None,
        started_at=datetime.fromtimestamp(end.started_at, UTC),
        wall_seconds=end.ended_at - end.started_at,
        peak_memory_bytes=_peak(record.peak_memory_bytes for record in records),
        peak_device_memory_bytes=_peak(
            record.peak_device_memory_bytes for record in records if record.peak_device_memory_bytes is not None
        ),
        first_step=len(history.losses),
        attempts=history.attempts,
        train_loss=history.losses + _global_losses(processes),
        evaluations=evaluations,
        evaluation_costs=evaluation_costs(config, processes, evaluations),
        sample_order_sha256=records[0].sample_order_sha256 if records else None,
        computed=_computed(config, processes, records, evaluations),
        decisions=_decisions(processes),
        gradients=records[0].gradients if records else None,
        observed=[record.observed for record in records if record.observed and record.computed],
        variables=OtherVariables.of([record.variables for record in records]),
        settings=records[0].settings if records else {},
        versions=records[0].versions if records else {},
        packages=records[0].packages if records else {},
        nodes=_nodes(config, records),
        joules_per_image=joules_per_image(config, processes),
        clock=clock_of(config, run_dir, processes),
        compiled_steps=sorted({step for process in processes for step in process.compiled_steps}),
        **first_step_figures(processes, end.started_at),
        **speeds,
        **utilization_figures(
            config,
            speeds.get("images_per_second"),
            device_names,
            tf32=bool(records and records[0].settings.get("tf32")),
        ),
    )


def _asked(config: RunConfig) -> dict[str, Any]:
    """What is known of a result before anything has run."""
    workload, cluster, topology, inputs = config.workload, config.cluster, config.topology, config.inputs
    return {
        "framework": config.framework,
        "mode": config.mode,
        "num_nodes": cluster.num_nodes,
        "num_processes": topology.num_processes,
        "num_replicas": topology.num_replicas,
        "device_type": cluster.device_type,
        "emulated": config.emulated,
        "model": workload.model,
        "dataset": workload.dataset,
        "image_size": workload.image_size,
        "global_batch_size": workload.global_batch_size,
        "precision": workload.precision,
        "profile": workload.profile,
        "store_sha256": inputs.store_sha256 if inputs else None,
        "weights_sha256": inputs.weights_sha256 if inputs else None,
        "skipped_images": inputs.num_skipped if inputs else 0,
        "threads_per_process": topology.threads_per_process,
        "config": config.model_dump(mode="json"),
    }


def _computed(
    config: RunConfig,
    processes: Sequence[ProcessSeries],
    records: Sequence[ProcessRecord],
    evaluations: Sequence[Evaluation],
) -> Computed | None:
    """What the training processes say they computed, and what was asked of this attempt."""
    found = [record.computed for record in records if record.computed is not None]
    if config.inputs is None or len(found) < len(config.topology.trainers):
        return None
    num_train = config.inputs.num_train
    first_step, num_steps = processes[0].first_step, _num_steps(config, num_train, processes, evaluations)
    before, after = (config.samples_trained(num_train, steps) for steps in (first_step, num_steps))
    return Computed.of(
        found,
        optimizer_steps_asked=num_steps - first_step,
        images_asked=after - before,
        images_claimed=sum(processes[0].global_counts),
    )


def _decisions(processes: Sequence[ProcessSeries]) -> Decisions | None:
    return Decisions.of(
        {process.data_parallel_rank: process.decisions for process in processes},
        first_step=processes[0].first_step,
        num_steps=min(len(process.losses) for process in processes),
    )


def _nodes(config: RunConfig, records: Sequence[ProcessRecord]) -> list[NodeRecord]:
    loads = _loads(config, records)
    by_node: dict[int, list[ProcessRecord]] = {}
    for record in records:
        by_node.setdefault(record.node_rank, []).append(record)
    return [
        NodeRecord(
            node_rank=rank,
            host=local[0].host,
            device_names=[name for record in local for name in record.device_names],
            versions=local[0].versions,
            gpus=[gpu for record in local for gpu in record.gpus],
            machine=local[0].machine,
            bound_to_cores=[record.bound_to_cores for record in local if record.bound_to_cores],
            load=loads.get(rank),
        )
        for rank, local in sorted(by_node.items())
    ]


def _loads(config: RunConfig, records: Sequence[ProcessRecord]) -> dict[int, MachineLoad]:
    """The load of each machine, by the rank of its first node; nothing if a process did not report it."""
    # Processes that only serve measure no steps; those that are bound to some cores read the counters of these alone.
    unknown = any(record.cores_used is None or record.bound_to_cores for record in records)
    if unknown or not config.topology.all_processes_train:
        return {}
    by_machine: dict[str, list[ProcessRecord]] = {}
    for record in records:
        by_machine.setdefault("here" if config.cluster.simulated else record.host, []).append(record)
    loads = {}
    for local in by_machine.values():
        ranks = sorted({record.node_rank for record in local})
        used = [record.cores_used for record in local if record.cores_used is not None]
        planned = sum(config.cluster.nodes[rank].num_cores for rank in ranks)
        loads[ranks[0]] = MachineLoad.of(used, planned_cores=planned)
    return loads


def _peak(values: Iterable[int]) -> PeakMemory | None:
    each = list(values)
    return PeakMemory(max_process=max(each), total=sum(each)) if each else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _global_losses(processes: Sequence[ProcessSeries]) -> list[float | None]:
    """Per step, the sum of losses over all processes / the samples of the global batch."""
    sums = zip(*(process.losses for process in processes), strict=False)
    counts = processes[0].global_counts
    return [_finite(sum(losses) / count) for losses, count in zip(sums, counts, strict=False)]


def _evaluations(processes: Sequence[ProcessSeries]) -> list[Evaluation]:
    combined = []
    for parts in zip(*(process.evaluations for process in processes), strict=False):
        count = sum(part.count for part in parts)
        combined.append(
            Evaluation(
                epoch=parts[0].epoch,
                step=parts[0].step,
                loss=_finite(sum(part.loss_sum for part in parts) / count),
                accuracy=sum(part.correct for part in parts) / count,
                count=count,
                rows=_rows(
                    {process.data_parallel_rank: part.rows for process, part in zip(processes, parts, strict=True)}
                ),
                **_batch_losses(parts),
            )
        )
    return combined


def _rows(parts: Mapping[int, str | None]) -> str | None:
    """The digest of the samples of an evaluation, by part of each global batch; None where one was not recorded."""
    digests = [int(digest, 16) for digest in parts.values() if digest is not None]
    return combined(digests) if len(digests) == len(parts) else None


def _batch_losses(parts: Sequence[Evaluated]) -> dict[str, float | None]:
    """The median and the largest of the mean losses of the global batches of an evaluation."""
    sums = zip(*(part.batch_loss_sums for part in parts), strict=False)
    counts = zip(*(part.batch_counts for part in parts), strict=False)
    losses = [sum(of) / sum(count) for of, count in zip(sums, counts, strict=False) if sum(count)]
    if not losses:
        return {}
    return {"median_batch_loss": _finite(float(np.median(losses))), "largest_batch_loss": _finite(max(losses))}


def _num_steps(
    config: RunConfig, num_train: int, processes: Sequence[ProcessSeries], evaluations: Sequence[Evaluation]
) -> int:
    """The steps that a run was to have, if it had these evaluations: those up to its target if it was to end there."""
    if config.stop_at_target and config.target_accuracy:
        judged = [evaluation for evaluation in evaluations if evaluation.step >= processes[0].first_step]
        if found := reached(judged, config.target_accuracy):
            return found.step
    return config.workload.total_steps(num_train)


def _mixture(events: Sequence[Event], records: Sequence[ProcessRecord]) -> str | None:
    """What shows that files of several attempts lie together."""
    begun = {event.attempt_id for event in events if isinstance(event, Started)}
    ids = sorted(str(each) for each in begun | {record.attempt_id for record in records})
    return f"its events and records are of several attempts: {', '.join(ids)}" if len(ids) > 1 else None


def _contradiction(
    config: RunConfig,
    processes: Sequence[ProcessSeries],
    records: Sequence[ProcessRecord],
    evaluations: Sequence[Evaluation],
) -> str | None:
    """What shows that a run which seemed to complete did not do what was asked."""
    if config.inputs is None:
        return "its config names no prepared inputs"
    if len(records) != config.topology.num_processes:
        return f"of {pluralize(config.topology.num_processes, 'process')} planned, {len(records)} left a record"
    if len({records[rank].sample_order_sha256 for rank in config.topology.trainers}) != 1:
        return "the processes trained the samples in different orders"
    if len({process.num_steps for process in processes}) != 1:
        return f"the processes made different numbers of steps: {[process.num_steps for process in processes]}"
    decided = [(process.data_parallel_rank, process.decisions) for process in processes]
    if problem := contradiction_of(decided, processes[0].first_step):
        return problem
    expected = _num_steps(config, config.inputs.num_train, processes, evaluations)
    if processes[0].num_steps != expected:
        return (
            f"of {pluralize(expected, 'step')} planned, {processes[0].num_steps} were logged; is an event file damaged?"
        )
    expected = config.inputs.num_validation
    if not evaluations or any(evaluation.count != expected for evaluation in evaluations):
        counts = [evaluation.count for evaluation in evaluations]
        return f"evaluation must see each of the {expected} validation samples once, but counted {counts}"
    if evaluations[-1].step != processes[0].num_steps:
        return f"the last evaluation is that of step {evaluations[-1].step} of {processes[0].num_steps}"
    return None
