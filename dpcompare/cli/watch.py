"""`dpcompare watch`: how far a study is, from another terminal."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dpcompare.cli.output import is_animated, stderr_console

SECONDS_BETWEEN_LOOKS = 1.0


@click.command()
@click.argument("study_dir", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Say it once and end.")
def watch(study_dir: Path, once: bool) -> None:
    """Follow a study that another process runs, on this machine or through a shared disk."""
    from rich.live import Live

    from dpcompare.cli.progress import study_table
    from dpcompare.study import Study

    study = Study.load(study_dir)
    if once or not is_animated():
        from dpcompare.cli.output import stdout_console

        stdout_console().print(study_table(study, study_dir)[0])
        return
    with Live(console=stderr_console(), refresh_per_second=2) as live:
        while True:
            table, is_done = study_table(study, study_dir)
            live.update(table)
            if is_done:
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)
            study = Study.load(study_dir)  # rounds may have been added
