"""The profile of a step: the operations of each framework, by the time that they took themselves.

    python -m benchmarks.profile_step [--mode torch:single ...] [--profile native] [--top 12] [--write [FOLDER]]

Runs EfficientNet-B2 with a trace of some steps (`dpcompare run --profile-steps`) and adds up the operations of the
first process. The time of an operation is without that of the ones inside it. Operations of several threads run at
once, so percentages are of all their time together, not of a clock's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.evidence import Keeper, Table, number, table, text
from benchmarks.overhead import devices_of
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import trace_path

FIRST_STEP, LAST_STEP = 11, 15


class Profile(NamedTuple):
    """Milliseconds of a step."""

    step: float
    """Its median, by the clock."""
    operations: Mapping[str, float]
    """Kind -> what it took itself, in the first process."""


def operation(event: dict[str, Any]) -> str | None:
    """The kind of operation of an event in either framework's trace; None for what is no operation."""
    name: str = event["name"]
    if event.get("cat") == "cpu_op":  # torch
        return "autograd itself" if name.startswith("autograd::") else name.removeprefix("aten::")
    # TensorFlow: `name of the node:Operation` where a kernel ran.
    node, colon, kind = name.rpartition(":")
    return kind if colon and not kind.startswith(" ") and not node.endswith(":") and "cat" not in event else None


def own_milliseconds(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Time of each kind of operation without that of the operations inside it."""
    totals: dict[str, float] = defaultdict(float)
    threads: dict[Any, list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and (kind := operation(event)) is not None:
            threads[event["pid"], event["tid"]].append((event["ts"], -event["dur"], kind))
    for thread in threads.values():
        around: list[tuple[float, str]] = []
        for begin, negative, kind in sorted(thread):
            while around and around[-1][0] <= begin:
                around.pop()
            if around:
                totals[around[-1][1]] += negative / 1000
            totals[kind] -= negative / 1000
            around.append((begin - negative, kind))
    return totals


def profiled(framework: str, mode: str, profile: str, image_size: int) -> Profile:
    with tempfile.TemporaryDirectory(prefix="dpcompare-profile-") as folder:
        run_dir = Path(folder) / "run"
        argv = [sys.executable, "-m", "dpcompare", "run", "--framework", framework, "--mode", mode, "--device", "cpu"]
        argv += [*devices_of(framework, mode), "--dataset", "synthetic", "--image-size", str(image_size)]
        argv += ["--steps", str(LAST_STEP + 1), "--profile", profile]
        argv += ["--profile-steps", f"{FIRST_STEP}:{LAST_STEP}", "--run-dir", str(run_dir)]
        subprocess.run(argv, check=True, capture_output=True)
        events = json.loads(trace_path(run_dir, 0).read_text())["traceEvents"]
        result = RunResult.load(run_dir)
    steps = LAST_STEP - FIRST_STEP + 1
    assert result.step_seconds is not None
    totals = {kind: spent / steps for kind, spent in own_milliseconds(events).items()}
    return Profile(step=result.step_seconds.typical * 1000, operations=totals)


def table_of(name: str, found: Profile, top: int) -> Table:
    """The operations that took longest, and all others together."""
    totals = found.operations
    everything = sum(totals.values())
    largest = sorted(totals, key=lambda kind: -totals[kind])[:top]
    rest = everything - sum(totals[kind] for kind in largest)
    shares = [*((kind, totals[kind]) for kind in largest), (f"{len(totals) - len(largest)} others", rest)]
    return table(
        [*text("operation"), number("ms per step", ".1f"), number("share", ".1%")],
        [(kind, spent, spent / everything) for kind, spent in shares],
        title=f"{name}: {everything:.0f} ms of operations per step in the first process; a median step took "
        f"{found.step:.0f} ms:",
    )


def figures_of(mode: str, found: Profile) -> dict[str, str]:
    totals = found.operations.values()
    return {f"{mode}_ms": f"{found.step:.0f}", f"{mode}_largest_share": f"{max(totals) / sum(totals):.0%}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", action="append", help="such as torch:ddp; default: torch:single, tensorflow:single")
    parser.add_argument("--profile", choices=["strict", "native"], default="strict")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--top", type=int, default=10)
    keeper = Keeper(parser, "benchmarks.profile_step")
    arguments = parser.parse_args()
    tables, figures = [], {}
    for name in arguments.mode or ("torch:single", "tensorflow:single"):
        framework, mode = name.split(":")
        found = profiled(framework, mode, arguments.profile, arguments.image_size)
        tables.append(table_of(f"{framework} {mode}, {arguments.profile}", found, arguments.top))
        figures |= figures_of(f"{framework}_{mode}", found)
    keeper.keep(
        arguments.write,
        "profile" if arguments.profile == "strict" else f"profile-{arguments.profile}",
        "open" if arguments.mode else "measured",
        tables=tables,
        figures=figures,
    )


if __name__ == "__main__":
    main()
