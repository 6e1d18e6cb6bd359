"""`dpcompare explain`: measure what bounds a run, by leaving out one part of its step after the other."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dpcompare.cli import completion
from dpcompare.cli.build_study import ENVIRONMENT, arm_request
from dpcompare.cli.compare import prepared, print_plan
from dpcompare.cli.next_commands import autotune_command_of, command_of
from dpcompare.cli.option_table import add_options
from dpcompare.cli.option_values import (
    interpreters,
    measured_link,
    only_environment,
    refuse_other_names,
    require_trusted_interpreter,
)
from dpcompare.cli.options import OPTIONS, GroupedCommand, RunOptions, is_given
from dpcompare.cli.output import if_anybody_reads, print_json, stdout_console
from dpcompare.errors import RequestError
from dpcompare.system.terminal_text import hint
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from dpcompare.config.run import RunConfig
    from dpcompare.experiments.study import Study
    from dpcompare.experiments.variants import Variants
    from dpcompare.projection.explanation import Explanation
    from dpcompare.projection.remedies import Remedy

_ROWS = tuple(row for row in OPTIONS if row.scope != "run" or row.name in ("nodes", "devices_per_node"))
"""Options of the run to explain."""


@click.command(cls=GroupedCommand)
@click.argument("arm_or_run", shell_complete=completion.runs)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=6, show_default=True, help="Rounds to run; a claim needs 6."
)
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the runs.  [default: below studies/]")
@measured_link
@click.option("--dry-run", is_flag=True, help="List every run, with an estimate of the time, and start nothing.")
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@add_options(_ROWS, from_environment=True)
@click.pass_context
def explain(
    context: click.Context,
    /,
    dry_run: bool,
    markdown: bool,
    as_json: bool,
    **values: FieldValue,
) -> None:
    """Measure what bounds a run: input, exchange, waiting for the slowest, launching or computing, and what would help.

    ARM_OR_RUN is the directory of a completed run, or an arm such as torch:ddp,link=1gbit, with the options of a run.
    Each round trains it as it is and with a part left out: without gradient sync, with one batch that stays on its
    devices, with neither, with four times the batch, and on one device. Without --steps, an arm runs 60 steps after
    warm-up (170 on GPUs). Repeat the command with the same --out to continue.

    \b
    dpcompare explain runs/a
    dpcompare explain torch:ddp --nodes 2 --model efficientnet-b0 --steps 60
    dpcompare explain tensorflow:multiworker,engine=namespaces,link=100mbit --nodes 2
    """
    if dry_run:
        asked = _asked_for(context, **values)
        print_plan(asked.study, asked.out, as_json=as_json)
        return
    explanation = explanation_asked_for(context, **values)
    if as_json:
        print_json(explanation.model_dump(mode="json"))
    else:
        from dpcompare.report import explained

        width = stdout_console().width
        text = explained.as_markdown(explanation) if markdown else explained.as_text(explanation, width)
        with if_anybody_reads():
            click.echo(text, nl=False)


class _AskedFor(NamedTuple):
    config: RunConfig
    variants: Variants
    study: Study
    out: Path


def _asked_for(
    context: click.Context, /, arm_or_run: str, repeats: int, out: Path | None, measured_link: str | None, **values: Any
) -> _AskedFor:
    """What the options of the command ask to be explained, and by which runs."""
    from dpcompare.experiments.study import refuse_other_files
    from dpcompare.experiments.variants import variants_of

    config, name = _to_explain(context, arm_or_run, RunOptions.of(values))
    _refuse_other_link(config, measured_link)
    variants = variants_of(config, name)
    out = out or Path("studies") / f"{datetime.now():%Y%m%d-%H%M%S-%f}-explained"
    refuse_other_files(out)
    return _AskedFor(config, variants, variants.study(repeats), out)


def explanation_asked_for(context: click.Context, /, measured_link: str | None, **values: Any) -> Explanation:
    """Make the runs that the options of the command ask for, and explain by them.

    Raises:
        RequestError: it cannot be explained; nothing was started.
    """
    for name in ("dry_run", "markdown", "as_json"):  # how the command shows it
        values.pop(name, None)
    asked = _asked_for(context, measured_link=measured_link, **values)
    return _with_commands(_measured(asked.study, asked.out, asked.variants, measured_link), asked.config)


def _to_explain(context: click.Context, arm_or_run: str, options: RunOptions) -> tuple[RunConfig, str]:
    """The run to explain, and its name."""
    from dpcompare.experiments.arms import expand_arms, reasons_of
    from dpcompare.experiments.study import is_study
    from dpcompare.experiments.variants import run_to_explain, to_explain

    path = Path(arm_or_run)
    if is_study(path):
        raise RequestError(
            f"{arm_or_run!r} is a study of several arms; expected the directory of one of its runs, below "
            f"{str(path / 'runs')!r}"
        )
    if not path.exists() and ":" in arm_or_run:
        if f",{ENVIRONMENT}=" not in arm_or_run:
            options = options.changed(environment=only_environment(options.env))
        request = arm_request(arm_or_run, options, named_by="ARM_OR_RUN")
        refuse_other_names(options.env, {request.environment}, "the environment of the arm")
        nodes, devices = ([] if value is None else [value] for value in (options.nodes, options.devices_per_node))
        arms, refusals = expand_arms([request], nodes or None, devices or None, interpreters(options.python))
        if not arms:
            raise RequestError("\n".join(reasons_of(refusals)))
        (arm,) = arms
        return to_explain(arm.config, named=arm_or_run), arm.name
    if not path.exists():
        raise RequestError(
            f"ARM_OR_RUN: received {arm_or_run!r}, which is not a directory; expected that of a completed run, or an "
            "arm such as torch:ddp"
        )
    given = [row.flags[0] for row in _ROWS if row.name not in ("python", "env") and is_given(context, row.name)]
    if given:
        raise RequestError(
            f"received {', '.join(given)} with the run {arm_or_run!r}, which has them; expected none of them, or an "
            "arm such as torch:ddp"
        )
    config = run_to_explain(path)
    own = {config.environment.name} if config.environment else set()
    refuse_other_names(options.env, own, "the environment of the run, or none")
    require_trusted_interpreter(config, interpreters(options.python), options.env, named_by=f"the run {arm_or_run!r}")
    cluster = config.cluster
    return config, f"{config.framework} {config.mode} {cluster.num_nodes}x{cluster.devices_per_node}"


def _refuse_other_link(config: RunConfig, measured_link: str | None) -> None:
    """Refuse a link where there is none between machines, or where the run has its own."""
    if measured_link is None:
        return
    if link := config.placement.link:
        raise RequestError(
            f"--measured-link: received {measured_link!r} with a run that has --link {link}; expected only one of them"
        )
    if not config.cluster.spans_machines:
        raise RequestError(
            f"--measured-link: received {measured_link!r} with a run on one machine; expected a run on several "
            "machines, as of --engine hosts or slurm. Simulated nodes get a link by --engine namespaces --link RATE"
        )


def _measured(study: Study, out: Path, variants: Variants, measured_link: str | None) -> Explanation:
    """Make all runs that are not there yet, and explain the run by them."""
    from dpcompare.cli.progress import StudyProgress
    from dpcompare.experiments.study import hold, open_study
    from dpcompare.experiments.study_runs import run_study
    from dpcompare.projection.explanation import explain as explained

    study = prepared(study)
    try:
        with hold(out):
            study = open_study(study, out)
            with StudyProgress(study, out) as progress:
                run_study(study, out, progress)
    except KeyboardInterrupt:
        click.echo(f"interrupted; to continue: the same command with --out {shlex.quote(str(out))}", err=True)
        raise
    return explained(study, out, variants.prepared(study), measured_link=measured_link)


def _with_commands(explanation: Explanation, config: RunConfig) -> Explanation:
    """The explanation with the command to try each remedy."""

    def command(remedy: Remedy) -> str | None:
        if remedy.part == "computing":
            return autotune_command_of(config)
        if remedy.part == "waiting":
            return hint("doctor")
        return command_of(config, remedy.changes) if remedy.changes else None

    remedies = [each.model_copy(update={"command": command(each)}) for each in explanation.remedies]
    return explanation.model_copy(update={"remedies": remedies})
