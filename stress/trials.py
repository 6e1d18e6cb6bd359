"""A trial: a tiny run with real processes, one fault that acts on it, and all that must be true afterwards."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpcompare.config.modes import MODES
from dpcompare.results.events import EventTail, Started
from dpcompare.results.run_dir import LOGS_DIR, checkpoint_paths
from dpcompare.system.cache import wait_for_lock
from stress.injection import write_sitecustomize

LONGEST = 90.0
"""Seconds after a fault when a trial counts as hanging."""
SECONDS_TO_BE_GONE = 2.0
REFERENCE_STEPS = (40, 400, 4000)
"""The steps of a run that is left alone: as few of these as will do, since on a busy machine thousands take minutes."""
STEPS_PER_EPOCH = 5
"""72 images in batches of 16."""
TINY = [
    *("--model", "mlp", "--image-size", "8", "--dataset", "synthetic-mini", "--global-batch-size", "16"),
    *("--warmup-steps", "0", "--device", "cpu", "--checkpoint-every", "1"),
]
BeforeExec = Callable[[], None]


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
    """The folder of the trial alone."""
    process: subprocess.Popen[str] = field(init=False)
    """The command."""
    acted_at: float | None = None
    pids: dict[int, int] = field(default_factory=dict)
    """The ids of the training processes, by rank."""
    seconds: float = 0.0
    """From the fault until everything was gone."""
    said: str = ""
    """The message of the command."""
    problems: list[str] = field(default_factory=list)
    """Everything that is not as it must be."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the command gets in addition to those of this process."""

    @property
    def run_dir(self) -> Path:
        # In a separate folder, which may be on a separate disk.
        return self.folder / "disk" / "run"

    def act(self, pid: int, number: int) -> None:
        os.kill(pid, number)
        self.acted_at = time.monotonic()

    @property
    def temporary(self) -> Path:
        """Where all temporary files of the run go."""
        return self.folder / "tmp"

    @property
    def pid_file(self) -> Path:
        """Holds the pid of the command, for faults inside its processes."""
        return self.folder / "pid"

    def start(self, arguments: list[str], before_exec: BeforeExec = lambda: None) -> subprocess.Popen[str]:
        """A command with the fault in its processes; what it says goes into a file."""
        own = {"DPCOMPARE_CACHE_DIR": str(self.folder / "cache"), "TMPDIR": str(self.temporary)}
        environment = os.environ | own | self.environment
        if (self.folder / "fault").is_dir():
            environment["PYTHONPATH"] = f"{self.folder / 'fault'}:{environment.get('PYTHONPATH', '')}"

        def prepare() -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # ignored in the background of a shell
                signal.signal(number, signal.SIG_DFL)
            before_exec()

        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "stderr").open("a"),
            text=True,
            preexec_fn=prepare,
        )

    def processes(self) -> list[int]:
        """All that have this trial's folder in their environment, as children of any depth do, but for the command."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                pid = int(entry.parent.name)
                state = (entry.parent / "stat").read_text().rpartition(")")[2].split()[0]
                if str(self.folder).encode() in entry.read_bytes() and state not in "ZX" and pid != self.process.pid:
                    found.append(pid)
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended, or is not one that we started
                continue
        return found


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How a fault acts, and what must come of it."""

    code: int
    """Exit code of the command; -9 where it is killed itself."""
    says: str = ""
    """Must be found in what the command says, RANK being that of the process on which the fault acts."""
    within: float
    """Seconds after the fault in which everything is gone; counted from the start where the run is to survive."""
    act: Callable[[Trial, list[dict[str, Any]]], None] | None = None
    """Called with new events again and again until it has acted."""
    inject: Callable[[Trial], tuple[str, str]] | None = None
    """(module, source) of a fault inside the processes; only training processes import dpcompare.training.loop."""
    around: Callable[[Trial], AbstractContextManager[BeforeExec]] = lambda trial: nullcontext(lambda: None)
    """What the trial runs in: a separate disk or limited memory; yields what the command calls before it starts."""
    options: tuple[str, ...] = ()
    """The options of the command; FOLDER in them is that of the trial."""
    modes: Callable[[str, str], bool] = lambda framework, mode: True
    needs_root: bool = False
    alone: bool = False
    """Whether no other trial may be made meanwhile: it acts on what all processes of the machine see."""
    on_the_machine: bool = False
    """Whether it cannot be isolated, since it needs the machine's own network."""
    needs: tuple[str, ...] = ()
    """Programs."""
    needs_modules: tuple[str, ...] = ()
    """The modules of Python, beyond what this script itself imports."""
    leaves_logs: bool = True
    """Whether they are where they belong: there are none before training, nor where the directory is gone."""
    writes_result: bool = True
    """Whether it can."""
    resumable: bool = True
    """Whether there is a checkpoint to resume from."""
    before_resuming: Callable[[Trial], str] | None = None
    """Mends what was broken, or breaks a checkpoint; returns what the resumed command must say."""
    then: Callable[[Trial], list[str]] = lambda trial: []
    """Further problems, of a run that survives."""

    def applies(self, framework: str, mode: str) -> bool:
        can_be_had = (os.geteuid() == 0 or not self.needs_root) and all(map(shutil.which, self.needs))
        return can_be_had and all(map(find_spec, self.needs_modules)) and self.modes(framework, mode)


def several(framework: str, mode: str) -> bool:
    """Whether a mode has a process per node."""
    return MODES[framework, mode].multi_node


def num_processes(framework: str, mode: str) -> int:
    return 2 if several(framework, mode) else 1


def command(framework: str, mode: str, *options: str) -> list[str]:
    row = MODES[framework, mode]
    devices = ["--nodes", "2"] if row.multi_node else ["--devices-per-node", "2"] if row.multi_device else []
    run = [sys.executable, "-m", "dpcompare", "run", "--framework", framework, "--mode", mode]
    return [*run, *devices, *TINY, *options]


def resume_command(trial: Trial, steps: int) -> list[str]:
    run = [sys.executable, "-m", "dpcompare", "run", "--resume", str(trial.run_dir)]
    return [*run, "--steps", str(steps), "--json"]


def shared_memory() -> set[str]:
    """The segments of this machine."""
    return {f"shared memory {path}" for path in Path("/dev/shm").iterdir()}


def ports_listening() -> set[str]:
    """The sockets that listen on this machine."""
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    return {f"port {line.split()[1]}" for table in tables for line in table if line.split()[3] == "0A"}


@contextmanager
def trial_of(
    fault: Fault, framework: str, mode: str, generator: random.Random, *, step: int | None = None
) -> Iterator[Trial]:
    """Run one trial and yield it with its figures and problems; what it lives in lasts as long as the context.

    Args:
        step: when the fault is to act; drawn where it is not given.
    """
    with tempfile.TemporaryDirectory(prefix="dpcompare-trial-") as temporary:
        trial = Trial(
            framework=framework,
            mode=mode,
            step=step or generator.randint(3, 30),  # by then there are two checkpoints
            rank=generator.randrange(num_processes(framework, mode)),
            folder=Path(temporary),
        )
        trial.run_dir.parent.mkdir()
        trial.temporary.mkdir()
        if fault.inject is not None:
            write_sitecustomize(trial.folder / "fault", *fault.inject(trial))
        with fault.around(trial) as before_exec:
            before = shared_memory() | ports_listening()
            options = [option.replace("FOLDER", str(trial.folder)) for option in fault.options]
            options += [] if "--steps" in options else ["--steps", "1000000"]
            began_at = time.monotonic()
            arguments = command(framework, mode, *options, "--run-dir", str(trial.run_dir))
            trial.process = trial.start(arguments, before_exec)
            trial.pid_file.write_text(str(trial.process.pid))
            try:
                _follow(trial, fault, began_at)
            except BaseException:
                _kill(trial)
                raise
            since = trial.acted_at if trial.acted_at is not None and fault.code != 0 else began_at
            left = wait_until_gone(trial, before, since + fault.within + SECONDS_TO_BE_GONE)
            trial.seconds = time.monotonic() - since
            trial.said = (trial.folder / "stderr").read_text()
            trial.problems += [*left, *_problems(trial, fault), *fault.then(trial)]
            yield trial


def _follow(trial: Trial, fault: Fault, began_at: float) -> None:
    """Act when it is time, and wait for the end of the command."""
    tail = EventTail(trial.run_dir, range(num_processes(trial.framework, trial.mode)))
    while trial.process.poll() is None:
        events = list(tail.new_events())
        trial.pids |= {event.process_rank: event.pid for event in events if isinstance(event, Started)}
        if trial.acted_at is None:
            if fault.act is not None:
                fault.act(trial, events)
            elif (trial.folder / "acted").exists():
                trial.acted_at = time.monotonic()
        if time.monotonic() - (trial.acted_at or began_at) > max(LONGEST, fault.within + LONGEST / 2):
            _kill(trial)
            trial.problems.append("HANG")
            return
        # A checkpoint that is being written is there for a few milliseconds; imports take seconds.
        time.sleep(0.001 if trial.pids else 0.01)
    if trial.acted_at is None and (trial.folder / "acted").exists():
        trial.acted_at = time.monotonic()  # it ended before it was looked for


def _kill(trial: Trial) -> None:
    for pid in [trial.process.pid, *trial.processes()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    trial.process.wait()


def wait_until_gone(trial: Trial, before: set[str], deadline: float) -> list[str]:
    """What is left of processes, ports and shared memory at the deadline; the processes are killed then."""
    while True:
        processes, rest = trial.processes(), (shared_memory() | ports_listening()) - before
        if not (processes or rest) or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"left: {each}" for each in [*(f"process {pid}" for pid in processes), *rest]]


def temporary_files(folder: Path) -> list[Path]:
    """What a run has left where temporary files go."""
    # torch's cache of compiled kernels is one for all runs of a user, and made when a run first asks for it.
    return [path for path in folder.iterdir() if not path.name.startswith("torchinductor_")]


def described(path: Path) -> str:
    """What is known of a file that was not expected, so that its maker can be found."""
    if path.is_dir():
        return f"a folder of {sorted(each.name for each in path.iterdir())}"
    if not path.is_file():
        return "no regular file, or gone"
    with path.open("rb") as file:
        return f"{path.stat().st_size} bytes that begin with {file.read(80)!r}"


def _problems(trial: Trial, fault: Fault) -> Iterator[str]:
    if trial.acted_at is None:
        yield "the fault did not act"
    if trial.seconds > fault.within:
        yield f"gone after {trial.seconds:.1f} s, expected {fault.within:.0f}"
    if trial.process.returncode != fault.code:
        yield f"exit code {trial.process.returncode}, expected {fault.code}"
    says = fault.says.replace("RANK", str(trial.rank))
    if not re.search(says, trial.said, re.DOTALL):
        yield f"it does not say {says!r}"
    if fault.code >= 0:  # what is killed itself cannot clear up
        yield from (f"left: {path}, {described(path)}" for path in temporary_files(trial.temporary))
    if "Traceback" in trial.said.split("error:")[0]:
        yield "a traceback of the command itself"
    if fault.leaves_logs and not (trial.run_dir / LOGS_DIR).is_dir():
        yield "no logs"
    if fault.code > 0 and fault.writes_result:
        try:
            status = json.loads((trial.run_dir / "result.json").read_text())["status"]
        except (OSError, ValueError) as error:
            yield f"no result.json: {error}"
        else:
            if status != ("interrupted" if fault.code == 130 else "failed"):
                yield f"result.json says {status}"


def resume_trial(trial: Trial, fault: Fault) -> list[str]:
    """Resume without the fault, three steps further, and compare with a run that was left alone; returns problems."""
    says = fault.before_resuming(trial) if fault.before_resuming is not None else ""
    paths = checkpoint_paths(trial.run_dir)
    if not paths:
        return ["no checkpoint"]
    steps = int(paths[0].stem.removeprefix("step-")) + 3
    if steps > REFERENCE_STEPS[-1]:
        return [f"step {steps} is beyond the reference"]
    reference = reference_losses(trial.framework, trial.mode, steps)
    done = subprocess.run(
        resume_command(trial, steps),
        # Another cache: a store that was truncated is prepared again.
        env=os.environ | {"DPCOMPARE_CACHE_DIR": str(trial.folder / "other-cache")},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    if done.returncode != 0:
        return [f"it does not resume: {done.stderr[-300:]}"]
    if not re.search(says, done.stderr.replace("\n", " ")):
        return [f"resumed, it does not say {says!r}: {done.stderr[-300:]}"]
    result = json.loads(done.stdout)
    if result["train_loss"] != reference[:steps]:
        return ["the losses after resuming are others"]
    evaluated = {evaluation["step"] for evaluation in result["evaluations"]}
    if not set(range(STEPS_PER_EPOCH, steps + 1, STEPS_PER_EPOCH)) <= evaluated:
        return ["an evaluation was lost"]
    return []


def reference_losses(framework: str, mode: str, steps: int) -> list[float]:
    """The losses of at least that many steps of a run that was left alone."""
    return _losses_alone(framework, mode, next(length for length in REFERENCE_STEPS if length >= steps))


_kept_in: Path | None = None
"""Where references are kept, for other processes and other pieces of a series; None: each process makes its own."""


def keep_references(folder: Path) -> None:
    """Have this process, and those forked from it, make a reference once; `folder` is of one commit."""
    global _kept_in
    folder.mkdir(parents=True, exist_ok=True)
    _kept_in = folder


@cache
def _losses_alone(framework: str, mode: str, steps: int) -> list[float]:
    if _kept_in is None:
        return _train_alone(framework, mode, steps)
    kept = _kept_in / f"{framework}-{mode}-{steps}.json"
    with wait_for_lock(kept.with_suffix(".lock")):
        if not kept.exists():
            kept.write_text(json.dumps(_train_alone(framework, mode, steps)))
        losses: list[float] = json.loads(kept.read_text())
    return losses


def _train_alone(framework: str, mode: str, steps: int) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="dpcompare-reference-") as folder:
        # One checkpoint instead of thousands: they do not change a loss.
        length = str(steps)
        options = ("--steps", length, "--checkpoint-every", length, "--run-dir", f"{folder}/run", "--json")
        done = subprocess.run(
            command(framework, mode, *options),
            env=os.environ | {"DPCOMPARE_CACHE_DIR": f"{folder}/cache"},
            capture_output=True,
            text=True,
            check=True,
            timeout=10 * LONGEST,
        )
        losses: list[float] = json.loads(done.stdout)["train_loss"]
        return losses
