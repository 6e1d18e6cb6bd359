"""Starts the node processes of a plan on this machine, watches them, and leaves none of them behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from dpcompare.events import LAST_EVENTS, Event, EventTail
from dpcompare.planning import INHERITED_TO_DROP, LOOPBACK, NodeProcess
from dpcompare.processes import die_with_parent, is_alive, signal_group
from dpcompare.result import node_log_path

SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_TO_END = 5.0
"""How long a process that was told to end (SIGTERM) may take before it is killed."""

Observer = Callable[[Event], None]


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free on this machine's loopback interface now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass
class Ended:
    """How the processes of a run ended by themselves; those that were stopped are left out."""

    nodes: dict[int, int] = field(default_factory=dict)
    """node_rank -> exit status (negative: the signal) of its node process."""
    vanished: list[int] = field(default_factory=list)
    """Ranks of training processes that ended without a last word: killed, or crashed in native code."""

    @property
    def failed(self) -> bool:
        return any(self.nodes.values())


def launch(node_processes: Sequence[NodeProcess], run_dir: Path, observe: Observer = lambda event: None) -> Ended:
    """Start all node processes and wait until they have ended; the first failure stops the others.

    Args:
        node_processes: what to start, from `dpcompare.planning.plan`.
        run_dir: holds config.json; gets the logs.
        observe: called with every event of the training processes, soon after it was written.
    """
    watch = _Watch(EventTail(run_dir, sum(len(node.processes) for node in node_processes)), observe)
    ended = Ended()
    with ExitStack() as stack:
        running: dict[int, subprocess.Popen[bytes]] = {}
        stack.callback(_stop, running)
        for node in node_processes:
            running[node.node_rank] = _start(node, run_dir)
        while running and not ended.failed:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            ended.vanished += watch.look()
            for rank, process in list(running.items()):
                if process.poll() is not None:
                    ended.nodes[rank] = process.returncode
                    # A node process that died may leave members of its group behind.
                    signal_group(process.pid, signal.SIGKILL)
                    del running[rank]
        ended.vanished += watch.look()
    watch.look()
    return ended


class _Watch:
    """Passes events on, and notices training processes that end without their last one."""

    def __init__(self, events: EventTail, observe: Observer) -> None:
        self._events = events
        self._observe = observe
        self._pids: dict[int, int] = {}

    def look(self) -> list[int]:
        """Ranks that have vanished since the last look."""
        # First who is gone, then what they wrote before: in the other order a last word could be missed.
        gone = [rank for rank, pid in self._pids.items() if not is_alive(pid)]
        for event in self._events.new_events():
            if event["kind"] == "start":
                self._pids[event["process_rank"]] = event["pid"]
            elif event["kind"] in LAST_EVENTS:
                self._pids.pop(event["process_rank"], None)
            self._observe(event)
        vanished = [rank for rank in gone if rank in self._pids]
        for rank in vanished:
            del self._pids[rank]
        return vanished


def _start(node: NodeProcess, run_dir: Path) -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if name not in INHERITED_TO_DROP}
    with node_log_path(run_dir, node.node_rank).open("ab") as log:
        return subprocess.Popen(
            node.argv,
            env=inherited | node.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _stop(running: dict[int, subprocess.Popen[bytes]]) -> None:
    """End what is still running: SIGTERM to each group, SIGKILL to what is left (TensorFlow catches SIGTERM)."""
    for process in running.values():
        signal_group(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_END
    try:
        for process in running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
    finally:  # also when a second Ctrl-C cuts the wait short
        for process in running.values():
            signal_group(process.pid, signal.SIGKILL)
            process.wait()
