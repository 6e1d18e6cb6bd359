"""Starts the node processes of a plan on this machine, watches them, and leaves none of them behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from dpcompare.events import Event, EventTail
from dpcompare.planning import INHERITED_TO_DROP, LOOPBACK, NodeProcess
from dpcompare.processes import die_with_parent, signal_group
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


def launch(
    node_processes: Sequence[NodeProcess], run_dir: Path, observe: Observer = lambda event: None
) -> dict[int, int]:
    """Start all node processes and wait until they have ended; the first failure stops the others.

    Args:
        node_processes: what to start, from `dpcompare.planning.plan`.
        run_dir: holds config.json; gets the logs.
        observe: called with every event of the training processes, soon after it was written.

    Returns:
        node_rank -> exit status (negative: the signal) of the node processes that ended by themselves; the
        ones that were stopped because another failed are left out.
    """
    num_processes = sum(len(node.processes) for node in node_processes)
    events = EventTail(run_dir, num_processes)
    ended: dict[int, int] = {}
    with _terminated_as_interrupted(), ExitStack() as stack:
        running: dict[int, subprocess.Popen[bytes]] = {}
        stack.callback(_stop, running)
        for node in node_processes:
            running[node.node_rank] = _start(node, run_dir)
        while running:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for event in events.new_events():
                observe(event)
            for rank, process in list(running.items()):
                if process.poll() is not None:
                    ended[rank] = process.returncode
                    # A node process that died may leave members of its group behind.
                    signal_group(process.pid, signal.SIGKILL)
                    del running[rank]
            if any(ended.values()):
                break
    for event in events.new_events():
        observe(event)
    return ended


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


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run in the same order as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not the main thread, which alone may set handlers; its owner deals with signals
        previous = {}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
