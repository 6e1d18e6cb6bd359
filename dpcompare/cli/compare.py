"""`dpcompare compare`: train several arms in interleaved rounds and say what may be claimed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpcompare.cli.build_config import build_config
from dpcompare.cli.config_file import Numbers, names_like, read_config_file
from dpcompare.cli.option_groups import GroupedCommand
from dpcompare.cli.option_values import interpreters, parse_percentage, parse_seconds
from dpcompare.cli.options import OPTIONS, RunOptions, add_options, option, rows_of, study_options
from dpcompare.cli.output import EXIT_FAILED, hint, print_json
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.system.terminal_text import in_one_line
from dpcompare.system.words import counted

if TYPE_CHECKING:
    from dpcompare.experiments.arms import ArmRequest
    from dpcompare.experiments.comparison import Comparison
    from dpcompare.experiments.study import Arm, Study, Watcher
    from dpcompare.results.result import RunResult


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of a study as they were given, but for those that are options of a run."""

    arm: tuple[str, ...] = option(
        multiple=True,
        metavar="FRAMEWORK:MODE[,OPTION=VALUE...]",
        help="What to compare, once per arm.  [default: every usable mode]",
    )
    nodes: tuple[int, ...] | None = option(type=Numbers(), help="Numbers of nodes, by commas.")
    devices_per_node: tuple[int, ...] | None = option(type=Numbers(), help="Numbers of devices per node, by commas.")
    repeats: int = option(type=click.IntRange(min=1), default=1, show_default=True, help="Rounds; 6 for a claim.")
    until: str | None = option(metavar="PERCENT", help="Add rounds until every interval is that narrow, such as 2%.")
    budget: str | None = option(metavar="TIME", help="With --until: start no round after this time, such as 30m or 2h.")
    order_seed: int = option(type=click.IntRange(min=0), default=0, show_default=True, help="Of the order in a round.")
    ablate: bool = option(is_flag=True, help="Run each arm also without gradient sync, to measure its cost.")
    subject: tuple[str, ...] = option(
        multiple=True, metavar="KNOB", help="A knob that the study is about, so it may differ."
    )
    pair: tuple[str, ...] = option(
        multiple=True,
        metavar="ARM",
        help="Twice: the two arms that the study is to judge, alone; all other pairs are exploratory.",
    )
    out: Path | None = option(
        type=click.Path(path_type=Path), help="Directory of the study.  [default: below studies/]"
    )
    resume: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="STUDY_DIR",
        help="Go on with this study as it was asked for; with more rounds where --repeats or --until says so.",
    )
    skip_unusable: bool = option(is_flag=True, help="Leave out arms that cannot run here instead of refusing.")
    retry_failed: bool = option(is_flag=True, help="In a resumed study: run the failed runs again.")
    autotune: bool = option(is_flag=True, help="First find the fastest settings of arms with --profile native here.")
    dry_run: bool = option(is_flag=True, help="List every run, with an estimate of the time, and start nothing.")
    as_json: bool = option(flags=("--json",), is_flag=True, help="Print the comparison as one JSON object.")


@click.command(cls=GroupedCommand)
@click.argument(
    "study_file",
    required=False,
    is_eager=True,
    expose_value=False,
    callback=read_config_file,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="[STUDY.toml]",
)
@add_options(rows_of(StudyOptions))
@study_options
@click.pass_context
def compare(context: click.Context, /, **values: Any) -> int:
    """Train the arms of a study round by round, each run in fresh processes, and compare them.

    Without arms: every mode that is usable here, with 2 replicas, and each framework's `single`. With --nodes or
    --devices-per-node every arm runs on every topology that it can have. An arm may change any option of a run, several
    augmentations joined by +: torch:ddp,augment=flip+contrast. STUDY.toml holds options by their names, such as
    arm = ["torch:ddp", "torch:ddp,profile=native"]. --resume goes on with a study that was
    interrupted, and so does the same command with the same --out.

    \b
    dpcompare compare --repeats 6
    dpcompare compare --arm torch:ddp --arm tensorflow:multiworker --nodes 2 --repeats 8
    dpcompare compare --arm torch:ddp --arm torch:ddp,precision=bfloat16 --subject precision
    dpcompare compare --repeats 6 --pair torch:ddp --pair tensorflow:multiworker
    """
    from dpcompare.cli.resume_study import resumed_study
    from dpcompare.experiments.study import refuse_other_files

    options = StudyOptions(**{field.name: values.pop(field.name) for field in dataclasses.fields(StudyOptions)})
    if options.resume is not None:
        out = options.resume
        known, adding = interpreters(values["python"]), options.until is not None
        study = resumed_study(context, out, repeats=_num_rounds(options), adding=adding, known=known)
    else:
        study = _study(options, RunOptions(**values))
        out = options.out or Path("studies") / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        refuse_other_files(out)
    if options.dry_run:
        _print_plan(study, out, as_json=options.as_json)
        return 0
    _run(study, out, options)
    return _print_comparison(out, as_json=options.as_json)


def _study(options: StudyOptions, run_options: RunOptions) -> Study:
    """The study that was asked for.

    Raises:
        RequestError: it cannot be run here, or there is none to run.
    """
    from dpcompare.experiments.study import Study, ablated

    _refuse_unknown_knobs(options.subject)
    repeats = _num_rounds(options)
    arms = _arms(options, run_options)
    if options.until is not None and len(arms) < 2:
        raise RequestError(
            f"--until: received one arm ({arms[0].name}), expected at least 2, whose ratio has an interval"
        )
    if options.ablate:
        arms += tuple(filter(None, map(ablated, arms)))
    pair = _pair(options.pair, arms, run_options)
    return Study(
        arms=arms,
        pair=pair,
        repeats=repeats,
        order_seed=options.order_seed,
        subject=options.subject,
        adding=options.until is not None,
    )


def _pair(texts: tuple[str, ...], arms: tuple[Arm, ...], run_options: RunOptions) -> tuple[str, ...] | None:
    """The names of the two arms that were named beforehand, each as for --arm or by its name."""
    if not texts:
        return None
    if len(texts) != 2:
        raise RequestError(f"--pair: received {', '.join(texts)}, expected two arms: --pair torch:ddp --pair torch:dp")
    return tuple(_named_arm(text, arms, run_options) for text in texts)


def _named_arm(text: str, arms: tuple[Arm, ...], run_options: RunOptions) -> str:
    names = [arm.name for arm in arms]
    if text in names:
        return text
    expected = f"expected one of {', '.join(names)}"
    if ":" not in text:
        raise RequestError(f"--pair: received {text!r}, {expected}")
    wanted = _arm_request(text, run_options)
    found = [
        arm.name
        for arm in arms
        if arm.name == wanted.name_on(arm.config.cluster.num_nodes, arm.config.cluster.devices_per_node)
    ]
    if len(found) != 1:
        several = f"which are {counted(len(found), 'arm')}" if found else "which is none of the arms"
        raise RequestError(f"--pair: received {text!r}, {several}; {expected}")
    return found[0]


def _refuse_unknown_knobs(subject: tuple[str, ...]) -> None:
    from dpcompare.experiments.fairness import KNOBS

    if unknown := set(subject) - set(KNOBS):
        raise RequestError(
            f"--subject: received {', '.join(sorted(unknown))}, expected knobs of the fairness sheet: "
            f"{', '.join(KNOBS)}"
        )


def _num_rounds(options: StudyOptions) -> int:
    """How many to begin with; also refuses a wrong --until or --budget before anything is looked for."""
    from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM

    if options.until is None:
        if options.budget is not None:
            raise RequestError(
                f"--budget: received {options.budget!r} without --until; give both, such as --until 2% --budget 30m"
            )
        return options.repeats
    parse_percentage(options.until)
    parse_seconds(options.budget)
    return max(options.repeats, ROUNDS_FOR_CLAIM)


def _arms(options: StudyOptions, run_options: RunOptions) -> tuple[Arm, ...]:
    """The arms on all their topologies; all that cannot run are named at once."""
    from dpcompare.config.modes import modes_by_default
    from dpcompare.experiments.arms import expand_arms, reasons_of

    texts = options.arm or [f"{framework}:{mode}" for framework, mode in modes_by_default()]
    requests = [_arm_request(text, run_options) for text in texts]
    pythons = interpreters(run_options.python)
    arms, refusals = expand_arms(requests, options.nodes, options.devices_per_node, pythons)
    reasons = reasons_of(refusals)
    # Of all modes, taken by default, those may be left out that this machine or topology does not have.
    is_refused = any(refusal.is_wrong or options.arm for refusal in refusals)
    if is_refused and not options.skip_unusable:
        raise RequestError("\n".join([*reasons, "name arms that can run here, or pass --skip-unusable"]))
    if not arms:
        raise RequestError("\n".join([*reasons, "no arm is left; expected at least one that can run here"]))
    for reason in reasons:
        click.echo(f"left out: {reason}", err=True)
    return arms


def _arm_request(text: str, run_options: RunOptions) -> ArmRequest:
    """`torch:ddp,precision=bfloat16`, with the options of all arms."""
    from dpcompare.experiments.arms import ArmRequest

    head, *changes = text.split(",")
    framework, separator, mode = head.strip().partition(":")
    if not separator or not mode:
        raise RequestError(f"--arm: received {text!r}, expected FRAMEWORK:MODE[,OPTION=VALUE...] such as torch:ddp")
    overrides = dict(_parse_change(change, text) for change in changes)
    options = replace(run_options, framework=framework, mode=mode, **overrides)
    return ArmRequest(
        text=text,
        framework=framework,
        mode=mode,
        changes=_in_name(overrides),
        device=options.device,
        stages=options.stages,
        build=lambda nodes, devices, arms: build_config(replace(options, nodes=nodes, devices_per_node=devices), arms),
    )


def _in_name(overrides: Mapping[str, Any]) -> str:
    """What the name of an arm says of the options that are its own."""
    return "".join(
        f" {name}={'+'.join(value) if isinstance(value, tuple) else value}" for name, value in overrides.items()
    )


def _parse_change(change: str, text: str) -> tuple[str, Any]:
    """`precision=bfloat16` of an arm as the name of an option and its value."""
    key, _, value = (part.strip() for part in change.partition("="))
    name = key.replace("-", "_")
    allowed = sorted(row.name for row in OPTIONS if row.scope == "arm")
    if name not in allowed:
        raise RequestError(f"--arm: received {change!r} in {text!r}; {names_like(name, allowed)}")
    if not value:
        raise RequestError(f"--arm: received {change!r} in {text!r}, expected OPTION=VALUE such as precision=bfloat16")
    if name == "tune":
        return name, tuple(value.split("+"))  # in the place of a --tune for all
    if name == "augment":
        value = value.replace("+", ",")  # commas separate the options of an arm
    context = click.get_current_context()
    parameter = next(parameter for parameter in context.command.params if parameter.name == name)
    try:
        return name, parameter.type.convert(value, parameter, context)
    except click.BadParameter as error:
        raise RequestError(f"--arm: {text!r}: {name}: {error.message}") from None


def _run(study: Study, out: Path, options: StudyOptions) -> None:
    """Make all runs of a study that are not there yet."""
    from dpcompare.cli.progress import StudyProgress, data_progress
    from dpcompare.experiments import study as studies
    from dpcompare.experiments.autotune import tuned

    study = _prepared(study, data_progress)
    with _interruption_reported(out, options), studies.hold(out):
        if options.autotune:
            study = tuned(study, out, partial(click.echo, err=True))
        study = studies.open_study(study, out)
        if options.retry_failed:
            studies.set_failed_aside(study, out)
        with StudyProgress(study, out) as progress:
            _conduct(study, out, progress, options)


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
        what_next = f"to go on: {_go_on(out, options)}" if is_study(out) else "nothing was kept; give the command again"
        click.echo(f"interrupted; {what_next}", err=True)
        if not options.as_json and any(result.status == "completed" for result in _compared_results(out)):
            print_comparison(analyse(collect([out])))
        raise


def _go_on(out: Path, options: StudyOptions) -> str:
    """The command that goes on with a study; rounds that were being added are added until the same end."""
    until = ("--until", options.until) if options.until is not None else ()
    budget = ("--budget", options.budget) if options.budget is not None else ()
    return hint("compare", "--resume", out, *until, *budget)


def _causes(failed: Sequence[RunResult]) -> str:
    """Why runs failed: each cause in full once, after all modes that it stopped."""
    modes: dict[str, dict[str, str | None]] = {}
    for result in failed:
        modes.setdefault(in_one_line(result.error), {}).setdefault(f"{result.framework} {result.mode}", result.error)
    return "\n".join(f"{', '.join(of_cause)}: {next(iter(of_cause.values()))}" for of_cause in modes.values())


def _print_comparison(out: Path, *, as_json: bool) -> int:
    """Compare the runs of a study that has ended, and return the exit code."""
    from dpcompare.cli.report import print_comparison
    from dpcompare.experiments.analysis import analyse
    from dpcompare.experiments.collection import collect

    ended = _compared_results(out)
    if all(result.status == "failed" for result in ended):
        raise RunFailedError(f"every run failed, so nothing can be compared.\n{_causes(ended)}", str(out))
    comparison = analyse(collect([out]))
    if as_json:
        print_json(comparison.model_dump(mode="json"))
    else:
        print_comparison(comparison)
        for line in _next_steps(comparison, out):
            click.echo(line, err=True)
    if failed := [row.name for row in comparison.arms if row.all_failures]:
        click.echo(f"error: some runs failed: {', '.join(failed)}; the others are compared", err=True)
        return EXIT_FAILED
    return 0


def _next_steps(comparison: Comparison, out: Path) -> Iterator[str]:
    """What one does with a study that has ended, with the command for it."""
    from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM
    from dpcompare.experiments.study import Study, estimate_seconds, results

    study = Study.load(out)
    failed = {row.name for row in comparison.arms if row.failures}
    if failed:
        yield f"run again   {hint('compare', '--resume', out, '--retry-failed')}"
    unsettled = [made for made in comparison.claims if made.outcome == "too few rounds"]
    without_interval = [row for row in comparison.arms if row.scaling and row.scaling.low is None]
    if study.repeats < ROUNDS_FOR_CLAIM and (unsettled or without_interval):
        longer = study.model_copy(update={"repeats": ROUNDS_FOR_CLAIM})
        seconds, _ = estimate_seconds(longer, results(longer, out))
        command = hint("compare", "--resume", out, "--repeats", ROUNDS_FOR_CLAIM)
        yield f"settle it   {command}   (about {math.ceil(seconds / 60)} min)"
    yield f"page        {hint('report', out, '--html', 'report.html')}"
    if len(comparison.arms) > 1:
        yield f"why         {hint('report', out, '--full')}"


def _compared_results(out: Path) -> list[RunResult]:
    """Of all runs that have ended, except those that only show what gradient sync costs."""
    from dpcompare.experiments.study import Study, is_study, results

    found = results(Study.load(out), out) if is_study(out) else []
    return [result for arm, _, result in found if result and arm.ablation_of is None]


def _conduct(study: Study, out: Path, progress: Watcher, options: StudyOptions) -> None:
    """Make all runs of a study, which is held by this process."""
    from dpcompare.experiments.analysis import analyse, widest_interval
    from dpcompare.experiments.collection import collect
    from dpcompare.experiments.study import add_rounds, run_study

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
    except (RequestError, RunFailedError, OSError) as error:  # in the middle, so it is no wrong request: a full disk
        raise RunFailedError(
            f"the study has stopped: {error}\nThe runs that are done are kept; to go on: {_go_on(out, options)}",
            str(out),
        ) from None


def _prepared(study: Study, data_progress: Any) -> Study:
    """The same study with dataset and weights prepared, so that no run waits for them and every run reads the same."""
    from dpcompare.launch.inputs import prepare_compared

    with data_progress() as images_done:
        configs = prepare_compared([arm.config for arm in study.arms], images_done)
    arms = (arm.model_copy(update={"config": config}) for arm, config in zip(study.arms, configs, strict=True))
    return study.model_copy(update={"arms": tuple(arms)})


def _print_plan(study: Study, out: Path, *, as_json: bool) -> None:
    from rich.table import Table

    from dpcompare.cli.output import stdout_console
    from dpcompare.experiments.study import estimate_seconds, results
    from dpcompare.system.terminal_text import printable

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
                        "workload": arm.config.workload.model_dump(mode="json"),
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
    click.echo(f"{counted(len(runs), 'run')}, about {seconds / 60:.0f} min ({source}); nothing was started")
