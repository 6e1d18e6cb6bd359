"""Is dpcompare sound on the GPUs of this machine? Eleven checks, each with its verdict and figures.

    python -m stress.first_gpu [--only NAME ...] [--write FILE]
    python -m stress.first_gpu --device cpu --model toy-bn --image-size 32 --batch 16 --steps 12 --warmup-steps 2

About nine minutes on one GPU with torch alone. TensorFlow, where `dpcompare setup` has made its environment, takes
longer once, on a GPU that is newer than its kernels. Ends in one table, made to be pasted into an issue; exit code 3
where a check failed. The second command tries the script itself, on a machine without GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.feed import feed, split_of
from benchmarks.sections import commit, typed, write_section
from dpcompare.backends.cuda_wheels import driver_version
from dpcompare.system.devices import installed_gpus, visible_gpus

LONGEST_SECONDS = 300
LONGEST_TENSORFLOW_SECONDS = 1800
"""Of one run, which may have to compile every kernel for a GPU that is newer than TensorFlow."""
CLOSE = 1e-2
"""Relative difference of two losses in float32 that is no sign of an error after some steps: the floor of
docs/fairness.md."""


class CheckFailedError(Exception):
    """What a check found to be wrong."""


@dataclass
class Machine:
    """What the checks run on, and how much of it."""

    folder: Path
    device: str
    model: str
    image_size: int
    batch: int
    steps: int
    warmup_steps: int

    def run(
        self, name: str, *options: str, mode: str = "single", batch: int | None = None, framework: str = "torch"
    ) -> dict[str, Any]:
        """The result of `dpcompare run`; it is in the folder of that name."""
        argv = self.command(name, *options, mode=mode, batch=batch, framework=framework)
        seconds = LONGEST_SECONDS if framework == "torch" else LONGEST_TENSORFLOW_SECONDS
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise CheckFailedError(f"{' '.join(options) or mode} ended with {done.returncode}: {done.stderr[-600:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def command(
        self, name: str, *options: str, mode: str = "single", batch: int | None = None, framework: str = "torch"
    ) -> list[str]:
        workload = {
            "--model": self.model,
            "--dataset": "synthetic",
            "--image-size": self.image_size,
            "--global-batch-size": batch or self.batch,
            "--steps": self.steps,
            "--warmup-steps": self.warmup_steps,
            "--devices-per-node": 1,
        }
        given = [str(part) for pair in workload.items() if pair[0] not in options for part in pair]
        return [
            *(sys.executable, "-m", "dpcompare", "run", "--framework", framework, "--mode", mode, "--json"),
            *("--device", self.device, "--run-dir", str(self.folder / name), *given, *options),
        ]

    @cached_property
    def baseline(self) -> dict[str, Any]:
        """A plain run, which several checks look at."""
        return self.run("baseline")

    @cached_property
    def each_step_timed(self) -> dict[str, Any]:
        """The same, with a wait for the device after every step."""
        return self.run("each step timed", "--steps-per-window", "1")


def precisions(machine: Machine) -> str:
    """Trains in float32 and in bfloat16."""
    faster = machine.run("bfloat16", "--precision", "bfloat16", "--profile", "native")
    return f"{_speed(machine.baseline)} in float32, {_speed(faster)} in bfloat16 (native)"


def arithmetic(machine: Machine) -> str:
    """What is computed is what was asked for."""
    argv = [
        *(sys.executable, "-m", "dpcompare", "verify", "--frameworks", "torch", "--modes", "single,ddp"),
        *("--model", "toy-bn", "--replicas", "1", "--quick", "--json"),
        *("--device", "auto" if machine.device == "gpu" else "cpu"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    if done.returncode not in (0, 3):
        raise CheckFailedError(done.stderr[-600:])
    checks = json.loads(done.stdout)["checks"]
    failed = [
        f"{check['name']}: {check['measured']} above {check['tolerance']}" for check in checks if not check["passed"]
    ]
    if failed:
        raise CheckFailedError(f"{len(failed)} of {len(checks)}: {'; '.join(failed[:3])}")
    return f"{len(checks)} checks of verify passed"


def streams(machine: Machine) -> str:
    """Batches are copied beside the computing, and the GPU is not left without work."""
    first = machine.warmup_steps + 2
    machine.run("trace", "--profile-steps", f"{first}:{first + 4}")
    trace = json.loads((machine.folder / "trace" / "traces" / "process-0.json").read_text())["traceEvents"]
    spans = [event for event in trace if event.get("ph") == "X" and event.get("dur")]
    kernels = [event for event in spans if event.get("cat") == "kernel"]
    copies = [event for event in spans if event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"]]
    if machine.device != "gpu":
        return f"a trace of {len(spans)} spans"
    if not kernels or not copies:
        raise CheckFailedError(f"the trace has {len(kernels)} kernels and {len(copies)} copies to the device")
    computing = max({event["tid"] for event in kernels}, key=[event["tid"] for event in kernels].count)
    large = [event for event in copies if event["args"].get("bytes", 0) > 1 << 20]
    if any(event["tid"] == computing for event in large):
        raise CheckFailedError("batches are copied on the stream that computes")
    begin, end = min(event["ts"] for event in kernels), max(event["ts"] + event["dur"] for event in kernels)
    busy = sum(event["dur"] for event in kernels if event["tid"] == computing) / (end - begin)
    return f"{len(large)} copies on another stream; computing {busy:.0%} of the time"


def input_speed(machine: Machine) -> str:
    """The host reads faster than the GPU trains."""
    speed = machine.baseline["images_per_second"]
    waiting = machine.each_step_timed["data_wait_fraction"]  # with windows of several steps it is not told apart
    ceiling, _ = feed(split_of(machine.folder, machine.image_size), 1, 1, pause=False)
    if machine.device == "gpu" and (waiting > 0.05 or ceiling < speed):
        raise CheckFailedError(f"{waiting:.0%} of a step waits for data; one thread reads {ceiling:,.0f} images/s")
    return f"{waiting:.1%} of a step waits for data; one thread reads {ceiling:,.0f} images/s"


def settings(machine: Machine) -> str:
    """Which settings are fast here."""
    if machine.device != "gpu":
        found = [("NHWC", machine.run("native", "--profile", "native", "--tune", "compilation=none"))]
    else:
        found = []
        for layout, kernels in product(("NCHW", "NHWC"), ("foreach", "fused")):
            tuned = ("--tune", f"memory_layout={layout}", "--tune", f"optimizer_kernels={kernels}")
            name = f"{layout} {kernels}"
            found.append((name, machine.run(f"tuned {name}", "--profile", "native", *tuned, "--precision", "bfloat16")))
    return "; ".join(f"{name} {_speed(result)}" for name, result in found)


def processes(machine: Machine) -> str:
    """One process per GPU, with one GPU, computes what a single one does."""
    told = []
    for mode in ("ddp", "fsdp"):
        result = machine.run(mode, mode=mode)
        _require_close(mode, machine.baseline["train_loss"], result["train_loss"])
        told.append(f"{mode} by {result['collective']} {_speed(result)}")
    return f"losses as of single; {', '.join(told)}"


def energy(machine: Machine) -> str:
    """Energy and memory are within what the GPU can take."""
    joules = machine.baseline["joules_per_image"]
    if machine.device != "gpu":
        return "no energy counter" if joules is None else f"{joules:.3f} J per image"
    memory = machine.baseline["peak_device_memory_bytes"]["total"]
    if joules is None:
        return f"no energy counter; {memory / 1e9:.1f} GB at most"
    watts = joules * machine.baseline["images_per_second"]
    if not 20 < watts < 2000:
        raise CheckFailedError(f"{watts:.0f} W")
    return f"{watts:.0f} W, {joules:.3f} J per image, {memory / 1e9:.1f} GB at most"


def resumption(machine: Machine) -> str:
    """A killed run goes on where it was."""
    every = max(1, machine.steps // 3)
    whole = machine.run("whole", "--checkpoint-every", str(every))
    argv = machine.command("killed", "--checkpoint-every", str(every))
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + LONGEST_SECONDS
    while not list((machine.folder / "killed").glob("checkpoints/*.safetensors")):
        if process.poll() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    with suppress(ProcessLookupError):  # it has ended already
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    resume = [sys.executable, "-m", "dpcompare", "run", "--resume", str(machine.folder / "killed"), "--json"]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    if done.returncode:
        raise CheckFailedError(f"the resumed run ended with {done.returncode}: {done.stderr[-600:]}")
    losses = json.loads(done.stdout)["train_loss"]
    _require_close("the resumed run", whole["train_loss"][every:], losses[every:])
    return f"largest difference of a loss {_difference(whole['train_loss'], losses):.1e}"


def clock(machine: Machine) -> str:
    """What a wait after every step costs."""
    window = machine.baseline["settings"]["steps_per_window"]
    if window == 1:
        return "left out: without a GPU the clock is read after every step"
    ratio = machine.baseline["images_per_second"] / machine.each_step_timed["images_per_second"]
    return f"windows of {window} are {ratio:.3f} times as fast as of 1"


def several(machine: Machine) -> str:
    """Several GPUs compute what one does."""
    gpus = visible_gpus(installed_gpus()) if machine.device == "gpu" else ["0", "1"]
    if len(gpus) < 2:
        return "left out: one GPU"
    told = []
    for mode, options in (("dp", ("--devices-per-node", "2")), ("ddp", ("--nodes", "2", "--devices-per-node", "1"))):
        result = machine.run(f"two {mode}", *options, mode=mode, batch=machine.batch)
        told.append(f"{mode} {_speed(result)}")
    return f"on 2: {', '.join(told)}"


def tensorflow(machine: Machine) -> str:
    """TensorFlow sees the GPU, and begins with the loss of torch."""
    modes = [sys.executable, "-m", "dpcompare", "modes", "--json"]
    listed = json.loads(subprocess.run(modes, capture_output=True, text=True, timeout=LONGEST_SECONDS).stdout)["modes"]
    if not any(row["usable"] for row in listed if row["framework"] == "tensorflow"):
        return "left out: not installed (`dpcompare setup`)"
    plain = machine.run("tensorflow", framework="tensorflow")
    _require_close("tensorflow", machine.baseline["train_loss"][:1], plain["train_loss"][:1])
    xla = machine.run("XLA", "--profile", "native", "--tune", "compilation=XLA", framework="tensorflow")
    first = plain["first_step_seconds"]
    return f"{_speed(plain)}, by XLA {_speed(xla)}; the first step took {first:.0f} s"


CHECKS: dict[str, Callable[[Machine], str]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        precisions, arithmetic, streams, input_speed, settings, processes, energy, resumption, clock, several,
        tensorflow,
    )
}  # fmt: skip


def _speed(result: dict[str, Any]) -> str:
    return f"{result['images_per_second']:,.0f} images/s"


def _difference(losses: list[float], others: list[float]) -> float:
    return max(abs(one - other) / abs(one) for one, other in zip(losses, others, strict=True))


def _require_close(name: str, losses: list[float], others: list[float]) -> None:
    if len(losses) != len(others) or _difference(losses[:5], others[:5]) > CLOSE:
        raise CheckFailedError(f"{name}: losses {others[:5]} instead of {losses[:5]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CHECKS, action="append")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--model", default="efficientnet-b2")
    parser.add_argument("--image-size", type=int, default=260)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup-steps", type=int, default=20)
    parser.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file whose section gets the table")
    arguments = parser.parse_args()
    lines = [
        f"{typed('stress.first_gpu')} at {commit()}, driver {driver_version() or 'none'}, "
        f"Python {sys.version.split()[0]}:",
        "",
        "| check | verdict | figures |",
        "|---|---|---|",
    ]
    failed = False
    with tempfile.TemporaryDirectory(prefix="dpcompare-first-gpu-") as folder:
        machine = Machine(
            Path(folder), arguments.device, arguments.model, arguments.image_size, arguments.batch,
            arguments.steps, arguments.warmup_steps,
        )  # fmt: skip
        for name in arguments.only or CHECKS:
            begin = time.monotonic()
            try:
                verdict, figures = "ok", CHECKS[name](machine)
            except Exception as error:  # the other checks go on, and the table is printed
                verdict, figures, failed = "FAILED", f"{type(error).__name__}: {error}".replace("\n", " "), True
            told = f"{CHECKS[name].__doc__} {figures} ({time.monotonic() - begin:.0f} s)"
            lines.append(f"| {name} | {verdict} | {told.replace('|', '/')} |")
            print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    if arguments.write:
        write_section(arguments.write, "first gpu", lines)
    sys.exit(3 if failed else 0)


if __name__ == "__main__":
    main()
