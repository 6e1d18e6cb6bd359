"""Why a run failed, in words: which process, how it ended, what it said last, and how far each had come."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.launch.outcome import LaunchOutcome, Stall
from dpcompare.results.events import EventTail, Failed, StepsTrained, Stopped
from dpcompare.results.result import History
from dpcompare.results.run_dir import end_of, log_path, node_log_path
from dpcompare.system.processes import SIGNALED

AGENTS = {"torchrun": "the torchrun agent", "spawn": "the program that spawned the processes"}
"""What the node processes are that start training processes."""
FULL = 1 - 1e-3
"""Share of a disk in use from which on it counts as full."""


def why_it_failed(config: RunConfig, run_dir: Path, ended: LaunchOutcome) -> str:
    """The first failure: a process that hung, was killed or crashed, else the first traceback, else how the nodes ended."""
    tail = EventTail(run_dir, range(config.topology.num_processes))
    events = list(tail.new_events())
    # The others may be waiting for one that was stopped.
    stalled = sorted(ended.stalled, key=lambda stall: stall.state != "stopped by a signal")
    parts = [_stalled(config, run_dir, stall) for stall in stalled]
    parts += _killed_agents(config, run_dir, ended)
    parts += _vanished(config, run_dir, ended)
    errors = sorted((event for event in events if isinstance(event, Failed)), key=lambda event: event.time)
    for failed in errors[:1]:
        rank = failed.process_rank
        node, local = divmod(rank, config.topology.processes_per_node)
        lead = "then " if parts else ""
        parts.append(
            f"{lead}process {rank} (node {node}, local rank {local}, {log_path(run_dir, node, local)}):\n"
            f"{failed.traceback.rstrip()}"
        )
    if not parts:
        for stopped in (event for event in events if isinstance(event, Stopped)):
            node, local = divmod(stopped.process_rank, config.topology.processes_per_node)
            if ended.nodes.get(node, 0) > 0:  # it ended by itself; the others were told to by this process
                parts.append(
                    f"process {stopped.process_rank} (node {node}, local rank {local}) was told to end by SIGTERM"
                )
    if not parts:
        for node, code in sorted(ended.nodes.items()):
            if code:
                parts.append(
                    f"node {node} ended before its work was done{_in_words(code)}\n{end_of(node_log_path(run_dir, node))}"
                )
    parts += [reason for reason in ended.others if reason not in parts]
    parts += [f"what process {rank} told is damaged from some point on: its event file" for rank in tail.damaged]
    steps = dict.fromkeys(range(config.topology.num_trainers), len(History.load(run_dir).losses))
    for event in events:
        if isinstance(event, StepsTrained):
            steps[event.process_rank] = event.step
    reached = ", ".join(f"process {rank}: {step}" for rank, step in steps.items())
    what, *rest = "\n".join(parts or ["a process ended before its work was done; see the logs"]).splitlines()
    return "\n".join([what, f"last steps: {reached}", *rest])


def _stalled(config: RunConfig, run_dir: Path, stall: Stall) -> str:
    node, local = divmod(stall.process_rank, config.topology.processes_per_node)
    return (
        f"process {stall.process_rank} (node {node}, local rank {local}) showed no progress for {stall.seconds:.0f} s; it "
        f"was {stall.state}. Allow more with --start-timeout or --progress-timeout\n"
        f"{end_of(log_path(run_dir, node, local))}"
    )


def _killed_agents(config: RunConfig, run_dir: Path, ended: LaunchOutcome) -> Iterator[str]:
    """An agent that a signal ended takes its training processes with it."""
    if config.launch in AGENTS:
        for node, code in sorted(ended.nodes.items()):
            if code < 0:
                yield (
                    f"{AGENTS[config.launch]} of node {node} ended{_in_words(code)}, and its training processes with it: it was "
                    f"killed, or crashed\n{end_of(node_log_path(run_dir, node))}"
                )


def _vanished(config: RunConfig, run_dir: Path, ended: LaunchOutcome) -> Iterator[str]:
    """Training processes that ended without a last word, by themselves."""
    has_agents = config.launch in AGENTS
    for rank in ended.vanished:
        node, local = divmod(rank, config.topology.processes_per_node)
        code = ended.nodes.get(node, 0)
        if has_agents and code < 0:
            continue
        if has_agents and code > SIGNALED:  # the agent's, which tells of the first that failed
            code = SIGNALED - code
        if ended.out_of_memory:
            cause = "the kernel has just killed a process for want of memory, and most likely this one"
        elif code == -signal.SIGBUS:
            cause = "most likely a file that it reads, such as a prepared store, was cut short, or its disk failed"
        elif _is_full(run_dir):
            cause = "no space left on the disk of the run directory, so it could not say more"
        else:
            cause = "it was killed (by a signal, or by the kernel for want of memory) or crashed"
        yield (
            f"process {rank} (node {node}, local rank {local}) ended without a message{_in_words(code)}: {cause}\n"
            f"{end_of(log_path(run_dir, node, local))}"
        )


def _is_full(folder: Path) -> bool:
    with suppress(OSError):  # it may be gone
        disk = os.statvfs(folder)
        return disk.f_bfree <= disk.f_blocks * (1 - FULL)
    return False


def _in_words(code: int) -> str:
    """How a process ended, by its exit status; nothing where that says nothing."""
    if code >= 0:
        return f" (exit status {code})" if code > 1 else ""
    names = {number.value: number.name for number in signal.Signals}
    return f" ({names.get(-code, f'signal {-code}')})"
