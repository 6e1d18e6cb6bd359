"""`dpcompare compare`: train several arms in interleaved rounds and say what may be claimed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpcompare.cli.build_arms import arms_or_study_file, named_arms
from dpcompare.cli.build_study import StudyOptions, build_study, num_rounds
from dpcompare.cli.next_commands import steps_after_study
from dpcompare.cli.option_table import add_options, rows_of, separated
from dpcompare.cli.option_values import interpreters, parse_percentage, parse_seconds
from dpcompare.cli.options import AS_TYPED, GroupedCommand, RunOptions, study_options
from dpcompare.cli.output import EXIT_FAILED, if_anybody_reads, print_json, stderr_console
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.system.terminal_text import about, hint, in_one_line, pluralize, printable
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from dpcompare.config.run import RunConfig
    from dpcompare.experiments.study import Study
    from dpcompare.experiments.study_runs import Watcher
    from dpcompare.results.result import RunResult


@click.command(cls=GroupedCommand)
@arms_or_study_file
@add_options(rows_of(StudyOptions))
@study_options
@click.pass_context
def compare(context: click.Context, /, **values: FieldValue) -> int:
    """Train the arms of a study round by round, each run in fresh processes, and compare them.

    Arms may be given with or without --arm. Without any: every usual mode that is not emulated here, with 2 replicas,
    and each framework's `single`. With --nodes, --devices-per-node or --devices every arm runs on every topology that
    it can have; 2x4 in its name is 2 nodes of 4 devices. An arm may change any option of a run, nodes and devices
    included, several augmentations joined by +: torch:ddp,augment=flip+contrast. --model resnet18,vit-ti16 trains every
    arm with each model, and compares arms of one model. STUDY.toml holds options by their
    names, such as arm = ["torch:ddp", "torch:ddp,profile=native"]. --resume continues a study that was interrupted,
    and so does the same command with the same --out.

    \b
    dpcompare compare --repeats 6
    dpcompare compare torch:ddp tensorflow:mirrored --devices 2 --repeats 6
    dpcompare compare torch:ddp,nodes=2 torch:ddp,devices_per_node=2
    dpcompare compare --arm torch:ddp --arm torch:ddp,precision=bfloat16 --subject precision
    dpcompare compare --repeats 6 --pair torch:ddp --pair tensorflow:multiworker
    """
    study, out, options = study_asked_for(context, values)
    if options.dry_run:
        print_plan(study, out, as_json=options.as_json)
        return 0
    make_runs(study, out, options)
    return _print_comparison(out, as_json=options.as_json)


def study_asked_for(context: click.Context, values: Mapping[str, FieldValue]) -> tuple[Study, Path, StudyOptions]:
    """The study that the options of the command ask for, new or resumed, its directory, and the study's own options.

    Raises:
        RequestError: there can be none.
    """
    from dpcompare.cli.resume import resumed_study
    from dpcompare.experiments.study import refuse_other_files

    options, of_runs = separated(StudyOptions, values)
    options = dataclasses.replace(options, arm=named_arms(context, options.arm))
    if options.resume is not None:
        out = options.resume
        known, adding = interpreters(values["python"]), options.until is not None
        study = resumed_study(context, out, repeats=num_rounds(options), adding=adding, known=known)
    else:
        study = build_study(options, RunOptions.of(of_runs))
        out = options.out or Path("studies") / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        refuse_other_files(out)
    return study.changed(commands=(hint("compare", *context.meta[AS_TYPED]),)), out, options


def make_runs(study: Study, out: Path, options: StudyOptions) -> None:
    """Make all runs of a study that are not there yet.

    Raises:
        RequestError: versions or the machine are not those of its last rounds, and that was not accepted.
    """
    from dpcompare.cli.live_page import LivePage
    from dpcompare.cli.progress import StudyProgress
    from dpcompare.experiments.autotune import tuned
    from dpcompare.experiments.study import hold, open_study
    from dpcompare.experiments.study_runs import set_failed_aside

    accept_or_refuse(study, out, retry_failed=options.retry_failed, accepts=options.accept_changed)
    page = LivePage(out, options.html) if options.html else None
    study = prepared(study)
    for line in dict.fromkeys(arm.config.workload.without_effect for arm in study.arms):
        if line:
            click.echo(line, err=True)
    with _interruption_reported(out, options), hold(out):
        if options.autotune:
            study = tuned(study, out, partial(click.echo, err=True))
        study = open_study(study, out)
        if options.retry_failed:
            set_failed_aside(study, out)
        with page or nullcontext(), StudyProgress(study, out, page.update if page else None) as progress:
            _conduct(study, out, progress, options)


def accept_or_refuse(study: Study, out: Path, *, retry_failed: bool, accepts: bool) -> None:
    """Say what has changed since the last rounds of a study, or refuse to continue it.

    Raises:
        RequestError: something has changed, and that is not accepted.
    """
    from dpcompare.experiments.resumed import changes_since, refuse

    changes = changes_since(study, out, retry_failed=retry_failed)
    if not accepts:
        refuse(changes)
    for change in changes:
        click.echo(f"accepted, so that arms are NOT COMPARABLE: {change}", err=True)


@contextmanager
def _interruption_reported(out: Path, options: StudyOptions) -> Iterator[None]:
    """Say how to continue a study that is interrupted, and show what it has so far."""
    from dpcompare.cli.report import print_comparison
    from dpcompare.experiments.analysis import analyse
    from dpcompare.experiments.collection import collect
    from dpcompare.experiments.study import is_study

    try:
        yield
    except KeyboardInterrupt:
        to_do = f"to continue: {_go_on(out, options)}" if is_study(out) else "nothing was kept; run the command again"
        click.echo(f"interrupted; {to_do}", err=True)
        if not options.as_json and any(result.status == "completed" for result in ended_runs(out)):
            comparison = analyse(collect([out]))
            with if_anybody_reads():
                print_comparison(comparison)
        raise


def _go_on(out: Path, options: StudyOptions) -> str:
    """The command that continues a study; rounds that were being added are added until the same end."""
    from dpcompare.experiments.next_steps import environments_of
    from dpcompare.experiments.study import Study

    until = ("--until", options.until) if options.until is not None else ()
    budget = ("--budget", options.budget) if options.budget is not None else ()
    accepted = ("--accept-changed",) if options.accept_changed else ()
    page = ("--html", options.html) if options.html is not None else ()
    environments = environments_of(Study.load(out))
    return hint("compare", "--resume", out, *until, *budget, *accepted, *page, *environments)


def _causes(failed: Sequence[RunResult]) -> str:
    """Why runs failed: each cause in full once, after all modes that it stopped."""
    modes: dict[str, dict[str, str | None]] = {}
    for result in failed:
        modes.setdefault(in_one_line(result.error), {}).setdefault(f"{result.framework} {result.mode}", result.error)
    return "\n".join(f"{', '.join(named)}: {next(iter(named.values()))}" for named in modes.values())


def _print_comparison(out: Path, *, as_json: bool) -> int:
    """Compare the runs of a study that has ended, and return the exit code."""
    from dpcompare.cli.report import print_comparison
    from dpcompare.experiments.analysis import analyse
    from dpcompare.experiments.collection import collect

    require_any_success(out)
    comparison = analyse(collect([out]))
    if as_json:
        print_json(comparison.model_dump(mode="json"))
    else:
        with if_anybody_reads():
            print_comparison(comparison)
        for line in steps_after_study(comparison, out):
            click.echo(line, err=True)
    if failed := [row.name for row in comparison.arms if row.all_failures]:
        click.echo(f"error: some runs failed: {', '.join(failed)}; the others are compared", err=True)
        return EXIT_FAILED
    return 0


def require_any_success(out: Path) -> None:
    """Refuse to compare the runs of a study of which none has completed.

    Raises:
        RunFailedError: none has.
    """
    ended = ended_runs(out)
    if all(result.status == "failed" for result in ended):
        raise RunFailedError(f"every run failed, so nothing can be compared.\n{_causes(ended)}", str(out))


def ended_runs(out: Path) -> list[RunResult]:
    """The results of all runs that have ended, except those that only show what gradient sync costs."""
    from dpcompare.experiments.study import Study, is_study
    from dpcompare.experiments.study_runs import results

    found = results(Study.load(out), out) if is_study(out) else []
    return [result for arm, _, result in found if result and arm.ablation_of is None]


def _conduct(study: Study, out: Path, progress: Watcher, options: StudyOptions) -> None:
    """Make all runs of a study, which is held by this process."""
    from dpcompare.experiments.analysis import analyse, widest_interval
    from dpcompare.experiments.collection import collect
    from dpcompare.experiments.study_runs import add_rounds, run_study

    try:
        if options.until is None:
            run_study(study, out, progress)
            return
        add_rounds(
            study,
            out,
            progress,
            wide=lambda folder: widest_interval(analyse(collect([folder]))),
            until=parse_percentage(options.until),
            budget_seconds=parse_seconds(options.budget),
        )
    except (RequestError, RunFailedError, OSError) as error:  # in the middle, so the request is not wrong: a full disk
        raise RunFailedError(
            f"the study has stopped: {error}\nThe runs that are done are kept; to continue: {_go_on(out, options)}",
            str(out),
        ) from None


def prepared(study: Study) -> Study:
    """The same study with dataset and weights prepared, so that no run waits for them and every run reads the same."""
    from dpcompare.cli.progress import data_progress
    from dpcompare.cli.waiting import Waiting
    from dpcompare.launch.initial_weights import idle_dropout, matches_in_words
    from dpcompare.launch.inputs import prepare_compared

    with Waiting(stderr_console()) as waiting, data_progress(waiting) as images_done:
        waiting.begin("preparing data and initial weights")
        configs = prepare_compared([arm.config for arm in study.arms], images_done)
    for line in dict.fromkeys((*matches_in_words(configs), *filter(None, map(idle_dropout, configs)))):
        stderr_console().print(line, markup=False, soft_wrap=True)
    arms = (arm.changed(config=config) for arm, config in zip(study.arms, configs, strict=True))
    return study.changed(arms=tuple(arms))


def _memory_of(config: RunConfig) -> str | None:
    """What each device of an arm needs; None of a model whose layers are not known."""
    from dpcompare.launch.memory import need_in_words, need_of

    need = need_of(config)
    model, cluster = printable(config.workload.model), config.cluster.in_words
    return f"memory: {model} on {cluster}: at least {need_in_words(need)} for each device" if need else None


def print_plan(study: Study, out: Path, *, as_json: bool) -> None:
    """Show every run of a study, and how long they will take.

    Raises:
        RequestError: its data cannot be used as asked, as far as that is known before it is prepared.
    """
    from rich.table import Table

    from dpcompare.cli.output import stdout_console
    from dpcompare.experiments.arms import estimate_seconds
    from dpcompare.experiments.study_runs import results
    from dpcompare.launch.inputs import check_inputs
    from dpcompare.launch.memory import need_of

    for arm in study.arms:
        check_inputs(arm.config)
    seconds, source = estimate_seconds(study, results(study, out))
    runs = [
        (number, position, arm, study.run_dir(out, number, arm))
        for number in range(1, study.repeats + 1)
        for position, arm in enumerate(study.order(number), start=1)
    ]
    if as_json:
        print_json(
            {
                "runs": [
                    {
                        "round": number,
                        "position": position,
                        "arm": arm.name,
                        "run_dir": str(run_dir),
                        "workload": study.workload_of(number, arm).model_dump(mode="json"),
                        "bytes_per_device": need.total if (need := need_of(arm.config)) else None,
                    }
                    for number, position, arm, run_dir in runs
                ],
                "estimated_seconds": round(seconds),
                "estimated_from": source,
            }
        )
        return
    table = Table()
    for column in ("round", "position", "arm", "topology", "run directory"):
        table.add_column(column, overflow="fold")
    for number, position, arm, run_dir in runs:
        topology = arm.config.cluster.in_words
        table.add_row(str(number), str(position), printable(arm.name), topology, printable(str(run_dir)))
    stdout_console().print(table)
    for workload in dict.fromkeys(arm.config.workload.in_words for arm in study.arms):
        click.echo(f"workload: {printable(workload)}")
    for line in dict.fromkeys(_memory_of(arm.config) for arm in study.arms):
        if line:
            click.echo(line)
    click.echo(f"{pluralize(len(runs), 'run')}, {about(seconds)} ({source}); nothing was started")
