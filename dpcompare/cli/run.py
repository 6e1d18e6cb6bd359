"""`dpcompare run`: train one config and print what was measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dpcompare.cli import completion
from dpcompare.cli.build_config import as_remembered, build_config, chosen_topology, mode_argument, with_named_mode
from dpcompare.cli.next_commands import next_steps
from dpcompare.cli.option_values import interpreters
from dpcompare.cli.options import OPTIONS, GroupedCommand, is_given, run_options
from dpcompare.cli.output import if_anybody_reads, print_json
from dpcompare.cli.resume import changed_config
from dpcompare.errors import RequestError
from dpcompare.system.terminal_text import hint
from dpcompare.system.type_names import FieldValue


@click.command(cls=GroupedCommand)
@mode_argument
@run_options
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    shell_complete=completion.runs,
    metavar="RUN_DIR",
    help="Continue this run from its newest checkpoint; only length, mode, framework and devices may change.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_context
def run(
    context: click.Context, /, named_mode: str | None, resume: Path | None, as_json: bool, **values: FieldValue
) -> None:
    """Train a model with one mode of one framework, over simulated nodes of this machine.

    \b
    dpcompare run --framework torch --mode ddp --nodes 2
    dpcompare run tensorflow:mirrored --devices-per-node 4 --dataset photos/
    dpcompare run torch:ddp --nodes 2 --checkpoint-every 100 --run-dir runs/a
    dpcompare run --resume runs/a --epochs 5
    """
    from dpcompare.cli.progress import RunProgress, data_progress
    from dpcompare.cli.report import print_summary
    from dpcompare.config.run import RunConfig
    from dpcompare.experiments.study import is_study
    from dpcompare.launch import run as runner
    from dpcompare.results.run_dir import CONFIG_FILE

    options = with_named_mode(context, named_mode, values)
    chosen = interpreters(options.python)

    def interpreter_of(framework: str) -> str:
        return chosen.get(framework, sys.executable)

    if resume is None:
        config = as_remembered(build_config(options))
        for line in (chosen_topology(options, config), config.workload.without_effect):
            if line:
                click.echo(line, err=True)
        run_dir = options.run_dir or runner.default_run_dir(config)
        if is_study(run_dir):
            raise RequestError(
                f"--run-dir: {str(run_dir)!r} is a study; name a new directory, or continue the study: "
                f"{hint('compare', '--resume', run_dir)}"
            )
        with (
            _interruption_explained(run_dir),
            RunProgress(config, run_dir) as progress,
            data_progress(progress.waiting) as images_done,
        ):
            result = runner.run(
                config,
                run_dir,
                observe=progress.observe,
                data_progress=images_done,
                report=progress.say,
                interpreter_of=interpreter_of,
            )
    else:
        given = {row.name for row in OPTIONS if is_given(context, row.name)}
        given |= {"framework", "mode"} if named_mode else set()
        config = changed_config(RunConfig.load(resume / CONFIG_FILE), options, given)
        run_dir = resume
        with _interruption_explained(run_dir), RunProgress(config, run_dir) as progress:
            result = runner.resume(
                run_dir, config, observe=progress.observe, report=progress.say, interpreter_of=interpreter_of
            )
    if as_json:
        print_json(json.loads(result.model_dump_json()))
    else:
        with if_anybody_reads():
            print_summary(result, run_dir)
        for line in next_steps(context, config, result, run_dir):
            click.echo(line, err=True)


@contextmanager
def _interruption_explained(run_dir: Path) -> Iterator[None]:
    """Say how to continue a run that is interrupted, if it can be continued."""
    from dpcompare.results.run_dir import RESULT_FILE, checkpoint_paths

    try:
        yield
    except KeyboardInterrupt:
        if any(checkpoint_paths(run_dir)):
            click.echo(f"to continue from the newest checkpoint: {hint('run', '--resume', run_dir)}", err=True)
        elif (run_dir / RESULT_FILE).exists():
            click.echo(
                f"{run_dir} keeps what was measured; only a run with --checkpoint-every can be continued", err=True
            )
        raise
