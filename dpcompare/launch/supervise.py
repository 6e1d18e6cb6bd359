"""The supervisor of a run on several machines: it has an engine start the nodes and follows them to their end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum, auto
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.launch.engines import NodesEnded, PollExit, load_engine
from dpcompare.launch.outcome import Callbacks, Deadlines, LaunchOutcome, NodeOutcome, merge_outcomes
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.results.events import Event, EventTail, Failed, Stopped
from dpcompare.system.signals import Deadline, signals_held

NODES_POLL_SECONDS = 0.2
NODES_STOP_SECONDS = 20.0
"""How long the other nodes may take to end after one has failed: they stop by themselves."""
MOST_LATE_SECONDS = 30.0
"""The delay after which the end of the nodes can be seen; clocks of machines that differ by more are not believed."""
LAST_WRITE_SECONDS = 5.0
"""How long what a node wrote may take to be seen here, through a shared disk, after it has ended."""
ENGINE_SECONDS = 10.0
"""How long an engine may take to report who has ended the nodes, if they do not know: Slurm first clears up."""
EXTRA_SILENCE_SECONDS = 60.0
"""How much longer than its deadlines a node may be silent: these come first on the node, which can say more."""


@contextmanager
def followed(config: RunConfig, run_dir: Path, deadlines: Deadlines, callbacks: Callbacks) -> Iterator[LaunchOutcome]:
    """Have an engine start the nodes and wait until they have ended; the first failure stops the others.

    What the context does with the outcome comes first: only at its end does the engine clean up, which can take minutes
    where a scheduler does not answer.

    Args:
        config: whose placement names the engine.
        run_dir: shared with the nodes; holds config.json.
        deadlines: how long the nodes may be silent.
        callbacks: get every event, and whatever the engine has to say.

    Raises:
        RequestError: the engine will never carry it out.
        KeyboardInterrupt: it was interrupted; the nodes have been stopped.
    """
    engine = load_engine(config.placement.engine)
    rendezvous = Rendezvous.open(run_dir, config.cluster.num_nodes)
    tail = EventTail(run_dir, range(config.topology.num_processes))
    watch = NodesWatch(
        rendezvous, deadlines, may_queue=engine.may_queue, processes_per_node=config.topology.processes_per_node
    )
    with signals_held() as signals, rendezvous.beating() as check_beat, ExitStack() as nodes:
        try:
            poll_exit = nodes.enter_context(engine.started(config, run_dir, rendezvous, callbacks.report))
            while not watch.is_over():
                signals.deliver()
                time.sleep(NODES_POLL_SECONDS)
                check_beat()
                for event in tail.new_events():
                    callbacks.observe(event)
                    watch.on_event(event)  # only now: whoever reads the output may have held this up
                watch.look(poll_exit, stopped_by=callbacks.stopped_by())
        except BaseException:
            with suppress(OSError):  # where it cannot be written any more, they end without notice
                rendezvous.stop()
            raise
        if not watch.succeeded:
            rendezvous.stop()
        for event in tail.new_events():
            callbacks.observe(event)
        yield watch.outcome()


class State(Enum):
    """How far a run on several machines has come."""

    WAITING = auto()
    """No node has joined."""
    RUNNING = auto()
    STOPPING = auto()
    """Something has failed or ended; what the nodes still write is waited for."""


class NodesWatch:
    """What is known of the nodes, and whether to wait any longer."""

    def __init__(
        self, rendezvous: Rendezvous, deadlines: Deadlines, *, may_queue: bool, processes_per_node: int
    ) -> None:
        self._rendezvous, self._deadlines = rendezvous, deadlines
        self._processes_per_node = processes_per_node
        self._state = State.WAITING
        self._num_joined = self._num_reached = 0
        self._outcomes: dict[int, NodeOutcome] = {}
        self._started_at: float | None = None
        self._ended: NodesEnded | None = None
        self._raised = False
        self._terminated: set[int] = set()
        """Nodes of processes that were terminated, by whomever."""
        self._engine_may_tell = True
        self._silence = Deadline(math.inf if may_queue else deadlines.start)
        self._end = Deadline(math.inf)

    @property
    def succeeded(self) -> bool:
        """Whether every node has ended, and well."""
        return len(self._outcomes) == self._rendezvous.num_nodes and not self._any_unsuccessful()

    def on_event(self, event: Event) -> None:
        """Note a sign of life, and how a training process has ended."""
        self._silence.restart()
        self._raised |= isinstance(event, Failed)
        if isinstance(event, Stopped):
            self._terminated.add(event.process_rank // self._processes_per_node)

    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        if self._end.passed:
            return True
        return len(self._outcomes) == self._rendezvous.num_nodes and not self._engine_may_explain()

    def look(self, poll_exit: PollExit | None, stopped_by: str | None = None) -> None:
        """Read what the nodes have written, and ask whether they still run.

        Args:
            poll_exit: of the engine.
            stopped_by: why the run is to end, whatever the nodes do.
        """
        self._outcomes = self._rendezvous.outcomes()
        self._engine_may_tell = poll_exit is not None
        self._count_nodes()
        if self._any_unsuccessful():
            # Nodes that have joined end by themselves; others will not join any more.
            everyone = len(self._outcomes) >= self._num_joined
            last_word = ENGINE_SECONDS if self._engine_may_explain() else LAST_WRITE_SECONDS
            self._stop_within(last_word if everyone else NODES_STOP_SECONDS)
        if self._ended is None:
            self._find_end(poll_exit, stopped_by)

    def _any_unsuccessful(self) -> bool:
        return not all(outcome.succeeded for outcome in self._outcomes.values())

    def _engine_may_explain(self) -> bool:
        """Whether nodes were stopped, or processes terminated, and none says why: the engine may, and has not yet."""
        outcomes = self._outcomes.values()
        if not self._engine_may_tell or self._ended is not None:
            return False
        if self._raised or any(each.message or each.stalled or each.vanished for each in outcomes):
            return False
        were_stopped = any(each.stopped for each in outcomes) and not any(each.failed for each in outcomes)
        return were_stopped or self._were_terminated()

    def _were_terminated(self) -> bool:
        """Whether processes were, of nodes that were not stopped themselves."""
        return any(not each.stopped and each.node_rank in self._terminated for each in self._outcomes.values())

    def _count_nodes(self) -> None:
        num_joined, num_reached = len(self._rendezvous.node_infos()), len(self._rendezvous.reached())
        if (num_joined, num_reached) != (self._num_joined, self._num_reached):
            self._num_joined, self._num_reached = num_joined, num_reached
            self._silence.restart()
        if self._state is State.WAITING and num_joined:
            self._state = State.RUNNING
            self._silence = Deadline(max(self._deadlines.start, self._deadlines.progress) + EXTRA_SILENCE_SECONDS)
        if num_reached == self._rendezvous.num_nodes and self._started_at is None:
            self._started_at = time.time()

    def _find_end(self, poll_exit: PollExit | None, stopped_by: str | None) -> None:
        silent = self._silence.passed  # before the engine reports something, which may be held up too
        if stopped_by:
            # What has gone wrong before was no consequence of it.
            self._ended = NodesEnded(why=stopped_by, is_cause=not self._any_unsuccessful())
        elif poll_exit:
            self._ended = poll_exit()
        if self._ended:
            self._stop_within(LAST_WRITE_SECONDS)
        elif silent and self._state is not State.STOPPING:
            self._ended = NodesEnded(
                why=f"no host has joined within {self._silence.seconds:.0f} s"
                if self._state is State.WAITING
                else f"no sign of life came from any node for {self._silence.seconds:.0f} s"
            )
            self._stop_within(0)

    def _stop_within(self, seconds: float) -> None:
        self._state = State.STOPPING
        self._end.bring_forward(seconds)

    def outcome(self) -> LaunchOutcome:
        """How the processes of all nodes ended, as if they had been started on one machine."""
        self._outcomes = self._rendezvous.outcomes()
        outcome = merge_outcomes(list(self._outcomes.values()))
        outcome.started_at = self._started_at
        outcome.ended_at = self._ended_at()
        missing = [f"node {rank}" for rank in range(self._rendezvous.num_nodes) if rank not in self._outcomes]
        if missing:
            outcome.reasons.append(f"{', '.join(missing)} did not say how it ended")
            if not self._num_joined:
                outcome.reasons.append(
                    "No node wrote anything into the run directory: is it on a disk that the nodes share? "
                    "Choose one with --run-dir"
                )
        stopped = [each for each in self._outcomes.values() if each.stopped]
        if stopped and not outcome.failed:
            outcome.reasons.append(", ".join(f"node {each.node_rank} ({each.host}) was stopped" for each in stopped))
        if self._ended and self._ended.is_cause and not self.succeeded:
            outcome.cause = self._ended.why
        elif self._ended and outcome.failed and (missing or stopped or self._were_terminated()):
            outcome.reasons.append(self._ended.why)
        return outcome

    def _ended_at(self) -> float:
        """When the last node ended: by its own clock, since it can be seen late here, unless that differs by more."""
        now = time.time()
        if self._started_at is None or len(self._outcomes) < self._rendezvous.num_nodes:
            return now
        last = max(outcome.time for outcome in self._outcomes.values())
        return max(self._started_at, last) if 0 <= now - last <= MOST_LATE_SECONDS else now
