"""The faults that are tried: how each acts, in which modes, and what must come of it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dpcompare.results import checkpoint as checkpoints
from dpcompare.results.checkpoint import decode, encode
from dpcompare.results.events import Event, StepsTrained
from dpcompare.results.run_dir import checkpoint_paths
from stress.trials import LONGEST, BeforeExec, Fault, Trial, command, reference_losses, several

Events = list[Event]


def at_step(do: Callable[[Trial], None]) -> Callable[[Trial, Events], None]:
    """Act once a process has trained the step of the trial."""

    def act(trial: Trial, events: Events) -> None:
        if any(isinstance(event, StepsTrained) and event.step >= trial.step for event in events):
            do(trial)

    return act


def at_start(do: Callable[[Trial], None]) -> Callable[[Trial, Events], None]:
    """Act once the process of the trial has started."""

    def act(trial: Trial, events: Events) -> None:
        if trial.rank in trial.pids:
            do(trial)

    return act


def signal_process(number: signal.Signals) -> Callable[[Trial], None]:
    return lambda trial: trial.act(trial.pids[trial.rank], number)


def signal_command(number: signal.Signals) -> Callable[[Trial], None]:
    return lambda trial: trial.act(trial.process.pid, number)


def kill_while_it_writes(trial: Trial, events: Events) -> None:
    # Not the first one: there would be none to resume from.
    temporary = (trial.run_dir / "checkpoints").glob("*.tmp")
    if not (trial.pids and checkpoint_paths(trial.run_dir) and list(temporary)):
        return
    trial.rank = 0  # which writes it
    os.kill(trial.pids[0], signal.SIGSTOP)
    if list((trial.run_dir / "checkpoints").glob("*.tmp")):  # still: it may have been renamed in between
        trial.act(trial.pids[0], signal.SIGKILL)
    else:
        os.kill(trial.pids[0], signal.SIGCONT)


def kill_agent(trial: Trial) -> None:
    for pid in trial.processes():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "dpcompare.backends.torch.agent" in words and words[words.index("--node-rank") + 1] == str(trial.rank):
            trial.act(pid, signal.SIGKILL)


def interrupt_twice(trial: Trial) -> None:
    os.kill(trial.process.pid, signal.SIGINT)
    time.sleep(0.02)
    if trial.process.poll() is None:  # else the second one did not act
        trial.act(trial.process.pid, signal.SIGINT)


def truncate_store(trial: Trial) -> None:
    (images,) = (trial.folder / "cache" / "stores").glob("*/train-images.npy")
    images.write_bytes(b"")
    trial.acted_at = time.monotonic()


def in_rank(trial: Trial, broken: str) -> tuple[str, str]:
    """A fault in the process of one rank only, around its training.

    Args:
        broken: statements that change the module before `train` is called; {note} among them reports the fault.
    """
    note = f"open({str(trial.folder / 'acted')!r}, 'w').close()"
    body = "\n".join(f"            {line}" for line in broken.format(note=note).splitlines())
    source = f"""
def inject(module):
    import math, os, signal, time
    from dpcompare.training import evaluated
    train, rate, batches = module.train, module.learning_rate, evaluated.evaluation_batches
    def broken_train(backend, *arguments, **options):
        if backend.process_rank == {trial.rank}:
{body}
        return train(backend, *arguments, **options)
    module.train = broken_train
"""
    return "dpcompare.training.loop", source


def before_a_step(trial: Trial, what: str) -> tuple[str, str]:
    return in_rank(
        trial,
        f"""\
def broken_rate(workload, step, num_steps):
    if step >= {trial.step}:
        {what}
    return rate(workload, step, num_steps)
module.learning_rate = broken_rate""",
    )


IN_EVALUATION = """\
def dying(*counts):
    for number, batch in enumerate(batches(*counts)):
        if number == 1:
            {note}
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
evaluated.evaluation_batches = dying"""


def port_is_taken(trial: Trial) -> tuple[str, str]:
    return (
        "dpcompare.launch.attempt",
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


@contextmanager
def small_disk(trial: Trial) -> Iterator[BeforeExec]:
    """The run directory lies on a disk of 4 MiB."""
    disk = trial.folder / "disk"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
    try:
        yield lambda: None
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)  # what still writes there is ended, or counted


def fill_disk(trial: Trial) -> None:
    trial.acted_at = time.monotonic()
    with (trial.folder / "disk" / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def empty_disk(trial: Trial) -> str:
    (trial.folder / "disk" / "filler").unlink()
    return ""


_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1  # prctl(2), capabilities(7)


@contextmanager
def bound_by_permissions(trial: Trial) -> Iterator[BeforeExec]:
    """The command is bound by the permissions of files, also as root."""

    def drop() -> None:
        if os.geteuid() == 0:
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE)

    yield drop


def make_read_only(trial: Trial) -> None:
    for folder in _folders(trial.run_dir):
        folder.chmod(0o555)
    trial.acted_at = time.monotonic()


def make_writable(trial: Trial) -> str:
    for folder in _folders(trial.run_dir):
        folder.chmod(0o755)
    return ""


def _folders(root: Path) -> list[Path]:
    return [root, *(path for path in root.rglob("*") if path.is_dir())]


@contextmanager
def little_memory(trial: Trial) -> Iterator[BeforeExec]:
    """The command lives in a control group of 3 GiB."""
    with memory_limit(3 << 30, trial.folder.name) as procs:
        yield lambda: procs.write_text(str(os.getpid()))  # type: ignore[func-returns-value]


@contextmanager
def memory_limit(limit: int, name: str) -> Iterator[Path]:
    """A control group with a limit of memory in bytes; yields the file that takes a process into it."""
    with control_group({"memory": "memory.limit_in_bytes", "": "memory.max"}, limit, name) as procs:
        yield procs


@contextmanager
def control_group(settings: dict[str, str], limit: int, name: str) -> Iterator[Path]:
    """A control group with a limit; yields the file that takes a process into it.

    Args:
        settings: by the hierarchy that has it, the name of the setting; "" is that of cgroups version 2.
        limit: what it is set to.
        name: of the group.

    Raises:
        OSError: none may be made here.
    """
    for hierarchy, setting in settings.items():
        group = Path("/sys/fs/cgroup") / hierarchy / name
        try:
            group.mkdir()
            (group / setting).write_text(str(limit))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        try:
            yield group / "cgroup.procs"
        finally:
            deadline = time.monotonic() + LONGEST
            while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
                time.sleep(0.05)
            group.rmdir()
        return
    raise OSError(f"no control group with {' or '.join(settings.values())} may be made here")


def start_another(run_dir: Callable[[Trial], Path]) -> Callable[[Trial], None]:
    def start(trial: Trial) -> None:
        trial.acted_at = time.monotonic()
        options = (*TWO_RUNS, "--run-dir", str(run_dir(trial)))
        other = trial.start(command(trial.framework, trial.mode, *options))
        if run_dir(trial) == trial.run_dir and other.wait() != 2:
            trial.problems.append(f"the second run ended with {other.returncode}, expected 2")
        OTHERS[trial.folder] = other

    return start


OTHERS: dict[Path, subprocess.Popen[str]] = {}
"""The second run of a trial, by the trial's folder."""


def as_if_alone(*names: str) -> Callable[[Trial], list[str]]:
    """Each of these runs must have completed, and trained what a run trains that is alone."""

    def compare(trial: Trial) -> list[str]:
        if (other := OTHERS.pop(trial.folder, None)) is not None:
            other.wait(timeout=LONGEST)
        if trial.problems:  # there may be nothing to compare
            return []
        results = {name: json.loads((trial.run_dir.parent / name / "result.json").read_text()) for name in names}
        steps = max(len(result["train_loss"]) for result in results.values())
        reference = reference_losses(trial.framework, trial.mode, steps)
        return [
            f"{name} is {result['status']}, or its losses differ"
            for name, result in results.items()
            if result["status"] != "completed" or result["train_loss"] != reference[: len(result["train_loss"])]
        ]

    return compare


def damage(change: Callable[[bytes], bytes], says: str) -> Callable[[Trial], str]:
    """Break the newest checkpoint; the one before is there."""

    def break_newest(trial: Trial) -> str:
        newest = checkpoint_paths(trial.run_dir)[0]
        newest.write_bytes(change(newest.read_bytes()))
        return rf"{newest.name}' cannot be used: .*{says}.*resuming from step-"

    return break_newest


def flip_one_bit(content: bytes) -> bytes:
    return content[:-7] + bytes([content[-7] ^ 1]) + content[-6:]


def of_another_model(content: bytes) -> bytes:
    return encode(replace(decode(content), training="f" * 64))


def of_a_newer_version(content: bytes) -> bytes:
    checkpoint, checkpoints.FORMAT = decode(content), checkpoints.FORMAT + 1
    try:
        return encode(checkpoint)
    finally:
        checkpoints.FORMAT -= 1


# RANK: of the process on which the fault acts.
NAMED = r"process RANK \(node \d+, local rank \d+\)"
DIED = rf"{NAMED} ended without a message \(SIGKILL\).*last steps: process 0: \d+"
SHORT = ("--steps", "40")
LENGTH = 1000
TWO_RUNS = ("--steps", str(LENGTH), "--checkpoint-every", str(LENGTH))
KILLED = Fault(code=-9, within=2, act=at_step(signal_command(signal.SIGKILL)))

FAULTS: dict[str, Fault] = {
    "SIGKILL of a process as it starts": Fault(
        code=1, says=DIED, within=5, act=at_start(signal_process(signal.SIGKILL)), resumable=False
    ),
    "SIGKILL of a process": Fault(code=1, says=DIED, within=5, act=at_step(signal_process(signal.SIGKILL))),
    "SIGKILL while a checkpoint is written": Fault(code=1, says=DIED, within=5, act=kill_while_it_writes),
    "SIGKILL in evaluation": Fault(code=1, says=DIED, within=5, inject=lambda trial: in_rank(trial, IN_EVALUATION)),
    "SIGKILL of a torchrun agent": Fault(
        code=1,
        says=r"the torchrun agent of node RANK ended \(SIGKILL\)",
        within=5,
        act=at_step(kill_agent),
        modes=lambda framework, mode: mode == "ddp",
    ),
    "SIGKILL of the command": KILLED,
    "SIGINT": Fault(code=130, says="interrupted", within=5, act=at_step(signal_command(signal.SIGINT))),
    "SIGTERM": Fault(code=130, says="interrupted", within=5, act=at_step(signal_command(signal.SIGTERM))),
    "SIGHUP": Fault(code=130, says="interrupted", within=5, act=at_step(signal_command(signal.SIGHUP))),
    "Ctrl-C twice": Fault(code=130, says="interrupted", within=5, act=at_step(interrupt_twice)),
    "SIGSTOP of a process": Fault(
        code=1,
        says=f"{NAMED} showed no progress for [^\n]*it was stopped by a signal|heartbeat",
        within=4 + 5,
        act=at_step(signal_process(signal.SIGSTOP)),
        options=("--progress-timeout", "4"),
    ),
    "an exception in a process": Fault(
        code=1,
        says=rf"{NAMED[:-2]}.*RuntimeError: broken on purpose",
        within=5,
        inject=lambda trial: before_a_step(trial, "{note}; raise RuntimeError('broken on purpose')"),
    ),
    "a process that never starts": Fault(
        code=1,
        says=rf"{NAMED} showed no progress for 1\d",
        within=15 + 5,
        inject=lambda trial: in_rank(trial, "{note}\ntime.sleep(1000)"),
        options=("--start-timeout", "15"),
        resumable=False,
    ),
    "a process that starts 20 s late": Fault(
        code=0,
        within=60,
        inject=lambda trial: in_rank(trial, "{note}\ntime.sleep(20)"),
        options=SHORT,
        modes=several,
        then=as_if_alone("run"),
    ),
    "a loss that is no number": Fault(
        code=1,
        says=r"the loss of step \d+ is nan|after step \d+ the values of",
        within=5,
        inject=lambda trial: before_a_step(trial, "{note}; return math.nan"),
        modes=lambda framework, mode: not several(framework, mode),
    ),
    "Python's clock of a process set back by an hour": Fault(
        code=0,
        within=60,
        inject=lambda trial: before_a_step(
            trial, "now = time.time; {note}; time.time = lambda: now() - 3600; module.learning_rate = rate"
        ),
        options=SHORT,
        then=as_if_alone("run"),
    ),
    "the store truncated": Fault(code=1, says="was cut short|is damaged", within=5, act=at_step(truncate_store)),
    "a port taken in the race": Fault(
        code=0, within=60, inject=port_is_taken, options=SHORT, modes=several, then=as_if_alone("run")
    ),
    "a full disk, checkpoints written": Fault(
        code=1,
        says="(?i)no space left on",
        within=5,
        around=small_disk,
        act=at_step(fill_disk),
        needs_root=True,
        writes_result=False,
        before_resuming=empty_disk,
    ),
    "a full disk, nothing but logs written": Fault(
        code=1,
        says="(?i)no space left on",
        within=5,
        around=small_disk,
        act=at_step(fill_disk),
        options=("--checkpoint-every", "1000000"),
        needs_root=True,
        writes_result=False,
        resumable=False,
    ),
    "the run directory made read-only": Fault(
        code=1,
        says="Permission denied",
        within=5,
        around=bound_by_permissions,
        act=at_step(make_read_only),
        writes_result=False,
        before_resuming=make_writable,
    ),
    "out of memory": Fault(
        code=1,
        says=rf"{NAMED} ended without a message \(SIGKILL\)[^\n]*memory ran out: "
        "the kernel has just killed a process",
        within=15,
        around=little_memory,
        inject=lambda trial: before_a_step(trial, "{note}; module.hoard = b'x' * (16 << 30)"),
        needs_root=True,
        alone=True,  # the kernel counts such kills for the whole machine, and other trials would be told of this one
    ),
    "a second run in the same directory": Fault(
        code=0,
        says="already holds a run",
        within=120,
        act=at_start(start_another(lambda trial: trial.run_dir)),
        options=TWO_RUNS,
        then=as_if_alone("run"),
    ),
    "a second run in another directory": Fault(
        code=0,
        within=120,
        act=at_start(start_another(lambda trial: trial.run_dir.parent / "other")),
        options=TWO_RUNS,
        then=as_if_alone("run", "other"),
    ),
    "the newest checkpoint truncated": replace(
        KILLED, before_resuming=damage(lambda content: content[:-1], "was damaged or cut off")
    ),
    "a bit of the newest checkpoint flipped": replace(
        KILLED, before_resuming=damage(flip_one_bit, "was damaged or cut off")
    ),
    "the newest checkpoint of another model": replace(
        KILLED, before_resuming=damage(of_another_model, "belongs to another model")
    ),
    "the newest checkpoint of a newer version": replace(
        KILLED, before_resuming=damage(of_a_newer_version, "expected at most 1")
    ),
}
