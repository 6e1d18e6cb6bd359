"""A plan as a bash script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.plan import INHERITED_TO_DROP, NodeProcess


def command_line(node_process: NodeProcess) -> str:
    """The node process as a line that a shell runs."""
    env = [f"{name}={shlex.quote(value)}" for name, value in node_process.env.items()]
    return " ".join([*env, shlex.join(node_process.argv)])


def shell_script(config: RunConfig, run_dir: Path, node_processes: Sequence[NodeProcess]) -> str:
    """A bash script that prepares the run directory, starts all node processes and collects the result."""
    for option, given in (("--isolate", config.isolate), ("--max-restarts", config.max_restarts)):
        if given:
            raise RequestError(
                f"{option}: a shell script cannot do this; use `dpcompare run {option}`, or leave it out"
            )
    runner = shlex.join([config.python, "-P", "-m", "dpcompare.launch.run"])
    here = shlex.quote(str(run_dir))
    unset = " ".join(f"-u {name}" for name in INHERITED_TO_DROP)
    starts = "\n".join(
        f"# node {process.node_rank}: devices {', '.join(d for p in process.processes for d in p.devices)}\n"
        f"setsid env {unset} {command_line(process)} \\\n  >> {here}/logs/node{process.node_rank}.log 2>&1 &\n"
        "nodes+=($!)"
        for process in node_processes
    )
    return f"""#!/usr/bin/env bash
# {config.framework} {config.mode}: {config.cluster.in_words}. \
Made by `dpcompare plan --format sh`. The first failure stops all; `dpcompare run` also has deadlines and restarts.
set -u

{runner} prepare {here} <<'RUN_CONFIG' || exit
{config.model_dump_json()}
RUN_CONFIG
started_at=$(date +%s.%N)

nodes=()
stop_all() {{ # every node process leads a process group of its own
  for node in "${{nodes[@]}}"; do kill -s "$1" -- "-$node"; done 2> /dev/null
}}
interrupted() {{
  stop_all TERM; sleep 5; stop_all KILL
  {runner} collect {here} "$started_at" interrupted
  exit 130
}}
trap interrupted INT TERM HUP

{starts}

status=completed
for _ in "${{nodes[@]}}"; do # in the order in which they end: the first failure stops the others
  wait -n
  case $? in
    0 | 127) ;; # 127: all have ended, two of them at once
    *) stop_all TERM; sleep 5; stop_all KILL; break ;;
  esac
done
for node in "${{nodes[@]}}"; do wait "$node" || status=failed; done # bash remembers how each ended
{runner} collect {here} "$started_at" "$status"
"""
