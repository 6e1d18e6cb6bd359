"""Follows a run whose nodes are machines of their own, from the one that asked for it, until all have ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.launch.engines import PollExit, load_engine
from dpcompare.launch.outcome import Deadlines, LaunchOutcome, NodeOutcome, Observer, merge_outcomes
from dpcompare.launch.rendezvous import SECONDS_BETWEEN_BEATS, Rendezvous
from dpcompare.results.events import EventTail
from dpcompare.system.signals import signals_held

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_END = 20.0
"""For the other nodes, after one has failed: they stop by themselves."""
SECONDS_TO_SAY = 5.0
"""How long what a node wrote may take to be seen here, through a shared disk, after it has ended."""
SECONDS_MORE = 60.0
"""Than a node may be silent: its own deadlines come first, and can say more."""


def follow(
    config: RunConfig,
    run_dir: Path,
    deadlines: Deadlines,
    observe: Observer,
    report: Callable[[str], None],
    stopped_by: Callable[[], str | None] = lambda: None,
) -> LaunchOutcome:
    """Have an engine start the nodes and wait until they have ended; the first failure stops the others.

    Args:
        config: whose placement names the engine.
        run_dir: shared with the nodes; holds config.json.
        deadlines: how long the nodes may be silent.
        observe: called with every event of the training processes, soon after it was written.
        report: called with a line for whatever the engine says.
        stopped_by: returns what else ends the run, as soon as there is something.

    Raises:
        RequestError: the engine will never carry it out.
    """
    engine = load_engine(config.placement.engine)
    rendezvous = Rendezvous.open(run_dir, config.cluster.num_nodes)
    tail = EventTail(run_dir, range(config.topology.num_processes))
    watch = _Watch(rendezvous, deadlines, queues=engine.MAY_QUEUE)
    with signals_held() as signals, ExitStack() as nodes:
        try:
            poll_exit = nodes.enter_context(engine.started(config, run_dir, rendezvous, report))
            while not watch.over():
                signals.deliver()
                time.sleep(SECONDS_BETWEEN_LOOKS)
                for event in tail.new_events():
                    watch.hear()
                    observe(event)
                watch.look(lambda: stopped_by() or poll_exit())
        except BaseException:
            rendezvous.stop()
            raise
        if not all(end.well for end in watch.ends.values()) or len(watch.ends) < rendezvous.num_nodes:
            rendezvous.stop()
    for event in tail.new_events():
        observe(event)
    return watch.ended()


class _Watch:
    """What is known of the nodes, and whether to wait any longer."""

    def __init__(self, rendezvous: Rendezvous, deadlines: Deadlines, *, queues: bool) -> None:
        self._room, self._deadlines, self._queues = rendezvous, deadlines, queues
        self.ends: dict[int, NodeOutcome] = {}
        self._begun: tuple[int, int] = (0, 0)
        self._began_at: float | None = None
        self._cause: str | None = None
        self._heard = self._beaten = time.monotonic()
        self._until = math.inf

    def hear(self) -> None:
        self._heard = time.monotonic()

    def over(self) -> bool:
        if time.monotonic() >= self._until:
            return True
        ended = len(self.ends) == self._room.num_nodes
        # Nodes that were told to end do not know by whom; the engine may.
        unexplained = any(end.stopped for end in self.ends.values()) and not any(
            end.failed for end in self.ends.values()
        )
        return ended and (not unexplained or self._cause is not None)

    def look(self, poll_exit: PollExit) -> None:
        now = time.monotonic()
        if now - self._beaten > SECONDS_BETWEEN_BEATS:
            self._beaten = now
            self._room.beat()
        self.ends = self._room.ends()
        begun = (len(self._room.node_infos()), len(self._room.reached()))
        if begun != self._begun:
            self._begun = begun
            self.hear()
        if begun[1] == self._room.num_nodes and self._began_at is None:
            self._began_at = time.time()
        if not all(end.well for end in self.ends.values()):
            # Those that have begun end by themselves; others will not begin any more.
            seconds = SECONDS_TO_SAY if len(self.ends) >= self._begun[0] else SECONDS_TO_END
            self._until = min(self._until, now + seconds)
        if self._cause is None:
            self._ask(poll_exit, now)

    def _ask(self, poll_exit: PollExit, now: float) -> None:
        limit = max(self._deadlines.start, self._deadlines.progress) + SECONDS_MORE
        self._cause = poll_exit()
        if self._cause:
            self._until = min(self._until, now + SECONDS_TO_SAY)
        elif not self._begun[0] and not self._queues and now - self._heard > self._deadlines.start:
            self._cause, self._until = f"no host has begun within {self._deadlines.start:.0f} s", now
        elif self._begun[0] and now - self._heard > limit:
            self._cause, self._until = f"nothing was heard of any node for {limit:.0f} s", now

    def ended(self) -> LaunchOutcome:
        """How the processes of all nodes ended, as if they had been started on one machine."""
        self.ends = self._room.ends()
        ended = merge_outcomes(list(self.ends.values()))
        ended.began_at = self._began_at
        missing = [f"node {rank}" for rank in range(self._room.num_nodes) if rank not in self.ends]
        if missing:
            ended.others.append(f"{', '.join(missing)} did not say how it ended")
            if not self._begun[0]:
                ended.others.append(
                    "No node wrote anything into the run directory: is it on a disk that the nodes share? Choose one with --run-dir"
                )
        stopped = [end for end in self.ends.values() if end.stopped]
        if stopped and not ended.failed:
            ended.others.append(", ".join(f"node {end.node_rank} ({end.host}) was told to end" for end in stopped))
        if ended.failed and self._cause and (missing or stopped):
            ended.others.append(self._cause)
        return ended
