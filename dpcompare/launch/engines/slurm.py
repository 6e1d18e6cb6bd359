"""The Slurm engine: a run is one job, or a step of the allocation that it is started in."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import NodesEnded, PollExit
from dpcompare.launch.outcome import Report
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.results.run_dir import end_of, slurm_log_path
from dpcompare.system.addresses import local_address
from dpcompare.system.commands import run_command
from dpcompare.system.deadline import Deadline
from dpcompare.system.files import no_link
from dpcompare.system.processes import kill_groups, wait_for_exit
from dpcompare.system.signals import signals_held

MAY_QUEUE = True
JOB_POLL_SECONDS = 1.0
COMMAND_SECONDS = 120.0
"""How long Slurm may take to answer; its commands give up before, where its controller is away."""
STATE_SECONDS = 10.0
"""How long it may take to tell the state of a job, which is asked for again and again."""
UNKNOWN_POLL_SECONDS = 15.0
"""How long it is not asked again where it has not told: the nodes are looked after meanwhile."""
SUBMIT_SECONDS = 900.0
"""How long it may take to accept a job; the nodes of one that it accepts later find nobody, and end."""
COMPLETING_SECONDS = 8.0
"""How long the state behind COMPLETING, with which a job begins to end, is waited for: it says why."""
CANCEL_SECONDS = 15.0
"""How long a job that was cancelled may take to end before it is killed: TensorFlow catches SIGTERM."""

UNKNOWN = "UNKNOWN"
WAITING = ("PENDING", "CONFIGURING")
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "COMPLETING",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)
BY_SLURM = {
    "BOOT_FAIL": "got a machine that did not boot",
    "CANCELLED": "was cancelled",
    "DEADLINE": "reached its deadline",
    "NODE_FAIL": "lost a machine, which failed",
    "NodeDown": "lost a machine, which failed",
    "PREEMPTED": "was preempted by another job",
    "TIMEOUT": "reached its time limit (--time)",
    "TimeLimit": "reached its time limit (--time)",
}
"""State of a job, or reason while it is COMPLETING -> what happened to it: it did not end by itself."""
HOPELESS = re.compile(
    "AccountNotAllowed|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|JobHeld(User|Admin)|"
    "Partition(Down|Inactive|NodeLimit|TimeLimit)|(QOS|Assoc)Max(?!.*PerUser).*"
)
"""Reasons (squeue(1)) for which a job waits for ever, where EnforcePartLimits does not refuse it."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A line of sinfo(1)."""

    name: str
    num_nodes: int
    cpus_per_node: int
    is_default: bool


_PARTITION_LINE = re.compile(r"(?P<name>[^|]+)\|(?P<nodes>\d+)\|(?P<cpus>\d+)\+?\|[^|]*?(?P<star>\*?)", re.ASCII)


def partitions() -> list[Partition]:
    """Those of this machine's Slurm.

    Raises:
        RequestError: there is no Slurm, or it does not answer.
    """
    found: dict[str, Partition] = {}
    # Without --noconvert 1024 nodes are told as 1K.
    for line in _slurm("sinfo", "--noheader", "--noconvert", "--format=%R|%D|%c|%P").splitlines():
        told = _PARTITION_LINE.fullmatch(line)
        if told is None:
            raise RequestError(f"--engine slurm: sinfo says {line!r}, expected PARTITION|NODES|CPUS|PARTITION")
        name, cores = told["name"], int(told["cpus"])
        before = found[name].num_nodes if name in found else 0  # a partition has a line per kind of node
        if name in found:
            cores = min(cores, found[name].cpus_per_node)
        found[name] = Partition(
            name=name, num_nodes=before + int(told["nodes"]), cpus_per_node=cores, is_default=bool(told["star"])
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


def cores_per_node(partition: str | None) -> int:
    """CPUs that a node of the allocation, or of the partition, has for a run."""
    if "SLURM_JOB_ID" in os.environ:
        # Such as 4(x2),8: the least counts.
        listed = _of_job("SLURM_JOB_CPUS_PER_NODE", r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*")
        return min(int(part.partition("(")[0]) for part in listed.split(","))
    return partition_of(partition).cpus_per_node


def _of_job(variable: str, pattern: str) -> str:
    """A variable of the job that this process is in; 1 where it is not set.

    Raises:
        RequestError: it is something else than Slurm sets.
    """
    value = os.environ.get(variable, "1")
    if not re.fullmatch(pattern, value, re.ASCII):
        raise RequestError(f"{variable}: received {value!r}, expected what Slurm sets in a job, such as 4")
    return value


def check(config: RunConfig) -> None:
    num_nodes, cores = config.cluster.num_nodes, config.cluster.nodes[0].num_cores
    if "SLURM_JOB_ID" in os.environ:
        allocated, name = int(_of_job("SLURM_JOB_NUM_NODES", r"\d+")), "this allocation"
    else:
        partition = partition_of(config.placement.partition)
        allocated, name = partition.num_nodes, f"partition {partition.name}"
    if num_nodes > allocated:
        raise RequestError(f"--nodes: received {num_nodes}, but {name} has {allocated}; expected at most as many")
    if cores > (most := cores_per_node(config.placement.partition)):
        raise RequestError(
            f"--cores-per-node: received {cores}, but nodes of {name} have {most}; expected at most as many"
        )


def srun_command(config: RunConfig, run_dir: Path, attempt: str | None = None, *options: str) -> list[str]:
    """The command that starts every node within an allocation."""
    nodes = config.cluster.num_nodes
    return [
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"),
        # Not inherited from the job since Slurm 22.05: a task would be bound to one core.
        *(f"--cpus-per-task={config.cluster.nodes[0].num_cores}", *_gpu_options(config), *options),
        *(
            config.python,
            "-P",
            "-m",
            "dpcompare.launch.node",
            str(run_dir),
            *(("--attempt", attempt) if attempt else ()),
        ),
    ]


def _gpu_options(config: RunConfig) -> list[str]:
    """What asks sbatch for a node's GPUs, and srun again, whose steps do not get them by themselves everywhere."""
    cluster = config.cluster
    if cluster.device_type != "gpu":
        return []
    if config.placement.gres:
        return [f"--gres={config.placement.gres}:{cluster.devices_per_node}"]
    return [f"--gpus-per-node={cluster.devices_per_node}"]


OF_AN_OUTER_JOB = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_NTASKS_PER_GPU")
"""Requests that srun would inherit: one GPU per task is one per node, since a node is one task here."""


def job_script(config: RunConfig, run_dir: Path, attempt: str | None = None) -> str:
    """A script for sbatch.

    Raises:
        RequestError: the name of the run directory is none that sbatch can be told.
    """
    if "\\" in str(run_dir):
        raise RequestError(f"--run-dir: received {str(run_dir)!r}; expected no backslash in it, which sbatch drops")
    cluster, placement = config.cluster, config.placement
    options = [
        f"--job-name=dpcompare-{config.framework}-{config.mode}",
        f"--nodes={cluster.num_nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cluster.nodes[0].num_cores}",
        f"--output={slurm_log_path(run_dir)}".replace("%", "%%"),
        "--open-mode=append",
        "--no-requeue",  # the process that started the run decides whether it is restarted
    ]
    options += _gpu_options(config)
    for name, value in (("partition", placement.partition), ("time", placement.time), ("account", placement.account)):
        if value:
            options.append(f"--{name}={value}")
    lines = "\n".join(f"#SBATCH {_quoted(option)}" for option in [*options, *placement.sbatch])
    forget = f"unset {' '.join(OF_AN_OUTER_JOB)}\n" if cluster.device_type == "gpu" else ""
    return f"#!/bin/bash\n{lines}\n{forget}exec {shlex.join(srun_command(config, run_dir, attempt))}\n"


def _quoted(option: str) -> str:
    """An option with its value as one word of a line that sbatch reads, which knows quotes, escapes and comments."""
    name, equals, value = option.partition("=")
    if re.search(r"""[\s\\'"#]""", value):
        value = '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return name + equals + value


@contextmanager
def started(config: RunConfig, run_dir: Path, rendezvous: Rendezvous, report: Report) -> Iterator[PollExit]:
    if "SLURM_JOB_ID" in os.environ:
        with _step(config, run_dir, rendezvous) as poll_exit:
            yield poll_exit
        return
    job = ""
    try:
        with signals_held():  # or a job might be submitted whose id nobody knows
            script = job_script(config, run_dir, rendezvous.attempt.id)
            submitted = _slurm("sbatch", "--parsable", text=script, interruptible=False, seconds=SUBMIT_SECONDS)
            job = submitted.strip().split(";")[0]
        report(f"Slurm job {job} was submitted")
        yield _followed(job, run_dir, report)
        _ended_within(job, CANCEL_SECONDS)  # its nodes have ended: it does by itself, unless they did not all
    finally:
        if job:
            _cancel(job, report)


def _followed(job: str, run_dir: Path, report: Report) -> PollExit:
    """Asks for the state of a job now and then, and reports when it changes."""
    reported, next_look = "", Deadline(0)
    completing: Deadline | None = None

    def poll_exit() -> NodesEnded | None:
        nonlocal reported, next_look, completing
        if not next_look.passed:
            return None
        next_look = Deadline(JOB_POLL_SECONDS)
        state, reason = _state(job)
        if state == UNKNOWN:
            next_look = Deadline(UNKNOWN_POLL_SECONDS)
        because = f" ({reason})" if reason not in ("", "None") else ""
        if f"{state}{because}" != reported:
            reported = f"{state}{because}"
            report(f"Slurm job {job} is {reported}")
        if state in WAITING and HOPELESS.fullmatch(reason):
            raise RequestError(f"Slurm job {job} would wait for ever: {reason}; ask for what the partition has")
        ended_by = BY_SLURM.get(state) or BY_SLURM.get(reason)
        if state not in ENDED:
            return None
        if state == "COMPLETING" and not ended_by:
            completing = completing or Deadline(COMPLETING_SECONDS)
            if not completing.passed:
                return None
        why = f"Slurm job {job} {ended_by or 'has ended'}: {reported}\n{end_of(slurm_log_path(run_dir))}"
        return NodesEnded(why=why, is_cause=ended_by is not None)

    return poll_exit


def _state(job: str, *, interruptible: bool = True) -> tuple[str, str]:
    """A job's state and Slurm's reason; COMPLETED where Slurm has forgotten it, some minutes after its end."""
    command = ["scontrol", "--oneliner", "show", "job", job]
    try:
        answer = run_command(command, seconds=STATE_SECONDS, interruptible=interruptible)
    except subprocess.TimeoutExpired as error:
        return UNKNOWN, str(error)
    if answer.returncode:
        forgotten = "Invalid job id" in answer.stderr
        return ("COMPLETED" if forgotten else UNKNOWN, "" if forgotten else answer.stderr.strip())
    fields = _fields(answer.stdout)
    return fields.get("JobState", UNKNOWN), fields.get("Reason", "")


def _fields(described: str) -> dict[str, str]:
    """NAME=VALUE ... of scontrol, the first of each name: what a user wrote, such as a comment, comes later."""
    return dict(reversed([pair.split("=", 1) for pair in described.split() if "=" in pair]))


def _cancel(job: str, report: Report) -> None:
    """End a job that is still there: asked to, then killed. No second Ctrl-C comes in between."""
    for command in (["scancel", job], ["scancel", "--signal=KILL", "--full", job]):
        if _ended_within(job, 0):
            return
        with suppress(subprocess.TimeoutExpired):
            run_command(command, seconds=CANCEL_SECONDS, interruptible=False)
        if _ended_within(job, CANCEL_SECONDS):
            return
    state, _ = _state(job, interruptible=False)
    report(f"Slurm job {job} was cancelled and is still {state}; look after it with squeue")


def _ended_within(job: str, seconds: float) -> bool:
    deadline = Deadline(seconds)
    while _state(job, interruptible=False)[0] not in ENDED:
        if deadline.passed:
            return False
        time.sleep(JOB_POLL_SECONDS / 4)
    return True


@contextmanager
def _step(config: RunConfig, run_dir: Path, rendezvous: Rendezvous) -> Iterator[PollExit]:
    """A step of the allocation that this process is in."""
    soon = f"--immediate={config.seconds_to_start:.0f}"  # another step may have the cores
    with signals_held() as signals, open(slurm_log_path(run_dir), "ab", opener=no_link) as log:
        step = subprocess.Popen(
            srun_command(config, run_dir, rendezvous.attempt.id, soon),
            env={name: value for name, value in os.environ.items() if name not in OF_AN_OUTER_JOB},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def poll_exit() -> NodesEnded | None:
            if step.poll() is None:
                return None
            return NodesEnded(why=f"srun has ended with status {step.returncode}\n{end_of(slurm_log_path(run_dir))}")

        try:
            yield poll_exit
        finally:
            if not wait_for_exit([step], CANCEL_SECONDS, signals):
                step.terminate()
                if not wait_for_exit([step], CANCEL_SECONDS, signals):
                    kill_groups([step])


def node_identity(config: RunConfig, node_rank: int | None) -> tuple[int, str]:
    if "SLURM_NODEID" not in os.environ:
        raise RequestError("this is no step of a Slurm job; expected `dpcompare run --engine slurm` to start it")
    name = os.environ.get("SLURMD_NODENAME", "")
    described = _fields(_slurm("scontrol", "--oneliner", "show", "node", name))
    if "NodeAddr" not in described:
        raise RequestError(f"--engine slurm: scontrol tells no NodeAddr of node {name!r}; expected its address")
    return int(_of_job("SLURM_NODEID", r"\d+")), local_address(described["NodeAddr"])


def _slurm(*command: str, text: str | None = None, interruptible: bool = True, seconds: float = COMMAND_SECONDS) -> str:
    """What a command of Slurm's prints.

    Raises:
        RequestError: it is not there, says no, or does not answer.
    """
    if shutil.which(command[0]) is None:
        raise RequestError(
            f"--engine slurm: {command[0]} is not found; expected a machine from which Slurm is used "
            "(`dpcompare plan` with --cores-per-node works without Slurm)"
        )
    try:
        answer = run_command(command, seconds=seconds, text=text, interruptible=interruptible)
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"--engine slurm: {error}; expected an answer of Slurm's controller: is it up?") from None
    if answer.returncode:
        raise RequestError(
            f"--engine slurm: expected a machine from which Slurm is used, and options that it takes; "
            f"{shlex.join(command)} says: {answer.stderr.strip()}"
        )
    return answer.stdout
