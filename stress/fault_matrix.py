"""The matrix of faults: seeded trials with real processes and real signals, every one counted, none repeated.

    python -m stress.fault_matrix [--trials 300] [--seed 0] [--fault NAME ...] [--mode FRAMEWORK:MODE ...]
                                  [--write FILE]

Each trial starts `dpcompare run` with a tiny model, lets one fault act, and measures how long it takes until the
command and all its processes are gone, what it says, what is left, and whether the run resumes exactly. A fault that
did not act is a failed trial. Prints a table in Markdown; exit code 3 when any trial failed.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import traceback
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.sections import commit, write_section
from dpcompare.config.modes import modes_by_default
from stress.faults import FAULTS
from stress.trials import Fault, resume_trial, trial_of

VISIBLE = 5
"""Seconds within which everything must be gone where a death can be seen."""


@dataclass
class Row:
    """The trials of one fault."""

    modes: set[str]
    seconds: list[float]
    failed: int = 0
    resumed: int = 0
    said: str = "-"

    @classmethod
    def empty(cls) -> Row:
        return cls(set(), [])


def first_line(said: str) -> str:
    """What the command says first of its failure, without what differs from trial to trial."""
    lines = [*said.splitlines(), ""]
    text = next((line for before, line in pairwise(lines) if before.endswith(" failed.")), lines[-2])
    text = re.sub(r"/tmp/\S*/run", "RUN_DIR", text)
    return text if len(text) <= 110 else text[:107] + "..."


def table(rows: dict[str, Row]) -> list[str]:
    lines = [
        "| fault | modes | trials | failed | median s until all is gone | largest | allowed | exit code "
        "| resumed, bit-equal | what is said first, for example |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, fault in FAULTS.items():
        if (row := rows.get(name)) is not None:
            figures = f"{np.nanmedian(row.seconds):.1f} | {np.nanmax(row.seconds):.1f}"
            lines.append(
                f"| {name} | {len(row.modes)} | {len(row.seconds)} | {row.failed} | {figures} | {fault.within:.0f} | "
                f"{fault.code} | {row.resumed or '-'} | {row.said} |"
            )
    return lines


def visible_deaths(rows: dict[str, Row]) -> str:
    """Of all faults that nobody has to wait for."""
    seconds = [second for name, row in rows.items() if FAULTS[name].within == VISIBLE for second in row.seconds]
    if not seconds:
        return ""
    within = f"{np.nanpercentile(seconds, 99):.1f} s"
    return f"Gone after a visible death: 99% of {len(seconds)} within {within} (allowed {VISIBLE})."


def arguments_of(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only these")
    parser.add_argument("--mode", action="append", help="only these, such as torch:ddp")
    parser.add_argument("--resume-every", type=int, default=4, metavar="N", help="resume every N-th trial that can be")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file whose section gets the table")
    return parser.parse_args(argv)


def order_of_trials(arguments: argparse.Namespace, generator: random.Random) -> list[tuple[str, str, str]]:
    """Fault, framework and mode of each trial: every combination equally often, in random order."""
    modes = [tuple(mode.split(":")) for mode in arguments.mode] if arguments.mode else modes_by_default()
    cells = [
        (name, framework, mode)
        for name in arguments.fault or FAULTS
        for framework, mode in modes
        if FAULTS[name].applies(framework, mode)
    ]
    order = [cells[number % len(cells)] for number in range(arguments.trials)]
    generator.shuffle(order)
    return order


def try_once(
    row: Row, fault: Fault, framework: str, mode: str, generator: random.Random, resumes: bool, title: str
) -> None:
    """One trial, counted in its row; resumed afterwards where the fault allows it, always if it acts only then."""
    with trial_of(fault, framework, mode, generator) as trial:
        wanted = fault.before_resuming is not None or resumes
        if fault.resumable and fault.code != 0 and not trial.problems and wanted:
            trial.problems += resume_trial(trial, fault)
            row.resumed += not trial.problems
    row.seconds.append(trial.seconds)
    row.failed += bool(trial.problems)
    row.said = "-" if fault.code <= 0 else first_line(trial.said)
    if trial.problems:
        print(f"FAILED {title}: {trial.problems}\n{trial.said[-1500:]}", file=sys.stderr)
    print(f"{title}: {trial.seconds:.1f} s", file=sys.stderr)


def main() -> None:
    arguments = arguments_of()
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in the background of a shell
        signal.signal(number, signal.default_int_handler)
    generator = random.Random(arguments.seed)
    order = order_of_trials(arguments, generator)
    rows: dict[str, Row] = defaultdict(Row.empty)
    ended_early = ""
    try:
        for number, (name, framework, mode) in enumerate(order, start=1):
            rows[name].modes.add(f"{framework} {mode}")
            title = f"[{number}/{len(order)}] {name}, {framework} {mode}"
            try:
                try_once(
                    rows[name], FAULTS[name], framework, mode, generator, number % arguments.resume_every == 0, title
                )
            except Exception:  # of this script: the trial has failed, and the series continues
                rows[name].failed += 1
                rows[name].seconds.append(float("nan"))
                print(f"FAILED {title}\n{traceback.format_exc()}", file=sys.stderr)
    except KeyboardInterrupt:
        ended_early = " (ended early)"
    num_trials = sum(len(row.seconds) for row in rows.values())
    num_failed = sum(row.failed for row in rows.values())
    lines = [
        f"`python -m stress.fault_matrix {' '.join(sys.argv[1:])}` at {commit()}{ended_early}: "
        f"{num_trials} trials, {num_failed} failed; "
        f"{sum(row.resumed for row in rows.values())} runs were resumed, bit for bit. {visible_deaths(rows)}",
        "",
        *table(rows),
    ]
    print("\n".join(lines))
    if arguments.write:
        write_section(arguments.write, "faults", lines)
    sys.exit(3 if num_failed else 0)


if __name__ == "__main__":
    main()
