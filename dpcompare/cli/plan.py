"""`dpcompare plan`: print what `run` would start, and start nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpcompare.cli import completion
from dpcompare.cli.build_config import as_remembered, build_config, mode_argument, with_named_mode
from dpcompare.cli.options import GroupedCommand, run_options
from dpcompare.cli.output import print_json, stdout_console
from dpcompare.config.engines import ENGINES
from dpcompare.errors import RequestError
from dpcompare.system.terminal_text import pluralize
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from dpcompare.config.run import RunConfig
    from dpcompare.launch.engines import Planned
    from dpcompare.launch.plan import NodeProcess


_FORMATS = {name: (engine, said) for engine, row in ENGINES.items() for name, said in row.plan_formats.items()}
"""Format that only one engine has -> that engine, and what it prints."""


@click.command(cls=GroupedCommand)
@mode_argument
@run_options
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", *_FORMATS]),
    default="text",
    show_default=True,
    help=" ".join(f"{name}, with --engine {engine}: {said}." for name, (engine, said) in _FORMATS.items()),
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option(
    "--study",
    type=click.Path(path_type=Path),
    metavar="STUDY_DIR",
    help="Say what the run is predicted to reach, from a study of its mode with --ablate.",
    shell_complete=completion.runs_and_studies,
)
@click.pass_context
def plan(
    context: click.Context,
    /,
    named_mode: str | None,
    output_format: str,
    as_json: bool,
    study: Path | None,
    **values: FieldValue,
) -> None:
    """Print the node processes of a run: devices, commands and environment.

    \b
    dpcompare plan torch:ddp --gpus 0,1,2,3,4,5,6,7 --nodes 2
    """
    from dpcompare.launch import plan as planning
    from dpcompare.launch.inputs import check_inputs

    options = with_named_mode(context, named_mode, values)
    if as_json and output_format not in ("text", "json"):
        raise RequestError(f"--json: received with --format {output_format}; give one of them")
    config = as_remembered(build_config(options))
    check_inputs(config)
    planning.require_free_variables(config)
    predicted = _predicted(config, study) if study else None

    from dpcompare.config.setting import require_one_line
    from dpcompare.launch.engines import load_engine
    from dpcompare.launch.plan import shell_script
    from dpcompare.launch.run import default_run_dir
    from dpcompare.system.ports import free_ports

    engine = None if config.placement.engine == "local" else load_engine(config.placement.engine)
    run_dir = options.run_dir
    if run_dir is None and engine and (name := engine.run_name(config)):
        run_dir = Path("runs") / name
    run_dir = (run_dir or default_run_dir(config)).resolve()
    require_one_line(run_dir, "--run-dir")
    if predicted and not (as_json or output_format == "json"):
        click.echo(predicted["sentence"], err=output_format != "text")
    _require_format(output_format, config.placement.engine)
    if engine:
        _print_planned(engine.planned(config, run_dir), config, run_dir, as_json or output_format == "json", predicted)
        return
    node_processes = planning.plan(config, run_dir, planning.Endpoints(free_ports(planning.num_ports(config))))
    if as_json or output_format == "json":
        print_json(
            {
                "run_dir": str(run_dir),
                "num_nodes": config.cluster.num_nodes,
                "num_processes": config.topology.num_processes,
                "num_replicas": config.topology.num_replicas,
                "node_processes": [process.model_dump(mode="json") for process in node_processes],
                "config": config.model_dump(mode="json"),
                **({"predicted": predicted} if predicted else {}),
            }
        )
    elif output_format == "sh":
        click.echo(shell_script(config, run_dir, node_processes), nl=False)
    else:
        _print_text(config, node_processes)


def _predicted(config: RunConfig, study: Path) -> dict[str, Any]:
    from dpcompare.experiments.collection import collect
    from dpcompare.projection.planned import predicted_speed

    speed, sentence = predicted_speed(collect([study]), config)
    return {"images_per_second": speed.model_dump(), "sentence": sentence}


def _require_format(output_format: str, engine: str) -> None:
    """Refuse the format of another engine."""
    owner, _ = _FORMATS.get(output_format, (engine, ""))
    if owner != engine:
        raise RequestError(f"--format {output_format}: received with engine {engine}, expected --engine {owner}")


def _print_planned(
    planned: Planned, config: RunConfig, run_dir: Path, as_json: bool, predicted: dict[str, Any] | None
) -> None:
    """What an engine would start."""
    if not as_json:
        click.echo(planned.text, nl=False)
    elif planned.is_whole:
        print_json(dict(planned.fields))
    else:
        further = {"predicted": predicted} if predicted else {}
        print_json({"run_dir": str(run_dir), **planned.fields, **further, "config": config.model_dump(mode="json")})


def _print_text(config: RunConfig, node_processes: Sequence[NodeProcess]) -> None:
    from rich.table import Table

    from dpcompare.launch.plan import command_line
    from dpcompare.system.terminal_text import printable

    emulated = " (emulated)" if config.emulated else ""
    replicas = config.topology.num_replicas
    click.echo(
        f"{config.framework} {config.mode}{emulated}: {config.cluster.in_words}, "
        f"{pluralize(config.topology.num_processes, 'process')}, {pluralize(replicas, 'replica')}, "
        f"{pluralize(config.workload.global_batch_size // replicas, 'image')} each per step\n"
        f"workload: {printable(config.workload.in_words)}"
    )
    table = Table()
    for column in ("node", "process", "local rank", "global rank", "device"):
        table.add_column(column, justify="left" if column == "device" else "right")
    global_rank = 0
    for node in node_processes:
        devices = [(process, device) for process in node.processes for device in process.devices]
        for local_rank, (process, device) in enumerate(devices):
            name = f"gpu {device}" if config.cluster.device_type == "gpu" else device
            table.add_row(str(node.node_rank), str(process.process_rank), str(local_rank), str(global_rank), name)
            global_rank += 1
    stdout_console().print(table)
    for node in node_processes:
        click.echo(f"\n# node {node.node_rank}\n{command_line(node)}")
