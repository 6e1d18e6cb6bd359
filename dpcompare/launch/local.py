"""The local launcher: it starts the node processes of a plan on this machine, watches them and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack, suppress
from pathlib import Path

from dpcompare.launch.outcome import Deadlines, LaunchOutcome, Observer, Stall
from dpcompare.launch.plan import INHERITED_TO_DROP, NodeProcess
from dpcompare.results.clock import Seen, Watched
from dpcompare.results.events import LAST_EVENTS, EventTail, Started, StepsTrained
from dpcompare.results.run_dir import LOGS_DIR, cut_logs, node_log_path
from dpcompare.system.files import no_link
from dpcompare.system.network_namespace import isolated
from dpcompare.system.processes import (
    PROCESS_POLL_SECONDS,
    OomWatch,
    die_with_parent,
    is_alive,
    kill_groups,
    process_state,
    signal_group,
    wait_for_exit,
)
from dpcompare.system.signals import Deadline, HeldSignals, signals_held

SIGTERM_SECONDS = 3.0
"""How long a process that got SIGTERM may take to end before it is killed."""
AGENT_EXIT_SECONDS = 1.0
"""How long a torchrun agent may take to end after its training process, whose exit status it passes on."""


def launch(
    node_processes: Sequence[NodeProcess],
    run_dir: Path,
    deadlines: Deadlines,
    observe: Observer = lambda event: None,
    *,
    isolate: bool = False,
    stopped_by: Callable[[], str | None] = lambda: None,
    outcome: LaunchOutcome | None = None,
) -> LaunchOutcome:
    """Start node processes and wait until they have ended; the first failure or deadline stops the others.

    Args:
        node_processes: what to start on this machine, from `dpcompare.launch.plan.plan`.
        run_dir: holds config.json; gets the logs.
        deadlines: how long processes may be silent.
        observe: called with every event of the training processes, soon after it was written.
        isolate: whether they get a network namespace without a way out.
        stopped_by: asked several times a second; a reason that it returns stops them all.
        outcome: what is returned, filled as it happens, for a caller that needs it after an interruption too.

    Raises:
        RequestError: this machine permits no network namespace.
        KeyboardInterrupt: it was interrupted, and all processes have ended.
    """
    outcome = LaunchOutcome() if outcome is None else outcome
    node_of = {process.process_rank: node.node_rank for node in node_processes for process in node.processes}
    trainers = [process.process_rank for node in node_processes for process in node.processes if process.trains]
    watch = ProcessWatch(EventTail(run_dir, node_of), trainers, deadlines, observe)
    oom_watch = OomWatch()
    with signals_held() as signals, ExitStack() as stack:
        enter = stack.enter_context(isolated()).enter if isolate else None
        running: dict[int, subprocess.Popen[bytes]] = {}
        stack.callback(_stop, running, signals)
        for node in node_processes:
            signals.deliver()
            running[node.node_rank] = _start(node, run_dir, enter)
        try:
            while running and not outcome.failed:
                signals.deliver()
                time.sleep(PROCESS_POLL_SECONDS)
                oom_watch.look()
                with suppress(OSError):  # they are gone, or the disk is full: others report that
                    cut_logs(run_dir / LOGS_DIR, {node.node_rank for node in node_processes})
                outcome.vanished += watch.look()
                outcome.stalled = watch.stalled()
                outcome.nodes |= _reap(running)
                if running and not outcome.failed and (reason := stopped_by()):
                    outcome.reasons.append(reason)
        finally:  # also after an interruption: another node may have failed sooner, because of what has happened here
            outcome.vanished += watch.look()
            with suppress(OSError):  # a full disk: the run ends as it would have, and its clock stays unchecked
                watch.save_clocks(run_dir)
            _wait_for_agents({node_of[rank] for rank in outcome.vanished}, running, outcome)
            if oom_watch.has_just_killed():
                outcome.out_of_memory = {node.node_rank for node in node_processes}
    watch.look()
    return outcome


class ProcessWatch:
    """A watch on training processes: it passes their events on, and notices those that vanish or fall silent."""

    def __init__(self, events: EventTail, ranks: Sequence[int], deadlines: Deadlines, observe: Observer) -> None:
        self._events = events
        self._observe = observe
        self._deadlines = deadlines
        self._pids: dict[int, int] = {}
        """Process ids of the ranks that have work to do."""
        self._done: set[int] = set()
        # By the steady clock: the other may be set meanwhile.
        self._last_event_at = dict.fromkeys(ranks, time.monotonic())
        self._started: set[int] = set()
        self._looked_at = time.monotonic()
        self._seen: defaultdict[int, list[Seen]] = defaultdict(list)
        """The first three events about steps of each process, the third of which is replaced by the newest."""

    def look(self) -> list[int]:
        """Pass new events on; returns the ranks that have vanished since the last look."""
        # First who is gone, then what they wrote before: in the other order a last event could be missed.
        gone = [rank for rank, pid in self._pids.items() if not is_alive(pid)]
        previous_look, self._looked_at = self._looked_at, time.monotonic()
        for event in self._events.new_events():
            rank = event.process_rank
            if isinstance(event, Started):
                self._pids[rank] = event.pid
            elif isinstance(event, LAST_EVENTS):
                self._pids.pop(rank, None)
                self._done.add(rank)  # its node process has still to end, within the same limits
            elif isinstance(event, StepsTrained):
                self._started.add(rank)
                self._seen[rank][2:] = [Seen(step=event.step, after=previous_look, by=time.monotonic())]
            if rank in self._started and rank in self._last_event_at:
                self._last_event_at[rank] = time.monotonic()
            self._observe(event)
        vanished = [rank for rank in gone if rank in self._pids]
        for rank in vanished:
            del self._pids[rank]
        return vanished

    def save_clocks(self, run_dir: Path) -> None:
        """Write when the events about steps were seen, for those that aggregate to compare."""
        for rank, seen in self._seen.items():
            if len(seen) > 2:
                Watched(first=seen[1], last=seen[2]).save(run_dir, rank)

    def stalled(self) -> list[Stall]:
        """The processes that have been silent for longer than they may."""
        now = self._looked_at  # what has come since, while an observer held us up, is not known yet
        limits = {
            rank: self._deadlines.progress if rank in self._started else self._deadlines.start
            for rank in self._last_event_at
        }
        return [
            Stall(process_rank=rank, seconds=now - last, state=self._state(rank))
            for rank, last in self._last_event_at.items()
            if now - last > limits[rank]
        ]

    def _state(self, rank: int) -> str:
        return (
            "done, but its node process had not exited" if rank in self._done else process_state(self._pids.get(rank))
        )


def _start(node: NodeProcess, run_dir: Path, enter: Callable[[], None] | None) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def before_exec() -> None:
        if enter is not None:
            enter()
        die_with_parent(parent)  # last: entering a user namespace would undo it

    inherited = {name: value for name, value in os.environ.items() if name not in INHERITED_TO_DROP}
    with open(node_log_path(run_dir, node.node_rank), "ab", opener=no_link) as log:
        return subprocess.Popen(
            node.argv,
            env=inherited | node.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,
        )


def _reap(running: dict[int, subprocess.Popen[bytes]]) -> dict[int, int]:
    """Take out the node processes that have ended; returns node_rank -> exit status."""
    statuses = {rank: status for rank, process in running.items() if (status := process.poll()) is not None}
    for rank in statuses:
        # A node process that died may leave members of its group behind.
        signal_group(running.pop(rank).pid, signal.SIGKILL)
    return statuses


def _wait_for_agents(nodes: Set[int], running: dict[int, subprocess.Popen[bytes]], outcome: LaunchOutcome) -> None:
    """Give the agents of processes that have vanished the time to pass on how."""
    deadline = Deadline(AGENT_EXIT_SECONDS)
    while nodes & running.keys() and not deadline.passed:
        time.sleep(PROCESS_POLL_SECONDS)
        outcome.nodes |= _reap(running)


def _stop(running: dict[int, subprocess.Popen[bytes]], signals: HeldSignals) -> None:
    """End what is still running: SIGTERM to each group, SIGKILL to what is left (TensorFlow catches SIGTERM)."""
    processes = list(running.values())
    for process in processes:
        signal_group(process.pid, signal.SIGTERM)
    wait_for_exit(processes, SIGTERM_SECONDS, signals)
    kill_groups(processes)
