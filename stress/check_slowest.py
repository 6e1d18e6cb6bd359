"""Does the model tell how long many processes wait for the slowest? Steps of random length, on 2 processes and on more.

    python -m stress.check_slowest [--nodes 4 8] [--rounds 2] [--spread 0.2] [--out FOLDER] [--write FILE]

Each process waits for a random, normally distributed time in every step. Waiting takes no core, so that two cores are
enough for 8 processes; what each computes, some 4 ms, is little in comparison. A study of torch:ddp on two nodes, with
and without gradient sync, is all that the model knows when it predicts the steps of more nodes; they are measured
afterwards. Exit code 3 where one is off by more than 5%.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.sections import commit, typed, write_section
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.experiments.collection import collect
from dpcompare.experiments.study import Arm, ablated
from dpcompare.experiments.study_runs import Watcher
from dpcompare.projection.measured import NO_LIMIT, MeasuredArm, measured_arms
from dpcompare.projection.step import predict_step
from stress.injection import interpreter_with
from stress.studies import run_in_rounds

MEASURED_NODES = 2
BATCH = 4
"""Per process."""
WAIT_SECONDS = 0.5
LARGEST_ERROR = 0.05


def waiting(spread: float) -> str:
    """The fault: a wait before each step, whose standard deviation is `spread` of it."""
    return f"""
def inject(module):
    import random, time
    step = module.TorchBackend.train_step
    def waits(self, *arguments):
        time.sleep(max(0.0, random.gauss({WAIT_SECONDS}, {spread * WAIT_SECONDS})))
        return step(self, *arguments)
    module.TorchBackend.train_step = waits
"""


def arm_on(nodes: int, python: str) -> Arm:
    # Of few parameters, whose exchange takes little.
    workload = Workload(model="toy-bn", image_size=32, global_batch_size=BATCH * nodes, steps=165, warmup_steps=5)
    cluster = Cluster.partition(nodes, 1, device="cpu")
    config = RunConfig(framework="torch", mode="ddp", workload=workload, cluster=cluster, python=python)
    return Arm(name=f"{nodes} nodes", config=config)


def seconds_predicted(arm: MeasuredArm, nodes: int, *, spread: float | None = None) -> float:
    """Predicted seconds of a step on simulated nodes with an unlimited link, with another spread if given."""
    work = arm.work_on()
    work = work if spread is None else replace(work, spread=spread)
    return predict_step(work, arm.on(nodes, 1, NO_LIMIT, NO_LIMIT)).seconds


def lines(arm: MeasuredArm, measured: Path) -> Iterator[tuple[str, bool]]:
    """A row per number of nodes, and whether its prediction is near enough."""
    for runs in collect([measured]).arms:
        nodes = runs.config.cluster.num_nodes
        seconds = median(run.step_seconds.typical for run in runs.completed if run.step_seconds)
        predicted, no_longer = seconds_predicted(arm, nodes), seconds_predicted(arm, nodes, spread=0.0)
        error = predicted / seconds - 1
        row = (
            f"| {nodes} | {1000 * seconds:.1f} | {1000 * no_longer:.1f} | {no_longer / seconds - 1:+.1%} | "
            f"{1000 * predicted:.1f} | {error:+.1%} |"
        )
        yield row, abs(error) <= LARGEST_ERROR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--spread", type=float, default=0.2, help="standard deviation of the waits, relative to them")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keeps all runs; the same one is continued")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file whose section gets the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dpcompare-slowest-") as temporary:
        folder = arguments.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        python = interpreter_with(folder / "python", "dpcompare.backends.torch.backend", waiting(arguments.spread))
        two = arm_on(MEASURED_NODES, python)
        without = ablated(two)
        assert without is not None
        run_in_rounds([two, without], folder / "two", arguments.rounds, Watcher())
        (arm,), _ = measured_arms(collect([folder / "two"]))
        for nodes in arguments.nodes:
            print(f"{nodes} nodes: predicted {1000 * seconds_predicted(arm, nodes):.1f} ms", file=sys.stderr)
        more = [arm_on(nodes, python) for nodes in arguments.nodes]
        run_in_rounds(more, folder / "more", arguments.rounds, Watcher())
        judged = list(lines(arm, folder / "more"))
        assert arm.seconds is not None
        table = [
            f"{typed('stress.check_slowest')} at {commit()}:",
            "",
            f"On {MEASURED_NODES} nodes a step takes {1000 * arm.work.computing_seconds:.1f} ms without exchange, "
            f"{1000 * arm.seconds:.1f} ms with it; the measured spread is {arm.work.spread:.1%}.",
            "",
            "| nodes | measured, ms | if more waited no longer, ms | error | predicted, ms | error |",
            "|--:|--:|--:|--:|--:|--:|",
            *(line if near else f"{line.removesuffix('|')}**OFF** |" for line, near in judged),
        ]
    print("\n".join(table))
    if arguments.write:
        write_section(arguments.write, "check_slowest", table)
    return 0 if all(near for _, near in judged) else 3


if __name__ == "__main__":
    sys.exit(main())
