"""What the clocks and energy counters of processes say of a run: its speed, its first step, what training cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpcompare.config.run import RunConfig
from dpcompare.results.clock import ClockCheck, check_clocks, fraction_between_steps
from dpcompare.results.computed import Evaluation, TrainingCost
from dpcompare.results.events import read_events
from dpcompare.results.late_step import LATE_STEPS
from dpcompare.results.result import StepSeconds
from dpcompare.results.series import ProcessSeries, series_of_trainers
from dpcompare.results.steadiness import SlowStart, SlowSteps, steady_images_per_second, steps_to_settle
from dpcompare.system.type_names import FieldValue


def seconds_of_steps(config: RunConfig, run_dir: Path) -> dict[int, float]:
    """Step, from 1 -> the seconds that it took, in the slowest process of the last attempt; nothing without events."""
    processes = series_of_trainers(config, read_events(run_dir, config.topology.num_processes))
    slowest, _ = _slowest(processes, _measured_steps(config, processes) or slice(0))
    seconds = slowest.durations(slice(None))
    return dict(enumerate(seconds, start=slowest.first_step + 1))


def measured_seconds(config: RunConfig, run_dir: Path) -> list[list[float]]:
    """Per process, the seconds of its measured steps in the last attempt; nothing without events."""
    processes = series_of_trainers(config, read_events(run_dir, config.topology.num_processes))
    steps = _measured_steps(config, processes) or slice(0)
    return [process.durations(steps) for process in processes]


def first_step_figures(processes: Sequence[ProcessSeries], started_at: float) -> dict[str, float | None]:
    """How long the first step took, with and without the start; nothing where a process made none."""
    reached = [process.first_step_at for process in processes if process.first_step_at is not None]
    if len(reached) < len(processes):
        return {}
    until_first_step = max(reached) - started_at
    return {
        # By the clocks of the launcher and of a process: where they contradict each other, nothing is known.
        "time_to_first_step_seconds": until_first_step if until_first_step >= 0 else None,
        "first_step_seconds": max(process.step_seconds[0] for process in processes),
    }


def _measured_steps(config: RunConfig, processes: Sequence[ProcessSeries]) -> slice | None:
    """The steps of this attempt that all processes made, without the warm-up; None where none is left."""
    num_steps = min(process.num_steps for process in processes) - processes[0].first_step
    warmup_steps = config.workload.least_warmup_steps
    if num_steps <= warmup_steps:
        return None
    steps = slice(warmup_steps, num_steps)
    if config.workload.warmup_steps == "auto":
        # By the slowest process, for all of them: each must leave out the same steps.
        return slice(warmup_steps + steps_to_settle(_slowest(processes, steps)[1]), num_steps)
    return steps


def _slowest(processes: Sequence[ProcessSeries], steps: slice) -> tuple[ProcessSeries, list[float]]:
    """The process whose measured steps took longest, and the seconds of each: the others wait for it."""
    durations = [process.durations(steps) for process in processes]
    return max(zip(processes, durations, strict=True), key=lambda pair: sum(pair[1]))


def speed_figures(config: RunConfig, processes: Sequence[ProcessSeries]) -> dict[str, FieldValue]:
    """The figures of the clock over the measured steps; nothing where there are none."""
    steps = _measured_steps(config, processes)
    if steps is None:
        return {}
    slowest, seconds = _slowest(processes, steps)
    counted_in_steps = not slowest.steps_together  # as `ProcessSeries.durations` has it
    counts = slowest.global_counts[steps]
    is_windowed = not slowest.are_timed
    own = _own(config, slowest, steps)
    if counted_in_steps:  # they differ by whether losses are read after them
        slow_steps = slow_start = None
    else:
        before = slowest.first_step + steps.start
        slow_steps = SlowSteps.of(counts, seconds, steps_before=before, is_windowed=is_windowed, own=own)
        slow_start = SlowStart.of(seconds)
    return {
        "images_per_second": sum(counts) / sum(seconds),
        "steady_images_per_second": steady_images_per_second(counts, seconds),
        "measured_steps": len(seconds),
        "steps_left_out": steps.start,
        "slow_start": slow_start,
        "step_seconds": StepSeconds.of(seconds, own=own),
        "slow_steps": slow_steps,
        # In a window of several steps the host waits for batches while the device still has work.
        "data_wait_fraction": sum(slowest.data_seconds[steps]) / sum(seconds) if config.window == 1 else None,
        "host_overhead_seconds": 0.0 if counted_in_steps else float(np.mean(slowest.host_overhead_seconds[steps])),
        "between_steps_fraction": 0.0
        if counted_in_steps
        else fraction_between_steps(seconds, slowest.host_overhead_seconds[steps]),
        "apart_fraction": _unexplained_apart(config, slowest, steps) / sum(seconds) or None,
    }


def _unexplained_apart(config: RunConfig, process: ProcessSeries, steps: slice) -> float:
    """Seconds before measured steps that were left out as an evaluation or the like where none was due."""
    due = {evaluation.step for evaluation in process.evaluations} | set((config.profile_steps or ())[1:])
    if config.late_step:
        due |= {process.num_steps - LATE_STEPS, process.num_steps}

    def is_due(step: int) -> bool:
        return step in due or bool(config.checkpoint_every and step % config.checkpoint_every == 0)

    made_before = range(process.first_step + steps.start, process.num_steps)
    seconds = process.apart_seconds[steps]
    return sum(apart for step, apart in zip(made_before, seconds, strict=False) if apart and not is_due(step))


def _own(config: RunConfig, process: ProcessSeries, steps: slice) -> list[bool] | None:
    """Which steps have seconds of their own; None: all, as where each is a window of its own."""
    overheads = process.host_overhead_seconds[steps]
    if config.window == 1 or not process.steps_together:
        return None
    if not process.are_timed:
        return [False] * len(overheads)
    # The first step of a window follows the time between two; it has the launch of the window and its wait in it.
    return [overhead == 0 for overhead in overheads]


def clock_of(config: RunConfig, run_dir: Path, processes: Sequence[ProcessSeries]) -> ClockCheck | None:
    """The check of the clocks; None if events come much later than the steps that they report."""
    return check_clocks(run_dir, processes) if config.mode_row.steps_together else None


def joules_per_image(config: RunConfig, processes: Sequence[ProcessSeries]) -> float | None:
    """Energy of all devices of the run over the measured steps; None where a part of it was not counted."""
    steps, metered = _measured_steps(config, processes), _metered(config, processes)
    if steps is None or metered is None:
        return None
    return sum(sum(process.joules[steps]) for process in metered) / sum(processes[0].global_counts[steps])


def _metered(config: RunConfig, processes: Sequence[ProcessSeries]) -> Sequence[ProcessSeries] | None:
    """The processes whose counters are those of all devices of the run; None where a part was not counted."""
    # On the CPU the first process of each machine reads the counters of all its packages.
    on_cpu = config.cluster.device_type == "cpu"
    metered = [processes[rank] for rank in config.topology.first_of_machines] if on_cpu else processes
    # Processes that only serve read no counter: theirs count where another process reads those of the whole machine.
    includes_all = config.topology.all_processes_train or (on_cpu and config.cluster.simulated)
    return metered if includes_all and all(process.has_energy for process in metered) else None


def evaluation_costs(
    config: RunConfig, processes: Sequence[ProcessSeries], evaluations: Sequence[Evaluation]
) -> list[TrainingCost]:
    """What training had taken when each evaluation was made."""
    if config.inputs is None:
        return []
    is_timed = processes[0].first_step == 0  # of earlier attempts the events are elsewhere
    seconds = [np.cumsum(np.add(process.step_seconds, process.host_overhead_seconds)) for process in processes]
    metered = _metered(config, processes) or []
    joules = [np.cumsum(process.joules) for process in metered]
    costs = []
    for step in (evaluation.step for evaluation in evaluations):
        images = config.samples_trained(config.inputs.num_train, step)
        known = is_timed and all(0 < step <= len(each) for each in (*seconds, *joules))
        costs.append(
            TrainingCost(
                step=step,
                images=images,
                seconds=max(float(each[step - 1]) for each in seconds) if known else None,
                joules=sum(float(each[step - 1]) for each in joules) if known and joules else None,
            )
        )
    return costs
