"""The bash script of a plan, for `dpcompare plan --format sh`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.plan import INHERITED_TO_DROP, NodeProcess

TEMPLATE = "plan.sh.template"
"""In this package; `@name@` stands for a value."""


def command_line(node_process: NodeProcess) -> str:
    """The node process as a line that a shell runs."""
    env = [f"{name}={shlex.quote(value)}" for name, value in node_process.env.items()]
    return " ".join([*env, shlex.join(node_process.argv)])


def shell_script(config: RunConfig, run_dir: Path, node_processes: Sequence[NodeProcess]) -> str:
    """A bash script that prepares the run directory, starts all node processes and collects the result.

    Raises:
        RequestError: the config asks for what a script cannot do.
    """
    for option, given in (("--isolate", config.isolate), ("--max-restarts", config.max_restarts)):
        if given:
            raise RequestError(
                f"{option}: a shell script cannot do this; use `dpcompare run {option}`, or leave it out"
            )
    values = {
        "title": f"{config.framework} {config.mode}: {config.cluster.in_words}",
        "runner": shlex.join([config.python, "-P", "-m", "dpcompare.launch.run"]),
        "run_dir": shlex.quote(str(run_dir)),
        "config": config.model_dump_json(),
        "exposure": f"echo {shlex.quote(line)} >&2\n" if (line := _exposure(config)) else "",
        "starts": "\n".join(_start(process, run_dir) for process in node_processes),
    }
    template = files("dpcompare.launch").joinpath(TEMPLATE).read_text()
    return re.sub(r"@(\w+)@", lambda placeholder: values[placeholder[1]], template)


def _exposure(config: RunConfig) -> str | None:
    """What a script says of a run that `dpcompare run` would give a network of its own, which a script cannot."""
    if not config.serves_files or config.isolate is False:
        return None
    return (
        f"{config.framework} {config.mode}: while it lasts, every user of this machine and whoever reaches its ports "
        "can read and write files as you, through TensorFlow's servers; `dpcompare run` gives it a network of its own"
    )


def _start(process: NodeProcess, run_dir: Path) -> str:
    """The lines that start a node process in the background."""
    devices = ", ".join(device for each in process.processes for device in each.devices)
    unset = " ".join(f"-u {name}" for name in INHERITED_TO_DROP)
    log = f"{shlex.quote(str(run_dir))}/logs/node{process.node_rank}.log"
    return (
        f"# node {process.node_rank}: devices {devices}\n"
        f"setsid env {unset} {command_line(process)} \\\n  >> {log} 2>&1 &\n"
        "nodes+=($!)"
    )
