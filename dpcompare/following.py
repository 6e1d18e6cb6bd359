"""Follows a run whose nodes are machines of their own, from the one that asked for it, until all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dpcompare.config import RunConfig
from dpcompare.engines import load_engine
from dpcompare.events import EventTail
from dpcompare.launcher import Deadlines, Ended, Observer
from dpcompare.meeting import NodeEnd, open_meeting, read_cards, read_ends, together

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_END = 20.0
"""For the other nodes, after one has failed: they stop by themselves."""
SECONDS_TO_SAY = 5.0
"""How long what a node wrote may take to be seen here, through a shared disk, after it has ended."""
SECONDS_MORE = 60.0
"""Than a node may be silent: its own deadlines come first, and can say more."""


def follow(
    config: RunConfig, run_dir: Path, deadlines: Deadlines, observe: Observer, tell: Callable[[str], None]
) -> Ended:
    """Have an engine start the nodes and wait until they have ended; the first failure stops the others.

    Args:
        config: whose placement names the engine.
        run_dir: shared with the nodes; holds config.json.
        deadlines: how long the nodes may be silent.
        observe: called with every event of the training processes, soon after it was written.
        tell: called with a line for whatever the engine says.

    Raises:
        RequestError: the engine will never carry it out.
    """
    num_nodes = config.cluster.num_nodes
    engine = load_engine(config.placement.engine)
    open_meeting(run_dir)
    tail = EventTail(run_dir, range(config.num_processes))
    ends: dict[int, NodeEnd] = {}
    cause = None
    heard = time.monotonic()
    until = float("inf")
    with engine.started(config, run_dir, tell) as still_there:
        while len(ends) < num_nodes and time.monotonic() < until:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for event in tail.new_events():
                heard = time.monotonic()
                observe(event)
            ends = read_ends(run_dir, num_nodes)
            now = time.monotonic()
            if any(end.failed for end in ends.values()):
                until = min(until, now + SECONDS_TO_END)
            if cause is None and (cause := still_there()):
                until = min(until, now + SECONDS_TO_SAY)
            limit = max(deadlines.start, deadlines.progress) + SECONDS_MORE
            begun = read_cards(run_dir, num_nodes)
            if cause is None and not begun and now - heard > deadlines.start and not engine.QUEUES:
                cause, until = f"no host has begun within {deadlines.start:.0f} s", now
            elif cause is None and begun and now - heard > limit:
                cause, until = f"nothing was heard of any node for {limit:.0f} s", now
        if any(end.stopped for end in ends.values()) and not any(end.failed for end in ends.values()):
            deadline = time.monotonic() + SECONDS_TO_SAY
            while cause is None and time.monotonic() < deadline:  # the nodes do not know who told them to end
                time.sleep(SECONDS_BETWEEN_LOOKS)
                cause = still_there()
    for event in tail.new_events():
        observe(event)
    ends = read_ends(run_dir, num_nodes)
    ended = together(list(ends.values()))
    if missing := [rank for rank in range(num_nodes) if rank not in ends]:
        names = ", ".join(f"node {rank}" for rank in missing)
        ended.others.append(f"{names} did not say how it ended" + (f"; {cause}" if cause else ""))
    elif not ended.failed and any(end.stopped for end in ends.values()):
        ended.others.append(cause or "all nodes were told to stop")
    return ended
