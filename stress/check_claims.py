"""The truth of a study's claims: arms against themselves, a known delay, one unfair setting, delayed gradient sync.

    python -m stress.check_claims [--only slowdown] [--studies 20] [--rounds 6] [--ablated-steps 150]

Exit code 3 where a claim is wrong. Real runs of a small model with torch. Faults reach the training processes of one
arm only, through its interpreter.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.study import Arm, Study, ablated, open_study
from dpcompare.experiments.study_runs import Watcher, run_study
from dpcompare.launch.inputs import prepare_inputs
from stress.injection import interpreter_with

WORKLOAD = Workload(model="toy-bn", image_size=64, global_batch_size=64, steps=150, warmup_steps=20)
STEPS_AGAINST_ITSELF = 150  # about the second that a claim needs of each run
SLOWER = 0.10
DELAY_SECONDS = 0.03

SLOW_STEP = f"""
def inject(module):
    import time
    step = module.TorchBackend.train_step
    def slower(self, *arguments):
        started = time.perf_counter()
        loss = step(self, *arguments)
        end = time.perf_counter() + {SLOWER} * (time.perf_counter() - started)
        while time.perf_counter() < end:
            pass
        return loss
    module.TorchBackend.train_step = slower
"""

SLOW_EXCHANGE = f"""
def inject(module):
    import contextlib, time
    gradient_sync = module.DistributedDataParallel.gradient_sync
    @contextlib.contextmanager
    def delayed(self, *, enabled):
        with gradient_sync(self, enabled=enabled):
            yield
            if self.config.sync_gradients:
                time.sleep({DELAY_SECONDS})
    module.DistributedDataParallel.gradient_sync = delayed
"""


class Dots(Watcher):
    """A dot per run."""

    def run_ended(self, number, arm, result):
        print("." if result.status == "completed" else "F", end="", flush=True, file=sys.stderr)


def arm(name: str, python: str = sys.executable, *, nodes: int = 1, **changes) -> Arm:
    config = RunConfig(
        framework="torch",
        mode="single" if nodes == 1 else "ddp",
        workload=WORKLOAD.model_copy(update=changes),
        cluster=Cluster.partition(nodes, 1, device="cpu"),
        python=python,
    )
    return Arm(name=name, config=prepare_inputs(config))


def compared(folder: Path, arms: list[Arm], rounds: int, seed: int = 0) -> Comparison:
    study = Study(arms=tuple(arms), repeats=rounds, order_seed=seed)
    open_study(study, folder)
    run_study(study, folder, Dots())
    print(file=sys.stderr)
    return analyse(collect([folder]))


Line = tuple[str, bool]
"""A line of the table, and whether what it says is true."""


def slowdown(folder: Path, rounds: int) -> Iterator[Line]:
    slow = interpreter_with(folder / "python", "dpcompare.backends.torch.backend", SLOW_STEP)
    shown = compared(folder / "study", [arm("unharmed"), arm("slower", slow)], rounds)
    made = shown.claims[0]
    # The delay is that fraction of what a step computes; it waits for data as before.
    truth = 1 + SLOWER * (1 - (shown.arms[0].data_wait_fraction or 0.0))
    found = made.outcome == "faster" and made.low is not None and made.low <= truth <= (made.high or 0.0)
    yield (
        f"| {SLOWER:.0%} added to every step of one arm, {rounds} rounds; truth {truth:.3f} | {made.sentence} |",
        found,
    )


def unfairness(folder: Path, rounds: int) -> Iterator[Line]:
    made = compared(folder, [arm("one"), arm("other", batchnorm_momentum=0.99)], rounds).claims[0]
    named = made.sentence.endswith("NOT COMPARABLE. Settings that differ: BatchNorm momentum.")
    yield f"| one setting changed (BatchNorm's momentum) | {made.sentence} |", named


def ablation(folder: Path, rounds: int, steps: int) -> Iterator[Line]:
    delayed = interpreter_with(folder / "python", "dpcompare.backends.torch.ddp", SLOW_EXCHANGE)
    both = [arm("ddp", nodes=2, steps=steps), arm("ddp delayed", delayed, nodes=2, steps=steps)]
    plain, slow = compared(folder / "study", [*both, *map(ablated, both)], rounds).arms
    for row in (plain, slow):
        parts = ", ".join(f"{name} {ms:.1f} ms" for name, ms in row.step_parts_ms.items())
        added = {part: ms - plain.step_parts_ms[part] for part, ms in row.step_parts_ms.items()}
        others = max(abs(ms) for part, ms in added.items() if part != "communication")
        found = row is plain or (added["communication"] > 20 and added["communication"] > 3 * others)  # of 30 ms
        yield f"| {DELAY_SECONDS * 1000:.0f} ms added to gradient sync: {row.name} | {parts} |", found


def against_itself(folder: Path, rounds: int, studies: int) -> Iterator[Line]:
    claimed = 0
    twins = [arm(name, steps=STEPS_AGAINST_ITSELF) for name in "AB"]
    for number in range(studies):
        same = compared(folder / f"study-{number}", twins, rounds, seed=number).claims[0]
        claimed += same.outcome in ("faster", "slower")
        yield f"| an arm against itself, study {number + 1} | {same.sentence} |", True
    # Of 20 studies at 95% one is expected to claim something; more than 3 happens once in 60 times.
    yield (
        f"| arms against themselves | {claimed} of {studies} studies claimed a difference |",
        claimed <= max(1, 0.15 * studies),
    )


STUDIES = ("slowdown", "unfairness", "ablation", "against-itself")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STUDIES, help="one kind of study")
    parser.add_argument("--studies", type=int, default=20, help="of an arm against itself")
    parser.add_argument(
        "--rounds", type=int, default=6, help="of each study; ablation and unfairness take no more than 3"
    )
    parser.add_argument("--ablated-steps", type=int, default=WORKLOAD.steps, help="of each run of ablation")
    arguments = parser.parse_args()
    rounds, few = arguments.rounds, min(3, arguments.rounds)
    with tempfile.TemporaryDirectory(prefix="dpcompare-claims-") as temporary:
        folders = {name: Path(temporary) / name for name in STUDIES}
        for folder in folders.values():
            folder.mkdir()
        made = {
            "slowdown": slowdown(folders["slowdown"], rounds),
            "unfairness": unfairness(folders["unfairness"], few),
            "ablation": ablation(folders["ablation"], few, arguments.ablated_steps),
            "against-itself": against_itself(folders["against-itself"], rounds, arguments.studies),
        }
        print("| study | what it said |\n|---|---|", flush=True)
        untrue = 0
        for name in [arguments.only] if arguments.only else STUDIES:
            for line, is_true in made[name]:
                print(line if is_true else f"{line} **NOT TRUE**", flush=True)
                untrue += not is_true
    sys.exit(3 if untrue else 0)


if __name__ == "__main__":
    main()
