"""Faults of what surrounds a run: its preparing, its output, its directory, its scheduler, its clock and its limits."""

from __future__ import annotations

import os
import pty
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from PIL import Image

from stress.faults import SHORT, Events, as_if_alone, at_step, control_group, in_rank
from stress.shared_files import behind, late_answers, shared_files
from stress.trials import BeforeExec, Fault, Trial, several
from tests.support.slurm import PROGRAMS, slurm

NUM_IMAGES = 2000
"""Images, all of one file under many names: several seconds of decoding."""


@contextmanager
def much_to_prepare(trial: Trial) -> Iterator[BeforeExec]:
    """Two folders of large images, which are decoded for the first time."""
    root = trial.folder / "photos"
    noise = np.random.default_rng(0).integers(0, 256, (600, 800, 3), dtype=np.uint8)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
    Image.fromarray(noise).save(root / "a" / "0.png")
    for number in range(1, NUM_IMAGES):
        (root / "ab"[number % 2] / f"{number}.png").hardlink_to(root / "a" / "0.png")
    yield lambda: None


def while_it_prepares(do: Callable[[Trial, list[int]], None]) -> Callable[[Trial, Events], None]:
    """Act when images are decoded, after a time that differs from trial to trial."""
    began: dict[Path, float] = {}

    def act(trial: Trial, events: Events) -> None:
        decoding = [pid for pid in trial.processes() if "popen_loky" in Path(f"/proc/{pid}/cmdline").read_text()]
        if decoding and time.monotonic() - began.setdefault(trial.folder, time.monotonic()) > trial.step / 30:
            trial.acted_at = time.monotonic()
            do(trial, decoding)

    return act


@contextmanager
def piped_to_tee(trial: Trial) -> Iterator[BeforeExec]:
    """`... 2>&1 | tee log`."""
    tee = subprocess.Popen(["tee", trial.folder / "log"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert tee.stdin is not None
    TEES[trial.folder] = tee
    pipe = tee.stdin.fileno()
    try:
        yield lambda: _say_into(pipe)
    finally:
        tee.kill()
        tee.communicate()


TEES: dict[Path, subprocess.Popen[bytes]] = {}


def _say_into(descriptor: int) -> None:
    for stream in (1, 2):
        os.dup2(descriptor, stream)


def kill_tee(trial: Trial) -> None:
    tee = TEES.pop(trial.folder)
    tee.kill()
    tee.wait()
    trial.acted_at = time.monotonic()


@contextmanager
def on_a_full_device(trial: Trial) -> Iterator[BeforeExec]:
    """`... 2>/dev/full`."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        yield lambda: _say_into(full)
    finally:
        os.close(full)


def at_once(trial: Trial, events: Events) -> None:
    """What is limited from the start."""
    trial.acted_at = time.monotonic()


def note(trial: Trial) -> None:
    """What was broken from the start has been survived until here."""
    trial.acted_at = time.monotonic()


@contextmanager
def on_a_terminal(trial: Trial, *, hang_up: int = signal.SIG_DFL) -> Iterator[BeforeExec]:
    """A terminal of its own, as of an ssh session."""
    keyboard, screen = pty.openpty()
    os.set_blocking(keyboard, False)
    TERMINALS[trial.folder] = keyboard

    def take() -> None:
        os.login_tty(screen)
        signal.signal(signal.SIGHUP, hang_up)

    try:
        yield take
    finally:
        os.close(screen)
        if (left := TERMINALS.pop(trial.folder, None)) is not None:
            os.close(left)


TERMINALS: dict[Path, int] = {}
"""The side of a trial's terminal on which a user sits."""


def close_terminal(trial: Trial, events: Events) -> None:
    """Look at what is shown, as somebody has to, and go at the step of the trial."""
    with suppress(BlockingIOError):
        while os.read(TERMINALS[trial.folder], 1 << 16):
            continue
    at_step(_hang_up)(trial, events)


def _hang_up(trial: Trial) -> None:
    os.close(TERMINALS.pop(trial.folder))
    trial.acted_at = time.monotonic()


def remove_directory(trial: Trial) -> None:
    trial.acted_at = time.monotonic()
    while trial.run_dir.exists():  # its processes write into it meanwhile
        shutil.rmtree(trial.run_dir, ignore_errors=True)


def rename_directory(trial: Trial) -> None:
    trial.acted_at = time.monotonic()
    trial.run_dir.rename(trial.run_dir.with_name("elsewhere"))


def name_it_back(trial: Trial) -> str:
    trial.run_dir.with_name("elsewhere").rename(trial.run_dir)
    return ""


@contextmanager
def two_slurm_nodes(trial: Trial) -> Iterator[BeforeExec]:
    """A Slurm with two nodes on this machine."""
    with tempfile.TemporaryDirectory(prefix="dpcompare-slurm-") as folder, slurm(Path(folder)) as environment:
        trial.environment |= environment
        CONTROLLERS[trial.folder] = int((Path(folder) / "slurmctld.pid").read_text())
        try:
            yield lambda: None
        finally:
            os.kill(CONTROLLERS.pop(trial.folder), signal.SIGCONT)


CONTROLLERS: dict[Path, int] = {}


def freeze_controller(trial: Trial) -> None:
    trial.act(CONTROLLERS[trial.folder], signal.SIGSTOP)


def written_before_cleaning_up(trial: Trial) -> list[str]:
    """The result does not wait for a controller that is away."""
    last_event = max(path.stat().st_mtime for path in (trial.run_dir / "events").glob("process-*.jsonl"))
    waited = (trial.run_dir / "result.json").stat().st_mtime - last_event
    return [*as_if_alone("run")(trial), *([f"the result was written {waited:.0f} s late"] if waited > 15 else [])]


def clock_of_the_command(trial: Trial) -> tuple[str, str]:
    """Python's clock of the command jumps when processes are watched."""
    jump = (-3600, 86400)[trial.step % 2]
    return (
        "dpcompare.launch.attempt",
        f"""
def inject(module):
    import time
    launch, now = module.launch, time.time
    def jumping(*arguments, **options):
        open({str(trial.folder / "acted")!r}, "w").close()
        time.time = lambda: now() + {jump}
        return launch(*arguments, **options)
    module.launch = jumping
""",
    )


def clock_forward(trial: Trial) -> tuple[str, str]:
    broken = f"""\
def jumping(workload, step, num_steps):
    if step >= {trial.step}:
        now = time.time
        {{note}}
        time.time = lambda: now() + 86400
        module.learning_rate = rate
    return rate(workload, step, num_steps)
module.learning_rate = jumping"""
    return in_rank(trial, broken)


def growing_command(trial: Trial) -> tuple[str, str]:
    """The command takes more and more memory with every event that it is shown."""
    return (
        "dpcompare.cli.progress",
        f"""
def inject(module):
    hoard = []
    observe = module.RunProgress.observe
    def growing(self, event):
        if getattr(event, "step", 0) >= {trial.step}:
            open({str(trial.folder / "acted")!r}, "w").close()
            hoard.append(bytearray(64 << 20))
        return observe(self, event)
    module.RunProgress.observe = growing
""",
    )


@contextmanager
def on_a_slow_disk(trial: Trial) -> Iterator[BeforeExec]:
    """Every write to the run directory takes as long as on a busy network's file system."""
    with shared_files(trial.run_dir.parent, write_seconds=0.02):
        yield lambda: None


@contextmanager
def on_late_files(trial: Trial) -> Iterator[BeforeExec]:
    """Slurm's nodes, and the command, see some seconds late what another of them has written, as with NFS's caches."""
    late = shared_files(trial.run_dir.parent, late_seconds=3, node_variable="SLURM_NODEID")
    with two_slurm_nodes(trial) as before_exec, late:
        yield before_exec


def late_and_as_if_alone(trial: Trial) -> list[str]:
    """Some answers were late indeed, and nothing came of it."""
    late = late_answers(behind(trial.run_dir.parent)).exists()
    return [*as_if_alone("run")(trial), *([] if late else ["no answer of the file system was late"])]


def limit_memory(trial: Trial) -> None:
    """For the command alone: from now on it gets little more than it has."""
    pages = int(Path(f"/proc/{trial.process.pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (256 << 20)
    resource.prlimit(trial.process.pid, resource.RLIMIT_AS, (most, most))
    trial.acted_at = time.monotonic()


@contextmanager
def few_processes(trial: Trial) -> Iterator[BeforeExec]:
    """A few processes and threads, as `ulimit -u` and containers limit them."""
    # RLIMIT_NPROC does not bind root, and another user may not execute this interpreter.
    with control_group({"pids": "pids.max", "": "pids.max"}, 3 + trial.step % 4, trial.folder.name) as procs:
        yield lambda: procs.write_text(str(os.getpid()))  # type: ignore[func-returns-value]


def single(framework: str, mode: str) -> bool:
    """Where all modes do the same."""
    return mode == "single"


GONE = r"is gone: it was removed or renamed|cannot be written"
ON_SLURM = ("--engine", "slurm", "--cores-per-node", "1")
PREPARING = ("--dataset", "FOLDER/photos", "--skip-corrupt")

OUTER_FAULTS: dict[str, Fault] = {
    "SIGKILL of the command while it prepares images": Fault(
        code=-9,
        within=5,  # loky's tracker clears up what its processes shared
        around=much_to_prepare,
        act=while_it_prepares(lambda trial, decoding: os.kill(trial.process.pid, signal.SIGKILL)),
        options=PREPARING,
        modes=single,
        leaves_logs=False,
        resumable=False,
    ),
    "SIGTERM while it prepares images": Fault(
        code=130,
        says="interrupted",
        within=5,
        around=much_to_prepare,
        act=while_it_prepares(lambda trial, decoding: os.kill(trial.process.pid, signal.SIGTERM)),
        options=PREPARING,
        modes=single,
        leaves_logs=False,
        writes_result=False,
        resumable=False,
    ),
    "SIGKILL of a process that decodes images": Fault(
        code=2,
        says="a process that decodes images",
        within=5,
        around=much_to_prepare,
        act=while_it_prepares(lambda trial, decoding: os.kill(decoding[0], signal.SIGKILL)),
        options=PREPARING,
        modes=single,
        leaves_logs=False,
        writes_result=False,
        resumable=False,
    ),
    "the reader of the output killed": Fault(
        code=0, within=60, around=piped_to_tee, act=at_step(kill_tee), options=SHORT, then=as_if_alone("run")
    ),
    "the output on a full device": Fault(
        code=0, within=60, around=on_a_full_device, act=at_step(note), options=SHORT, then=as_if_alone("run")
    ),
    "the terminal closed": Fault(code=130, within=5, around=on_a_terminal, act=close_terminal),
    "the terminal closed, under nohup": Fault(
        code=0,
        within=60,
        around=lambda trial: on_a_terminal(trial, hang_up=signal.SIG_IGN),
        act=close_terminal,
        options=SHORT,
        then=as_if_alone("run"),
    ),
    "the run directory removed": Fault(
        code=1,
        says=GONE,
        within=5,
        act=at_step(remove_directory),
        leaves_logs=False,
        writes_result=False,
        resumable=False,
    ),
    "the run directory renamed": Fault(
        code=1,
        says=GONE,
        within=5,
        act=at_step(rename_directory),
        leaves_logs=False,
        writes_result=False,
        before_resuming=name_it_back,
    ),
    "a slow disk": Fault(
        code=0,
        within=90,
        around=on_a_slow_disk,
        act=at_step(note),
        options=SHORT,
        needs_root=True,
        needs=("fusermount3",),
        needs_modules=("mfusepy",),
        then=as_if_alone("run"),
    ),
    "files of one node that others see late": Fault(
        code=0,
        within=90,
        on_the_machine=True,  # Slurm's nodes do not become idle in a network of their own
        around=on_late_files,
        act=at_step(note),
        options=(*ON_SLURM, *SHORT),
        modes=several,
        needs_root=True,
        needs=("fusermount3", *PROGRAMS),
        needs_modules=("mfusepy",),
        then=late_and_as_if_alone,
    ),
    "Slurm's controller away": Fault(
        code=0,
        within=180,
        on_the_machine=True,
        around=two_slurm_nodes,
        act=at_step(freeze_controller),
        options=(*ON_SLURM, *SHORT),
        modes=several,
        needs_root=True,
        needs=PROGRAMS,
        then=written_before_cleaning_up,
    ),
    "Python's clock of a process set forward by a day": Fault(
        code=0, within=60, inject=clock_forward, options=SHORT, then=as_if_alone("run")
    ),
    "Python's clock of the command set": Fault(
        code=0, within=60, inject=clock_of_the_command, options=SHORT, then=as_if_alone("run")
    ),
    "the command's memory limited": Fault(
        code=1, says="(?i)memory", within=5, act=at_step(limit_memory), inject=growing_command
    ),
    "as many processes as a user may have": Fault(
        code=1,
        says="Resource temporarily unavailable|the system refused to start another thread",
        within=60,
        around=few_processes,
        act=at_once,
        leaves_logs=False,
        writes_result=False,
        needs_root=True,
        resumable=False,
    ),
}
