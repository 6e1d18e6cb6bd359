"""`dpcompare node`: the part of one machine in a run on several."""

from __future__ import annotations

from pathlib import Path

import click

from dpcompare.cli import completion
from dpcompare.cli.output import EXIT_FAILED


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path), shell_complete=completion.runs)
@click.option("--node-rank", type=int, help="Which of the nodes this machine is, from 0; not needed in a Slurm job.")
def node(run_dir: Path, node_rank: int | None) -> int:
    """Take part in a run that `dpcompare run --engine hosts` has prepared, on each of its hosts.

    \b
    dpcompare run --engine hosts --hosts a,b --framework torch --mode ddp --run-dir /shared/runs/one
    a$ dpcompare node /shared/runs/one --node-rank 0
    b$ dpcompare node /shared/runs/one --node-rank 1
    """
    from dpcompare.launch.node import run_node

    return 0 if run_node(run_dir, node_rank, report=lambda line: click.echo(line, err=True)) else EXIT_FAILED
