"""Is a run that was disturbed said to be, by name, and a quiet one nothing? Each disturbance is planted in real runs.

    python -m stress.disturbances [--only NAME ...] [--quiet 20] [--write [FOLDER]]

About a quarter of a minute per run with torch, on a machine that does nothing else: what it does is told of the runs
called quiet. Exit code 3 where a warning is missing, or a quiet run has one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.evidence import Keeper, Status, Table, table, text
from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.results.clock import RunWarningKind
from dpcompare.results.events import Event, Started, StepsTrained
from stress.clock_faults import HALF_SPEED, LATE_TIMER
from stress.injection import injected, interpreter_with

WORKLOAD = Workload(model="toy-bn", image_size=64, global_batch_size=64, steps=100, warmup_steps=5)
STOPPED_SECONDS = 5.0
SLOW_STEPS = 35
"""The first 5 of which are left out as those of the warm-up."""

SLOW_START = f"""
def inject(module):
    import time
    step = module.TorchBackend.train_step
    def slow(self, *arguments):
        started = time.perf_counter()
        loss = step(self, *arguments)
        if self._step <= {SLOW_STEPS}:
            time.sleep(3 * (time.perf_counter() - started))
        return loss
    module.TorchBackend.train_step = slow
"""

COMPILES_AGAIN = """
def inject(module):
    step = module.TorchBackend.train_step
    def other(self, *arguments):
        if self._step == 11:  # what was compiled holds for another state of torch
            module.torch.use_deterministic_algorithms(True, warn_only=True)
        return step(self, *arguments)
    module.TorchBackend.train_step = other
"""

TRACES_AGAIN = """
def inject(module):
    import dataclasses
    tf = module.tf
    step = module.TensorFlowBackend.train_step
    def other(self, batches, rate):
        if self._step == 11:
            batches = [dataclasses.replace(batch, labels=tf.cast(batch.labels, tf.int64)) for batch in batches]
        if self._step in (11, 12):
            self._traced = None
        return step(self, batches, rate)
    module.TensorFlowBackend.train_step = other
"""


@contextmanager
def busy_loops() -> Iterator[None]:
    """A process per core that works all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Stopper:
    """Stops the first training process for some seconds, once it has made a few measured steps."""

    def __init__(self, seconds: float = STOPPED_SECONDS) -> None:
        self._seconds = seconds
        self._pid: int | None = None
        self._timer: threading.Timer | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._pid = event.pid
        elif isinstance(event, StepsTrained) and event.step > 10 and self._pid and self._timer is None:
            os.kill(self._pid, signal.SIGSTOP)
            self._timer = threading.Timer(self._seconds, os.kill, (self._pid, signal.SIGCONT))
            self._timer.start()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of CASES."""

    told: RunWarningKind | None
    """What must be said; None: nothing at all."""
    fault: tuple[str, str] | None = None
    """The module that is broken, and how; see `stress.injection`."""
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    observer: Callable[[], Callable[[Event], None]] = lambda: lambda event: None
    framework: str = "torch"
    config: dict[str, Any] = field(default_factory=dict)


TORCH = "dpcompare.backends.torch.backend"
COMPILED = {
    "workload": WORKLOAD.model_copy(update={"model": "mlp", "profile": "native"}),
    "tune": {"compilation": "torch.compile"},
}
CASES = {
    "quiet": Case(told=None),
    "busy loop on every core": Case(told="DISTURBED", around=busy_loops),
    f"SIGSTOP of {STOPPED_SECONDS:.0f} s": Case(told="STALLED", observer=Stopper),
    "compiled again in step 12": Case(told="RECOMPILED", fault=(TORCH, COMPILES_AGAIN), config=COMPILED),
    "traced again in step 12": Case(
        told="RECOMPILED", fault=("dpcompare.backends.tensorflow.backend", TRACES_AGAIN), framework="tensorflow"
    ),
    "30 slow first steps": Case(told="NOT WARM", fault=(TORCH, SLOW_START)),
    "clock at half speed": Case(told="CLOCK", fault=("dpcompare.training.window", injected(HALF_SPEED))),
    "timer after the forward pass": Case(told="CLOCK", fault=(TORCH, injected(LATE_TIMER))),
}


Tried = tuple[bool, str]
"""Whether a case was told as it must be, and all that was said."""


def tried(case: Case, folder: Path) -> Tried:
    folder.mkdir()
    python = interpreter_with(folder / "python", *case.fault) if case.fault else sys.executable
    config = RunConfig(
        **{
            "framework": case.framework,
            "mode": "single",
            "workload": WORKLOAD,
            "cluster": Cluster.partition(device="cpu"),
            "python": python,
        }
        | case.config
    )
    with case.around():
        warnings = run(config, folder / "run", observe=case.observer()).warnings
    kinds = {warning.kind for warning in warnings}
    said = "; ".join(f"{warning.kind}: {warning.sentence}" for warning in warnings)
    return (case.told in kinds if case.told else not kinds), said or "nothing"


def table_of(found: Mapping[str, list[Tried]]) -> Table:
    """A row for each case."""
    rows = [
        (name, f"{num_right(runs)} of {len(runs)}", " / ".join(dict.fromkeys(said for _, said in runs)))
        for name, runs in found.items()
    ]
    return table(text("planted", "told as it must be", "what was said"), rows)


def num_right(runs: list[Tried]) -> int:
    return sum(right for right, _ in runs)


def figures_of(found: Mapping[str, list[Tried]]) -> dict[str, int]:
    quiet = found.get("quiet", [])
    planted = [run for name, runs in found.items() if name != "quiet" for run in runs]
    return {
        "planted": len(planted),
        "planted_told": num_right(planted),
        "quiet_runs": len(quiet),
        "quiet_runs_without_warning": num_right(quiet),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--quiet", type=int, default=20, help="runs that nothing is planted in")
    keeper = Keeper(parser, "stress.disturbances")
    arguments = parser.parse_args()
    found: dict[str, list[Tried]] = {}
    with tempfile.TemporaryDirectory(prefix="dpcompare-disturbances-") as folder:
        for number, name in enumerate(arguments.only or CASES):
            times = arguments.quiet if name == "quiet" else 1
            found[name] = [tried(CASES[name], Path(folder) / f"{number}-{time}") for time in range(times)]
            print(f"{name}: {num_right(found[name])} of {times} told as it must be", file=sys.stderr, flush=True)
    passed = all(right for runs in found.values() for right, _ in runs)
    is_whole = not arguments.only and arguments.quiet >= parser.get_default("quiet")
    status: Status = "failed" if not passed else "passed" if is_whole else "open"
    keeper.keep(arguments.write, "disturbances", status, tables=[table_of(found)], figures=figures_of(found))
    sys.exit(0 if passed else 3)


if __name__ == "__main__":
    main()
