"""The matrix of faults: seeded trials with real processes and real signals, every one counted, none repeated.

    python -m stress.fault_matrix [--trials 300] [--seed 0] [--fault NAME ...] [--mode FRAMEWORK:MODE ...]
                                  [--jobs 3] [--out DIR [--seconds 3600]] [--write [FOLDER]]

Each trial starts `dpcompare run` with a tiny model, lets one fault act, and measures how long it takes until the
command and all its processes are gone, what it says, what is left, and whether the run resumes exactly. A fault that
did not act is a failed trial. With --jobs several are made at the same time, since much of a trial is waiting; each has
a network, shared memory and mounts of its own then (needs root). One in ten, and those with a Slurm, are made on the
machine as it is, one after the other alongside these; those that run out of memory are made first, with nothing else
running. With --out trials are kept, and the same command continues with those that were not made yet: with --seconds,
after which no trial begins, a thousand are made in pieces. Prints a table; exit code 3 when any trial
failed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evidence import Keeper, Status, Table, commit, number, table, text
from dpcompare.config.modes import MODES, USUAL_MODES
from dpcompare.system.network_namespace import leave_the_network
from dpcompare.system.processes import die_with_parent
from stress.faults import FAULTS
from stress.outer_faults import OUTER_FAULTS
from stress.trials import Fault, keep_references, resume_trial, trial_of

ALL_FAULTS = FAULTS | OUTER_FAULTS
TRIALS = 300
"""By default, and the least for which the status is not open."""
VISIBLE = 5
"""Seconds within which everything must be gone where a death can be seen."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A trial that was made."""

    number: int
    """In the order of trials, from 1."""
    fault: str
    framework: str
    mode: str
    seconds: float
    """Until all was gone; not a number where this script has failed."""
    problems: list[str]
    resumed: bool
    """And equal to a run that was left alone, bit for bit."""
    said: str
    """The first message of the command."""
    commit: str


class Series:
    """The trials of a command, kept in a folder where there is one."""

    def __init__(self, out: Path | None, asked: dict[str, Any]) -> None:
        """
        Raises:
            SystemExit: the folder is that of another command.
        """
        self.made: list[Made] = []
        self._file = out / "trials.jsonl" if out else None
        if self._file and self._file.exists():
            first, *lines = self._file.read_text().splitlines()
            if json.loads(first) != asked:
                sys.exit(f"{out} holds the trials of {first}; expected those of {json.dumps(asked)}, or another --out")
            self.made = [Made(**json.loads(line)) for line in lines]
        elif self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(asked) + "\n")

    def add(self, made: Made) -> None:
        self.made.append(made)
        if self._file:
            with self._file.open("a") as file:
                file.write(json.dumps(vars(made)) + "\n")


def first_line(said: str) -> str:
    """What the command says first of its failure, without what differs from trial to trial."""
    lines = [*said.splitlines(), ""]
    text = next((line for before, line in pairwise(lines) if before.endswith(" failed.")), lines[-2])
    text = re.sub(r"/tmp/\S*/run", "RUN_DIR", text)
    return text if len(text) <= 110 else text[:107] + "..."


def table_of(made: Sequence[Made]) -> Table:
    """A row for each fault."""
    columns = [
        *text("fault"),
        number("modes"),
        number("trials"),
        number("failed"),
        number("median s until all is gone", ".1f"),
        number("largest", ".1f"),
        number("allowed", ".0f"),
        number("exit code"),
        number("resumed, bit-equal"),
        *text("what is said first, for example"),
    ]
    rows = []
    for name, fault in ALL_FAULTS.items():
        if trials := [each for each in made if each.fault == name]:
            modes = {(each.framework, each.mode) for each in trials}
            seconds = [each.seconds for each in trials]
            resumed, failed = sum(each.resumed for each in trials), sum(bool(each.problems) for each in trials)
            until_gone = float(np.nanmedian(seconds)), float(np.nanmax(seconds))
            counts = len(modes), len(trials), failed
            rows.append((name, *counts, *until_gone, fault.within, fault.code, resumed or None, trials[-1].said))
    return table(columns, rows)


def visible_deaths(made: Sequence[Made]) -> list[float]:
    """Seconds until all was gone, of the trials of all faults that no process has to wait for."""
    return [each.seconds for each in made if ALL_FAULTS[each.fault].within == VISIBLE]


def sentence_on(made: Sequence[Made], num_trials: int) -> str:
    parts = [
        f"{len(made)} of {num_trials} trials, {num_failed(made)} failed; "
        f"{sum(each.resumed for each in made)} runs were resumed, bit for bit."
    ]
    if seconds := visible_deaths(made):
        within = f"{np.nanpercentile(seconds, 99):.1f} s"
        parts.append(f"Gone after a visible death: 99% of {len(seconds)} within {within} (allowed {VISIBLE}).")
    if commits := dict.fromkeys(each.commit for each in made):
        # A series in a folder may have been continued at another commit.
        parts.append(f"Commits of the trials: {', '.join(commits)}.")
    return " ".join(parts)


def figures_of(made: Sequence[Made]) -> dict[str, str | int]:
    seconds = visible_deaths(made)
    return {
        "trials": len(made),
        "failed": num_failed(made),
        "resumed": sum(each.resumed for each in made),
        "visible_deaths": len(seconds),
        "visible_deaths_gone_within_s": f"{np.nanpercentile(seconds, 99):.1f}" if seconds else "-",
    }


def num_failed(made: Sequence[Made]) -> int:
    return sum(bool(each.problems) for each in made)


def is_whole(arguments: argparse.Namespace, made: Sequence[Made]) -> bool:
    """Whether there were enough trials, of every fault and mode, with the seconds that are allowed."""
    has_all = set(ALL_FAULTS) <= {each.fault for each in made}  # some want root, or programs
    return len(made) >= TRIALS and has_all and not (arguments.fault or arguments.mode) and arguments.patience == 1


def parser_of_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", choices=ALL_FAULTS, help="only these")
    parser.add_argument("--mode", action="append", help="only these, such as torch:ddp")
    parser.add_argument("--resume-every", type=int, default=4, metavar="N", help="resume every N-th trial that can be")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="isolated trials at the same time (more than one needs root), alongside one on the machine as it is",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        metavar="TIMES",
        help="the seconds that are allowed, so many times: on a machine that does other work. Not for the docs",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keeps the trials, and goes on with them")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no trial begins after that")
    return parser


def order_of_trials(arguments: argparse.Namespace, generator: random.Random) -> list[tuple[str, str, str]]:
    """Fault, framework and mode of each trial: every combination equally often, in random order."""
    modes = [tuple(mode.split(":")) for mode in arguments.mode] if arguments.mode else USUAL_MODES
    cells = [
        (name, framework, mode)
        for name in arguments.fault or ALL_FAULTS
        for framework, mode in modes
        if ALL_FAULTS[name].applies(framework, mode)
    ]
    order = [cells[number % len(cells)] for number in range(arguments.trials)]
    generator.shuffle(order)
    return order


@dataclass(frozen=True, kw_only=True)
class Task:
    """A trial that is to be made."""

    number: int
    fault: str
    framework: str
    mode: str
    resumes: bool
    """Afterwards, where the fault allows it; always if it acts only then."""
    isolated: bool
    """Whether it is made with a network, shared memory and mounts of its own, if several are made at the same time."""
    seed: str
    patience: float
    """What the seconds that are allowed are multiplied by."""


_CLONE_NEWNS, _CLONE_NEWIPC = 0x00020000, 0x08000000  # sched.h


def take_a_machine_of_its_own() -> None:
    """Have ports and shared memory of this process and its children apart from those of other trials."""
    die_with_parent()
    leave_the_network()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS | _CLONE_NEWIPC) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)


def try_once(task: Task, deadline: float) -> Made | None:
    """One trial, unless it is too late for one."""
    if time.monotonic() > deadline:
        return None
    print(f"[{task.number}] {task.fault}, {task.framework} {task.mode}", file=sys.stderr, flush=True)
    fault = ALL_FAULTS[task.fault]
    return _try(task, replace(fault, within=fault.within * task.patience))


def _try(task: Task, fault: Fault) -> Made:
    resumed = False
    try:
        with trial_of(fault, task.framework, task.mode, random.Random(task.seed)) as trial:
            wanted = fault.before_resuming is not None or task.resumes
            if fault.resumable and fault.code != 0 and not trial.problems and wanted:
                trial.problems += resume_trial(trial, fault)
                resumed = not trial.problems
        seconds, problems, said = trial.seconds, trial.problems, trial.said
    except Exception:  # of this script: the trial has failed, and the series continues
        seconds, problems, said = math.nan, [traceback.format_exc()], ""
    if problems:
        what = f"{task.fault}, {task.framework} {task.mode}"
        print(f"FAILED {what}: {' '.join(problems)}\n{said[-1500:]}", file=sys.stderr)
    return Made(
        number=task.number,
        fault=task.fault,
        framework=task.framework,
        mode=task.mode,
        seconds=seconds,
        problems=problems,
        resumed=resumed,
        said=first_line(said) if fault.code > 0 and said else "-",
        commit=commit(),
    )


def make(tasks: Sequence[Task], series: Series, jobs: int, deadline: float) -> None:
    """Make trials and keep what was made also when it is interrupted.

    Args:
        jobs: how many isolated ones at the same time; alongside them one after the other of those that are not.

    Raises:
        BrokenProcessPool: a process that makes trials was killed; what came of its trial is not known.
    """
    context = get_context("fork")
    # The second to start forks alongside a thread of the first, whose locks its processes never take.
    with (
        ProcessPoolExecutor(1, context, die_with_parent) as on_the_machine,
        ProcessPoolExecutor(jobs, context, take_a_machine_of_its_own) as apart,
    ):
        pools = [apart if task.isolated else on_the_machine for task in tasks]
        trials = [pool.submit(try_once, task, deadline) for pool, task in zip(pools, tasks, strict=True)]
        try:
            for trial in as_completed(trials):
                _keep(trial, series)
        except BaseException:
            for trial in trials:
                trial.cancel()
            for pool in (on_the_machine, apart):
                pool.shutdown()
            for trial in trials:
                if not (trial.cancelled() or trial.exception()):
                    _keep(trial, series)
            raise


def _keep(trial: Future[Made | None], series: Series) -> None:
    made = trial.result()
    if made and made not in series.made:
        series.add(made)
        print(f"    [{made.number}] {made.seconds:.1f} s", file=sys.stderr, flush=True)


def tasks_of(arguments: argparse.Namespace, there: set[int]) -> list[Task]:
    """The trials that were not made yet."""
    order = order_of_trials(arguments, random.Random(arguments.seed))
    return [
        Task(
            number=number,
            fault=name,
            framework=framework,
            mode=mode,
            resumes=number % arguments.resume_every == 0,
            isolated=arguments.jobs > 1
            and not (ALL_FAULTS[name].alone or ALL_FAULTS[name].on_the_machine)
            and number % 10 != 0,
            seed=f"{arguments.seed} {number}",
            patience=arguments.patience,
        )
        for number, (name, framework, mode) in enumerate(order, start=1)
        if number not in there
    ]


def main() -> None:
    parser = parser_of_options()
    keeper = Keeper(parser, "stress.fault_matrix")
    arguments = parser.parse_args()
    for ending in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in the background of a shell
        signal.signal(ending, signal.default_int_handler)
    if left_out := [name for name in ALL_FAULTS if not any(ALL_FAULTS[name].applies(*mode) for mode in MODES)]:
        print(f"LEFT OUT, for want of root or programs: {', '.join(left_out)}", file=sys.stderr)
    asked = {name: getattr(arguments, name) for name in ("trials", "seed", "fault", "mode", "resume_every", "patience")}
    series = Series(arguments.out, asked)
    tasks = tasks_of(arguments, {each.number for each in series.made})
    deadline = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory(prefix="dpcompare-references-") as temporary:
        keep_references((arguments.out or Path(temporary)).resolve() / f"references-{commit()}")
        try:
            for alone in (True, False):
                now = [task for task in tasks if ALL_FAULTS[task.fault].alone == alone]
                make(now, series, arguments.jobs, deadline)
        except KeyboardInterrupt:
            print("ended early", file=sys.stderr)
    made_all = sorted(series.made, key=lambda each: each.number)
    failed = num_failed(made_all)
    status: Status = "failed" if failed else "passed" if is_whole(arguments, made_all) else "open"
    keeper.keep(
        arguments.write,
        "faults",
        status,
        sentences=[sentence_on(made_all, arguments.trials)],
        tables=[table_of(made_all)],
        figures=figures_of(made_all),
    )
    sys.exit(3 if failed else 0)


if __name__ == "__main__":
    main()
