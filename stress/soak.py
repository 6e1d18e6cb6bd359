"""The soak test: hundreds of tiny runs in series, half of them killed and resumed; nothing may be lost, left or leaked.

    python -m stress.soak [--runs 500] [--seed 0] [--out DIR [--seconds 3600]] [--write [FOLDER]]

The parent is the Python API: a process that starts run after run. After each it must have no child process and as many
open files and threads as before, every file of the run must be readable, and the losses must be those of a run that
was left alone. Its resident memory, the cache and the folder of temporary files must not grow. With --out runs are
kept, and the same command goes on with those that were not made yet: growth is told of each piece, after its first
runs. Exit code 3 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.evidence import Keeper, Status
from dpcompare import Cluster, RunConfig, RunFailedError, Workload, resume, run
from dpcompare.config.modes import MODES, USUAL_MODES
from dpcompare.config.run import PreparedRun
from dpcompare.results.checkpoint import load_checkpoint, training_id
from dpcompare.results.events import CheckpointSaved, Event, Started, StepsTrained, read_events
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import CONFIG_FILE, checkpoint_paths
from dpcompare.system.processes import is_alive
from dpcompare.system.terminal_text import pluralize
from stress.trials import num_processes, ports_listening, shared_memory, temporary_files

STEPS = 30
SETTLED_AFTER = 20
"""Runs after which the parent has loaded all that it needs."""
MOST_GROWTH = {"resident_bytes": 8 << 20, "open_files": 0, "cache_bytes": 0, "temporary_files": 0}
"""The most by which each figure may grow after that."""


def config(framework: str, mode: str) -> RunConfig:
    workload = Workload(
        model="mlp", image_size=8, dataset="synthetic-mini", global_batch_size=16, steps=STEPS, warmup_steps=0
    )
    devices = 1 if MODES[framework, mode].multi_node or not MODES[framework, mode].multi_device else 2
    cluster = Cluster.partition(num_processes(framework, mode), devices, device="cpu")
    return RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster, checkpoint_every=1)


class Killer:
    """Kills a random training process of a run at a random step; or interrupts the run, as Ctrl-C does."""

    def __init__(self, generator: random.Random, processes: int) -> None:
        self.step = generator.randrange(STEPS)  # 0: as it starts
        self.rank = generator.randrange(processes)
        self.interrupts = generator.random() < 0.25
        self.acted = False
        self._pid = 0

    def observe(self, event: Event) -> None:
        if event.process_rank != self.rank or self.acted:
            return
        if isinstance(event, Started):
            self._pid = event.pid
        if (isinstance(event, Started) and self.step == 0) or (
            isinstance(event, StepsTrained) and event.step >= self.step > 0
        ):
            if self.interrupts:
                self.acted = True
                os.kill(os.getpid(), signal.SIGINT)
            elif is_alive(self._pid):  # else the run was faster
                self.acted = True
                os.kill(self._pid, signal.SIGKILL)


@cache
def alone(framework: str, mode: str) -> list[float | None]:
    with tempfile.TemporaryDirectory() as folder:
        return run(config(framework, mode), f"{folder}/run").train_loss


def one_run(framework: str, mode: str, generator: random.Random, run_dir: Path, counts: Counter[str]) -> list[str]:
    """Run, perhaps killed and resumed; returns problems."""
    killer = Killer(generator, num_processes(framework, mode)) if generator.random() < 0.5 else None
    request = config(framework, mode)
    try:
        run(request, run_dir, observe=killer.observe if killer else lambda event: None)
        if killer and killer.acted and not killer.interrupts and _reached(run_dir) < STEPS:
            return ["a process was killed, and no process noticed"]
    except (RunFailedError, KeyboardInterrupt) as ended:
        if killer is None or not killer.acted:
            if isinstance(ended, KeyboardInterrupt):
                raise  # somebody else's
            return [f"failed by itself: {ended}"]
        counts["interrupted" if isinstance(ended, KeyboardInterrupt) else "killed"] += 1
        there = checkpoint_paths(run_dir)
        recorded = [event.step for event in read_events(run_dir, 1) if isinstance(event, CheckpointSaved)]
        problems = unreadable(run_dir)
        if recorded and (not there or there[0].name < f"step-{recorded[-1]:010d}"):
            problems.append("a checkpoint was lost")
        if problems or not there:
            return problems
        resume(run_dir, RunConfig.load(run_dir / CONFIG_FILE))
        counts["resumed"] += 1
    result = RunResult.load(run_dir)
    problems = unreadable(run_dir)
    if result.status != "completed" or result.train_loss != alone(framework, mode):
        problems.append(f"{result.status}, or its losses differ")
    return problems


def _reached(run_dir: Path) -> int:
    return len(RunResult.load(run_dir).train_loss)


def unreadable(run_dir: Path) -> list[str]:
    """Files of a run that cannot be read."""
    problems = []
    for path in run_dir.rglob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError as error:
            problems.append(f"{path}: {error}")
    training = training_id(PreparedRun.load(run_dir / CONFIG_FILE))
    for path in checkpoint_paths(run_dir):
        load_checkpoint(path, training=training)
    return problems


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left_behind() -> set[str]:
    """Children, open files and threads of this process, and ports and shared memory of the machine."""
    children = {f"child {pid}" for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    files = {f"open {link.readlink()}" for link in Path("/proc/self/fd").iterdir() if link.exists()}
    threads = {f"thread {thread.name}" for thread in threading.enumerate()}
    return children | files | threads | ports_listening() | shared_memory()


@dataclass(frozen=True, kw_only=True)
class Soaked:
    """A run of the soak, and the state of its parent afterwards."""

    number: int
    """The number of the run, from 1."""
    parent: int
    """Its pid: each piece of a soak has another."""
    framework: str
    mode: str
    happened: str
    """killed, interrupted, or nothing."""
    resumed: int
    problems: list[str]
    resident_bytes: int
    open_files: int
    cache_bytes: int
    temporary_files: int

    def __str__(self) -> str:
        sizes = f"{self.resident_bytes >> 20} MiB, {self.open_files} files, cache {self.cache_bytes >> 10} KiB"
        return f"[{self.number}] {self.framework} {self.mode} {sizes} {self.problems or ''}"


def soak_once(number: int, seed: int, folder: Path) -> Soaked:
    """The run of that number, whatever was run before."""
    framework, mode = USUAL_MODES[number % len(USUAL_MODES)]
    alone(framework, mode)  # what it leaves in memory is no leak of this run
    counts, before = Counter[str](), left_behind()
    run_dir = folder / "runs" / f"{number}"
    try:
        problems = one_run(framework, mode, random.Random(f"{seed} {number}"), run_dir, counts)
    except Exception:
        problems = [traceback.format_exc()]
    shutil.rmtree(run_dir, ignore_errors=True)
    return Soaked(
        number=number,
        parent=os.getpid(),
        framework=framework,
        mode=mode,
        happened="killed" if counts["killed"] else "interrupted" if counts["interrupted"] else "nothing",
        resumed=counts["resumed"],
        problems=problems + [f"left: {each}" for each in left_behind() - before],
        resident_bytes=resident_bytes(),
        open_files=len(list(Path("/proc/self/fd").iterdir())),
        cache_bytes=sum(path.stat().st_size for path in (folder / "cache").rglob("*") if path.is_file()),
        temporary_files=len(temporary_files(folder / "tmp")),
    )


def growths(soaked: Sequence[Soaked]) -> dict[str, list[float]]:
    """The growth of each figure in each piece of the soak that was long enough to show it."""
    found: dict[str, list[float]] = {}
    for parent in dict.fromkeys(each.parent for each in soaked):
        piece = [each for each in soaked if each.parent == parent]
        if len(piece) > SETTLED_AFTER:
            for name in MOST_GROWTH:
                grown = getattr(piece[-1], name) - getattr(piece[SETTLED_AFTER - 1], name)
                found.setdefault(name, []).append(grown)
    return found


def kept(out: Path) -> list[Soaked]:
    file = out / "runs.jsonl"
    return [Soaked(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def soak(arguments: argparse.Namespace, folder: Path) -> list[Soaked]:
    """Make the runs that were not made yet."""
    soaked = kept(folder)
    shutil.rmtree(folder / "tmp", ignore_errors=True)  # of a piece that was killed
    (folder / "tmp").mkdir(parents=True)
    os.environ |= {"DPCOMPARE_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    tempfile.tempdir = None  # it is looked up again
    began = time.monotonic()
    for number in range(len(soaked) + 1, arguments.runs + 1):
        if time.monotonic() - began > arguments.seconds:
            break
        soaked.append(soak_once(number, arguments.seed, folder))
        print(soaked[-1], file=sys.stderr)
        with (folder / "runs.jsonl").open("a") as file:
            file.write(json.dumps(vars(soaked[-1])) + "\n")
    return soaked


def problems_of(soaked: Sequence[Soaked]) -> list[str]:
    """Of the runs, and of what grew."""
    problems = [f"run {each.number}, {each.framework} {each.mode}: {one}" for each in soaked for one in each.problems]
    grown = growths(soaked)
    for name, most in MOST_GROWTH.items():
        problems += [f"{name} grew by {each}" for each in grown.get(name, []) if each > most]
    return problems


def figures_of(soaked: Sequence[Soaked]) -> dict[str, int]:
    happened = Counter(each.happened for each in soaked)
    return {
        "runs": len(soaked),
        "killed": happened["killed"],
        "interrupted": happened["interrupted"],
        "resumed": sum(each.resumed for each in soaked),
        "problems": len(problems_of(soaked)),
    }


def sentence_on(soaked: Sequence[Soaked]) -> str:
    curves = ", ".join(f"{name} {'/'.join(f'{each:+,}' for each in grown)}" for name, grown in growths(soaked).items())
    figures = figures_of(soaked)
    return (
        f"{figures['runs']} runs in {pluralize(len({each.parent for each in soaked}), 'parent')} over "
        f"{len(USUAL_MODES)} modes, {figures['killed']} with a process killed, "
        f"{figures['interrupted']} interrupted, {figures['resumed']} resumed. "
        "Problems (processes, files, threads, ports or shared memory left, files unreadable, checkpoints lost, other "
        f"losses, growth): {figures['problems']}. Growth of each parent after its first {SETTLED_AFTER} runs: "
        f"{curves or 'not told, there were too few'}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="DIR", help="keeps what was run, and goes on with it")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no run begins after that")
    keeper = Keeper(parser, "stress.soak")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    with tempfile.TemporaryDirectory(prefix="dpcompare-soak-") as temporary:
        soaked = soak(arguments, (arguments.out or Path(temporary)).resolve())
    problems = problems_of(soaked)
    for problem in problems:
        print(problem)
    is_whole = len(soaked) >= parser.get_default("runs")
    status: Status = "failed" if problems else "passed" if is_whole else "open"
    keeper.keep(arguments.write, "soak", status, sentences=[sentence_on(soaked)], figures=figures_of(soaked))
    sys.exit(3 if problems else 0)


if __name__ == "__main__":
    main()
