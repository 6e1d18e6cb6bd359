"""What runs cost against those of another checkout of dpcompare: speed, CPU time and size of the event files.

    python -m benchmarks.earlier CHECKOUT [--rounds 6] [--write [FOLDER]]

In every round each case runs once by this checkout and once by the other, in random order, in the same environment and
with the same options. A ratio is that of the two runs of a round. Budgets: a step of EfficientNet-B2 takes at most 1%
longer than by the other checkout, one of toy-cnn 3%, and event files grow by a tenth at most. Exit code 3 where a
median exceeds its budget.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.evidence import ROOT, Keeper, Table, number, spread, table, text


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is run by both checkouts."""

    options: tuple[str, ...]
    most: float
    """The largest ratio of the seconds of a step that is within the budget."""


B2 = ("--model", "efficientnet-b2", "--image-size", "64", "--global-batch-size", "16", "--steps", "45")
TOY = ("--model", "toy-cnn", "--image-size", "32", "--global-batch-size", "64", "--steps", "1000")
CASES = {
    "torch single, EfficientNet-B2": Case(options=("torch:single", *B2), most=1.01),
    "torch single, toy-cnn": Case(options=("torch:single", *TOY), most=1.03),
    "tensorflow single, toy-cnn": Case(options=("tensorflow:single", *TOY), most=1.03),
}
MOST_EVENTS = 1.1
"""The largest ratio of the bytes of event files."""
RATIO = ".3f"


class Cost(NamedTuple):
    """What a run took."""

    step_seconds: float
    """By its steady speed."""
    cpu_seconds: float
    """Of its processes, start included."""
    event_bytes: float


def cost_of(case: Case, checkout: Path, folder: Path) -> Cost:
    """Run a case by a checkout.

    Raises:
        RuntimeError: it failed.
    """
    argv = [sys.executable, "-P", "-m", "dpcompare", "run", *case.options, "--dataset", "synthetic-mini"]
    argv += ["--device", "cpu", "--run-dir", str(folder / "run")]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    before = os.times()
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)
    after = os.times()
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} by {checkout} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    return Cost(
        step_seconds=result["global_batch_size"] / result["steady_images_per_second"],
        cpu_seconds=sum(getattr(after, name) - getattr(before, name) for name in ("children_user", "children_system")),
        event_bytes=float(sum(path.stat().st_size for path in (folder / "run" / "events").iterdir())),
    )


def measured(other: Path, rounds: int, generator: random.Random) -> dict[str, list[Cost]]:
    """Case -> the ratios of each round, this checkout over the other."""
    ratios = defaultdict(list)
    for number_of_round in range(1, rounds + 1):
        for name, case in CASES.items():
            costs = {}
            for checkout in generator.sample([ROOT, other], 2):
                with tempfile.TemporaryDirectory(prefix="dpcompare-earlier-") as folder:
                    costs[checkout] = cost_of(case, checkout, Path(folder))
            ratio = Cost(*(mine / theirs for mine, theirs in zip(costs[ROOT], costs[other], strict=True)))
            ratios[name].append(ratio)
            print(f"round {number_of_round}: {name} {json.dumps(ratio._asdict())}", file=sys.stderr, flush=True)
    return ratios


def table_of(ratios: Mapping[str, list[Cost]]) -> Table:
    """A row for each case: medians of the ratios and their ranges."""
    columns = [
        *text("run"),
        *(number(title, RATIO) for title in ("seconds of a step", "budget", "CPU seconds of the run", "event files")),
    ]
    rows = []
    for name, of_rounds in ratios.items():
        steps, cpu, events = map(spread, zip(*of_rounds, strict=True))
        rows.append((name, steps, CASES[name].most, cpu, events))
    return table(columns, rows)


def exceeded(ratios: Mapping[str, list[Cost]]) -> list[str]:
    """The cases whose medians exceed a budget, in words."""
    found = []
    for name, of_rounds in ratios.items():
        steps, _, events = (median(values) for values in zip(*of_rounds, strict=True))
        if steps > CASES[name].most:
            found.append(f"a step of {name} takes {steps:{RATIO}} times as long")
        if events > MOST_EVENTS:
            found.append(f"the event files of {name} are {events:{RATIO}} times as large")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="root of the other checkout")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0, help="of the order in a round")
    keeper = Keeper(parser, "benchmarks.earlier")
    arguments = parser.parse_args()
    other = arguments.checkout.resolve()
    if not (other / "dpcompare").is_dir():
        parser.error(f"checkout: received {arguments.checkout}, which has no dpcompare; expected the root of a clone")
    commit = subprocess.run(
        ["git", "-C", str(other), "rev-parse", "--short=8", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    ratios = measured(other, arguments.rounds, random.Random(arguments.seed))
    found = exceeded(ratios)
    keeper.keep(
        arguments.write,
        "earlier",
        "failed" if found else "passed",
        sentences=[f"Ratios to commit {commit}, median of {arguments.rounds} rounds and range.", *found],
        tables=[table_of(ratios)],
    )
    sys.exit(3 if found else 0)


if __name__ == "__main__":
    main()
