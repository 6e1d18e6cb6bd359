"""The matrix of faults: seeded trials with real processes and real signals, every one counted, none repeated.

    python -m stress.fault_matrix [--trials 300] [--seed 0] [--fault NAME ...] [--mode FRAMEWORK:MODE ...]
                                  [--out DIR [--seconds 3600]] [--write FILE]

Each trial starts `dpcompare run` with a tiny model, lets one fault act, and measures how long it takes until the
command and all its processes are gone, what it says, what is left, and whether the run resumes exactly. A fault that
did not act is a failed trial. With --out trials are kept, and the same command goes on with those that were not made
yet: with --seconds, after which no trial begins, a thousand are made in pieces. Prints a table in Markdown; exit code 3
when any trial failed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sections import commit, typed, write_section
from dpcompare.config.modes import modes_by_default
from stress.faults import FAULTS
from stress.outer_faults import OUTER_FAULTS
from stress.trials import resume_trial, trial_of

ALL_FAULTS = FAULTS | OUTER_FAULTS
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
    """By the command, first."""
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


def table(made: Sequence[Made]) -> list[str]:
    lines = [
        "| fault | modes | trials | failed | median s until all is gone | largest | allowed | exit code "
        "| resumed, bit-equal | what is said first, for example |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, fault in ALL_FAULTS.items():
        if trials := [each for each in made if each.fault == name]:
            modes = {(each.framework, each.mode) for each in trials}
            seconds = [each.seconds for each in trials]
            resumed, failed = sum(each.resumed for each in trials), sum(bool(each.problems) for each in trials)
            figures = f"{np.nanmedian(seconds):.1f} | {np.nanmax(seconds):.1f}"
            lines.append(
                f"| {name} | {len(modes)} | {len(trials)} | {failed} | {figures} | {fault.within:.0f} | "
                f"{fault.code} | {resumed or '-'} | {trials[-1].said} |"
            )
    return lines


def visible_deaths(made: Sequence[Made]) -> str:
    """Of all faults that nobody has to wait for."""
    seconds = [each.seconds for each in made if ALL_FAULTS[each.fault].within == VISIBLE]
    if not seconds:
        return ""
    within = f"{np.nanpercentile(seconds, 99):.1f} s"
    return f"Gone after a visible death: 99% of {len(seconds)} within {within} (allowed {VISIBLE})."


def arguments_of(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", choices=ALL_FAULTS, help="only these")
    parser.add_argument("--mode", action="append", help="only these, such as torch:ddp")
    parser.add_argument("--resume-every", type=int, default=4, metavar="N", help="resume every N-th trial that can be")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keeps the trials, and goes on with them")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no trial begins after that")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file whose section gets the table")
    return parser.parse_args(argv)


def order_of_trials(arguments: argparse.Namespace, generator: random.Random) -> list[tuple[str, str, str]]:
    """Fault, framework and mode of each trial: every combination equally often, in random order."""
    modes = [tuple(mode.split(":")) for mode in arguments.mode] if arguments.mode else modes_by_default()
    cells = [
        (name, framework, mode)
        for name in arguments.fault or ALL_FAULTS
        for framework, mode in modes
        if ALL_FAULTS[name].applies(framework, mode)
    ]
    order = [cells[number % len(cells)] for number in range(arguments.trials)]
    generator.shuffle(order)
    return order


def try_once(number: int, name: str, framework: str, mode: str, generator: random.Random, resumes: bool) -> Made:
    """One trial; resumed afterwards where the fault allows it, always if it acts only then."""
    fault, resumed = ALL_FAULTS[name], False
    try:
        with trial_of(fault, framework, mode, generator) as trial:
            wanted = fault.before_resuming is not None or resumes
            if fault.resumable and fault.code != 0 and not trial.problems and wanted:
                trial.problems += resume_trial(trial, fault)
                resumed = not trial.problems
        seconds, problems, said = trial.seconds, trial.problems, trial.said
    except Exception:  # of this script: the trial has failed, and the series continues
        seconds, problems, said = math.nan, [traceback.format_exc()], ""
    if problems:
        print(f"FAILED {name}, {framework} {mode}: {' '.join(problems)}\n{said[-1500:]}", file=sys.stderr)
    return Made(
        number=number,
        fault=name,
        framework=framework,
        mode=mode,
        seconds=seconds,
        problems=problems,
        resumed=resumed,
        said=first_line(said) if fault.code > 0 and said else "-",
        commit=commit(),
    )


def main() -> None:
    arguments = arguments_of()
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in the background of a shell
        signal.signal(number, signal.default_int_handler)
    order = order_of_trials(arguments, random.Random(arguments.seed))
    asked = {name: getattr(arguments, name) for name in ("trials", "seed", "fault", "mode", "resume_every")}
    series = Series(arguments.out, asked)
    there = {each.number for each in series.made}
    began = time.monotonic()
    try:
        for number, (name, framework, mode) in enumerate(order, start=1):
            if number in there:
                continue
            if time.monotonic() - began > arguments.seconds:
                break
            print(f"[{number}/{len(order)}] {name}, {framework} {mode}", file=sys.stderr, flush=True)
            generator = random.Random(f"{arguments.seed} {number}")
            made = try_once(number, name, framework, mode, generator, number % arguments.resume_every == 0)
            series.add(made)
            print(f"    {made.seconds:.1f} s", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("ended early", file=sys.stderr)
    made_all, num_failed = series.made, sum(bool(each.problems) for each in series.made)
    lines = [
        f"{typed('stress.fault_matrix')} at "
        f"{', '.join(dict.fromkeys(each.commit for each in made_all))}: {len(made_all)} of {len(order)} trials, "
        f"{num_failed} failed; {sum(each.resumed for each in made_all)} runs were resumed, bit for bit. "
        f"{visible_deaths(made_all)}",
        "",
        *table(made_all),
    ]
    print("\n".join(lines))
    if arguments.write:
        write_section(arguments.write, "faults", lines)
    sys.exit(3 if num_failed else 0)


if __name__ == "__main__":
    main()
