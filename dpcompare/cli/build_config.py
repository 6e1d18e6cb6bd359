"""From the values of options to the config of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpcompare.cli.options import RUN_CONFIG_OPTIONS, WORKLOAD_OPTIONS
from dpcompare.errors import RequestError

if TYPE_CHECKING:
    from dpcompare.config.cluster import Cluster
    from dpcompare.config.placement import Placement
    from dpcompare.config.run import RunConfig

DEFAULT_PIPELINE_STAGES = 2


def build_config(options: dict[str, Any]) -> RunConfig:
    """A run config from the values of `run_options`.

    Raises:
        RequestError: they make no run.
    """
    from dpcompare.config.cluster import Cluster
    from dpcompare.config.engines import ENGINES
    from dpcompare.config.modes import MODES
    from dpcompare.config.run import RunConfig
    from dpcompare.config.validation import request
    from dpcompare.config.workload import Workload
    from dpcompare.system.devices import installed_gpus, visible_gpus

    for name in ("framework", "mode"):
        if options[name] is None:
            raise RequestError(
                f"--{name}: received nothing; expected {'torch or tensorflow' if name == 'framework' else 'one of `dpcompare modes`'}"
            )
    given = {name: options[name] for name in WORKLOAD_OPTIONS if options[name] is not None}
    augment = tuple(listed(options["augment"] or ""))
    workload = request(
        Workload,
        **given,
        augment=() if augment == ("none",) else augment,
        skip_corrupt=options["skip_corrupt"],
    )
    gpus = options["gpus"]
    devices_per_node = options["devices_per_node"]
    row = MODES.get((options["framework"], options["mode"]))  # None is refused with the config
    if row is not None and not row.multi_device and devices_per_node is None and gpus is None:
        devices_per_node = 1  # the baseline is one device, however many are visible
    device = options["device"]
    if device == "auto" and row is not None and len(row.device_types) == 1:
        (device,) = row.device_types
    stages = options["stages"]
    if stages is None and row is not None and row.is_pipeline:
        stages = DEFAULT_PIPELINE_STAGES
    placement = _placement(options)
    on_gpus = device == "gpu" or gpus is not None or (device == "auto" and bool(visible_gpus(installed_gpus())))
    if stages is not None and devices_per_node is None and not (on_gpus and ENGINES[placement.engine].simulated):
        devices_per_node = stages  # one replica per node
    if ENGINES[placement.engine].simulated:
        if options["cores_per_node"] is not None:
            raise RequestError(
                f"--cores-per-node: received with engine {placement.engine}, whose nodes share the cores of this machine"
            )
        cluster = Cluster.partition(
            options["nodes"],
            devices_per_node,
            device=device,
            gpus=None if gpus is None else listed(gpus),
        )
    else:
        cluster = machines(placement, options | {"devices_per_node": devices_per_node})
    chosen: dict[str, Any] = {name: options[name] for name in RUN_CONFIG_OPTIONS if options[name] is not None}
    if stages is not None:
        chosen["stages"] = stages
    if options["profile_steps"] is not None:
        chosen["profile_steps"] = _steps(options["profile_steps"])
    if options["tune"]:
        chosen["tune"] = parse_tuning(options["tune"])
    if python := interpreters(options["python"]).get(options["framework"]):
        chosen["python"] = python
    config: RunConfig = request(
        RunConfig,
        framework=options["framework"],
        mode=options["mode"],
        workload=workload,
        cluster=cluster,
        placement=placement,
        **chosen,
    )
    return config


def _placement(options: dict[str, Any]) -> Placement:
    from dpcompare.config.placement import Placement
    from dpcompare.config.validation import request

    texts = {
        name: options[name]
        for name in ("engine", "link", "partition", "time", "account", "image", "volume_claim")
        if options[name] is not None
    }
    placement: Placement = request(
        Placement, **texts, hosts=listed(options["hosts"] or ""), ssh=options["ssh"], sbatch=options["sbatch"]
    )
    return placement


def machines(placement: Placement, options: dict[str, Any]) -> Cluster:
    """The nodes of an engine whose nodes are machines."""
    from dpcompare.config.cluster import Cluster
    from dpcompare.system.devices import available_cores, installed_gpus

    if options["gpus"] is not None:
        raise RequestError(
            f"--gpus: received with engine {placement.engine}; each machine has its own: give their number with --devices-per-node"
        )
    device = options["device"]
    if device == "auto" and placement.engine in ("slurm", "kubernetes"):
        raise RequestError(
            f"--device: received auto with engine {placement.engine}, whose nodes are elsewhere; expected cpu or gpu"
        )
    if device == "auto":
        device = "gpu" if installed_gpus() else "cpu"
    cores = options["cores_per_node"]
    if cores is None and placement.engine == "slurm":
        from dpcompare.launch.engines.slurm import cores_per_node

        cores = cores_per_node(placement.partition)
    num_nodes = options["nodes"]
    if num_nodes == 1:  # the default: as many as are named
        num_nodes = len(placement.hosts) or num_nodes
    return Cluster.of_machines(num_nodes, options["devices_per_node"] or 1, device, cores or available_cores())


def listed(text: str) -> list[str]:
    """`a, b` as ["a", "b"]."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _steps(text: str) -> tuple[int, int]:
    """`5:8` as (5, 8)."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        raise RequestError(f"--profile-steps: received {text!r}, expected FIRST:LAST such as 5:8")
    return int(match[1]), int(match[2])


def parse_tuning(pairs: Sequence[str]) -> dict[str, str]:
    """name -> value of --tune."""
    chosen = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or not value:
            raise RequestError(f"--tune: received {pair!r}, expected NAME=VALUE such as compilation=none")
        chosen[name] = value
    return chosen


def interpreters(pairs: tuple[str, ...]) -> dict[str, str]:
    """framework -> interpreter, from the environment and --python."""
    from dpcompare.config.modes import FRAMEWORKS

    chosen = {
        framework: os.environ[variable]
        for framework in FRAMEWORKS
        if (variable := f"DPCOMPARE_{framework.upper()}_PYTHON") in os.environ
    }
    for pair in pairs:
        framework, separator, path = pair.partition("=")
        if not separator or framework not in FRAMEWORKS or not path:
            raise RequestError(
                f"--python: received {pair!r}, expected FRAMEWORK=PATH with FRAMEWORK one of {', '.join(FRAMEWORKS)}"
            )
        chosen[framework] = path
    return chosen
