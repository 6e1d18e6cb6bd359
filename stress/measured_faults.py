"""Faults of measurement, one at a time: which row of the sheet or which warning names a run that measures otherwise.

    python -m stress.measured_faults [--out measured.jsonl] [--only NAME ...] [--write [FOLDER]]
    python -m stress.measured_faults --list

Each fault of FAULTS is put into the processes of one run, by `stress.injection` or by its environment. The run is
compared with a healthy one of the same arm: named are the rows of the fairness sheet that make the two NOT COMPARABLE,
and the warnings of the run. What takes more CPU time per image without being named is shown by that figure alone.
Healthy runs are compared with each other as well, which must name nothing; so the machine must do nothing else. --out
gets a line of JSON for each; rows that it has are not repeated. Exit code 3 where fewer than LEAST_NAMED of the faults
are named, or healthy runs are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.evidence import ROOT, Keeper, Table, number, table, text
from dpcompare.experiments.fairness import compare
from dpcompare.experiments.figures import FIGURES
from dpcompare.experiments.soundness import measured_speed
from dpcompare.results.result import RunResult
from stress.clock_faults import HALF_SPEED, LATE_TIMER
from stress.injection import injected, write_sitecustomize

LEAST_NAMED = 35 / 40
HEALTHY = 5
"""Further healthy runs of the first arm, each of which is compared with the first one."""

SINGLE = ("torch:single",)
DDP = ("torch:ddp", "--nodes", "2")
TENSORFLOW = ("tensorflow:single",)
JAX = ("jax:single",)
OPTIONS = (
    *("--model", "toy-cnn", "--dataset", "synthetic", "--image-size", "32", "--global-batch-size", "128"),
    *("--steps", "300", "--device", "cpu"),
)
"""Of every run, whose measured steps take some four seconds: a slow clock shows less in shorter ones."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row of FAULTS."""

    leads: tuple[str, ...]
    """What a name has, in any case of letters, that leads to the cause: one of these is enough."""
    arm: tuple[str, ...] = SINGLE
    options: tuple[str, ...] = ()
    module: str = "training.window"
    """Below dpcompare: what is broken when it has been imported."""
    inject: str = ""
    """Body of `inject(module)`; see `stress.injection`. Empty: its environment alone is wrong."""
    environment: Mapping[str, str] = field(default_factory=dict)


CLOCK = ("clock",)
TORCH = "backends.torch.backend"


def closing(before: str, after: str = "return made") -> str:
    """A body that changes how a window of steps is closed."""
    return f"""
import dataclasses, time
close = module.Window.close
def changed(self, *, drain):
    now = time.perf_counter()
    {before}
    made = close(self, drain=drain)
    {after}
module.Window.close = changed
"""


def first_step(line: str, also: str = "") -> str:
    """A body that does something before the first step of torch's processes."""
    return f"""
import gc, os, subprocess, sys, threading, torch
train = module.TorchBackend.train_step
def changed(self, *arguments):
    if not getattr(self, "is_changed", False):
        self.is_changed = True
        {line}
    {also}
    return train(self, *arguments)
module.TorchBackend.train_step = changed
"""


def with_variable(name: str, value: str, **others: Any) -> Fault:
    """A variable that one arm alone has inherited."""
    return Fault(leads=("variables", "environment", name.lower(), "threads"), environment={name: value}, **others)


FAULTS: dict[str, Fault] = {
    "clock at half speed": Fault(inject=HALF_SPEED, leads=CLOCK),
    "clock 10% slow": Fault(
        inject="import time\nreal = time.perf_counter\ntime.perf_counter = lambda: 0.9 * real()", leads=CLOCK
    ),
    "clock 4% slow, and 18% of each step between the steps": Fault(
        inject=f"import time\nreal = time.perf_counter\ntime.perf_counter = lambda: 0.96 * real()\n"
        f"{closing('self._start += 0.18 * (now - self._start)')}",
        leads=CLOCK,
    ),
    "CPU seconds in the place of seconds": Fault(
        inject="import time\ntime.perf_counter = time.process_time", leads=CLOCK
    ),
    "seconds of one thread in the place of seconds": Fault(
        inject="import time\ntime.perf_counter = time.thread_time", leads=CLOCK
    ),
    "each step timed from the end of its forward pass": Fault(module=TORCH, inject=LATE_TIMER, leads=CLOCK),
    "15% of each step booked between the steps": Fault(
        inject=closing("self._start += 0.15 * (now - self._start)"), leads=CLOCK
    ),
    "half of each step booked as set apart": Fault(
        inject=closing(
            "half = (now - self._start) / 2; self._start += half; self.previous_end += half; self.apart_seconds += half"
        ),
        leads=CLOCK,
    ),
    "evaluations booked between the steps": Fault(
        inject="module.Window.leave_out = lambda self: None", options=("--evaluate-every", "5"), leads=CLOCK
    ),
    "evaluations within the steps": Fault(
        inject="begin = module.Window.begin_step\n"
        "def changed(self):\n"
        "    begun, first = begin(self), not self.steps\n"
        "    if first:\n"
        "        self.previous_end -= self.apart_seconds; self._start = self.previous_end; self.apart_seconds = 0.0\n"
        "    return begun\n"
        "module.Window.begin_step = changed",
        options=("--evaluate-every", "5"),
        leads=CLOCK,
    ),
    "each step counted twice": Fault(
        inject=closing(
            "pass", "return [dataclasses.replace(step, global_count=2 * step.global_count) for step in made]"
        ),
        leads=("images", "count", "steps", "samples"),
    ),
    "seconds of each step without a tenth, for the exchange": Fault(
        arm=DDP,
        inject=closing(
            "pass", "return [dataclasses.replace(step, step_seconds=0.9 * step.step_seconds) for step in made]"
        ),
        leads=CLOCK,
    ),
    "waiting for data left out": Fault(
        inject="import time\n"
        "from dpcompare.data.batches import BatchReader\n"
        "loaders = BatchReader.batch_loaders\n"
        "def late(load):\n"
        "    time.sleep(0.05)\n"
        "    return load()\n"
        "def slow(self, *arguments, **options):\n"
        "    for load in loaders(self, *arguments, **options):\n"
        "        yield lambda load=load: late(load)\n"
        "BatchReader.batch_loaders = slow\n"
        + closing(
            "pass",
            "return [dataclasses.replace(step, step_seconds=step.step_seconds - step.data_seconds) for step in made]",
        ),
        leads=CLOCK,
    ),
    "window closed before the device is done": Fault(
        arm=JAX,
        module="backends.jax.backend",
        inject="module.JaxBackend.synchronize = lambda self, **options: None",
        leads=CLOCK,
    ),
    "half speed, and too short to be watched": Fault(
        inject=HALF_SPEED, options=("--steps", "8", "--warmup-steps", "1"), leads=("too short", "not watched", "clock")
    ),
    "a stall of a second": Fault(
        module=TORCH,
        inject=first_step("self.begun = 0", "self.begun += 1; self.begun == 60 and __import__('time').sleep(1)"),
        leads=("stalled",),
    ),
    "one thread instead of two": Fault(module=TORCH, inject=first_step("torch.set_num_threads(1)"), leads=("threads",)),
    "four threads instead of two": Fault(
        module=TORCH, inject=first_step("torch.set_num_threads(4)"), leads=("threads",)
    ),
    "bound to one core after its start": Fault(
        module=TORCH, inject=first_step("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"), leads=("affinity",)
    ),
    "made nice after its start": Fault(module=TORCH, inject=first_step("os.nice(10)"), leads=("niceness",)),
    "no reading ahead": Fault(
        module="data.batches",
        inject="module.prefetch = lambda items, prepare, num_threads=1: (prepare(item) for item in items)",
        leads=("input threads", "data"),
    ),
    "another process that computes": Fault(
        module=TORCH,
        inject=first_step(
            "self.other = subprocess.Popen([sys.executable, '-c', "
            "'import signal; signal.alarm(60)\\nwhile True: pass'])"
        ),
        leads=("disturbed",),
    ),
    "a thread that computes": Fault(
        module=TORCH,
        inject=first_step("threading.Thread(target=lambda: any(False for _ in iter(int, 1)), daemon=True).start()"),
        leads=("cpu", "work"),
    ),
    "anomaly detection left on": Fault(
        module=TORCH, inject=first_step("torch.autograd.set_detect_anomaly(True)"), leads=("anomaly",)
    ),
    "a profiler left on": Fault(
        module=TORCH,
        inject=first_step("self.profiler = torch.profiler.profile(); self.profiler.start()"),
        leads=("profile",),
    ),
    "garbage collected in each step": Fault(
        module=TORCH, inject=first_step("pass", "gc.collect()"), leads=("garbage",)
    ),
    "memory given back in each step": Fault(
        module=TORCH,
        inject=first_step("import ctypes; self.c = ctypes.CDLL(None)", "self.c.malloc_trim(0)"),
        leads=("cpu", "work", "allocator"),
    ),
    "forward pass computed twice": Fault(
        module=TORCH,
        inject="losses = module.TorchBackend._losses\n"
        "def twice(self, *arguments, **options):\n"
        "    losses(self, *arguments, **options)\n"
        "    return losses(self, *arguments, **options)\n"
        "module.TorchBackend._losses = twice",
        leads=("images computed", "cpu", "work"),
    ),
    "a wait of 5 ms in each step": Fault(
        module=TORCH, inject=first_step("pass", "__import__('time').sleep(0.005)"), leads=("wait", "work")
    ),
    "denormals taken for zero": Fault(
        module=TORCH, inject=first_step("torch.set_flush_denormal(True)"), leads=("denormal",)
    ),
    "oneDNN switched off": Fault(
        module=TORCH, inject=first_step("torch.backends.mkldnn.enabled = False"), leads=("onednn",)
    ),
    "oldest kernels of torch": with_variable("ATEN_CPU_CAPABILITY", "default"),
    "oldest kernels of oneDNN": with_variable("ONEDNN_MAX_CPU_ISA", "SSE41"),
    "malloc tuned": with_variable("GLIBC_TUNABLES", "glibc.malloc.arena_max=1"),
    "malloc with one arena": with_variable("MALLOC_ARENA_MAX", "1"),
    "Python's own malloc off": with_variable("PYTHONMALLOC", "malloc"),
    "Python traces its memory": with_variable("PYTHONTRACEMALLOC", "1"),
    "Python in development mode": with_variable("PYTHONDEVMODE", "1"),
    "a preloaded library": with_variable("LD_PRELOAD", "libdl.so.2"),
    "threads that spin": with_variable("OMP_WAIT_POLICY", "ACTIVE"),
    "threads bound by OpenMP": with_variable("OMP_PROC_BIND", "true"),
    "a cache of oneDNN that is too small": with_variable("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0"),
    "XLA with other flags": with_variable("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false", arm=JAX),
    "TensorFlow without oneDNN": with_variable("TF_ENABLE_ONEDNN_OPTS", "0", arm=TENSORFLOW),
}


def made(fault: Fault, folder: Path, *, with_fault: bool) -> RunResult:
    """The result of a run of a fault's arm.

    Raises:
        RuntimeError: it failed.
    """
    folder.mkdir()
    argv = [sys.executable, "-P", "-m", "dpcompare", "run", *fault.arm, *OPTIONS, *fault.options]
    paths, environment = [str(ROOT)], dict(os.environ)
    if with_fault:
        environment |= fault.environment
        if fault.inject:
            write_sitecustomize(folder / "planted", f"dpcompare.{fault.module}", injected(fault.inject))
            paths.insert(0, str(folder / "planted"))
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [*argv, "--run-dir", str(folder / "run")], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return RunResult.load(folder / "run")


def names(healthy: RunResult, other: RunResult) -> list[str]:
    """What is said of two runs: reasons of the sheet first, then warnings of the second that the first has not."""
    reasons = [
        f"{row.setting}: {row.detail or ' against '.join(map(str, row.values))}"
        for row in compare([healthy, other]).rows
        if row.reason
    ]
    measured = measured_speed(other)
    if measured is not None and measured.is_short:
        reasons.append("TOO SHORT: nothing is claimed")
    before = {warning.kind for warning in healthy.warnings}
    return [*reasons, *(f"{each.kind}: {each.sentence}" for each in other.warnings if each.kind not in before)]


def judged(name: str, fault: Fault, healthy: RunResult, other: RunResult) -> dict[str, Any]:
    """The row of a fault."""
    said = names(healthy, other)
    leads = [any(word in line.lower() for word in fault.leads) for line in said]
    speeds, cpu = (
        [read(run) for run in (healthy, other)]
        for read in (lambda run: run.compared_speed, lambda run: FIGURES["cpu_seconds_per_image"].read(run, None))
    )
    return {
        "name": name,
        "arm": fault.arm[0].replace(":", " "),
        "speed": speeds[1] / speeds[0],
        "cpu": cpu[1] / cpu[0] if all(cpu) else None,
        "named": said,
        "leads": any(leads),
    }


def rows_made(out: Path, asked: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a file, with those that it lacks made now."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    there = {row["name"] for row in rows}
    healthy: dict[tuple[str, ...], RunResult] = {}
    for name in asked:
        if name in there:
            continue
        fault = FAULTS.get(name, Fault(leads=()))
        key = (*fault.arm, *fault.options)
        with tempfile.TemporaryDirectory(prefix="dpcompare-measured-") as folder:
            if key not in healthy:
                healthy[key] = made(fault, Path(folder) / "healthy", with_fault=False)
            began = time.monotonic()
            try:
                row = judged(name, fault, healthy[key], made(fault, Path(folder) / "other", with_fault=True))
            except RuntimeError as error:  # a run that ends with an error misleads no reader
                row = {"name": name, "arm": fault.arm[0].replace(":", " "), "speed": None, "cpu": None, "leads": False}
                row["named"] = [f"FAILED: {str(error).splitlines()[-1]}"]
        rows.append({**row, "healthy": name not in FAULTS, "seconds": round(time.monotonic() - began, 1)})
        with out.open("a") as lines:
            print(json.dumps(rows[-1]), file=lines)
        print(f"{name}: {'; '.join(line.partition(':')[0] for line in row['named']) or 'nothing'}", file=sys.stderr)
    return rows


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = [
        *text("fault", "where"),
        *(number(title, ".2f") for title in ("speed, times", "CPU time per image, times")),
        *text("named by", "leads to the cause"),
    ]
    cells = []
    for row in rows:
        said = ", ".join(dict.fromkeys(line.partition(":")[0] for line in row["named"])) or None
        leads = None if row["healthy"] else "yes" if row["leads"] else "no"
        cells.append((row["name"], row["arm"], row["speed"], row["cpu"], said, leads))
    return table(columns, cells)


def sentences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The counts in words, then the faults that nothing names."""
    faults = [row for row in rows if not row["healthy"]]
    healthy = [row for row in rows if row["healthy"]]
    named = [row for row in faults if row["named"]]
    yield (
        f"{len(named)} of {len(faults)} faults are named, and the names lead to the cause of "
        f"{sum(row['leads'] for row in named)}. Of {len(healthy)} healthy runs "
        f"{sum(bool(row['named']) for row in healthy)} are named."
    )
    if missed := [row["name"] for row in faults if not row["named"]]:
        yield f"Not named: {'; '.join(missed)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("measured.jsonl"), help="of the rows; continued if it is there"
    )
    keeper = Keeper(parser, "stress.measured_faults")
    every = [*FAULTS, *(f"healthy run {number}" for number in range(1, HEALTHY + 1))]
    parser.add_argument("--only", nargs="+", choices=every, metavar="NAME", help="these alone")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(every))
        return
    rows = rows_made(arguments.out, arguments.only or every)
    faults = [row for row in rows if not row["healthy"]]
    is_enough = sum(bool(row["named"]) for row in faults) >= LEAST_NAMED * len(faults)
    passed = is_enough and not any(row["named"] for row in rows if row["healthy"])
    is_whole = set(every) <= {row["name"] for row in rows}
    keeper.keep(
        arguments.write,
        "measured-faults",
        "failed" if not passed else "passed" if is_whole else "open",
        sentences=list(sentences(rows)),
        tables=[table_of(rows)],
        seconds=sum(row["seconds"] for row in rows),
    )
    sys.exit(0 if passed else 3)


if __name__ == "__main__":
    main()
