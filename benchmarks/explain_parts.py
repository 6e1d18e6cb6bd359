"""What bounds a step in several modes: the parts that `dpcompare explain` finds, side by side.

    python -m benchmarks.explain_parts OUT [--model efficientnet-b2] [--steps 24] [--rounds 6] [--write [FOLDER]]

Each arm of ARMS is explained on two simulated nodes of one CPU device, or on one device where its mode has no more. A
part is what a step saves without it, a difference of runs, so together they miss the step by what the rounds vary.
Devices that share the cores of one machine contend for them, which devices with cores of their own do not. OUT keeps
the runs; the same command continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.evidence import Keeper, number, table, text
from dpcompare import Workload, explain
from dpcompare.projection.explanation import Explanation

ARMS = {"torch:single": 1, "torch:ddp": 2}
"""Arm -> its nodes."""
STEP = "the whole step"
WARMUP_STEPS = 6


def parts(arm: str, explained: Explanation) -> Iterator[tuple[str, str, float, float]]:
    """Arm, part, milliseconds and share of the step, the whole step first.

    Contention between devices is a part of other parts; what noise takes below 0 is left out.
    """
    yield arm, STEP, explained.step_milliseconds, 1.0
    for row in explained.parts:
        if row.part != "sharing" and row.share > 0:
            yield arm, row.words, row.milliseconds_shown, row.milliseconds_shown / explained.step_milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory of all runs")
    parser.add_argument("--model", default="efficientnet-b2")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--steps", type=int, default=24, help=f"of each run, {WARMUP_STEPS} of which warm up")
    parser.add_argument("--rounds", type=int, default=6)
    keeper = Keeper(parser, "benchmarks.explain_parts")
    asked = parser.parse_args()
    workload = Workload(
        model=asked.model,
        image_size=asked.image_size,
        dataset="synthetic",
        global_batch_size=asked.batch,
        steps=asked.steps,
        warmup_steps=WARMUP_STEPS,
    )
    rows, verdicts = [], []
    for arm, nodes in ARMS.items():
        out = asked.out / arm.replace(":", "-")
        explained = explain(arm, workload, rounds=asked.rounds, nodes=nodes, device="cpu", out=out)
        rows += parts(arm.replace(":", " "), explained)
        verdicts.append(f"{arm.replace(':', ' ')}: {explained.verdict}")
    columns = [*text("arm", "part"), number("ms", ".1f"), number("share of the step", ".0%")]
    keeper.keep(asked.write, "explain-parts", "measured", sentences=verdicts, tables=[table(columns, rows)])


if __name__ == "__main__":
    main()
