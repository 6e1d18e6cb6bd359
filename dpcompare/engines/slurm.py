"""Slurm: a run is one job, or a step of the allocation that it is started in."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpcompare.config import RunConfig
from dpcompare.engines import StillThere, Tell
from dpcompare.errors import RequestError
from dpcompare.meeting import stop_nodes
from dpcompare.result import LOGS_DIR

QUEUES = True
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_END = 15.0
"""Until a job that was cancelled is killed: TensorFlow catches SIGTERM."""

WAITING = ("PENDING", "CONFIGURING")
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)
HOPELESS = (
    "AccountNotAllowed",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionDown",
    "PartitionInactive",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
)
"""Reasons (squeue(1)) for which a job waits for ever, where EnforcePartLimits does not refuse it."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A line of sinfo(1)."""

    name: str
    num_nodes: int
    cpus_per_node: int
    is_default: bool


def partitions() -> list[Partition]:
    """Those of this machine's Slurm.

    Raises:
        RequestError: there is no Slurm, or it does not answer.
    """
    found: dict[str, Partition] = {}
    for line in _slurm("sinfo", "--noheader", "--format=%R|%D|%c|%P").splitlines():
        name, nodes, cpus, starred = line.split("|")
        before = found[name].num_nodes if name in found else 0  # a partition has a line per kind of node
        cores = int(cpus.rstrip("+"))
        if name in found:
            cores = min(cores, found[name].cpus_per_node)
        found[name] = Partition(
            name=name, num_nodes=before + int(nodes), cpus_per_node=cores, is_default=starred.endswith("*")
        )
    return list(found.values())


def partition_of(name: str | None) -> Partition:
    """The partition of that name, or the default one."""
    known = partitions()
    for partition in known:
        if partition.name == name or (name is None and partition.is_default):
            return partition
    names = ", ".join(partition.name for partition in known)
    if name is None:
        raise RequestError(f"--partition: received none, and this Slurm has no default one; expected one of {names}")
    raise RequestError(f"--partition: received {name!r}, expected one of {names}")


def check(config: RunConfig) -> None:
    num_nodes = config.cluster.num_nodes
    if "SLURM_JOB_ID" in os.environ:
        allocated = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
        if num_nodes > allocated:
            raise RequestError(f"--nodes: received {num_nodes}, but this allocation has {allocated}")
        return
    partition = partition_of(config.placement.partition)
    if num_nodes > partition.num_nodes:
        raise RequestError(
            f"--nodes: received {num_nodes}, but partition {partition.name} has {partition.num_nodes}; expected at most as many"
        )
    cores = config.cluster.nodes[0].num_cores
    if cores > partition.cpus_per_node:
        raise RequestError(
            f"--cores-per-node: received {cores}, but nodes of partition {partition.name} have {partition.cpus_per_node}"
        )


def srun_command(config: RunConfig, run_dir: Path) -> list[str]:
    """What starts the part of every node within an allocation."""
    nodes = config.cluster.num_nodes
    return [
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"),
        *(config.python, "-m", "dpcompare.node", str(run_dir)),
    ]


def job_script(config: RunConfig, run_dir: Path) -> str:
    """A script for sbatch."""
    cluster, placement = config.cluster, config.placement
    options = [
        f"--job-name=dpcompare-{config.framework}-{config.mode}",
        f"--nodes={cluster.num_nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cluster.nodes[0].num_cores}",
        f"--output={run_dir / LOGS_DIR / 'slurm.log'}",
        "--open-mode=append",
    ]
    if cluster.device_type == "gpu":
        options.append(f"--gpus-per-node={cluster.devices_per_node}")
    for name, value in (("partition", placement.partition), ("time", placement.time), ("account", placement.account)):
        if value:
            options.append(f"--{name}={value}")
    lines = "\n".join(f"#SBATCH {option}" for option in [*options, *placement.sbatch])
    return f"#!/bin/bash\n{lines}\nexec {shlex.join(srun_command(config, run_dir))}\n"


@contextmanager
def started(config: RunConfig, run_dir: Path, tell: Tell) -> Iterator[StillThere]:
    if "SLURM_JOB_ID" in os.environ:
        with _step(config, run_dir) as still_there:
            yield still_there
        return
    job = _slurm("sbatch", "--parsable", text=job_script(config, run_dir)).strip().split(";")[0]
    tell(f"Slurm job {job} was submitted")
    try:
        yield _followed(job, tell)
    finally:
        stop_nodes(run_dir)
        _cancel(job)


def _followed(job: str, tell: Tell) -> StillThere:
    """Asks for the state of a job now and then, and tells when it changes."""
    told, asked = "", 0.0

    def still_there() -> str | None:
        nonlocal told, asked
        if time.monotonic() - asked < SECONDS_BETWEEN_LOOKS:
            return None
        asked = time.monotonic()
        state, reason = _state(job)
        why = f" ({reason})" if reason not in ("", "None") else ""
        if f"{state}{why}" != told:
            told = f"{state}{why}"
            tell(f"Slurm job {job} is {told}")
        if state in WAITING and reason in HOPELESS:
            raise RequestError(f"Slurm job {job} would wait for ever: {reason}; ask for what the partition has")
        return f"Slurm job {job} has ended: {told}" if state in ENDED else None

    return still_there


def _state(job: str) -> tuple[str, str]:
    """Its state and Slurm's reason; COMPLETED where Slurm has forgotten it, which it does some minutes after its end."""
    answer = subprocess.run(
        ["scontrol", "--oneliner", "show", "job", job], capture_output=True, text=True, start_new_session=True
    )
    if answer.returncode:
        forgotten = "Invalid job id" in answer.stderr
        return ("COMPLETED" if forgotten else "UNKNOWN", "" if forgotten else answer.stderr.strip())
    fields = dict(pair.split("=", 1) for pair in answer.stdout.split() if "=" in pair)
    return fields.get("JobState", "UNKNOWN"), fields.get("Reason", "")


def _cancel(job: str) -> None:
    """End a job that is still there: asked to, then killed."""
    for command in (["scancel", job], ["scancel", "--signal=KILL", "--full", job]):
        if _ended_within(job, 0):
            return
        subprocess.run(command, capture_output=True, start_new_session=True)
        if _ended_within(job, SECONDS_TO_END):
            return


def _ended_within(job: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _state(job)[0] not in ENDED:
        if time.monotonic() >= deadline:
            return False
        time.sleep(SECONDS_BETWEEN_LOOKS / 4)
    return True


@contextmanager
def _step(config: RunConfig, run_dir: Path) -> Iterator[StillThere]:
    """A step of the allocation that this process is in."""
    with (run_dir / LOGS_DIR / "slurm.log").open("ab") as log:
        step = subprocess.Popen(
            srun_command(config, run_dir),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def still_there() -> str | None:
        return None if step.poll() is None else f"srun has ended with status {step.returncode}"

    try:
        yield still_there
    finally:
        stop_nodes(run_dir)
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                step.send_signal(number)
            try:
                step.wait(SECONDS_TO_END)
                break
            except subprocess.TimeoutExpired:
                continue


def where_this_is(config: RunConfig, node_rank: int | None) -> tuple[int, str]:
    if "SLURM_NODEID" not in os.environ:
        raise RequestError("this is no step of a Slurm job; expected `dpcompare run --engine slurm` to start it")
    name = os.environ["SLURMD_NODENAME"]
    described = dict(
        pair.split("=", 1) for pair in _slurm("scontrol", "--oneliner", "show", "node", name).split() if "=" in pair
    )
    return int(os.environ["SLURM_NODEID"]), described["NodeAddr"]


def _slurm(*command: str, text: str | None = None) -> str:
    """What a command of Slurm's prints.

    Raises:
        RequestError: it is not there, or says no.
    """
    if shutil.which(command[0]) is None:
        raise RequestError(f"--engine slurm: {command[0]} is not found; expected a machine from which Slurm is used")
    answer = subprocess.run(command, input=text, capture_output=True, text=True, start_new_session=True)
    if answer.returncode:
        raise RequestError(f"--engine slurm: {shlex.join(command)} says: {answer.stderr.strip()}")
    return answer.stdout
