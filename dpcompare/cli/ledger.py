"""`dpcompare ledger`: figures of studies over days and versions."""

from __future__ import annotations

from pathlib import Path

import click

from dpcompare.cli import completion
from dpcompare.cli.output import plot_options, print_json, stdout_console, write_plots
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.terminal_text import printable_lines


@click.group()
def ledger() -> None:
    """Keep figures of studies over days and versions, in a file with a line of JSON for each arm."""


@ledger.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument(
    "studies",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    metavar="STUDY_DIR...",
    shell_complete=completion.studies,
)
def add(folder: Path, studies: tuple[Path, ...]) -> None:
    """Append studies to the ledger in FOLDER, which is made if there is none.

    A study that has changed since, such as by more rounds, is appended again and then shown as it is now.
    """
    from dpcompare.experiments.analysis import analyse
    from dpcompare.experiments.collection import collect
    from dpcompare.experiments.study import is_study
    from dpcompare.report import ledger as kept

    if alone := [path for path in studies if not is_study(path)]:
        raise RequestError(
            f"received {str(alone[0])!r}, expected the directory of a study, as `dpcompare compare` makes it"
        )
    entries = {}
    for path in studies:
        collection = collect([path])
        entries[path] = kept.entries_of(collection, analyse(collection), path)
    for path, of_study in entries.items():
        is_new = kept.add(folder, of_study)
        click.echo(f"{'added' if is_new else 'already there'}: {path}", err=True)


@ledger.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--figure",
    default="steady_images_per_second",
    show_default=True,
    metavar="FIGURE",
    help="What is shown: a figure of arms by its name in JSON, such as accuracy or memory_bytes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all lines as one JSON array.")
@plot_options
def show(
    folder: Path, figure: str, as_json: bool, plots: str | None, plot_width: float | None, plot_text: float | None
) -> None:
    """Show a figure over days and versions.

    Between studies nothing is claimed: which arms were measured side by side is shown, with what their study claims.
    """
    from dpcompare.report import ledger as kept

    if figure not in kept.KEPT:
        raise RequestError(
            f"--figure: received {figure!r}, expected one of {', '.join(kept.KEPT)}.{did_you_mean(figure, kept.KEPT)}"
        )
    entries = kept.read(folder)
    write_plots(plots, lambda: kept.make_plots(entries, figure), plot_width, plot_text)
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in entries])
    elif plots is None:
        click.echo(printable_lines(kept.as_text(entries, figure, stdout_console().width)), nl=False)
