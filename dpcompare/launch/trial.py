"""A tiny run of a mode, and what `doctor` says of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpcompare.config.cluster import Cluster
from dpcompare.config.environment import Environment
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.launch.findings import Finding, why_apart
from dpcompare.launch.run import run
from dpcompare.system.signals import Deadline
from dpcompare.system.terminal_text import pluralize

TRIAL_SECONDS = {"cpu": 180.0, "tpu": 900.0}
"""A mode that has not trained two steps of a tiny model by then counts as hanging; on GPUs, by the time in which a run
must have made its first step."""


def two_replicas(framework: str, mode: str, device: str, gpus: Sequence[str]) -> Cluster:
    """The smallest cluster on which a mode communicates; one replica where two GPUs cannot be had, or for `single`."""
    row = MODES[framework, mode]
    has_two = not gpus or (len(gpus) > 1 and not why_apart(gpus[:2]))
    replicas = 2 if row.multi_device and has_two else 1
    nodes = replicas if row.multi_node else 1
    return Cluster.partition(nodes, replicas // nodes, device=device)  # type: ignore[arg-type]


def trial(
    framework: str,
    mode: str,
    cluster: Cluster,
    interpreters: Mapping[str, str],
    *,
    name: str | None = None,
    environment: Environment | None = None,
) -> Finding:
    """Two steps of a tiny model, gradients synchronized where there are several replicas, with a time limit."""
    name = name or f"{framework} {mode}"
    chosen = {"python": interpreters[framework]} if framework in interpreters else {}
    seconds = TRIAL_SECONDS.get(cluster.device_type, FRAMEWORKS[framework].gpu_start_seconds)
    deadline = Deadline(seconds)
    too_long = f"no end after {seconds:.0f} s"
    with tempfile.TemporaryDirectory(prefix="dpcompare-doctor-") as folder:
        try:
            config = RunConfig(
                framework=framework,
                mode=mode,
                workload=Workload(model="mlp", dataset="synthetic-mini", image_size=8, steps=2, warmup_steps=0),
                cluster=cluster,
                environment=environment,
                **chosen,
            )
            said: list[str] = []
            result = run(
                config,
                Path(folder) / "run",
                remark=said.append,
                stopped_by=lambda: too_long if deadline.passed else None,
            )
        except (RunFailedError, RequestError) as error:
            if too_long in str(error):
                found = too_long
                remedy = "the processes start but do not reach each other: look for a firewall on 127.0.0.1"
            else:
                found = "; ".join(str(error).strip().splitlines()[-3:])
                remedy = (
                    f"dpcompare run --framework {framework} --mode {mode} --model mlp --image-size 8 --steps 2 "
                    f"--warmup-steps 0{f' --env {environment.name}' if environment else ''} keeps all logs"
                )
            return Finding(name=name, status="problem", found=found, remedy=remedy)
    how = " (emulated)" if result.emulated else ""
    took = "" if result.wall_seconds is None else f", {result.wall_seconds:.0f} s"
    return Finding(
        name=name,
        status="ok",
        found=f"works on {pluralize(result.num_replicas, f'{result.device_type} replica')}{how}, "
        f"collectives by {result.collective}{took}{''.join(f'; {line}' for line in said)}",
    )
