"""What faults do to runs: seeded trials with real processes and real signals, every one counted, none repeated.

    python scripts/fault_matrix.py [--trials 300] [--seed 0] [--fault NAME ...] [--mode FRAMEWORK:MODE ...]

Each trial starts `dpcompare run` with a tiny model, lets one fault act, and measures how long it takes until the command
and all its processes are gone, what it says, what is left, and whether the run goes on exactly. A fault that did not act
is a failed trial. Prints a table in Markdown; exit code 3 when any trial failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from injection import write_sitecustomize

from dpcompare.backends import MODES
from dpcompare.checkpoint import checkpoint_paths
from dpcompare.events import EventTail
from dpcompare.result import LOGS_DIR

LONGEST = 90.0
"""Seconds after a fault when a trial counts as hanging."""
SECONDS_TO_BE_GONE = 2.0
REFERENCE_STEPS = 4000
STEPS_PER_EPOCH = 5
"""72 images in batches of 16."""
TINY = [
    *("--model", "mlp", "--image-size", "8", "--dataset", "synthetic-mini", "--global-batch-size", "16"),
    *("--warmup-steps", "0", "--device", "cpu", "--checkpoint-every", "1"),
]


@dataclass
class Trial:
    """One run and what is done to it."""

    framework: str
    mode: str
    step: int
    """When the fault is to act."""
    rank: int
    """On which process."""
    folder: Path
    process: subprocess.Popen[str]
    acted_at: float | None = None
    pids: dict[int, int] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def act(self, pid: int, number: int) -> None:
        os.kill(pid, number)
        self.acted_at = time.monotonic()

    def processes(self) -> list[int]:
        """Those of this run, by the run directory in their command lines; the command itself left out."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                pid = int(entry.parent.name)
                state = (entry.parent / "stat").read_text().rpartition(")")[2].split()[0]
                if str(self.run_dir) in entry.read_text() and state not in "ZX" and pid != self.process.pid:
                    found.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of FAULTS: how a fault acts, and what must come of it."""

    code: int
    """Exit code of the command; -9 where it is killed itself."""
    says: str = ""
    """Must be found in what the command says."""
    within: float
    """Seconds after the fault in which everything is gone; counted from the start where the run is to survive."""
    act: Callable[[Trial, list[dict]], None] | None = None
    """Called with new events again and again until it has acted."""
    inject: Callable[[Trial], tuple[str, str]] | None = None
    """(module, source) of a fault inside the processes; dpcompare.loop is imported by training processes only."""
    options: tuple[str, ...] = ()
    modes: Callable[[str, str], bool] = lambda framework, mode: True
    goes_on: bool = True
    """Whether there is a checkpoint to go on from."""


def at_step(do: Callable[[Trial], None]) -> Callable[[Trial, list[dict]], None]:
    def act(trial: Trial, events: list[dict]) -> None:
        if any(event["kind"] == "train" and event["step"] >= trial.step for event in events):
            do(trial)

    return act


def kill_at_start(trial: Trial, events: list[dict]) -> None:
    if trial.rank in trial.pids:
        trial.act(trial.pids[trial.rank], signal.SIGKILL)


def kill_while_it_writes(trial: Trial, events: list[dict]) -> None:
    # Not the first one: there would be none to go on from.
    if trial.pids and checkpoint_paths(trial.run_dir) and list((trial.run_dir / "checkpoints").glob("*.tmp")):
        trial.act(trial.pids[0], signal.SIGKILL)


def kill_agent(trial: Trial) -> None:
    agents = [pid for pid in trial.processes() if "torch.agent" in Path(f"/proc/{pid}/cmdline").read_text()]
    trial.act(agents[trial.rank % len(agents)], signal.SIGKILL)


def interrupt_twice(trial: Trial) -> None:
    trial.act(trial.process.pid, signal.SIGINT)
    time.sleep(0.2)
    if trial.process.poll() is None:
        os.kill(trial.process.pid, signal.SIGINT)


def truncate_store(trial: Trial) -> None:
    (images,) = (trial.folder / "cache" / "stores").glob("*/train-images.npy")
    images.write_bytes(b"")
    trial.acted_at = time.monotonic()


def in_rank(trial: Trial, body: str) -> str:
    """Source that breaks the process of one rank only; `body` is the fault, in which {note} tells that it acts."""
    note = f"open({str(trial.folder / 'acted')!r}, 'w').close()"
    return f"""
def inject(module):
    import math, os, signal, time
    train, rate = module.train, module.learning_rate
    def broken_train(backend, *arguments, **options):
        if backend.process_rank == {trial.rank}:
            def broken_rate(workload, step, num_steps):
                if step >= {trial.step}:
                    {body.format(note=note)}
                return rate(workload, step, num_steps)
            module.learning_rate = broken_rate
        return train(backend, *arguments, **options)
    module.train = broken_train
"""


def in_evaluation(trial: Trial) -> tuple[str, str]:
    """One process dies in an evaluation; the others may finish theirs."""
    return (
        "dpcompare.loop",
        f"""
def inject(module):
    import os, signal
    train, batches = module.train, module.evaluation_batches
    def broken_train(backend, *arguments, **options):
        def dying(*counts):
            for number, batch in enumerate(batches(*counts)):
                if number == 1 and backend.process_rank == {trial.rank}:
                    open({str(trial.folder / "acted")!r}, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch
        module.evaluation_batches = dying
        return train(backend, *arguments, **options)
    module.train = broken_train
""",
    )


def before_start(trial: Trial, what: str) -> tuple[str, str]:
    return (
        "dpcompare.loop",
        f"""
def inject(module):
    import time
    train = module.train
    def late(backend, *arguments, **options):
        if backend.process_rank == {trial.rank}:
            open({str(trial.folder / "acted")!r}, "w").close()
            {what}
        return train(backend, *arguments, **options)
    module.train = late
""",
    )


def port_is_taken(trial: Trial) -> tuple[str, str]:
    return (
        "dpcompare.runner",
        f"""
def inject(module):
    import socket
    free_ports, taken = module.free_ports, []
    def lost(count):
        ports = free_ports(count)
        if not taken:
            taken.append(socket.socket())
            taken[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            taken[0].bind(("127.0.0.1", ports[0]))
            taken[0].listen()
            open({str(trial.folder / "acted")!r}, "w").close()
        return ports
    module.free_ports = lost
""",
    )


def several(framework: str, mode: str) -> bool:
    return MODES[framework, mode].multi_node


NAMED = r"process \d+ \(node \d+, local rank \d+\)"
DIED = rf"{NAMED} ended without a message.*last steps: process 0: \d+"
SHORT = ("--steps", "40")
FAULTS: dict[str, Fault] = {
    "SIGKILL of a process as it starts": Fault(code=1, says=DIED, within=5, act=kill_at_start, goes_on=False),
    "SIGKILL of a process": Fault(
        code=1, says=DIED, within=5, act=at_step(lambda trial: trial.act(trial.pids[trial.rank], signal.SIGKILL))
    ),
    "SIGKILL while a checkpoint is written": Fault(code=1, says=DIED, within=5, act=kill_while_it_writes),
    "SIGKILL in evaluation": Fault(code=1, says=DIED, within=5, inject=in_evaluation),
    "SIGKILL of a torchrun agent": Fault(
        code=1, says="ended", within=5, act=at_step(kill_agent), modes=lambda framework, mode: mode == "ddp"
    ),
    "SIGKILL of the command": Fault(
        code=-9, within=2, act=at_step(lambda trial: trial.act(trial.process.pid, signal.SIGKILL))
    ),
    "SIGINT": Fault(
        code=130, says="interrupted", within=5, act=at_step(lambda trial: trial.act(trial.process.pid, signal.SIGINT))
    ),
    "SIGTERM": Fault(
        code=130, says="interrupted", within=5, act=at_step(lambda trial: trial.act(trial.process.pid, signal.SIGTERM))
    ),
    "SIGHUP": Fault(
        code=130, says="interrupted", within=5, act=at_step(lambda trial: trial.act(trial.process.pid, signal.SIGHUP))
    ),
    "Ctrl-C twice": Fault(code=130, says="interrupted", within=5, act=at_step(interrupt_twice)),
    "SIGSTOP of a process": Fault(
        code=1,
        says=f"{NAMED} (showed no progress for|ended)|heartbeat|Connection closed",
        within=4 + 5,
        act=at_step(lambda trial: trial.act(trial.pids[trial.rank], signal.SIGSTOP)),
        options=("--progress-timeout", "4"),
    ),
    "an exception in a process": Fault(
        code=1,
        says=rf"{NAMED[:-2]}.*RuntimeError: broken on purpose",
        within=5,
        inject=lambda trial: ("dpcompare.loop", in_rank(trial, "{note}; raise RuntimeError('broken on purpose')")),
    ),
    "a process that never starts": Fault(
        code=1,
        says=f"{NAMED} showed no progress for 1[25]",
        within=15 + 5,
        inject=lambda trial: before_start(trial, "time.sleep(1000)"),
        options=("--start-timeout", "15"),
        goes_on=False,
    ),
    "a process that starts 20 s late": Fault(
        code=0, within=60, inject=lambda trial: before_start(trial, "time.sleep(20)"), options=SHORT, modes=several
    ),
    "a loss that is no number": Fault(
        code=1,
        says=r"the loss of step \d+ is nan|after step \d+ the values of",
        within=5,
        inject=lambda trial: ("dpcompare.loop", in_rank(trial, "{note}; return math.nan")),
        modes=lambda framework, mode: not several(framework, mode),
    ),
    "the clock set back by an hour": Fault(
        code=0,
        within=60,
        inject=lambda trial: (
            "dpcompare.loop",
            in_rank(trial, "now = time.time; {note}; time.time = lambda: now() - 3600; module.learning_rate = rate"),
        ),
        options=SHORT,
    ),
    "the store truncated": Fault(
        code=1, says="ended without a message|SIGBUS|is damaged", within=5, act=at_step(truncate_store)
    ),
    "a port taken in the race": Fault(code=0, within=60, inject=port_is_taken, options=SHORT, modes=several),
}


def devices(framework: str, mode: str) -> list[str]:
    row = MODES[framework, mode]
    return ["--nodes", "2"] if row.multi_node else ["--devices-per-node", "2"] if row.multi_device else []


def num_processes(framework: str, mode: str) -> int:
    return 2 if MODES[framework, mode].multi_node else 1


def command(framework: str, mode: str, *options: str) -> list[str]:
    run = [sys.executable, "-m", "dpcompare", "run", "--framework", framework, "--mode", mode]
    return [*run, *devices(framework, mode), *TINY, *options]


def default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def one_trial(fault: Fault, framework: str, mode: str, generator: random.Random, folder: Path) -> dict:
    """Run one trial; returns its figures and, in `problems`, everything that is not as it must be."""
    trial = Trial(
        framework=framework,
        mode=mode,
        step=generator.randint(1, 30),
        rank=generator.randrange(num_processes(framework, mode)),
        folder=folder,
        process=None,  # type: ignore[arg-type]
    )
    environment = dict(os.environ, DPCOMPARE_CACHE_DIR=str(folder / "cache"))
    if fault.inject is not None:
        module, source = fault.inject(trial)
        write_sitecustomize(folder / "fault", module, source)
        environment["PYTHONPATH"] = str(folder / "fault")
    shared_memory = set(Path("/dev/shm").iterdir())
    options = fault.options if "--steps" in fault.options else (*fault.options, "--steps", "1000000")
    began_at = time.monotonic()
    trial.process = subprocess.Popen(
        command(framework, mode, *options, "--run-dir", str(trial.run_dir)),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("w"),
        text=True,
        preexec_fn=default_signals,
    )
    problems = follow(trial, fault, began_at)
    since = trial.acted_at if trial.acted_at is not None and fault.code != 0 else began_at
    left = trial.processes()
    while left and time.monotonic() - since < fault.within + SECONDS_TO_BE_GONE:
        time.sleep(0.02)
        left = trial.processes()
    gone_after = time.monotonic() - since
    said = (folder / "stderr").read_text()
    if trial.acted_at is None:
        problems.append("the fault did not act")
    if left:
        problems.append(f"{len(left)} processes left")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    if gone_after > fault.within:
        problems.append(f"gone after {gone_after:.1f} s, expected {fault.within:.0f}")
    if trial.process.returncode != fault.code:
        problems.append(f"exit code {trial.process.returncode}, expected {fault.code}")
    if not re.search(fault.says, said, re.DOTALL):
        problems.append(f"it does not say {fault.says!r}")
    if "Traceback" in said.split("error:")[0]:
        problems.append("a traceback of the command itself")
    if more := set(Path("/dev/shm").iterdir()) - shared_memory:
        problems.append(f"shared memory left: {sorted(more)}")
    if not (trial.run_dir / LOGS_DIR).is_dir():
        problems.append("no logs")
    if fault.code > 0 and not (trial.run_dir / "result.json").is_file():
        problems.append("no result.json")
    return {"seconds": gone_after, "problems": problems, "trial": trial}


def follow(trial: Trial, fault: Fault, began_at: float) -> list[str]:
    """Act when it is time, and wait for the end of the command."""
    tail = EventTail(trial.run_dir, num_processes(trial.framework, trial.mode))
    while trial.process.poll() is None:
        events = list(tail.new_events())
        trial.pids |= {event["process_rank"]: event["pid"] for event in events if event["kind"] == "start"}
        if trial.acted_at is None:
            if fault.act is not None:
                fault.act(trial, events)
            elif (trial.folder / "acted").exists():
                trial.acted_at = time.monotonic()
        if time.monotonic() - (trial.acted_at or began_at) > LONGEST:
            for pid in [*trial.processes(), trial.process.pid]:
                os.kill(pid, signal.SIGKILL)
            trial.process.wait()
            return ["HANG"]
        time.sleep(0.001)
    if trial.acted_at is None and (trial.folder / "acted").exists():
        trial.acted_at = time.monotonic()  # it ended before it was looked for
    return []


def goes_on(trial: Trial, reference: list[float], folder: Path) -> list[str]:
    """Resume without the fault, three steps further, and compare with a run that was left alone."""
    paths = checkpoint_paths(trial.run_dir)
    if not paths:
        return ["no checkpoint"]
    steps = int(paths[0].stem.removeprefix("step-")) + 3
    if steps > len(reference):
        return [f"step {steps} is beyond the reference"]
    done = subprocess.run(
        [sys.executable, "-m", "dpcompare", "run", "--resume", str(trial.run_dir), "--steps", str(steps), "--json"],
        env=dict(os.environ, DPCOMPARE_CACHE_DIR=str(folder / "cache")),
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    if done.returncode != 0:
        return [f"it does not go on: {done.stderr[-300:]}"]
    result = json.loads(done.stdout)
    if result["train_loss"] != reference[:steps]:
        return ["the losses after going on are others"]
    evaluated = {evaluation["step"] for evaluation in result["evaluations"]}
    if not set(range(STEPS_PER_EPOCH, steps + 1, STEPS_PER_EPOCH)) <= evaluated:
        return ["an evaluation was lost"]
    return []


def reference_losses(framework: str, mode: str, folder: Path) -> list[float]:
    # One checkpoint instead of thousands: they do not change a loss.
    length = str(REFERENCE_STEPS)
    options = ("--steps", length, "--checkpoint-every", length, "--run-dir", str(folder / "run"), "--json")
    done = subprocess.run(
        command(framework, mode, *options),
        env=dict(os.environ, DPCOMPARE_CACHE_DIR=str(folder / "cache")),
        capture_output=True,
        text=True,
        check=True,
    )
    losses: list[float] = json.loads(done.stdout)["train_loss"]
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only these")
    parser.add_argument("--mode", action="append", help="only these, such as torch:ddp")
    parser.add_argument("--go-on-every", type=int, default=3, metavar="N", help="resume every N-th trial that can be")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in the background of a shell
        signal.signal(number, signal.default_int_handler)
    generator = random.Random(arguments.seed)
    modes = [tuple(mode.split(":")) for mode in arguments.mode] if arguments.mode else list(MODES)
    cells = [
        (name, framework, mode)
        for name in arguments.fault or FAULTS
        for framework, mode in modes
        if FAULTS[name].modes(framework, mode)
    ]
    order = [cells[number % len(cells)] for number in range(arguments.trials)]
    generator.shuffle(order)
    references: dict[tuple[str, str], list[float]] = {}
    found = defaultdict(list)
    resumed = failed = 0
    try:
        for number, (name, framework, mode) in enumerate(order, start=1):
            fault = FAULTS[name]
            with tempfile.TemporaryDirectory(prefix="dpcompare-fault-") as temporary:
                made = one_trial(fault, framework, mode, generator, Path(temporary))
                problems = made["problems"]
                if fault.goes_on and fault.code != 0 and not problems and number % arguments.go_on_every == 0:
                    if (framework, mode) not in references:
                        with tempfile.TemporaryDirectory(prefix="dpcompare-reference-") as apart:
                            references[framework, mode] = reference_losses(framework, mode, Path(apart))
                    # Another cache: a store that was truncated is prepared again.
                    problems += goes_on(made["trial"], references[framework, mode], Path(temporary))
                    resumed += 1
                if problems:
                    failed += 1
                    said = (Path(temporary) / "stderr").read_text()
                    print(
                        f"FAILED trial {number}: {name}, {framework} {mode}: {problems}\n{said[-1500:]}",
                        file=sys.stderr,
                    )
                found[name].append((made["seconds"], bool(problems)))
                print(f"[{number}/{len(order)}] {name}, {framework} {mode}: {made['seconds']:.1f} s", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; these trials were made", file=sys.stderr)
    print("| fault | trials | failed | median s until all is gone | largest | allowed |\n|---|--:|--:|--:|--:|--:|")
    for name in FAULTS:
        if found[name]:
            seconds = [each for each, _ in found[name]]
            bad = sum(problem for _, problem in found[name])
            print(
                f"| {name} | {len(seconds)} | {bad} | {np.median(seconds):.1f} | {max(seconds):.1f} | {FAULTS[name].within:.0f} |"
            )
    print(
        f"\nseed {arguments.seed}: {sum(map(len, found.values()))} trials, {failed} failed; {resumed} runs went on and were compared."
    )
    sys.exit(3 if failed else 0)


if __name__ == "__main__":
    main()
