"""`dpcompare run`: train one config and print what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from dpcompare.cli.options import build_config, run_options
from dpcompare.cli.output import print_json


@click.command()
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def run(run_dir: Path | None, as_json: bool, **options: Any) -> None:
    """Train a model with one mode of one framework, over simulated nodes of this machine.

    \b
    dpcompare run --framework torch --mode ddp --nodes 2
    dpcompare run --framework tensorflow --mode mirrored --devices-per-node 4 --dataset photos/
    """
    config = build_config(options)

    from dpcompare import runner
    from dpcompare.cli.progress import RunProgress, data_progress
    from dpcompare.cli.report import print_summary

    run_dir = run_dir or runner.default_run_dir(config)
    with data_progress() as images_done, RunProgress(config, run_dir) as progress:
        result = runner.run(config, run_dir, observe=progress.observe, data_progress=images_done)
    if as_json:
        print_json(json.loads(result.model_dump_json()))
    else:
        print_summary(result, run_dir)
