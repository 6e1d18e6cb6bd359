"""What Slurm is asked to run, and what becomes of the job."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from dpcompare.config.engines import SlurmOptions
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import NodesEnded, PollExit, options_of
from dpcompare.launch.outcome import Report
from dpcompare.results.run_dir import end_of, slurm_log_path
from dpcompare.system.commands import run_command
from dpcompare.system.signals import Deadline


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
    if gres := options_of(config, SlurmOptions).gres:
        return [f"--gres={gres}:{cluster.devices_per_node}"]
    return [f"--gpus-per-node={cluster.devices_per_node}"]


OF_AN_OUTER_JOB = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_NTASKS_PER_GPU")
"""Requests that srun would inherit: one GPU per task is one per node, since a node is one task here."""


def job_script(config: RunConfig, run_dir: Path, attempt: str | None = None) -> str:
    """A script for sbatch.

    Raises:
        RequestError: sbatch cannot take the name of the run directory.
    """
    if "\\" in str(run_dir):
        raise RequestError(f"--run-dir: received {str(run_dir)!r}; expected no backslash in it, which sbatch drops")
    cluster, asked = config.cluster, options_of(config, SlurmOptions)
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
    for name, value in (("partition", asked.partition), ("time", asked.time), ("account", asked.account)):
        if value:
            options.append(f"--{name}={value}")
    lines = "\n".join(f"#SBATCH {_quoted(option)}" for option in [*options, *asked.sbatch])
    forget = f"unset {' '.join(OF_AN_OUTER_JOB)}\n" if cluster.device_type == "gpu" else ""
    return f"#!/bin/bash\n{lines}\n{forget}exec {shlex.join(srun_command(config, run_dir, attempt))}\n"


def _quoted(option: str) -> str:
    """An option with its value as one word of a line that sbatch reads, which knows quotes, escapes and comments."""
    name, equals, value = option.partition("=")
    if re.search(r"""[\s\\'"#]""", value):
        value = '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return name + equals + value


JOB_POLL_SECONDS = 1.0
STATE_SECONDS = 10.0
"""How long Slurm may take to report the state of a job, which it is asked for repeatedly."""
UNKNOWN_POLL_SECONDS = 15.0
"""How long it is not asked again if it has not answered; the nodes are looked after meanwhile."""
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
NEVER_STARTS = re.compile(
    "AccountNotAllowed|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|JobHeld(User|Admin)|"
    "Partition(Down|Inactive|NodeLimit|TimeLimit)|(QOS|Assoc)Max(?!.*PerUser).*"
)
"""Reasons (squeue(1)) for which a job waits forever, where EnforcePartLimits does not refuse it."""


def followed(job: str, run_dir: Path, report: Report) -> PollExit:
    """What asks for the state of a job now and then, reports when it changes, and says what has ended it."""
    reported, next_look = "", Deadline(0)
    completing: Deadline | None = None

    def poll_exit() -> NodesEnded | None:
        nonlocal reported, next_look, completing
        if not next_look.passed:
            return None
        next_look = Deadline(JOB_POLL_SECONDS)
        state, reason = state_of(job)
        if state == UNKNOWN:
            next_look = Deadline(UNKNOWN_POLL_SECONDS)
        because = f" ({reason})" if reason not in ("", "None") else ""
        if f"{state}{because}" != reported:
            reported = f"{state}{because}"
            report(f"Slurm job {job} is {reported}")
        if state in WAITING and NEVER_STARTS.fullmatch(reason):
            raise RequestError(f"Slurm job {job} would wait forever: {reason}; ask for what the partition has")
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


def state_of(job: str, *, interruptible: bool = True) -> tuple[str, str]:
    """A job's state and Slurm's reason; COMPLETED where Slurm has forgotten it, some minutes after its end."""
    command = ["scontrol", "--oneliner", "show", "job", job]
    try:
        answer = run_command(command, seconds=STATE_SECONDS, interruptible=interruptible)
    except subprocess.TimeoutExpired as error:
        return UNKNOWN, str(error)
    if answer.returncode:
        forgotten = "Invalid job id" in answer.stderr
        return ("COMPLETED" if forgotten else UNKNOWN, "" if forgotten else answer.stderr.strip())
    reported = fields(answer.stdout)
    return reported.get("JobState", UNKNOWN), reported.get("Reason", "")


def fields(described: str) -> dict[str, str]:
    """NAME=VALUE ... of scontrol, the first of each name: what a user wrote, such as a comment, comes later."""
    return dict(reversed([pair.split("=", 1) for pair in described.split() if "=" in pair]))


def cancel(job: str, report: Report) -> None:
    """End a job that is still there: asked to, then killed. No second Ctrl-C comes in between."""
    for command in (["scancel", job], ["scancel", "--signal=KILL", "--full", job]):
        if ended_within(job, 0):
            return
        with suppress(subprocess.TimeoutExpired):
            run_command(command, seconds=CANCEL_SECONDS, interruptible=False)
        if ended_within(job, CANCEL_SECONDS):
            return
    state, _ = state_of(job, interruptible=False)
    report(f"Slurm job {job} was cancelled and is still {state}; look after it with squeue")


def ended_within(job: str, seconds: float) -> bool:
    """Whether a job ends by then, which is waited for; no Ctrl-C comes in between."""
    deadline = Deadline(seconds)
    while state_of(job, interruptible=False)[0] not in ENDED:
        if deadline.passed:
            return False
        time.sleep(JOB_POLL_SECONDS / 4)
    return True
