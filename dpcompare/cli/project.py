"""`dpcompare project`: what more nodes and other links would bring, predicted from a study."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpcompare.cli import completion
from dpcompare.cli.option_values import Number, NumberWithin, measured_link
from dpcompare.cli.output import json_file, plot_options, print_sentence, stdout_console, write, write_plots
from dpcompare.errors import RequestError
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from dpcompare.projection.document import Projection
    from dpcompare.projection.goal import ProjectionRequest

HOUR = 3600.0
RESTART_SECONDS = 300.0
"""Where --mtbf comes without --restart-seconds: no default of the option, which would not show that it was left out."""


@click.command()
@click.argument(
    "path",
    type=click.Path(path_type=Path),
    metavar="STUDY_DIR|RUN_DIR",
    shell_complete=completion.runs_and_studies,
)
@click.option(
    "--nodes",
    metavar="N,...",
    help="Numbers of nodes.  [default: the fewest with as many devices as were measured, doubled up to four times "
    "them, or with --extrapolate up to 1,024]",
)
@click.option("--devices-per-node", type=int, metavar="N", help="Default: as many as were measured.")
@click.option(
    "--link",
    default="100gbit",
    show_default=True,
    metavar="RATE",
    help="Rate of each node's link to the others, per direction.",
)
@click.option(
    "--latency", metavar="TIME", help="Latency of a message between nodes, such as 5us.  [default: 2.7us to 50us]"
)
@click.option(
    "--intra-link", metavar="NAME|RATE", help="Link between the devices of a node: nvlink, pcie4, 200GB/s, ..."
)
@measured_link
@click.option(
    "--overlap",
    type=click.Choice(["measured", "none"]),
    default="measured",
    show_default=True,
    help="none: all gradients wait for the end of the backward pass.",
)
@click.option(
    "--arm", "arms", multiple=True, metavar="NAME", help="Only this arm, as reports name it; can be repeated."
)
@click.option("--subject", multiple=True, metavar="SETTING", help="A setting in which arms may differ.")
@click.option(
    "--target-efficiency",
    type=Number(),
    metavar="SHARE",
    help="Find the link or batch that this efficiency needs, such as 0.9.",
)
@click.option(
    "--target-throughput", type=Number(), metavar="IMAGES/S", help="Find how many nodes reach this throughput."
)
@click.option("--price", type=NumberWithin(0, 1e6), metavar="DOLLARS", help="Price of a device per hour.")
@click.option(
    "--storage", metavar="RATE", help="Rate at which all nodes together can read images.  [default: reading keeps up]"
)
@click.option(
    "--checkpoint-every",
    type=click.IntRange(1, 10**9),
    metavar="STEPS",
    help="Steps between two checkpoints; needs --checkpoint-seconds.",
)
@click.option(
    "--checkpoint-seconds", type=NumberWithin(0, 1e6), metavar="SECONDS", help="How long each checkpoint takes."
)
@click.option(
    "--mtbf",
    type=NumberWithin(0, 1e9, min_open=True),
    metavar="HOURS",
    help="Mean time between failures of a node.",
)
@click.option(
    "--restart-seconds",
    type=NumberWithin(0, 1e6),
    metavar="SECONDS",
    help=f"How long a restart takes after a failure; needs --mtbf.  [default: {RESTART_SECONDS:g}]",
)
@click.option(
    "--extrapolate",
    is_flag=True,
    help="Go beyond four times what was measured, and show arms whose measured step the model misses.",
)
@click.option("--html", metavar="FILE", help="The page of the study, with a section of what is predicted.")
@click.option("--markdown", metavar="FILE", help="Tables and all sentences; - is stdout.")
@json_file
@plot_options
def project(path: Path, **values: FieldValue) -> None:
    """Predict how fast the arms of a study would train on more nodes. All figures are predicted, none is measured.

    \b
    dpcompare compare --arm torch:ddp --nodes 2 --ablate --out studies/ddp
    dpcompare project studies/ddp --nodes 2,4,8 --link 25gbit
    dpcompare project studies/ddp --nodes 2,16,128 --link 25gbit --extrapolate

    The study needs runs without gradient sync (--ablate). docs/projection.md describes the model, the measurements
    with which it was compared, and where it is known to be wrong.
    """
    from dpcompare.experiments.collection import collect
    from dpcompare.projection.prediction import project as predicted
    from dpcompare.report import projection as shown
    from dpcompare.report.projection_plots import projection_plots

    request = _request(values)
    collection = collect([path], values["subject"])
    projection = predicted(collection, request)
    if values["html"] is not None:
        from dpcompare.experiments.analysis import analyse
        from dpcompare.report.page import as_html

        write(values["html"], as_html(analyse(collection), projection))
    if values["markdown"] is not None:
        write(values["markdown"], shown.as_markdown(projection))
    if values["as_json"] is not None:
        write(values["as_json"], shown.as_json(projection))
    drawn = partial(projection_plots, projection)
    write_plots(values["plots"], drawn, values["plot_width"], values["plot_text"])
    if all(values[name] is None for name in ("html", "markdown", "as_json", "plots")):
        _print(projection)


def _print(projection: Projection) -> None:
    """Everything is folded to the terminal's width."""
    from dpcompare.report import projection as shown

    print_sentence(shown.headline(projection))
    for arm in projection.arms:
        click.echo()
        print_sentence(arm.name)
        for line in shown.warning(arm):
            print_sentence(f"  {line}", indent=2)
        for row in shown.aligned(arm, stdout_console().width):
            click.echo(row)
        for note in shown.explanations(arm):
            print_sentence(f"  {note}", indent=2)
    click.echo()
    for sentence in shown.closing(projection):
        print_sentence(sentence)


def _request(values: dict[str, Any]) -> ProjectionRequest:
    """What is asked for, all of it checked before a study is read."""
    from dpcompare.projection.goal import ProjectionRequest
    from dpcompare.projection.link import link_between_nodes, link_within_nodes, rate_of
    from dpcompare.projection.step import Interruptions, TrainingOverheads

    for name in ("price", "checkpoint_seconds", "mtbf", "restart_seconds"):
        if values[name] is not None and not math.isfinite(values[name]):
            raise RequestError(f"--{name.replace('_', '-')}: received {values[name]}, expected a finite number")
    if (values["checkpoint_every"] is None) != (values["checkpoint_seconds"] is None):
        raise RequestError("--checkpoint-every and --checkpoint-seconds: received one of them, expected both")
    if values["restart_seconds"] is not None and values["mtbf"] is None:
        raise RequestError("--restart-seconds: received without --mtbf, expected both: restarts follow failures")
    if values["mtbf"] is not None and values["checkpoint_every"] is None:
        raise RequestError(
            "--mtbf: received without --checkpoint-every and --checkpoint-seconds, expected both: without checkpoints "
            "a failure undoes the whole training"
        )
    return ProjectionRequest(
        nodes=_numbers(values["nodes"]),
        devices_per_node=values["devices_per_node"],
        between=link_between_nodes(values["link"], values["latency"]),
        within=link_within_nodes(values["intra_link"]) if values["intra_link"] else None,
        arms=values["arms"],
        overlap=values["overlap"] == "measured",
        measured_link=values["measured_link"],
        dollars_per_device_hour=values["price"],
        overheads=TrainingOverheads(
            storage_bytes_per_second=rate_of(values["storage"], "--storage") if values["storage"] else None,
            interruptions=Interruptions(
                checkpoint_every=values["checkpoint_every"],
                checkpoint_seconds=values["checkpoint_seconds"] or 0.0,
                node_mtbf_seconds=values["mtbf"] * HOUR if values["mtbf"] else None,
                restart_seconds=RESTART_SECONDS if values["restart_seconds"] is None else values["restart_seconds"],
            ),
        ),
        target_efficiency=values["target_efficiency"],
        target_throughput=values["target_throughput"],
        extrapolate=values["extrapolate"],
    )


def _numbers(text: str | None) -> tuple[int, ...]:
    """`2,4,8` as (2, 4, 8)."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and (not parts or not all(part.isdecimal() and part.isascii() for part in parts)):
        raise RequestError(f"--nodes: received {text!r}, expected numbers such as 2,4,8")
    return tuple(map(int, parts))
