"""The growth of costs: a report of many runs, a projection of many arms, a run of many steps, a store of many images.

    python -m benchmarks.complexity [--runs 10 100 1000] [--arms 1 10 100 1000] [--steps 10000 100000 1000000]
                                           [--images 10000 100000 1000000] [--write [FOLDER]]

Runs are results as a study leaves them, without training. Arms are copies of one that is measured first, in two runs
of 45 steps; `dpcompare project` predicts them on 2 to 1,024 nodes of 8 devices. Steps are those of the real loop and
its event files with a backend that computes nothing, in a separate process; memory is that of the process at its first
step and at its end. Images are links to a few small files, 1,000 to a class, prepared in as many processes as there are
cores; memory is the peak of the process that prepares less what it held before, and that of each of those that decode.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.evidence import Keeper, number, table
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends.base import Backend, Counters
from dpcompare.data.batches import BatchLoader, DeviceBatch, prefetch
from dpcompare.data.prepare import prepare
from dpcompare.data.store import open_store
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.study import Arm, Study, open_study
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.models.state import TrainingState
from dpcompare.results.events import EventLog, EventTail
from dpcompare.results.result import RunResult, StepSeconds
from dpcompare.training.loop import train

BATCH = 16
DPCOMPARE = (sys.executable, "-m", "dpcompare")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def report_seconds(num_runs: int) -> tuple[float, float]:
    """To read the runs of a study and judge them, and to write its page."""
    from dpcompare.report.page import as_html

    arms = []
    for framework, mode in (("torch", "ddp"), ("tensorflow", "multiworker")):
        cluster = Cluster.partition(2, 1, device="cpu")
        arms.append(Arm(name=f"{framework} {mode}", config=RunConfig(framework=framework, mode=mode, cluster=cluster)))
    with tempfile.TemporaryDirectory() as folder:
        study = open_study(Study(arms=tuple(arms), repeats=num_runs // len(arms)), Path(folder) / "study")
        for repeat in range(1, study.repeats + 1):
            for place, arm in enumerate(arms):
                run_dir = study.run_dir(Path(folder) / "study", repeat, arm)
                run_dir.mkdir(parents=True)
                _result(arm, speed=100 + 10 * place + repeat % 7 / 10).save(run_dir)
        begin = time.perf_counter()
        comparison = analyse(collect([Path(folder) / "study"]))
        judged = time.perf_counter()
        as_html(comparison)
        return judged - begin, time.perf_counter() - judged


def measured_study(folder: Path) -> Path:
    """A study of torch ddp with and without gradient sync, one round of 45 steps."""
    argv = [*DPCOMPARE, "compare", "--arm", "torch:ddp", "--device", "cpu", "--nodes", "2", "--ablate"]
    argv += ["--dataset", "synthetic", "--model", "mlp", "--image-size", "16", "--steps", "45"]
    study = folder / "measured"
    subprocess.run([*argv, "--repeats", "1", "--out", str(study)], stdout=subprocess.DEVNULL, check=True)
    return study


def _other(arm: Arm, threads: int) -> Arm:
    """The same arm under another name, and with more threads that read, so that it is projected by itself."""
    names = {
        "name": f"{arm.name} {threads}",
        "ablation_of": f"{arm.ablation_of} {threads}" if arm.ablation_of else None,
    }
    return arm.model_copy(update=names | {"config": arm.config.model_copy(update={"input_threads": threads})})


def projection_seconds(num_arms: int, measured: Path) -> float:
    """The whole command `dpcompare project`, with a study of that many arms, copied from one that was measured."""
    with tempfile.TemporaryDirectory() as name:
        folder, origin = Path(name) / "study", Study.load(measured)
        arms = [_other(arm, threads) for threads in range(1, num_arms + 1) for arm in origin.arms]
        study = open_study(origin.model_copy(update={"arms": tuple(arms)}), folder)
        for arm, of in zip(study.arms, cycle(origin.arms)):
            shutil.copytree(origin.run_dir(measured, 1, of), study.run_dir(folder, 1, arm))
        argv = [*DPCOMPARE, "project", str(folder), "--nodes", "2,4,8,16,32,64,128,256,512,1024", "--extrapolate"]
        argv += ["--devices-per-node", "8", "--intra-link", "nvlink"]
        begin = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begin


def _result(arm: Arm, *, speed: float) -> RunResult:
    config = arm.config
    step = StepSeconds(median=32 / speed, p95=32 / speed, mean=32 / speed, mad=0.0)
    return RunResult(
        status="completed",
        framework=config.framework,
        mode=config.mode,
        num_nodes=2,
        num_processes=2,
        num_replicas=2,
        device_type="cpu",
        device_names=["cpu:0", "cpu:1"],
        emulated=False,
        model="efficientnet-b2",
        dataset="digits",
        image_size=64,
        global_batch_size=32,
        precision="float32",
        profile="strict",
        images_per_second=speed,
        measured_steps=40,
        step_seconds=step,
        data_wait_fraction=0.01,
        wall_seconds=30.0,
        train_loss=[2.0 - step_number / 100 for step_number in range(45)],
        threads_per_process=1,
        config=config.model_dump(mode="json"),
    )


class Nothing(Backend):
    """Computes nothing, on the real batches."""

    packages = ("numpy",)

    def setup(self) -> None: ...
    def barrier(self) -> None: ...
    def reset_peak_memory(self) -> None: ...
    def synchronize(self, *, drain: bool = False) -> None: ...
    def teardown(self) -> None: ...
    def load_state(self, state: TrainingState) -> None: ...

    def state(self) -> TrainingState:
        return TrainingState(model={}, optimizer={}, step=0)

    def profile(self, path: Path) -> AbstractContextManager[None]:
        return nullcontext()

    def prefetch_to_device(self, batch_loaders: Iterable[BatchLoader]) -> Iterator[DeviceBatch]:
        def placed(read: BatchLoader) -> DeviceBatch:
            batch = read()
            return DeviceBatch(images=None, labels=None, weights=batch.weights, global_count=batch.global_count)

        return prefetch(batch_loaders, placed)

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Any:
        return 1.0

    def evaluate_step(self, batch: DeviceBatch) -> Any:
        return (1.0, 0.0, float(batch.weights.sum()))

    def read(self, handles: Sequence[Any]) -> Any:
        return np.array(handles, np.float64)

    def counters(self) -> Counters:
        return Counters(optimizer_steps=None, images=None)

    def first_grad_norm_sq(self) -> float | None:
        return None

    def logits(self, batch: DeviceBatch, *, training: bool) -> Any:
        return np.empty((0, 0))

    def to_host(self, batch: DeviceBatch) -> dict[str, Any]:
        weights = np.asarray(batch.weights)
        return {"images": np.zeros((len(weights), 1)), "labels": np.zeros(len(weights), np.int64), "weights": weights}


def run_of(num_steps: int) -> dict[str, float]:
    """The loop, its events, and the parent that reads them."""
    workload = Workload(
        model="mlp", image_size=8, dataset="digits", global_batch_size=BATCH, steps=num_steps, warmup_steps=0
    )
    config = RunConfig(framework="torch", mode="single", workload=workload, cluster=Cluster.partition(1, device="cpu"))
    config = prepare_inputs(config)
    assert config.inputs is not None
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        events = EventLog(run_dir, 0)
        begun_with, begin = resident_bytes(), time.perf_counter()
        train(Nothing(config), open_store(config.inputs.store), events, run_dir)
        seconds, grown = time.perf_counter() - begin, resident_bytes() - begun_with
        events.close()
        written = sum(path.stat().st_size for path in run_dir.rglob("*.jsonl"))
        begin = time.perf_counter()
        for _ in EventTail(run_dir, range(1)).new_events():
            pass
        return {
            "us_per_step": seconds / num_steps * 1e6,
            "MiB_grown": grown / 2**20,
            "MiB_of_events": written / 2**20,
            "seconds_to_read_events": time.perf_counter() - begin,
        }


def prepared(num_images: int) -> dict[str, float]:
    """A store of this many images."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        for index in range(10):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{index}.png")
        for index in range(num_images):
            link = folder / "images" / f"{index % max(2, num_images // 1000):04d}" / f"{index:07d}.png"
            if index < num_images // 500:
                link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder / f"{index % 10}.png")
        held, begin = resident_bytes(), time.perf_counter()
        prepare(folder / "images", folder / "store", 8)
        return {
            "images_per_second": num_images / (time.perf_counter() - begin),
            "MiB_more": (peak_bytes() - held) / 2**20,
            "MiB_of_decoder": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10,
        }


def in_a_process(option: str, size: int) -> list[float]:
    """What a run or a store of this size takes, measured in a separate process; in the order of the columns."""
    argv = [sys.executable, "-m", "benchmarks.complexity", option, str(size)]
    figures: dict[str, float] = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return list(figures.values())


Rows = list[tuple[float, ...]]
"""What was measured at each size, which is the first cell."""

COLUMNS = {
    "runs": [number("runs of two arms", ","), number("s to judge", ".2f"), number("s to write the page", ".2f")],
    "arms": [number("arms that are projected", ","), number("s of the whole command", ".2f")],
    "steps": [
        number("steps of a run", ","),
        number("us per step", ".0f"),
        number("MiB that the process grew", ".1f"),
        number("MiB of events", ".1f"),
        number("s to read them", ".2f"),
    ],
    "images": [
        number("images of a store", ","),
        number("images/s", ",.0f"),
        number("MiB that preparing takes", ".0f"),
        number("MiB of a process that decodes", ".0f"),
    ],
}
"""What is made larger -> the columns of its table."""


def projections(counts: Sequence[int]) -> Rows:
    if not counts:
        return []  # measures no study
    with tempfile.TemporaryDirectory() as folder:
        study = measured_study(Path(folder))
        return [(num_arms, projection_seconds(num_arms, study)) for num_arms in counts]


def figures_of(measured: Mapping[str, Rows]) -> dict[str, str]:
    """Of the largest of each kind; a page that quotes them finds a dash where nothing was measured."""

    def at_largest(kind: str, column: int) -> str:
        return format(max(measured[kind])[column], COLUMNS[kind][column].format) if measured[kind] else "-"

    return {
        "judge_seconds": at_largest("runs", 1),
        "project_seconds": at_largest("arms", 1),
        "us_per_step": at_largest("steps", 1),
        "mib_grown": at_largest("steps", 2),
        "store_images_per_second": at_largest("images", 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--arms", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--steps", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--images", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--only-steps", type=int, help="one run, in this process")
    parser.add_argument("--only-images", type=int, help="one store, in this process")
    keeper = Keeper(parser, "benchmarks.complexity")
    arguments = parser.parse_args()
    if arguments.only_steps:
        print(json.dumps(run_of(arguments.only_steps)))
        return
    if arguments.only_images:
        print(json.dumps(prepared(arguments.only_images)))
        return
    measured: dict[str, Rows] = {
        "runs": [(num_runs, *report_seconds(num_runs)) for num_runs in arguments.runs],
        "arms": projections(arguments.arms),
        "steps": [(num_steps, *in_a_process("--only-steps", num_steps)) for num_steps in arguments.steps],
        "images": [(num_images, *in_a_process("--only-images", num_images)) for num_images in arguments.images],
    }
    keeper.keep(
        arguments.write,
        "complexity",
        "measured",
        tables=[table(COLUMNS[kind], rows) for kind, rows in measured.items() if rows],
        figures=figures_of(measured),
    )


if __name__ == "__main__":
    main()
