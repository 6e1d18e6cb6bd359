"""Does the model tell how long many processes wait for the slowest? Steps of random length, on 2 processes and on more.

    python -m stress.check_slowest [--nodes 4 8] [--rounds 2] [--spread 0.2] [--out FOLDER] [--write [FOLDER]]

Each process waits for a random, normally distributed time in every step. Waiting takes no core, so that two cores are
enough for 8 processes; what each computes, some 4 ms, is little in comparison. A study of torch:ddp on two nodes, with
and without gradient sync, is all that the model knows when it predicts the steps of more nodes; they are measured
afterwards. Exit code 3 where one is off by more than 5%.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.evidence import Cell, Keeper, Status, Table, number, table
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


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Seconds of a step on a number of nodes."""

    nodes: int
    measured: float
    no_longer: float
    """Predicted, if more processes waited no longer for the slowest than one does."""
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def error_if_no_longer(self) -> float:
        return self.no_longer / self.measured - 1

    @property
    def is_near(self) -> bool:
        return abs(self.error) <= LARGEST_ERROR

    @property
    def row(self) -> tuple[Cell, ...]:
        return (
            self.nodes,
            1000 * self.measured,
            1000 * self.no_longer,
            self.error_if_no_longer,
            1000 * self.predicted,
            self.error if self.is_near else f"{self.error:+.1%} **OFF**",
        )


def judged(arm: MeasuredArm, measured: Path) -> Iterator[Judged]:
    """What was predicted and measured of each number of nodes."""
    for runs in collect([measured]).arms:
        nodes = runs.config.cluster.num_nodes
        seconds = median(run.step_seconds.typical for run in runs.completed if run.step_seconds)
        yield Judged(
            nodes=nodes,
            measured=seconds,
            no_longer=seconds_predicted(arm, nodes, spread=0.0),
            predicted=seconds_predicted(arm, nodes),
        )


def judged_table(arm: MeasuredArm, found: Sequence[Judged]) -> Table:
    assert arm.seconds is not None
    columns = [
        number("nodes"),
        number("measured, ms", ".1f"),
        number("if more waited no longer, ms", ".1f"),
        number("error", "+.1%"),
        number("predicted, ms", ".1f"),
        number("error", "+.1%"),
    ]
    title = (
        f"On {MEASURED_NODES} nodes a step takes {1000 * arm.work.computing_seconds:.1f} ms without exchange, "
        f"{1000 * arm.seconds:.1f} ms with it; the measured spread is {arm.work.spread:.1%}."
    )
    return table(columns, [each.row for each in found], title)


def figures_of(arm: MeasuredArm, found: Sequence[Judged]) -> dict[str, str | int]:
    """Those of the most nodes, and the largest error of all."""
    most = max(found, key=lambda each: each.nodes)
    return {
        "nodes": most.nodes,
        "error": f"{most.error:+.1%}",
        "error_if_more_waited_no_longer": f"{most.error_if_no_longer:+.1%}",
        "largest_error": f"{max(abs(each.error) for each in found):.1%}",
        "spread": f"{arm.work.spread:.1%}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--spread", type=float, default=0.2, help="standard deviation of the waits, relative to them")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keeps all runs; the same one is continued")
    keeper = Keeper(parser, "stress.check_slowest")
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
        found = list(judged(arm, folder / "more"))
    passed = all(each.is_near for each in found)
    is_whole = arguments.rounds >= parser.get_default("rounds") and {*arguments.nodes} >= {*parser.get_default("nodes")}
    status: Status = "failed" if not passed else "passed" if is_whole else "open"
    keeper.keep(arguments.write, "slowest", status, tables=[judged_table(arm, found)], figures=figures_of(arm, found))
    return 0 if passed else 3


if __name__ == "__main__":
    sys.exit(main())
