"""The progress of a run or a study: a live bar or table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpcompare.cli.output import is_animated, stderr_console
from dpcompare.cli.waiting import Waiting
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.experiments.arms import estimate_seconds
from dpcompare.experiments.statistics import mean_speed
from dpcompare.experiments.study import Arm, Study
from dpcompare.experiments.study_runs import Watcher, finished_run
from dpcompare.launch.outcome import expendable
from dpcompare.launch.remembered import remembered_first_step
from dpcompare.results.events import Event, EventTail, Ready, Started, StepsTrained
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import RESULT_FILE, event_path
from dpcompare.results.series import RunState
from dpcompare.system.cache import is_held
from dpcompare.system.terminal_text import about, in_one_line, pluralize, printable

SECONDS_BETWEEN_LINES = 5.0


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
        refresh_per_second=4,
    )


class RunProgress:
    """Shows the events of the training processes on stderr; use as a context manager."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self._framework = config.framework
        self._name = f"{config.framework} {config.mode}" + (" (emulated)" if config.emulated else "")
        self._run_dir = run_dir
        self._bar = _bar() if is_animated() else None
        self._task: TaskID | None = None
        self._console = self._bar.console if self._bar else stderr_console()
        self.waiting = Waiting(self._console)
        self._state = RunState(config.topology.trainers)
        self._line_at = float("-inf")
        self._compiling = _compiling(config)

    def __enter__(self) -> RunProgress:
        self.waiting.begin(f"preparing {self._name}: data, initial weights, processes")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.waiting.end()
        if self._bar:
            self._bar.stop()

    def observe(self, event: Event) -> None:
        state = self._state
        step, evaluations = state.step, len(state.evaluated)
        state.add(event)
        if isinstance(event, Started):
            self.say(
                f"process {event.process_rank}: pid {event.pid} on {event.host}, node {event.node_rank}, "
                f"local rank {event.local_rank}, device {', '.join(event.devices)}"
            )
            if event.process_rank == 0:
                if self._bar:  # of an attempt that failed; before rich 14.1 two live displays are an error
                    self._bar.stop()
                self.waiting.begin(f"importing {self._framework} and building the model")
        elif isinstance(event, Ready) and event.process_rank == 0:
            self._begin(event.steps)
        if state.step > step and isinstance(event, StepsTrained):
            self._show_step()
        for epoch, accuracy, loss, count in state.evaluated[evaluations:]:
            self.say(f"epoch {epoch}: accuracy {accuracy:.4f}, loss {loss:.4f} on {pluralize(count, 'sample')}")

    def say(self, line: str) -> None:
        """Print a line above what is animated."""
        self._console.print(printable(line), soft_wrap=True)

    def _begin(self, num_steps: int) -> None:
        self.waiting.end()
        self.say(f"{self._name}: training {pluralize(num_steps, 'step')}; logs and result in {self._run_dir}")
        if self._compiling:
            self.say(self._compiling)
        if self._bar is None:
            self.waiting.begin("in the first step, which takes longest")
            return
        self._bar.start()
        if self._task is not None:  # of an attempt that failed
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(self._name, total=num_steps, figures="first step")

    def _show_step(self) -> None:
        state = self._state
        self.waiting.end()
        if state.step == state.num_steps and self._bar is None:
            self.waiting.begin("evaluating, and ending the processes")
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=state.step, figures=state.figures)
        elif time.monotonic() - self._line_at > SECONDS_BETWEEN_LINES or state.step == state.num_steps:
            self._line_at = time.monotonic()
            self.say(f"step {state.step}/{state.num_steps}: {state.figures}")


def _compiling(config: RunConfig) -> str:
    """How long the first step may take; empty where nothing is compiled."""
    if not config.compiles:
        return ""
    seconds = remembered_first_step(config)
    return (
        "compiling: the first step takes some minutes"
        if seconds is None
        else f"compiling: the first step takes about {seconds:.0f} s, as the last time here"
    )


@contextmanager
def data_progress(waiting: Waiting | None = None) -> Iterator[Callable[[int, int], None]]:
    """Shows images of a dataset being prepared: a bar, or a line per tenth where there is no terminal.

    The bar is there only while there is something to show, and takes the place of `waiting`: two live displays would
    fight for the same line.
    """
    bar = _bar() if is_animated() else _LinesPerTenth()
    task = None

    def show(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            if waiting:
                waiting.end()
            bar.start()
            task = bar.add_task("preparing images", total=total, figures="")
        bar.update(task, completed=done)
        if done == total:
            bar.stop()
            if waiting:
                waiting.begin("preparing the initial weights")

    try:
        yield show
    finally:
        bar.stop()


class _LinesPerTenth:
    """The methods of rich's Progress that are used, as plain lines."""

    def start(self) -> None:
        """Lines need no start."""

    def stop(self) -> None:
        """Lines need no end."""

    def add_task(self, description: str, *, total: int, figures: str) -> TaskID:
        self._description, self._total, self._tenth = description, total, 0
        return TaskID(0)

    def update(self, task: TaskID, *, completed: int) -> None:
        tenth = 10 * completed // self._total
        if tenth > self._tenth:
            self._tenth = tenth
            stderr_console().print(f"{self._description}: {completed}/{self._total}")


class StudyView:
    """A study in its directory as a table: per arm what has run, what is running, how far it is, and the time left."""

    def __init__(self, study_dir: Path) -> None:
        self._study_dir = study_dir
        self._lock = threading.Lock()
        self._ended: dict[tuple[str, int], RunResult] = {}
        """Results by the path and the inode of their files: a disturbed run is repeated."""
        self._running: tuple[tuple[Path, int], EventTail, RunState] | None = None
        self._shown = Table(title=printable(str(study_dir)))

    def look(self) -> tuple[Table, bool]:
        """The table as of now, and whether a process is running the study."""
        with self._lock:  # a live display asks in a thread of its own, and again where a line is printed above it
            held = is_held(self._study_dir)  # before all else: what ends in between is still shown
            return self._table(held), held

    def _table(self, held: bool) -> Table:
        study = Study.load(self._study_dir)  # rounds may have been added
        table = Table(title=printable(str(self._study_dir)))
        for name in ("arm", "done", "images/s"):
            table.add_column(name, justify="left" if name == "arm" else "right")
        table.add_column("now")
        left = 0
        for arm in study.arms:
            runs = [run for number in range(1, study.repeats + 1) if (run := self._result(study, number, arm))]
            mean = mean_speed([run.compared_speed for run in runs])
            failed = any(run.status == "failed" for run in runs)
            now = (
                "FAILED"
                if failed
                else "done"
                if len(runs) == study.repeats
                else self._now(study, len(runs) + 1, arm, held)
            )
            left += 0 if failed else study.repeats - len(runs)
            speed = f"{mean.value:.1f}" if mean else "-"
            table.add_row(printable(arm.name), f"{len(runs)}/{study.repeats}", speed, now)
        ended = [
            (arm, number, self._result(study, number, arm))
            for number in range(1, study.repeats + 1)
            for arm in study.arms
        ]
        seconds, source = estimate_seconds(study, ended)
        table.caption = f"{pluralize(left, 'run')} left, {about(seconds)} ({source})" if left else "every run has ended"
        if left and not held:
            how = "`dpcompare compare --resume`" if study.allowed_loss is None else "the same `dpcompare gate` command"
            table.caption += f"; no process runs this study now: {how} continues it"
        return table

    def _result(self, study: Study, number: int, arm: Arm) -> RunResult | None:
        run_dir = study.run_dir(self._study_dir, number, arm)
        try:
            key = (str(run_dir), (run_dir / RESULT_FILE).stat().st_ino)
        except FileNotFoundError:
            return None
        if key not in self._ended and (result := finished_run(run_dir)):
            self._ended[key] = result
        return self._ended.get(key)

    def _now(self, study: Study, number: int, arm: Arm, held: bool) -> str:
        """How far the run of a round is."""
        run_dir = study.run_dir(self._study_dir, number, arm)
        try:
            file = (run_dir, event_path(run_dir, 0).stat().st_ino)  # another one where an interrupted run is repeated
        except FileNotFoundError:
            return ""
        if self._running is None or self._running[0] != file:
            self._running = (
                file,
                EventTail(run_dir, range(arm.config.topology.num_processes)),
                RunState(arm.config.topology.trainers),
            )
        _, tail, state = self._running
        for event in tail.new_events():
            state.add(event)
        if not held:
            return f"round {number}: interrupted after step {state.step}"
        if not state.step:
            return f"round {number}: starting"
        return f"round {number}: step {state.step}/{state.num_steps}, {state.figures}"

    def __rich__(self) -> Table:
        try:
            self._shown, _ = self.look()
        except (RequestError, OSError) as error:  # such as a disk that is away for a moment: the study continues
            self._shown.caption = printable(str(error))
        return self._shown


class StudyProgress(Watcher):
    """Shows a study on stderr, as a table that lives or as a line per run; use as a context manager."""

    def __init__(self, study: Study, study_dir: Path, after_run: Callable[[], None] | None = None) -> None:
        """`after_run` is called after each run that has been made."""
        self._after_run = after_run
        self._console = stderr_console()
        self._live = (
            Live(StudyView(study_dir), console=self._console, transient=True, refresh_per_second=2)
            if is_animated()
            else None
        )
        self._say = expendable(self._print)
        self._total = study.repeats * len(study.arms)  # grows where rounds are added
        self._done = 0
        self._remarks: set[str] = set()
        arms, rounds = pluralize(len(study.arms), "arm"), pluralize(study.repeats, "round")
        self._say(f"{arms} x {rounds}; runs and results in {study_dir}")

    def __enter__(self) -> StudyProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def _print(self, line: str) -> None:
        self._console.print(printable(line), soft_wrap=True)

    def run_begins(self, number: int, arm: Arm, run_dir: Path) -> Callable[[Event], None]:
        self._total = max(self._total, self._done + 1)
        if not self._live:
            self._say(f"[{self._done + 1}/{self._total}] round {number}: {arm.name} ...")
        return lambda event: None

    def run_says(self, line: str) -> None:
        self._say(line)

    def run_remarks(self, line: str) -> None:
        if line not in self._remarks:
            self._remarks.add(line)
            self._say(line)

    def run_ended(self, number: int, arm: Arm, result: RunResult) -> None:
        # As the table has it at the end.
        speed = f"{result.compared_speed:.1f} images/s" if result.compared_speed else "no speed measured"
        what = speed if result.wall_seconds is None else f"{speed} in {result.wall_seconds:.0f} s"
        if result.status == "failed":
            what = f"FAILED: {in_one_line(result.error)}"
        self._finished(f"round {number}: {arm.name}: {what}")
        if self._after_run:
            self._after_run()

    def run_left_out(self, number: int, arm: Arm, reason: str) -> None:
        self._finished(f"round {number}: {arm.name}: not run again, {reason}")

    def _finished(self, line: str) -> None:
        self._done += 1
        self._total = max(self._total, self._done)
        self._say(f"[{self._done}/{self._total}] {line}")
