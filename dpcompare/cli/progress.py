"""What a run and a study look like while they go: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpcompare.analysis import printable
from dpcompare.cli.output import is_animated, stderr_console
from dpcompare.config import RunConfig
from dpcompare.events import Event, read_events
from dpcompare.result import RunResult
from dpcompare.study import Arm, Study, Watcher, finished_run

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
        self._name = f"{config.framework} {config.mode}" + (" (emulated)" if config.emulated else "")
        self._run_dir = run_dir
        self._bar = _bar() if is_animated() else None
        self._console = self._bar.console if self._bar else stderr_console()
        # Steps of each process that the others have not all reported yet.
        self._losses: dict[int, list[float]] = {rank: [] for rank in range(config.num_processes)}
        self._counts: list[int] = []
        self._evaluations: defaultdict[int, list[Event]] = defaultdict(list)
        self._speeds: dict[int, float] = {}
        self._step = 0
        self._num_steps = 0
        self._line_at = float("-inf")

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def observe(self, event: Event) -> None:
        show = getattr(self, f"_on_{event['kind']}", None)
        if show is not None:
            show(event)

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)

    def _on_start(self, event: Event) -> None:
        self._say(
            f"process {event['process_rank']}: pid {event['pid']} on {event['host']}, node {event['node_rank']}, "
            f"local rank {event['local_rank']}, device {', '.join(event['devices'])}"
        )

    def _on_ready(self, event: Event) -> None:
        if event["process_rank"] != 0:
            return
        self._num_steps = event["steps"]
        self._say(f"{self._name}: training {event['steps']} steps; logs and result in {self._run_dir}")
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=event["steps"], figures="")

    def _on_train(self, event: Event) -> None:
        rank = event["process_rank"]
        self._losses[rank] += event["losses"]
        if rank == 0:
            self._counts += event["global_counts"]
        self._speeds[rank] = sum(event["global_counts"]) / sum(event["step_seconds"])
        complete = min(map(len, self._losses.values()))
        if complete == 0:
            return
        loss = sum(losses[complete - 1] for losses in self._losses.values()) / self._counts[complete - 1]
        for losses in self._losses.values():
            del losses[:complete]
        del self._counts[:complete]
        self._step += complete
        self._show_step(f"loss {loss:.4f}, {min(self._speeds.values()):.1f} images/s")

    def _show_step(self, figures: str) -> None:
        if self._bar:
            self._bar.update(self._task, completed=self._step, figures=figures)
        elif time.monotonic() - self._line_at > SECONDS_BETWEEN_LINES or self._step == self._num_steps:
            self._line_at = time.monotonic()
            self._say(f"step {self._step}/{self._num_steps}: {figures}")

    def _on_evaluate(self, event: Event) -> None:
        parts = self._evaluations[event["epoch"]]
        parts.append(event)
        if len(parts) < len(self._losses):
            return
        loss, correct, count = (sum(part[name] for part in parts) for name in ("loss_sum", "correct", "count"))
        del self._evaluations[event["epoch"]]
        self._say(f"epoch {event['epoch']}: accuracy {correct / count:.4f}, loss {loss / count:.4f} on {count} samples")


@contextmanager
def data_progress() -> Iterator[Callable[[int, int], None]]:
    """Shows images of a dataset being prepared: a bar, or a line per tenth where there is no terminal.

    The bar is there only while there is something to show: two live displays would fight for the same line.
    """
    bar = _bar() if is_animated() else _LinesPerTenth()
    task = None

    def show(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            bar.start()
            task = bar.add_task("preparing images", total=total, figures="")
        bar.update(task, completed=done)
        if done == total:
            bar.stop()

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


class StudyProgress(Watcher):
    """Shows a study on stderr: what has run, what is running and how far it is; use as a context manager."""

    def __init__(self, study: Study, study_dir: Path) -> None:
        self._study = study
        self._bar = _bar() if is_animated() else None
        self._console = self._bar.console if self._bar else stderr_console()
        self._total = study.repeats * len(study.arms)  # grows where rounds are added
        self._done = 0
        self._say(f"{len(study.arms)} arms x {study.repeats} rounds; runs and results in {study_dir}")

    def __enter__(self) -> StudyProgress:
        if self._bar:
            self._bar.start()
            self._whole = self._bar.add_task("study", total=self._total, figures="runs")
            self._run = self._bar.add_task("", total=None, figures="", visible=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)

    def run_begins(self, number: int, arm: Arm, run_dir: Path) -> Callable[[Event], None]:
        if not self._bar:
            self._say(f"[{self._done + 1}/{self._total}] round {number}: {arm.name} ...")
            return lambda event: None
        bar = self._bar
        bar.reset(self._run, total=None, visible=True, description=arm.name, figures="starting")

        def observe(event: Event) -> None:
            if event["process_rank"] != 0:
                return
            if event["kind"] == "ready":
                bar.update(self._run, total=event["steps"])
            elif event["kind"] == "train":
                speed = sum(event["global_counts"]) / sum(event["step_seconds"])
                bar.update(self._run, completed=event["step"], figures=f"{speed:.1f} images/s")
            elif event["kind"] == "evaluate":
                bar.update(self._run, figures="evaluated")

        return observe

    def run_ended(self, number: int, arm: Arm, result: RunResult) -> None:
        speed = f"{result.images_per_second:.1f} images/s" if result.images_per_second else "no speed measured"
        what = f"{speed} in {result.wall_seconds:.0f} s"
        if result.status == "failed":
            what = f"FAILED: {printable((result.error or '').strip().splitlines()[-1])}"
        self._finished(f"round {number}: {arm.name}: {what}")

    def run_left_out(self, number: int, arm: Arm, reason: str) -> None:
        self._finished(f"round {number}: {arm.name}: not run again, {reason}")

    def _finished(self, line: str) -> None:
        self._done += 1
        self._total = max(self._total, self._done)
        self._say(f"[{self._done}/{self._total}] {line}")
        if self._bar:
            self._bar.update(self._whole, completed=self._done, total=self._total)
            self._bar.update(self._run, visible=False)


def study_table(study: Study, study_dir: Path) -> tuple[Table, bool]:
    """Arms by rounds: images/s of what is done, steps of what is running; and whether all is done."""
    table = Table(title=str(study_dir))
    table.add_column("arm")
    for number in range(1, study.repeats + 1):
        table.add_column(f"round {number}", justify="right")
    is_done = True
    for arm in study.arms:
        cells = []
        for number in range(1, study.repeats + 1):
            run_dir = study.run_dir(study_dir, number, arm)
            result = finished_run(run_dir)
            if result is not None:
                speed = f"{result.images_per_second:.1f}/s" if result.images_per_second else "-"
                cells.append(speed if result.status == "completed" else "FAILED")
                continue
            is_done = is_done and "FAILED" in cells  # its arm is left out of later rounds
            events = read_events(run_dir, arm.config.num_processes)
            steps = [event["step"] for event in events if event["kind"] == "train" and event["process_rank"] == 0]
            cells.append(f"step {steps[-1]}" if steps else "starting" if events else "")
        table.add_row(arm.name, *cells)
    return table, is_done
