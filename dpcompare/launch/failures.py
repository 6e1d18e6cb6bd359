"""The diagnosis of a failed run: which process, how it ended, its last messages, and how far each had come."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpcompare.config.run import RunConfig, problems_of_run
from dpcompare.launch.outcome import LaunchOutcome
from dpcompare.launch.plan import is_isolated
from dpcompare.results.attempts import History
from dpcompare.results.events import Event, EventTail, Failed, StepsTrained, Stopped
from dpcompare.results.run_dir import end_of, lines_of, log_path, node_log_path
from dpcompare.system.processes import SIGNALED

AGENTS = {"torchrun": "the torchrun agent", "spawn": "the program that spawned the processes"}
"""The node processes that start training processes, by the launch that uses them."""
FULL = 1 - 1e-3
"""Fraction of a disk, or of the files it may hold, in use from which it counts as full."""
OUT_OF_GPU_MEMORY = re.compile(
    r"^(?!.*(?:not a failure|device:CPU)).*(out[ _]of[ _]memory|OOM when allocating|_STATUS_ALLOC_FAILED)",
    re.IGNORECASE | re.MULTILINE,
)
"""In what torch, TensorFlow and NVIDIA's libraries say. TensorFlow also warns where it will try again with less."""
FABRIC_NOT_READY = re.compile(r"CUDA_ERROR_SYSTEM_NOT_READY|[Ee]rror 802|system not yet initialized")
"""What CUDA says of GPUs behind an NVSwitch before NVIDIA's fabric manager has set it up."""
NO_NETWORK = re.compile(r"name resolution|Name or service not known|Network is unreachable|NameResolutionError")
"""What is said where a process has no way out of its network, such as a model that fetches its weights."""
REFUSED_A_THREAD = re.compile(
    r"pthread_create(\(\))? failed|can't start new thread|(thread|fork).*temporarily unavailable"
)
"""In what Python and libraries print where the system refuses a thread. OpenBLAS then ends the process by SIGINT, and
TensorFlow aborts it; tracebacks follow that are longer than the end of the log that is shown."""

NO_MORE_THREADS = (
    "the system refused to start another thread ({}); raise its limit on processes (ulimit -u, or the container's "
    "pids limit)"
)

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of a launch that failed."""

    config: RunConfig
    run_dir: Path
    outcome: LaunchOutcome
    events: Sequence[Event]
    """The events of all training processes."""

    def events_of(self, kind: type[E]) -> list[E]:
        """The events of one kind, of all training processes."""
        return [event for event in self.events if isinstance(event, kind)]

    def end_of_log(self, rank: int) -> str:
        """The last lines that a training process wrote."""
        return end_of(self.log_of(rank))

    def log_of(self, rank: int) -> Path:
        """The log of a training process."""
        return log_path(self.run_dir, *self.node_and_local_rank(rank))

    def node_and_local_rank(self, rank: int) -> tuple[int, int]:
        """Where a training process runs."""
        return divmod(rank, self.config.topology.processes_per_node)


def why_it_failed(config: RunConfig, run_dir: Path, outcome: LaunchOutcome) -> str:
    """The cause in the first line, how far each process had come in the second, and the details below.

    Where a GPU had too little memory, or the system refused a thread, the last line says what to do.
    """
    tail = EventTail(run_dir, range(config.topology.num_processes))
    evidence = Evidence(config=config, run_dir=run_dir, outcome=outcome, events=list(tail.new_events()))
    parts = [outcome.cause] if outcome.cause else []
    parts += next((answer for diagnose in DIAGNOSERS if (answer := list(diagnose(evidence)))), [])
    parts += [reason for reason in outcome.reasons if reason not in parts]
    parts += [f"what process {rank} wrote is damaged from some point on: its event file" for rank in tail.damaged]
    parts += [*_remedy_for_gpu_memory(evidence, parts), *_remedy_for_threads(evidence, parts)]
    parts += [*_remedy_for_fabric(evidence, parts), *_remedy_for_network(evidence, parts)]
    cause, *details = "\n".join(parts or ["a process ended before its work was done; see the logs"]).splitlines()
    return "\n".join([cause, _last_steps(evidence), *details])


def _last_steps(evidence: Evidence) -> str:
    steps = dict.fromkeys(evidence.config.topology.trainers, len(History.load(evidence.run_dir).losses))
    for event in evidence.events_of(StepsTrained):
        steps[event.process_rank] = event.step
    return "last steps: " + ", ".join(f"process {rank}: {step}" for rank, step in steps.items())


def _remedy_for_gpu_memory(evidence: Evidence, parts: Sequence[str]) -> Iterator[str]:
    config = evidence.config
    said = [*parts, *(event.traceback for event in evidence.events_of(Failed))]
    if config.cluster.device_type != "gpu" or not any(map(OUT_OF_GPU_MEMORY.search, said)):
        return
    accumulate = 2 * config.workload.accumulate
    smaller_parts = config.workload.changed(accumulate=accumulate)
    # Not changed(), which would refuse what is asked here.
    is_possible = not problems_of_run(config.model_copy(update={"workload": smaller_parts}))
    fewer = "fewer replicas on the shared GPU, " if config.cluster.shared else ""
    yield (
        f"a GPU had too little memory: use {fewer}{f'--accumulate {accumulate}, or ' if is_possible else ''}a smaller "
        "--global-batch-size or --image-size"
    )


def _remedy_for_fabric(evidence: Evidence, parts: Sequence[str]) -> Iterator[str]:
    said = [*parts, *(event.traceback for event in evidence.events_of(Failed))]
    if any(map(FABRIC_NOT_READY.search, said)):
        yield (
            "the GPUs of this machine are joined by NVSwitch, whose service does not run: start it (`systemctl start "
            "nvidia-fabricmanager`, of the version of the driver), and see `nvidia-smi -q` below Fabric"
        )


def _remedy_for_network(evidence: Evidence, parts: Sequence[str]) -> Iterator[str]:
    said = [*parts, *(event.traceback for event in evidence.events_of(Failed))]
    if is_isolated(evidence.config) and any(map(NO_NETWORK.search, said)):
        yield "the run had a network of its own, without a way out; give it that of this machine with --no-isolate"


def _remedy_for_threads(evidence: Evidence, parts: Sequence[str]) -> Iterator[str]:
    """The remedy for an exception; if a process just ended, the cause of its exit has it."""
    lines = [line for event in evidence.events_of(Failed) for line in event.traceback.splitlines()]
    refused = next(filter(REFUSED_A_THREAD.search, reversed(lines)), None)
    if refused and not any(NO_MORE_THREADS.partition("{")[0] in part for part in parts):
        yield NO_MORE_THREADS.format(refused.strip())


def _first_failure(evidence: Evidence) -> Iterator[str]:
    """Processes that hung, were killed or crashed, and the first traceback: one may have caused the other."""
    deaths = [*_stalled(evidence), *_killed_agents(evidence), *_vanished(evidence)]
    yield from deaths
    if errors := evidence.events_of(Failed):
        event = min(errors, key=lambda event: event.time)
        rank = event.process_rank
        node, local = evidence.node_and_local_rank(rank)
        yield (
            f"{'then ' if deaths else ''}process {rank} (node {node}, local rank {local}, "
            f"{log_path(evidence.run_dir, node, local)}):\n{event.traceback.rstrip()}"
        )


def _stalled(evidence: Evidence) -> Iterator[str]:
    # The others may be waiting for one that was stopped.
    for stall in sorted(evidence.outcome.stalled, key=lambda stall: stall.state != "stopped by a signal"):
        yield (
            f"{_name(evidence, stall.process_rank)} showed no progress for {stall.seconds:.0f} s; it was "
            f"{stall.state}. Allow more with --start-timeout or --progress-timeout\n"
            f"{evidence.end_of_log(stall.process_rank)}"
        )


def _killed_agents(evidence: Evidence) -> Iterator[str]:
    """Agents that a signal ended, which takes their training processes with them."""
    if evidence.config.launch not in AGENTS:
        return
    for node, status in sorted(evidence.outcome.nodes.items()):
        if status < 0:
            yield (
                f"{AGENTS[evidence.config.launch]} of node {node} ended{_in_words(status)}, and its training processes "
                f"with it: it was killed, or crashed\n{end_of(node_log_path(evidence.run_dir, node))}"
            )


def _vanished(evidence: Evidence) -> Iterator[str]:
    """Training processes that ended without a last event, by themselves."""
    has_agents = evidence.config.launch in AGENTS
    for rank in evidence.outcome.vanished:
        node, _ = evidence.node_and_local_rank(rank)
        status = evidence.outcome.nodes.get(node, 0)
        if has_agents and status < 0:
            continue
        if has_agents and status > SIGNALED:  # the agent's, which stands for that of the first process that failed
            status = SIGNALED - status
        yield (
            f"{_name(evidence, rank)} ended without a message{_in_words(status)}: "
            f"{_exit_cause(evidence, node, rank, status)}\n"
            f"{evidence.end_of_log(rank)}"
        )


def _exit_cause(evidence: Evidence, node: int, rank: int, status: int) -> str:
    if node in evidence.outcome.out_of_memory and (status == -signal.SIGKILL or status >= 0):  # killed, or not known
        return "memory ran out: the kernel has just killed a process, most likely this one"
    if status == -signal.SIGBUS:
        return "most likely a file that it reads, such as a prepared store, was cut short, or its disk failed"
    if status != -signal.SIGKILL and (refused := _refused_a_thread(evidence.log_of(rank))):  # else somebody killed it
        return refused
    if status == 0 and evidence.outcome.nodes.get(node) == 0:
        return "its exit status was 0, so its own code ended it, such as os._exit(0) in a custom model"
    if _is_full(evidence.run_dir):
        return "no space left on the disk of the run directory, so it could not say more"
    return "it was killed (by a signal, or by the kernel because memory ran out) or it crashed"


def _refused_a_thread(log: Path) -> str | None:
    """A sentence that the system refused a thread, and what to do, if a log says so anywhere; None otherwise."""
    line = next(filter(REFUSED_A_THREAD.search, lines_of(log)), None)
    return None if line is None else NO_MORE_THREADS.format(line.strip())


def _terminated(evidence: Evidence) -> Iterator[str]:
    """Training processes that somebody else ended by SIGTERM."""
    for event in evidence.events_of(Stopped):
        rank = event.process_rank
        node, _ = evidence.node_and_local_rank(rank)
        if evidence.outcome.nodes.get(node, 0) > 0:  # it ended by itself; the others were stopped by the launcher
            yield f"{_name(evidence, rank)} was ended by SIGTERM"


def _failed_nodes(evidence: Evidence) -> Iterator[str]:
    """Node processes that failed, of which nothing more is known."""
    for node, status in sorted(evidence.outcome.nodes.items()):
        if status:
            log = node_log_path(evidence.run_dir, node)
            refused = _refused_a_thread(log)
            yield (
                f"node {node} ended before its work was done{_in_words(status)}{f': {refused}' if refused else ''}\n"
                f"{end_of(log)}"
            )


def _lost_inputs(evidence: Evidence) -> Iterator[str]:
    """Prepared files that the run reads, and that somebody has removed since: whatever the processes say of that."""
    inputs = evidence.config.inputs
    lost = [path for path in (inputs.store, inputs.weights) if not path.exists()] if inputs else []
    if lost and not evidence.events_of(StepsTrained):
        were = "was" if len(lost) == 1 else "were"
        yield f"{' and '.join(repr(str(path)) for path in lost)} {were} removed as the run started; run it again"
        yield from _first_failure(evidence)


DIAGNOSERS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    _lost_inputs,
    _first_failure,
    _terminated,
    _failed_nodes,
)
"""The first that has an answer gives the cause: what says most about it comes first."""


def _name(evidence: Evidence, rank: int) -> str:
    node, local = evidence.node_and_local_rank(rank)
    return f"process {rank} (node {node}, local rank {local})"


def _is_full(folder: Path) -> bool:
    with suppress(OSError):  # it may be gone
        disk = os.statvfs(folder)
        # Without what is kept for root: a twentieth of a disk with ext4.
        return disk.f_bavail <= disk.f_blocks * (1 - FULL) or disk.f_favail < disk.f_files * (1 - FULL)
    return False


def _in_words(status: int) -> str:
    """How a process ended, by its exit status; nothing where that says nothing."""
    if status >= 0:
        return f" (exit status {status})" if status > 1 else ""
    names = {number.value: number.name for number in signal.Signals}
    return f" ({names.get(-status, f'signal {-status}')})"
