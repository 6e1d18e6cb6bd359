"""Scripts that train in a loop of their own, started as one process per device or node."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path

from dpcompare.api.launchers import CLUSTER_VARIABLE
from dpcompare.cli.build_config import build_config
from dpcompare.cli.options import RunOptions
from dpcompare.config.cluster import DeviceChoice
from dpcompare.errors import RequestError, RunFailedError, require_type
from dpcompare.launch.local import launch
from dpcompare.launch.outcome import Deadlines
from dpcompare.launch.plan import Endpoints, exposure, is_isolated, num_ports, plan
from dpcompare.launch.run import require_machine
from dpcompare.results.run_dir import LOGS_DIR, end_of, node_log_path
from dpcompare.system.ports import free_ports
from dpcompare.system.signals import terminated_as_interrupted

SCRIPT_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": ""}
"""Variables of the processes: a script may import what lies next to it, and no line that it printed is lost."""


DIVISIBLE_BATCH_SIZE = 64 * math.lcm(*range(1, 17))
"""A batch that all usual numbers of replicas divide."""


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """A script that has ended, on all its nodes."""

    folder: Path
    """Has `logs/node<I>.log`, what the processes of each node printed."""
    num_nodes: int

    def output(self, node: int = 0) -> str:
        """What the processes of a node printed."""
        return node_log_path(self.folder, node).read_text(errors="replace")


def run_script(
    script: str | Path,
    mode: str,
    *arguments: str,
    nodes: int | None = None,
    devices_per_node: int | None = None,
    device: DeviceChoice = "auto",
    folder: str | Path | None = None,
) -> ScriptRun:
    """Run a script that calls `backend` once per process of a mode, as `dpcompare run` starts its own processes.

    All of them end with this call, whatever happens. The interpreter is the one of `dpcompare run`.

    Args:
        script: a file of Python.
        mode: such as `torch:ddp`.
        arguments: of the script.
        nodes: simulated nodes; default: as `dpcompare run` has them.
        devices_per_node: default: as `dpcompare run` has them.
        device: `auto`, `cpu` or `gpu`.
        folder: new; gets the logs. Default: below `runs/`.

    Raises:
        RequestError: the mode cannot run here, or there is no such script; nothing was started.
        RunFailedError: a process failed, and the others were ended.
        KeyboardInterrupt: all processes have ended.
    """
    require_type(mode, str, "mode")
    require_type(script, (str, Path), "script")
    framework, separator, name = mode.partition(":")
    if not separator:
        raise RequestError(f"mode: received {mode!r}, expected FRAMEWORK:MODE such as torch:ddp")
    path = Path(script).resolve()
    if not path.is_file():
        raise RequestError(f"script: received {str(script)!r}, which is not a file; expected one of Python")
    options = RunOptions(
        framework=framework,
        mode=name,
        nodes=nodes,
        devices_per_node=devices_per_node,
        device=device,
        fields={"model": "mlp", "global_batch_size": DIVISIBLE_BATCH_SIZE},  # the script has a workload of its own
    )
    config = build_config(options)
    require_machine(config)
    directory = Path(folder or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{path.stem}").resolve()
    if directory.exists():
        raise RequestError(f"folder: {str(directory)!r} is there already; expected a new one")
    try:
        (directory / LOGS_DIR).mkdir(parents=True)
    except OSError as error:
        raise RequestError(f"folder: {str(directory)!r} cannot be made ({error.strerror}); choose another") from None
    if line := exposure(config):
        print(line, file=sys.stderr)
    processes = [
        process.model_copy(
            update={"env": process.env | {CLUSTER_VARIABLE: config.cluster.model_dump_json()} | SCRIPT_ENVIRONMENT}
        )
        for process in plan(config, directory, Endpoints(free_ports(num_ports(config))), _argv(path, arguments))
    ]
    with terminated_as_interrupted():
        outcome = launch(processes, directory, Deadlines(start=inf, progress=inf), isolate=is_isolated(config))
    if outcome.failed:
        failed = next((rank for rank, status in outcome.nodes.items() if status), 0)
        raise RunFailedError(
            f"{path.name} failed on node {failed} of {framework} {name} with status {outcome.nodes.get(failed)}:\n"
            f"{end_of(node_log_path(directory, failed))}\nlogs: {directory / LOGS_DIR}",
            str(directory),
        )
    return ScriptRun(folder=directory, num_nodes=config.cluster.num_nodes)


def _argv(path: Path, arguments: Sequence[str]) -> list[str]:
    return [os.fspath(path), *map(str, arguments)]
