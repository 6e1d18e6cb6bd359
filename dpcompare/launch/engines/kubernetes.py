"""The Kubernetes engine: manifests of a run, for `kubectl apply`; one pod per node, and a volume that they share.

Pod 0 prepares the run, follows it and collects its result, as `dpcompare run` does; every pod is a node. torch becomes
a TrainJob of Kubeflow Trainer v2; the others, for which not every release of it has a runtime, become an Indexed Job.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from dpcompare.config.engines import KubernetesOptions
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import Engine, Planned, options_of
from dpcompare.launch.engines.hosts import terminate_on_exit
from dpcompare.launch.outcome import Report
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.launch.setup import usual_interpreter
from dpcompare.system.signals import signals_held

INDEX = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in every pod of an Indexed Job, of which a TrainJob is made too."""
POD_IP = "DPCOMPARE_POD_IP"
SHARED = PurePosixPath("/shared")
"""Where the volume is mounted."""
CONFIG = PurePosixPath("/config")
PYTHON = "python3"
"""The interpreter of the image."""
PREPARE_SECONDS = 600
"""How long the other pods wait for pod 0 to prepare the run."""

Manifest = dict[str, Any]


def job_name(config: RunConfig) -> str:
    """A name for a job that was given none, different every second; Kubernetes's names start with a letter."""
    return f"{config.framework}-{config.mode}-{datetime.now():%Y%m%d-%H%M%S}"


def manifests(config: RunConfig, name: str) -> Manifest:
    """Everything that a run needs, as one List for kubectl.

    Args:
        config: of the run, with a placement of this engine.
        name: of the job and of the run directory on the volume; lower-case letters, digits and dashes.

    Raises:
        RequestError: the name is not valid for Kubernetes, or restarts are asked for.
    """
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", name):
        raise RequestError(
            f"--run-dir: received {name!r}, whose last part names the job; expected lower-case letters, digits and "
            "dashes, such as runs/b2-ddp"
        )
    if config.max_restarts:
        raise RequestError(
            f"--max-restarts: received {config.max_restarts}, but a pod that has ended is not started again, so the "
            "others would wait for it; leave it out with --engine kubernetes"
        )
    if config.environment and config.python not in (sys.executable, usual_interpreter(config.framework)):
        raise RequestError(
            f"--env: received the interpreter {config.python} with --engine kubernetes, whose pods have that of their "
            "image; expected another image (-o image=...), or an environment of variables alone"
        )
    config = config.changed(python=PYTHON)
    settings: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"config.json": config.model_dump_json(indent=2)},
    }
    has_train_job = FRAMEWORKS[config.framework].has_train_job
    job = _train_job(config, name) if has_train_job else _indexed_job(config, name)
    return {"apiVersion": "v1", "kind": "List", "items": [settings, job]}


def _command(name: str) -> list[str]:
    run_dir = SHARED / "runs" / name
    first = f"exec {PYTHON} -P -m dpcompare.launch.run run {run_dir} < {CONFIG}/config.json"
    other = f"exec {PYTHON} -P -m dpcompare.launch.node {run_dir} --wait {PREPARE_SECONDS}"
    return ["sh", "-c", f'if [ "${INDEX}" = 0 ]; then {first}; else {other}; fi']


def _environment() -> list[Manifest]:
    return [
        {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "DPCOMPARE_CACHE_DIR", "value": str(SHARED / "cache")},
        # Kernels that the driver compiled for a new GPU are not lost with the pod.
        {"name": "CUDA_CACHE_PATH", "value": str(SHARED / "cache" / "cuda")},
    ]


def _resources(config: RunConfig) -> Manifest:
    cluster = config.cluster
    limits = {"cpu": str(cluster.nodes[0].num_cores)}
    if cluster.device_type == "gpu":
        limits["nvidia.com/gpu"] = str(cluster.devices_per_node)
    return {"limits": limits}


def _volumes(config: RunConfig, name: str) -> list[Manifest]:
    return [
        {"name": "shared", "persistentVolumeClaim": {"claimName": options_of(config, KubernetesOptions).volume_claim}},
        {"name": "config", "configMap": {"name": name}},
        # NCCL puts its buffers there, and a pod's own has 64 MiB.
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]


def _mounts() -> list[Manifest]:
    places = {"shared": str(SHARED), "config": str(CONFIG), "shared-memory": "/dev/shm"}
    return [{"name": name, "mountPath": path} for name, path in places.items()]


def _train_job(config: RunConfig, name: str) -> Manifest:
    pods = {"volumes": _volumes(config, name), "containers": [{"name": "node", "volumeMounts": _mounts()}]}
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": pods}}}}]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": options_of(config, KubernetesOptions).image,
                "command": _command(name),
                "env": _environment(),
                "numNodes": config.cluster.num_nodes,
                "resourcesPerNode": _resources(config),
            },
            "runtimePatches": [
                {
                    "manager": "dpcompare.io/plan",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
                }
            ],
        },
    }


def _indexed_job(config: RunConfig, name: str) -> Manifest:
    nodes = config.cluster.num_nodes
    container = {
        "name": "node",
        "image": options_of(config, KubernetesOptions).image,
        "command": _command(name),
        "env": _environment(),
        "resources": _resources(config),
        "volumeMounts": _mounts(),
    }
    pods = {"restartPolicy": "Never", "containers": [container], "volumes": _volumes(config, name)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": 0,  # the run itself decides whether it is restarted
            "template": {"spec": pods},
        },
    }


class Kubernetes(Engine):
    """One pod per node, from manifests that `plan` prints."""

    may_queue = True

    def check(self, config: RunConfig) -> None:
        if os.environ.get(INDEX) != "0":
            raise RequestError(
                "--engine kubernetes: this is not pod 0 of a job; print what to submit with `dpcompare plan --format "
                "kubernetes`, and hand it to `kubectl apply -f -`"
            )

    @contextmanager
    def started(self, config: RunConfig, run_dir: Path, rendezvous: Rendezvous, report: Report) -> Iterator[None]:
        """Start the node of this pod; Kubernetes starts the others."""
        argv = [sys.executable, "-P", "-m", "dpcompare.launch.node", str(run_dir), "--attempt", rendezvous.attempt.id]
        with (
            signals_held(),
            terminate_on_exit(subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)),
        ):
            yield None

    def node_identity(self, config: RunConfig, node_rank: int | None) -> tuple[int, str]:
        if INDEX not in os.environ or POD_IP not in os.environ:
            raise RequestError(
                "this is not a pod of a run; expected the manifests of `dpcompare plan --format kubernetes`"
            )
        return int(os.environ[INDEX]), os.environ[POD_IP]

    def run_name(self, config: RunConfig) -> str | None:
        return job_name(config)

    def planned(self, config: RunConfig, run_dir: Path) -> Planned:
        submitted = manifests(config, run_dir.name)
        return Planned(text=json.dumps(submitted, indent=2) + "\n", fields=submitted, is_whole=True)
