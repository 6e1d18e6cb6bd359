"""What Slurm is asked to run: the script of a job, and the step that starts a process on each of its nodes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from dpcompare.config.engines import SlurmOptions
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import options_of
from dpcompare.results.run_dir import slurm_log_path


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
        RequestError: the name of the run directory is none that sbatch can be told.
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
