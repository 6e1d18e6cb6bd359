"""Real gates: of equal environments, half of them disturbed on purpose, and of an arm whose steps take 5% longer.

    python -m stress.real_gates FILE [--equal 40] [--slower 40] [--minutes 60] [--write [FOLDER]]

Each gate is a user's: a small model with torch, one thread, `--allow 2%` and five minutes. Disturbed ones have busy
loops and stopped processes as in `stress.real_aa`. FILE gets a line of JSON per gate; the same command continues where
it was. Training processes of equal environments fork from one that has imported torch; those of a slower arm, and of
its baseline, are started as a user's are. Exit code 3 where more gates of equal environments fail, or of a slower arm
pass, than 5% explain.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scipy.stats import binom

from benchmarks.evidence import Keeper, number, table, text
from dpcompare import Cluster, RunConfig
from dpcompare.config.environment import Environment
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.gate import gate_study
from dpcompare.experiments.gate_runs import run_gate
from dpcompare.experiments.study import Arm, open_study
from dpcompare.experiments.study_runs import Watcher
from dpcompare.launch.inputs import prepare_inputs
from stress.check_gates import ALLOWED, LOSS
from stress.injection import interpreter_with
from stress.real_aa import WORKLOAD, Stopper, busy_cores
from tests.support.warm import IMPORTED, WarmLauncher

STEPS = 2000
"""Some two seconds: shorter runs say nothing."""
BUDGET_SECONDS = 300.0
LARGEST_WRONG, UNLIKELY = 0.05, 0.01

SLOWER_STEPS = f"""
def inject(module):
    import time
    step = module.TorchBackend.train_step
    def slow(self, *arguments):
        began = time.perf_counter()
        loss = step(self, *arguments)
        end = began + (time.perf_counter() - began) / {1 - LOSS}
        while time.perf_counter() < end:
            pass
        return loss
    module.TorchBackend.train_step = slow
"""
AS_EVER = "def inject(module):\n    pass\n"
KINDS = ("equal", "equal, disturbed", "5% slower")


def one_gate(folder: Path, kind: str, number: int) -> dict[str, Any]:
    """Make a gate of a kind and tell what it says."""
    began = time.monotonic()
    config = prepare_inputs(
        RunConfig(
            framework="torch",
            mode="single",
            workload=WORKLOAD.changed(steps=STEPS),
            cluster=Cluster.partition(1, 1, device="cpu", num_cores=1),
        )
    )
    baseline = config.changed(environment=Environment(name="good", variables={"GOOD": "1"}))
    if kind == KINDS[2]:
        target = "dpcompare.backends.torch.backend"
        config = config.changed(python=interpreter_with(folder / "slower", target, SLOWER_STEPS))
        baseline = baseline.changed(python=interpreter_with(folder / "ever", target, AS_EVER))
    study = gate_study(Arm(name="new", config=config), Arm(name="good", config=baseline), ALLOWED, number)
    study = study.changed(subject=("other environment variables",))  # the fault travels in PYTHONPATH
    disturbed = kind == KINDS[1]
    watcher = Stopper(random.Random(number)) if disturbed else Watcher()
    with ExitStack() as stack:
        if disturbed:
            stack.enter_context(busy_cores(random.Random(-1 - number)))
        run_gate(open_study(study, folder / "study"), folder / "study", watcher, budget_seconds=BUDGET_SECONDS)
    row = analyse(collect([folder / "study"])).gate
    assert row is not None
    return {"kind": kind, "number": number, "seconds": round(time.monotonic() - began, 1), **row.model_dump()}


def is_wrong(gate: dict[str, Any]) -> bool:
    return bool(gate["outcome"] == ("not slower" if gate["kind"] == KINDS[2] else "slower"))


def row_of(kind: str, gates: Sequence[dict[str, Any]]) -> tuple[str | int | float | None, ...]:
    some = [gate for gate in gates if gate["kind"] == kind]
    counts = [sum(gate["outcome"] == outcome for gate in some) for outcome in ("slower", "not slower", "undecided")]
    rounds = sorted(gate["rounds"] for gate in some)
    ratios = sorted(gate["ratio"] for gate in some if gate["ratio"] is not None)
    median = ratios[len(ratios) // 2] if ratios else None
    return kind, len(some), *counts, rounds[len(rounds) // 2] if rounds else None, max(rounds, default=None), median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="of the gates made; continued where it is there")
    parser.add_argument("--equal", type=int, default=40, help="gates of equal environments, half of them disturbed")
    parser.add_argument("--slower", type=int, default=40, help="gates of an arm that is 5%% slower")
    parser.add_argument("--minutes", type=float, default=60.0, help="no gate begins later")
    keeper = Keeper(parser, "stress.real_gates")
    arguments = parser.parse_args()
    file: Path = arguments.file
    gates = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    wanted = [(KINDS[number % 2], number) for number in range(arguments.equal)]
    wanted += [(KINDS[2], number) for number in range(arguments.slower)]
    # In turn, so that a run that is cut short has some of each.
    wanted.sort(key=lambda each: each[1])
    made = {(gate["kind"], gate["number"]) for gate in gates}
    deadline = time.monotonic() + 60 * arguments.minutes
    with ExitStack() as stack:
        warm = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpcompare-warm-"))
        stack.enter_context(patch.dict(IMPORTED, torch=(*IMPORTED["torch"], "timm")))
        launcher = WarmLauncher(Path(warm))
        stack.callback(launcher.close)
        stack.enter_context(patch("dpcompare.launch.attempt.launch", launcher.launch))
        for kind, seed in wanted:
            if (kind, seed) in made:
                continue
            if time.monotonic() > deadline:
                print("the time is up; the same command continues", file=sys.stderr)
                break
            with tempfile.TemporaryDirectory(prefix="dpcompare-gate-") as folder:
                gates.append(one_gate(Path(folder), kind, seed))
            with file.open("a") as lines:
                print(json.dumps(gates[-1]), file=lines)
            print("W" if is_wrong(gates[-1]) else ".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    columns = [
        *text("the arm is"),
        *(number(title, "d") for title in ("gates", "slower", "not slower", "undecided", "rounds, median", "most")),
        number("ratio, median", ".3f"),
    ]
    rows = [row_of(kind, gates) for kind in KINDS]
    wrong = {kind: sum(is_wrong(gate) for gate in gates if gate["kind"] == kind) for kind in KINDS}
    too_many = any(
        count and binom.sf(count - 1, sum(gate["kind"] == kind for gate in gates), LARGEST_WRONG) < UNLIKELY
        for kind, count in wrong.items()
    )
    is_whole = len(gates) >= parser.get_default("equal") + parser.get_default("slower")
    seconds = sum(gate["seconds"] for gate in gates)
    keeper.keep(
        arguments.write,
        "real-gates",
        "failed" if too_many else "passed" if is_whole else "open",
        tables=[table(columns, rows)],
        figures={"gates": len(gates), "wrong": sum(wrong.values())},
        seconds=seconds,
    )
    sys.exit(3 if too_many else 0)


if __name__ == "__main__":
    main()
