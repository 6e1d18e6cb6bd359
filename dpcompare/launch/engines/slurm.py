"""The Slurm engine: a run is one job, or a step of the allocation that it is started in."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpcompare.config.engines import EngineOptions, SlurmOptions
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import Engine, NodesEnded, Planned, PollExit, options_of, slurm_job
from dpcompare.launch.engines.slurm_job import OF_AN_OUTER_JOB, job_script, srun_command
from dpcompare.launch.outcome import Report
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.results.run_dir import end_of, slurm_log_path
from dpcompare.system.commands import run_command
from dpcompare.system.files import no_link
from dpcompare.system.ports import local_address
from dpcompare.system.processes import kill_groups, wait_for_exit
from dpcompare.system.signals import signals_held

COMMAND_SECONDS = 120.0
"""How long Slurm may take to answer; its commands give up before, where its controller is away."""
SUBMIT_SECONDS = 900.0
"""How long Slurm may take to accept a job; the nodes of one that it accepts later find no launcher, and end."""


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
    # Without --noconvert 1024 nodes are written as 1K.
    for line in _slurm("sinfo", "--noheader", "--noconvert", "--format=%R|%D|%c|%P").splitlines():
        match = _PARTITION_LINE.fullmatch(line)
        if match is None:
            raise RequestError(f"--engine slurm: sinfo says {line!r}, expected PARTITION|NODES|CPUS|PARTITION")
        name, cores = match["name"], int(match["cpus"])
        before = found[name].num_nodes if name in found else 0  # a partition has a line per kind of node
        if name in found:
            cores = min(cores, found[name].cpus_per_node)
        found[name] = Partition(
            name=name, num_nodes=before + int(match["nodes"]), cpus_per_node=cores, is_default=bool(match["star"])
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
            if not wait_for_exit([step], slurm_job.CANCEL_SECONDS, signals):
                step.terminate()
                if not wait_for_exit([step], slurm_job.CANCEL_SECONDS, signals):
                    kill_groups([step])


WITHOUT_SLURM = "`dpcompare plan` with --cores-per-node works without Slurm"


def _slurm(*command: str, text: str | None = None, interruptible: bool = True, seconds: float = COMMAND_SECONDS) -> str:
    """What a command of Slurm's prints.

    Raises:
        RequestError: it is not there, says no, or does not answer.
    """
    if shutil.which(command[0]) is None:
        raise RequestError(
            f"--engine slurm: {command[0]} is not found; expected a machine from which Slurm is used ({WITHOUT_SLURM})"
        )
    try:
        answer = run_command(command, seconds=seconds, text=text, interruptible=interruptible)
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"--engine slurm: {error}; expected an answer of Slurm's controller: is it up?") from None
    if answer.returncode:
        submits = "and options that it takes" if text else WITHOUT_SLURM
        raise RequestError(
            f"--engine slurm: expected a machine from which Slurm is used ({submits}); "
            f"{shlex.join(command)} says: {'; '.join(answer.stderr.strip().splitlines())}"
        )
    return answer.stdout


class Slurm(Engine):
    """One job, or a step of the allocation that dpcompare is started in."""

    may_queue = True

    def check(self, config: RunConfig) -> None:
        num_nodes, cores = config.cluster.num_nodes, config.cluster.nodes[0].num_cores
        if "SLURM_JOB_ID" in os.environ:
            allocated, name = int(_of_job("SLURM_JOB_NUM_NODES", r"\d+")), "this allocation"
        else:
            partition = partition_of(options_of(config, SlurmOptions).partition)
            allocated, name = partition.num_nodes, f"partition {partition.name}"
        if num_nodes > allocated:
            raise RequestError(f"--nodes: received {num_nodes}, but {name} has {allocated}; expected at most as many")
        if cores > (most := cores_per_node(options_of(config, SlurmOptions).partition)):
            raise RequestError(
                f"--cores-per-node: received {cores}, but nodes of {name} have {most}; expected at most as many"
            )

    @contextmanager
    def started(self, config: RunConfig, run_dir: Path, rendezvous: Rendezvous, report: Report) -> Iterator[PollExit]:
        if "SLURM_JOB_ID" in os.environ:
            with _step(config, run_dir, rendezvous) as poll_exit:
                yield poll_exit
            return
        job = ""
        try:
            with signals_held():  # or a job might be submitted whose id is lost
                script = job_script(config, run_dir, rendezvous.attempt.id)
                submitted = _slurm("sbatch", "--parsable", text=script, interruptible=False, seconds=SUBMIT_SECONDS)
                job = submitted.strip().split(";")[0]
            report(f"Slurm job {job} was submitted")
            yield slurm_job.followed(job, run_dir, report)
            # Its nodes have ended: it does by itself, unless they did not all.
            slurm_job.ended_within(job, slurm_job.CANCEL_SECONDS)
        finally:
            if job:
                slurm_job.cancel(job, report)

    def node_identity(self, config: RunConfig, node_rank: int | None) -> tuple[int, str]:
        if "SLURM_NODEID" not in os.environ:
            raise RequestError("this is not a step of a Slurm job; expected `dpcompare run --engine slurm` to start it")
        name = os.environ.get("SLURMD_NODENAME", "")
        described = slurm_job.fields(_slurm("scontrol", "--oneliner", "show", "node", name))
        if "NodeAddr" not in described:
            raise RequestError(f"--engine slurm: scontrol reports no NodeAddr of node {name!r}; expected its address")
        return int(_of_job("SLURM_NODEID", r"\d+")), local_address(described["NodeAddr"])

    def cores_per_node(self, options: EngineOptions) -> int | None:
        assert isinstance(options, SlurmOptions)
        return cores_per_node(options.partition)

    def planned(self, config: RunConfig, run_dir: Path) -> Planned:
        script = job_script(config, run_dir)
        return Planned(text=script, fields={"job_script": script})
