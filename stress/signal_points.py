"""The points of a launch at which a signal may come: one is delivered at a bytecode, and another run has the next.

    python -m stress.signal_points [--points 10000] [--seed 0] [--seconds 3600] [--jobs 4] [--write [FOLDER]]

The command `dpcompare run` is made in a process of its own per point, with a node process that trains nothing: one that
ends by itself, or one that has to be stopped. From the start of the attempt until its result is written each bytecode
of the launcher and of `subprocess` is a point. Whatever the point and the signal, the command must end in time with
exit code 130, leave no process, and leave a result that can be read once a process was started. Prints a table; exit
code 3 where a trial failed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from benchmarks.evidence import Keeper, Status, number, table, text
from dpcompare.cli import main as command_line
from dpcompare.cli import progress, report
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import Inputs
from dpcompare.errors import RequestError
from dpcompare.launch import attempt
from dpcompare.launch import run as runner
from dpcompare.launch.plan import NodeProcess, TrainingProcess
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import CONFIG_FILE, LOGS_DIR, node_log_path
from dpcompare.system.signals import ENDING

IMPORTED = (progress, report)
"""What the command imports when it needs it: here once, before it forks."""
NODES = {"ends": ("sleep", "0.1"), "is stopped": ("sleep", "60")}
"""What a node process does: the second one is stopped because it makes no first step in time."""
FIRST_STEP_SECONDS = "0.15"
LONGEST_SECONDS = 20.0
"""A trial that takes longer hangs; an undisturbed one takes half a second."""
TRACED = ("dpcompare/launch", "dpcompare/system", "dpcompare/results", "/subprocess.py", "/contextlib.py")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a signal is delivered."""

    node: str
    """One of NODES."""
    number: signal.Signals
    index: int
    """The index into the bytecode, from 1; 0 for none."""


class Tracer:
    """Counts bytecodes while an attempt lasts, and raises a signal at one of them."""

    def __init__(self, point: Point, count: int) -> None:
        """`count` is a pipe that gets the number of bytecodes at the end of the attempt."""
        self._point, self._pipe = point, count
        self._passed = 0
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        if event == "call":
            if frame.f_code is attempt.make_attempt.__code__:
                self._depth += 1
            if not any(part in frame.f_code.co_filename for part in TRACED):
                return None
            frame.f_trace_opcodes = bool(self._depth)
        elif event == "return" and frame.f_code is attempt.make_attempt.__code__:
            self._depth -= 1
            os.write(self._pipe, str(self._passed).encode())
        elif event == "opcode" and self._depth:
            self._passed += 1
            if self._passed == self._point.index:
                sys.settrace(None)
                os.write(self._pipe, b"delivered")
                signal.raise_signal(self._point.number)
        return self


def _be_the_command(point: Point, run_dir: Path, count: int) -> NoReturn:
    """In a child: `dpcompare run` with a node process that trains nothing."""
    for ending in ENDING:  # whatever this process was started under, such as nohup
        signal.signal(ending, signal.default_int_handler if ending == signal.SIGINT else signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    training = TrainingProcess(process_rank=0, local_rank=0, devices=("cpu:0",))
    node = NodeProcess(node_rank=0, argv=NODES[point.node], env={}, processes=(training,))

    def prepared(config: RunConfig, directory: Path, progress: Any) -> RunConfig:
        nothing = {"store": directory, "store_sha256": "", "weights": directory, "weights_sha256": ""}
        inputs = Inputs(**nothing, num_classes=2, num_train=64, num_validation=64, num_skipped=0)
        config = config.prepared(inputs)
        (directory / LOGS_DIR).mkdir(parents=True)
        config.save(directory / CONFIG_FILE)
        return config

    runner.prepare_run = prepared
    runner.remarks_on = lambda config: iter(())  # there is no store
    attempt.plan = lambda *arguments: [node]  # type: ignore[assignment]
    arguments = "--framework torch --mode single --device cpu --model mlp --image-size 8 --steps 8 --warmup-steps 1"
    sys.settrace(Tracer(point, count))
    try:
        command_line(["run", *arguments.split(), "--start-timeout", FIRST_STEP_SECONDS, "--run-dir", str(run_dir)])
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    finally:
        os._exit(99)


def trial(point: Point, folder: Path) -> tuple[int, list[str]]:
    """Run the command with a signal at a point.

    Returns:
        the number of bytecodes of the attempt where it was not disturbed, else 0; and what was wrong.
    """
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_command(point, run_dir, writing)
    os.close(writing)
    status = _status_within(child, LONGEST_SECONDS)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    problems = []
    delivered = "delivered" in said
    expected = 130 if delivered else 1  # a node process without a record is a failed run
    if status is None:
        problems.append(f"it hung for {LONGEST_SECONDS:.0f} s")
    elif status != expected:
        problems.append(f"exit code {status}, expected {expected}")
    if left := _left():
        problems.append(f"{len(left)} processes were left")
    if node_log_path(run_dir, 0).exists():
        try:
            RunResult.load(run_dir)
        except RequestError as error:
            problems.append(f"no result: {error}")
    return (0 if delivered else int(said or 0)), problems


def _status_within(child: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _left() -> list[int]:
    """Processes that the command has left to this one, which adopts them; they are ended."""
    time.sleep(0.01)
    left = []
    for pid in map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()):
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            left.append(pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return left


def points(lengths: dict[str, int], count: int, seed: int) -> Iterator[Point]:
    """A number of points, spread evenly over each kind of node and signal, in a random order."""
    kinds = [(node, ending) for node in NODES for ending in ENDING]
    generator = random.Random(seed)
    chosen = []
    for place, (node, ending) in enumerate(kinds):
        share = count // len(kinds) + (place < count % len(kinds))
        step = lengths[node] / max(1, share)
        chosen += [
            Point(node=node, number=ending, index=1 + int(step * (part + generator.random()))) for part in range(share)
        ]
    generator.shuffle(chosen)
    yield from chosen


def adopt_orphans() -> None:
    """Be the parent of what a command leaves, so that `_left` finds it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def trial_until(point: Point, folder: Path, deadline: float) -> tuple[int, list[str]] | None:
    """A trial in a folder of this process, unless it is too late for one (CLOCK_MONOTONIC is one for all processes)."""
    if time.monotonic() > deadline:
        return None
    own = folder / f"{os.getpid()}"
    own.mkdir(exist_ok=True)
    return trial(point, own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no trial starts after that")
    parser.add_argument("--jobs", type=int, default=1, help="trials at the same time: most of one is waiting")
    keeper = Keeper(parser, "stress.signal_points")
    arguments = parser.parse_args()
    adopt_orphans()
    deadline = time.monotonic() + arguments.seconds
    made: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    late = 0
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(arguments.jobs, get_context("fork"), adopt_orphans) as pool,
    ):
        lengths = {}
        for node in NODES:
            lengths[node], problems = trial(Point(node=node, number=signal.SIGINT, index=0), Path(temporary))
            assert not problems, f"undisturbed, {node}: {'; '.join(problems)}"
            assert lengths[node], f"no bytecode of {attempt.make_attempt.__qualname__} was seen"
        chosen = list(points(lengths, arguments.points, arguments.seed))
        outcomes = pool.map(trial_until, chosen, repeat(Path(temporary)), repeat(deadline))
        for point, outcome in zip(chosen, outcomes, strict=True):
            if outcome is None:
                continue
            passed, problems = outcome
            late += bool(passed)  # it polled less often than the undisturbed one, and had ended before
            kind = f"{point.number.name}, a node that {point.node}"
            made[kind] += 1
            failed[kind] += bool(problems)
            if problems:
                print(f"{kind}, bytecode {point.index} of {lengths[point.node]}: {'; '.join(problems)}", flush=True)
    bytecodes = ", ".join(f"{count:,} bytecodes with a node that {node}" for node, count in lengths.items())
    sentence = (
        f"{made.total():,} points, {failed.total()} failed. An undisturbed launch has {bytecodes}; "
        f"{late} points were after the end of a launch that polled less often."
    )
    rows = [(kind, count, failed[kind]) for kind, count in sorted(made.items())]
    is_whole = made.total() >= parser.get_default("points")
    status: Status = "failed" if failed.total() else "passed" if is_whole else "open"
    keeper.keep(
        arguments.write,
        "signal-points",
        status,
        sentences=[sentence],
        tables=[table([*text("signal"), number("points", ","), number("failed", ",")], rows)],
        figures={
            "points": f"{made.total():,}",
            "failed": failed.total(),
            "delivered": f"{made.total() - late:,}",
            "bytecodes": f"{max(lengths.values()):,}",
        },
    )
    sys.exit(3 if failed.total() else 0)


if __name__ == "__main__":
    main()
