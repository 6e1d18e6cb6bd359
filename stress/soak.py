"""The soak test: two hundred tiny runs in one process, half of them killed and resumed; nothing may be lost or leaked.

    python -m stress.soak [--runs 200] [--seed 0] [--write FILE]

The parent is the Python API: a process that starts run after run. After each it must have no child process and as many
open files and threads as before, every file of the run must be readable, and the losses must be those of a run that was
left alone. Its resident memory is compared between an early run and the last. Exit code 3 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from functools import cache
from pathlib import Path

from benchmarks.sections import commit, write_section
from dpcompare import Cluster, RunConfig, RunFailedError, Workload, resume, run
from dpcompare.config.modes import MODES, modes_by_default
from dpcompare.results.checkpoint import load_checkpoint, training_id
from dpcompare.results.events import CheckpointSaved, Event, Started, StepsTrained, read_events
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import CONFIG_FILE, checkpoint_paths
from dpcompare.system.processes import is_alive
from stress.trials import num_processes, ports_listening, shared_memory

STEPS = 30
SETTLED_AFTER = 20
"""Runs after which the parent has loaded all that it needs."""
MOST_GROWTH = 8 << 20
"""Bytes by which it may grow after that."""


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
            return ["a process was killed, and nobody noticed"]
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
    training = training_id(RunConfig.load(run_dir / CONFIG_FILE))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file whose section gets the counts")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    generator, counts, problems, settled = random.Random(arguments.seed), Counter[str](), [], 0
    for number in range(1, arguments.runs + 1):
        framework, mode = modes_by_default()[number % len(modes_by_default())]
        before = left_behind()
        with tempfile.TemporaryDirectory(prefix="dpcompare-soak-") as folder:
            try:
                found = one_run(framework, mode, generator, Path(folder) / "run", counts)
            except Exception:
                found = [traceback.format_exc()]
        found += [f"left: {each}" for each in left_behind() - before]
        problems += [f"run {number}, {framework} {mode}: {each}" for each in found]
        counts["runs"] += 1
        settled = resident_bytes() if number == SETTLED_AFTER else settled
        print(
            f"[{number}/{arguments.runs}] {framework} {mode} {resident_bytes() >> 20} MiB {found or ''}",
            file=sys.stderr,
        )
    grown = resident_bytes() - settled if settled else math.nan
    if grown > MOST_GROWTH:
        problems.append(f"the parent grew by {grown} bytes")
    lines = [
        f"`python -m stress.soak {' '.join(sys.argv[1:])}` at {commit()}: {counts['runs']} runs in one parent over "
        f"six modes, {counts['killed']} with a process killed, {counts['interrupted']} interrupted, "
        f"{counts['resumed']} resumed. Problems (processes, files, threads, ports or shared memory left, files "
        "unreadable, checkpoints lost, other losses): "
        f"{len(problems)}. Memory of the parent between run {SETTLED_AFTER} and the last: {grown / 2**20:+.1f} MiB.",
    ]
    print("\n".join([*problems, *lines]))
    if arguments.write:
        write_section(arguments.write, "soak", lines)
    sys.exit(3 if problems else 0)


if __name__ == "__main__":
    main()
