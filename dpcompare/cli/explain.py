"""`dpcompare explain`: measure what bounds a run, by leaving out one part of its step after the other."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dpcompare.cli import completion
from dpcompare.cli.build_arms import ENVIRONMENT, arm_request, arms_on_one_topology
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
from dpcompare.cli.options import ROWS_OF_ARMS, GroupedCommand, RunOptions, is_given
from dpcompare.cli.output import if_anybody_reads, print_json, stdout_console
from dpcompare.errors import RequestError
from dpcompare.system.terminal_text import hint
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from dpcompare.config.run import RunConfig
    from dpcompare.experiments.study import Study
    from dpcompare.experiments.variants import Variants
    from dpcompare.projection.difference import Difference
    from dpcompare.projection.explanation import Explanation
    from dpcompare.projection.remedies import Remedy

MOST_EXPLAINED = 2


@click.command(cls=GroupedCommand)
@click.argument(
    "arms_or_runs", nargs=-1, required=True, metavar="ARM_OR_RUN [ARM_OR_RUN]", shell_complete=completion.runs
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=6, show_default=True, help="Rounds to run; a claim needs 6."
)
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the runs.  [default: below studies/]")
@measured_link
@click.option("--dry-run", is_flag=True, help="List every run, with an estimate of the time, and start nothing.")
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@add_options(ROWS_OF_ARMS, from_environment=True)
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
    warm-up (170 on GPUs). Repeat the command with the same --out to continue. Of two, both are trained in each round,
    and it says which parts make the difference.

    \b
    dpcompare explain runs/a
    dpcompare explain torch:ddp --nodes 2 --model efficientnet-b0 --steps 60
    dpcompare explain tensorflow:multiworker,engine=namespaces,link=100mbit --nodes 2
    dpcompare explain torch:ddp,env=old torch:ddp --nodes 2 --env old=/envs/old/bin/python
    """
    if dry_run:
        asked = _asked_for(context, **values)
        print_plan(asked.study, asked.out, as_json=as_json)
        return
    from dpcompare.report import differed, explained

    found: Explanation | Difference
    width = stdout_console().width
    if len(values["arms_or_runs"]) == 1:
        found = explanation_asked_for(context, **values)
        text = explained.as_markdown(found) if markdown else explained.as_text(found, width)
    else:
        found = difference_asked_for(context, **values)
        text = differed.as_markdown(found) if markdown else differed.as_text(found, width)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        with if_anybody_reads():
            click.echo(text, nl=False)


class _AskedFor(NamedTuple):
    variants: tuple[Variants, ...]
    """Of each run that is to be explained: one or two."""
    study: Study
    out: Path


def _asked_for(
    context: click.Context,
    /,
    arms_or_runs: tuple[str, ...],
    repeats: int,
    out: Path | None,
    measured_link: str | None,
    **values: Any,
) -> _AskedFor:
    """What the options of the command ask to be explained, and by which runs."""
    from dpcompare.experiments.study import refuse_other_files
    from dpcompare.experiments.variants import study_of, variants_of

    for name in ("dry_run", "markdown", "as_json"):  # how the command shows it
        values.pop(name, None)
    options = RunOptions.of(values)
    if len(arms_or_runs) > MOST_EXPLAINED:
        raise click.UsageError(
            f"received {', '.join(arms_or_runs)}; expected one of them, or two of which to explain the difference",
            context,
        )
    found = _to_explain(context, arms_or_runs, options)
    used = {config.environment.name for config, _ in found if config.environment}
    refuse_other_names(options.env, used, "the environment of what is explained, or none")
    if len({name for _, name in found}) < len(found):  # runs of one mode, whose directories have names
        found = [
            (config, f"{name} {Path(each).name}") for (config, name), each in zip(found, arms_or_runs, strict=True)
        ]
    if len({name for _, name in found}) < len(found):
        raise RequestError(
            f"received {' and '.join(arms_or_runs)}, which have the same name; expected two that differ in an option, "
            "such as torch:ddp and torch:ddp,env=old, or two directories of runs"
        )
    if len(found) == 1:
        _refuse_other_link(found[0][0], measured_link)
    elif measured_link is not None:
        raise RequestError("--measured-link: received with two runs; expected it with one, whose exchange it judges")
    variants = tuple(variants_of(config, name) for config, name in found)
    out = out or Path("studies") / f"{datetime.now():%Y%m%d-%H%M%S-%f}-explained"
    refuse_other_files(out)
    return _AskedFor(variants, study_of(variants, repeats), out)


def explanation_asked_for(context: click.Context, /, measured_link: str | None, **values: Any) -> Explanation:
    """Make the runs that the options of the command ask for, and explain one by them.

    Raises:
        RequestError: it cannot be explained; nothing was started.
    """
    from dpcompare.projection.explanation import explain as explained

    asked = _asked_for(context, measured_link=measured_link, **values)
    study = _measured(asked.study, asked.out)
    (variants,) = asked.variants
    explanation = explained(study, asked.out, variants.prepared(study), measured_link=measured_link)
    return _with_commands(explanation, variants.arms["as it is"].config)


def difference_asked_for(context: click.Context, /, **values: Any) -> Difference:
    """Make the runs that the options of the command ask for, and explain the difference of two by them.

    Raises:
        RequestError: it cannot be explained; nothing was started.
    """
    from dpcompare.projection.difference import difference, with_operators

    asked = _asked_for(context, **values)
    study = _measured(asked.study, asked.out)
    first, second = (each.prepared(study) for each in asked.variants)
    found = difference(study, asked.out, (first, second))
    run_dirs = [Path(each) for each in context.params["arms_or_runs"]]
    return with_operators(found, run_dirs) if all(map(Path.is_dir, run_dirs)) else found


def _to_explain(
    context: click.Context, arms_or_runs: Sequence[str], options: RunOptions
) -> list[tuple[RunConfig, str]]:
    """The runs to explain, each with its name."""
    texts = [each for each in arms_or_runs if not Path(each).exists() and ":" in each]
    of_arms = iter(_arms_to_explain(texts, options, is_alone=len(arms_or_runs) == 1))
    return [next(of_arms) if each in texts else _run_to_explain(context, each, options) for each in arms_or_runs]


def _arms_to_explain(texts: Sequence[str], options: RunOptions, *, is_alone: bool) -> Iterator[tuple[RunConfig, str]]:
    """Arms, and what they are called; where there is only one, --env may name its environment."""
    from dpcompare.experiments.variants import to_explain

    if is_alone and not any(f",{ENVIRONMENT}=" in text for text in texts):
        options = options.changed(environment=only_environment(options.env))
    requests = [arm_request(text, options, named_by="ARM_OR_RUN") for text in texts]
    arms = arms_on_one_topology(requests, options)
    for text, arm in zip(texts, arms, strict=True):
        yield to_explain(arm.config, named=text), arm.name


def _run_to_explain(context: click.Context, received: str, options: RunOptions) -> tuple[RunConfig, str]:
    """The run in a directory, and what it is called."""
    from dpcompare.experiments.study import is_study
    from dpcompare.experiments.variants import run_to_explain

    path = Path(received)
    if is_study(path):
        raise RequestError(
            f"{received!r} is a study of several arms; expected the directory of one of its runs, below "
            f"{str(path / 'runs')!r}"
        )
    if not path.exists():
        raise RequestError(
            f"ARM_OR_RUN: received {received!r}, which is not a directory; expected that of a completed run, or an "
            "arm such as torch:ddp"
        )
    given = [row.flags[0] for row in ROWS_OF_ARMS if row.name not in ("python", "env") and is_given(context, row.name)]
    if given:
        raise RequestError(
            f"received {', '.join(given)} with the run {received!r}, which has them; expected none of them, or an "
            "arm such as torch:ddp"
        )
    config = run_to_explain(path)
    require_trusted_interpreter(config, interpreters(options.python), options.env, named_by=f"the run {received!r}")
    cluster = config.cluster
    own = f" {ENVIRONMENT}={config.environment.name}" if config.environment else ""
    return config, f"{config.framework} {config.mode} {cluster.num_nodes}x{cluster.devices_per_node}{own}"


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


def _measured(study: Study, out: Path) -> Study:
    """Make all runs that are not there yet."""
    from dpcompare.cli.progress import StudyProgress
    from dpcompare.experiments.study import hold, open_study
    from dpcompare.experiments.study_runs import run_study

    study = prepared(study)
    try:
        with hold(out):
            study = open_study(study, out)
            with StudyProgress(study, out) as progress:
                run_study(study, out, progress)
    except KeyboardInterrupt:
        click.echo(f"interrupted; to continue: the same command with --out {shlex.quote(str(out))}", err=True)
        raise
    return study


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
