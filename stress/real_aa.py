"""Real studies of equal arms, half of them disturbed on purpose: how many of them claim a difference that is not there.

    python -m stress.real_aa FILE [--studies 60] [--minutes 60] [--fresh]

Each study is judged as a user's is: two or three equal arms of a small model with torch, one thread each, six rounds.
Where it is disturbed, a busy loop takes every core for random periods, and a training process in three is stopped
(SIGSTOP) for random seconds. FILE gets a line of JSON per study; the same command goes on where it was. Ends with a
table, and with exit code 3 where more studies claim something than 5% explain.

Training processes fork from one that has imported torch, so that a study takes seconds; with `--fresh` each is started
as a user's is, with a memory layout of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scipy.stats import binom

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.statistics import FALSE_CLAIMS, ROUNDS_FOR_CLAIM
from dpcompare.experiments.study import Arm, Study, open_study
from dpcompare.experiments.study_runs import Watcher, run_study
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.results.events import EventTail, Ready, Started
from dpcompare.system.devices import available_cores
from tests.support.warm import IMPORTED, WarmLauncher

WORKLOAD = Workload(model="toy-bn", image_size=16, global_batch_size=32, steps=300, warmup_steps=10)
SECONDS_TRAINING = 2.5
"""About what the steps of a run take: a stop begins somewhere in it."""
STOPPED_RUNS = 1 / 3
STOP_SECONDS = (0.1, 3.0)
BUSY_SECONDS, IDLE_SECONDS = (0.3, 6.0), (0.3, 12.0)
UNLIKELY = 0.01
"""A number of false claims that is reached less often than this, at FALSE_CLAIMS per study, is too many."""


class Stopper(Watcher):
    """Stops a training process in some of the runs, for random seconds from a random moment on."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.stops = 0

    def run_begins(self, number, arm, run_dir):
        if self._generator.random() < STOPPED_RUNS:
            after, lasting = self._generator.uniform(0, SECONDS_TRAINING), self._generator.uniform(*STOP_SECONDS)
            self._ended.clear()
            self._thread = threading.Thread(target=self._stop, args=(run_dir, after, lasting))
            self._thread.start()
        return lambda event: None

    def run_ended(self, number, arm, result):
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _stop(self, run_dir: Path, after: float, lasting: float) -> None:
        tail, process = EventTail(run_dir, [0]), None
        try:
            while not self._ended.wait(0.005):
                events = list(tail.new_events())
                for event in events:
                    if isinstance(event, Started):
                        process = os.pidfd_open(event.pid)  # its number may be another's once it has ended
                if process is not None and any(isinstance(event, Ready) for event in events):
                    self._ended.wait(after)
                    signal.pidfd_send_signal(process, signal.SIGSTOP)
                    self.stops += 1
                    time.sleep(lasting)
                    signal.pidfd_send_signal(process, signal.SIGCONT)
                    return
        except ProcessLookupError:
            pass  # it was faster
        finally:
            if process is not None:
                os.close(process)


@contextmanager
def busy_cores(generator: random.Random) -> Iterator[None]:
    """A busy loop on every core, for random periods."""
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.wait(generator.uniform(*IDLE_SECONDS)):
            loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(available_cores())]
            ended.wait(generator.uniform(*BUSY_SECONDS))
            for loop in loops:
                loop.kill()
                loop.wait()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def one_study(folder: Path, number: int) -> dict[str, Any]:
    """Make a study and tell what it claims; odd ones are disturbed, every other pair has three arms instead of two."""
    generator = random.Random(number)
    disturbed, num_arms = number % 2 == 1, 2 + number // 2 % 2
    began = time.monotonic()
    config = prepare_inputs(
        RunConfig(
            framework="torch",
            mode="single",
            workload=WORKLOAD,
            cluster=Cluster.partition(1, 1, device="cpu", num_cores=1),
        )
    )
    study = Study(
        arms=tuple(Arm(name=name, config=config) for name in "ABC"[:num_arms]),
        repeats=ROUNDS_FOR_CLAIM,
        order_seed=number,
    )
    watcher = Stopper(generator) if disturbed else Watcher()
    open_study(study, folder)
    with ExitStack() as stack:
        if disturbed:
            stack.enter_context(busy_cores(random.Random(-1 - number)))
        run_study(study, folder, watcher)
    return {
        "study": number,
        "disturbed": disturbed,
        "arms": num_arms,
        "stops": watcher.stops if isinstance(watcher, Stopper) else 0,
        "seconds": round(time.monotonic() - began, 1),
        "load": os.getloadavg()[0],
        **shown(analyse(collect([folder]))),
    }


def shown(comparison: Comparison) -> dict[str, Any]:
    """What is kept of a study that has been judged."""
    return {
        "claims": [made.outcome for made in comparison.claims],
        "widest": max((made.high or 1.0) / (made.low or 1.0) for made in comparison.claims),
        "stalls": sum(warning.kind == "STALLED" for row in comparison.arms for warning in row.warnings),
        "speeds": {
            row.name: [round(each.steady_images_per_second or 0.0, 1) for each in row.rounds_shown]
            for row in comparison.arms
        },
        "sentences": [made.sentence for made in comparison.claims],
    }


def is_false(study: dict[str, Any]) -> bool:
    return any(outcome in ("faster", "slower") for outcome in study["claims"])


def table(studies: list[dict[str, Any]]) -> Iterator[str]:
    yield "| studies | made | with a false claim | runs stopped | stalls told | widest interval, median |"
    yield "|---|--:|--:|--:|--:|--:|"
    kinds: dict[str, Callable[[dict[str, Any]], bool]] = {
        "left alone": lambda study: not study["disturbed"],
        "disturbed": lambda study: study["disturbed"],
        "two arms": lambda study: study["arms"] == 2,
        "three arms": lambda study: study["arms"] == 3,
        "all": lambda study: True,
    }
    for name, holds in kinds.items():
        if some := [study for study in studies if holds(study)]:
            false = sum(map(is_false, some))
            widest = sorted(study["widest"] for study in some)[len(some) // 2]
            stops, stalls = (sum(study[key] for study in some) for key in ("stops", "stalls"))
            yield f"| {name} | {len(some)} | {false} ({false / len(some):.1%}) | {stops} | {stalls} | x {widest:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="of the studies made; continued where it is there")
    parser.add_argument("--studies", type=int, default=60, help="in all, those in the file included")
    parser.add_argument("--minutes", type=float, default=60.0, help="no study begins later")
    parser.add_argument("--fresh", action="store_true", help="start each training process as a user's is")
    arguments = parser.parse_args()
    file: Path = arguments.file
    studies = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    deadline = time.monotonic() + 60 * arguments.minutes
    with ExitStack() as stack:
        if not arguments.fresh:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpcompare-warm-"))
            stack.enter_context(patch.dict(IMPORTED, torch=(*IMPORTED["torch"], "timm")))
            launcher = WarmLauncher(Path(folder))
            stack.callback(launcher.close)
            stack.enter_context(patch("dpcompare.launch.attempt.launch", launcher.launch))
        for number in range(len(studies), arguments.studies):
            if time.monotonic() > deadline:
                print(f"the time is up; the same command goes on with study {number}", file=sys.stderr)
                break
            with tempfile.TemporaryDirectory(prefix="dpcompare-aa-") as folder:
                studies.append(one_study(Path(folder) / "study", number))
            with file.open("a") as lines:
                print(json.dumps(studies[-1]), file=lines)
            print("F" if is_false(studies[-1]) else ".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for line in table(studies):
        print(line)
    false = sum(map(is_false, studies))
    sys.exit(3 if false and binom.sf(false - 1, len(studies), FALSE_CLAIMS) < UNLIKELY else 0)


if __name__ == "__main__":
    main()
