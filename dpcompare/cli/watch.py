"""`dpcompare watch`: how far a study is, from another terminal."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dpcompare.cli import completion
from dpcompare.cli.output import is_animated, stderr_console
from dpcompare.system.files import reject_links

SECONDS_BETWEEN_REDRAWS = 1.0


@click.command()
@click.argument("study_dir", type=click.Path(path_type=Path), shell_complete=completion.studies)
@click.option("--once", is_flag=True, help="Print the state once and exit, as without a terminal.")
def watch(study_dir: Path, once: bool) -> None:
    """Follow a study that another process runs, on this machine or through a shared disk, until it ends."""
    from rich.live import Live

    from dpcompare.cli.output import stdout_console
    from dpcompare.cli.progress import StudyView

    reject_links(study_dir, "the study")
    view = StudyView(study_dir)
    if once or not is_animated():
        stdout_console().print(view.look()[0])
        return
    with Live(console=stderr_console(), refresh_per_second=2) as live:
        while True:
            table, is_running = view.look()
            live.update(table)
            if not is_running:
                return
            time.sleep(SECONDS_BETWEEN_REDRAWS)
