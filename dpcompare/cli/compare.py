"""`dpcompare compare`: train several arms in interleaved rounds and say what may be claimed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpcompare.cli.build_config import DEFAULT_PIPELINE_STAGES, build_config, interpreters
from dpcompare.cli.config_file import Numbers, read_config_file
from dpcompare.cli.options import study_options
from dpcompare.cli.output import EXIT_FAILED
from dpcompare.errors import RequestError, RunFailedError, did_you_mean

if TYPE_CHECKING:
    from dpcompare.experiments.study import Study, Watcher
    from dpcompare.results.result import RunResult

DEFAULT_REPLICAS = 2
DEFAULT_REPEATS = 1


@click.command()
@click.argument(
    "study_file",
    required=False,
    is_eager=True,
    expose_value=False,
    callback=read_config_file,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="[STUDY.toml]",
)
@click.option(
    "--arm",
    multiple=True,
    metavar="FRAMEWORK:MODE[,OPTION=VALUE...]",
    help="What to compare, once per arm.  [default: every usable mode]",
)
@click.option("--nodes", type=Numbers(), help="Numbers of nodes, by commas.")
@click.option("--devices-per-node", type=Numbers(), help="Numbers of devices per node, by commas.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=DEFAULT_REPEATS, show_default=True, help="Rounds; 6 for a claim."
)
@click.option("--until", metavar="PERCENT", help="Add rounds until every interval is that narrow, such as 2%.")
@click.option("--budget", metavar="TIME", help="With --until: begin no round after this time, such as 30m or 2h.")
@click.option("--order-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the order in a round.")
@click.option("--ablate", is_flag=True, help="Run each arm also without its exchange of gradients, to tell its cost.")
@click.option("--subject", multiple=True, metavar="KNOB", help="A knob that the study is about, so it may differ.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the study.  [default: below studies/]")
@click.option("--skip-unusable", is_flag=True, help="Leave out arms that cannot run here instead of refusing.")
@click.option("--retry-failed", is_flag=True, help="Of a study that goes on: make its failed runs again.")
@click.option("--autotune", is_flag=True, help="First find the fastest settings of arms with --profile native here.")
@click.option("--dry-run", is_flag=True, help="List every run, with an estimate of the time, and start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one JSON object.")
@study_options
def compare(
    arm: tuple[str, ...],
    nodes: tuple[int, ...] | None,
    devices_per_node: tuple[int, ...] | None,
    repeats: int,
    until: str | None,
    budget: str | None,
    order_seed: int,
    ablate: bool,
    subject: tuple[str, ...],
    out: Path | None,
    skip_unusable: bool,
    retry_failed: bool,
    autotune: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Train the arms of a study round by round, each run in fresh processes, and compare them.

    Without arms: every mode that is usable here, with 2 replicas, and each framework's `single`. With --nodes or
    --devices-per-node every arm runs on every topology that it can have. An arm may change any option of a run, several
    augmentations joined by +: torch:ddp,augment=flip+contrast. STUDY.toml holds options by their names, such as
    arm = ["torch:ddp", "torch:ddp,profile=native"]. The same command with the same --out goes on where it was interrupted.

    \b
    dpcompare compare --repeats 6
    dpcompare compare --arm torch:ddp --arm tensorflow:multiworker --nodes 2 --repeats 8
    dpcompare compare --arm torch:ddp --arm torch:ddp,precision=bfloat16 --subject precision
    """
    from dpcompare.experiments import study as studies
    from dpcompare.experiments.fairness import KNOBS
    from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM

    if unknown := set(subject) - set(KNOBS):
        raise RequestError(
            f"--subject: received {', '.join(sorted(unknown))}, expected knobs of the fairness sheet: {', '.join(KNOBS)}"
        )
    if until is not None:
        repeats = max(repeats, ROUNDS_FOR_CLAIM)
    elif budget is not None:
        raise RequestError(f"--budget: received {budget!r} without --until; give both, such as --until 2% --budget 30m")
    width, seconds = _share(until), _seconds(budget)
    arms = _arms(arm, nodes, devices_per_node, options, skip_unusable=skip_unusable)
    if until is not None and len(arms) < 2:
        raise RequestError(
            f"--until: received one arm ({arms[0].name}), expected at least 2, whose ratio has an interval"
        )
    if ablate:
        arms += tuple(filter(None, map(studies.ablated, arms)))
    study = studies.Study(
        arms=arms,
        repeats=repeats,
        order_seed=order_seed,
        subject=subject,
    )
    out = out or Path("studies") / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    studies.refuse_other_files(out)
    if dry_run:
        _print_plan(study, out, as_json=as_json)
        return 0
    from dpcompare.cli.output import print_json
    from dpcompare.cli.progress import StudyProgress, data_progress
    from dpcompare.cli.report import print_comparison
    from dpcompare.experiments.analysis import analyse
    from dpcompare.experiments.autotune import tuned
    from dpcompare.experiments.collection import collect

    study = _prepared(study, data_progress)
    try:
        with studies.hold(out):
            if autotune:
                study = tuned(study, out, partial(click.echo, err=True))
            study = studies.open_study(study, out)
            if retry_failed:
                studies.set_failed_aside(study, out)
            with StudyProgress(study, out) as progress:
                _conduct(study, out, progress, until=width, budget_seconds=seconds)
    except KeyboardInterrupt:
        click.echo(f"interrupted; the same command with --out {out} goes on from here", err=True)
        if not as_json and any(result.status == "completed" for result in _compared_results(study, out)):
            print_comparison(analyse(collect([out])))
        raise
    ended = _compared_results(study, out)
    if all(result.status == "failed" for result in ended):
        causes = "\n".join(dict.fromkeys(f"{result.framework} {result.mode}: {result.error}" for result in ended))
        raise RunFailedError(f"every run failed, so nothing can be compared.\n{causes}", str(out))
    comparison = analyse(collect([out]))
    if as_json:
        print_json(comparison.model_dump(mode="json"))
    else:
        print_comparison(comparison)
    click.echo(f"next: dpcompare report {out} --html report.html", err=True)
    if failed := [row.name for row in comparison.arms if row.all_failures]:
        click.echo(f"error: some runs failed: {', '.join(failed)}; the others are compared", err=True)
        return EXIT_FAILED
    return 0


def _compared_results(study: Study, out: Path) -> list[RunResult]:
    """Of all runs that have ended, but for those that only tell what an exchange costs."""
    from dpcompare.experiments.study import is_study, results

    found = results(study, out) if is_study(out) else []
    return [result for arm, _, result in found if result and arm.ablation_of is None]


def _conduct(study: Study, out: Path, progress: Watcher, *, until: float | None, budget_seconds: float) -> None:
    """Make all runs of a study, which is held by this process."""
    from dpcompare.experiments.analysis import analyse, widest_interval
    from dpcompare.experiments.collection import collect
    from dpcompare.experiments.study import add_rounds, run_study

    try:
        if until is None:
            run_study(study, out, progress)
            return
        add_rounds(
            study,
            out,
            progress,
            wide=lambda folder: widest_interval(analyse(collect([folder]))),
            until=until,
            budget_seconds=budget_seconds,
        )
    except (RequestError, RunFailedError, OSError) as error:  # in the middle, so it is no wrong request: a full disk
        raise RunFailedError(
            f"the study has stopped: {error}\nThe runs that are done are kept; the same command with --out {out} goes on "
            "from here",
            str(out),
        ) from None


def _share(text: str | None) -> float | None:
    """`2%` as 0.02."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(\.\d+)?)\s*%", text.strip())
    if match is None or not 0 < float(match[1]) < 100:
        raise RequestError(f"--until: received {text!r}, expected a percentage such as 2%")
    return float(match[1]) / 100


def _seconds(text: str | None) -> float:
    """`30m` as 1800.0; no time at all is no limit."""
    if text is None:
        return math.inf
    match = re.fullmatch(r"(\d+(\.\d+)?)\s*([smh])", text.strip())
    if match is None or float(match[1]) == 0:
        raise RequestError(f"--budget: received {text!r}, expected a time such as 90s, 30m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[3]]


def _arms(
    specifications: Sequence[str],
    nodes: tuple[int, ...] | None,
    devices_per_node: tuple[int, ...] | None,
    options: dict[str, Any],
    *,
    skip_unusable: bool,
) -> tuple[Any, ...]:
    """The arms on all their topologies; all that cannot run are named at once."""
    from dpcompare.backends.availability import require_compiler, require_framework, require_mode
    from dpcompare.config.modes import FRAMEWORKS, MODES
    from dpcompare.experiments.study import Arm

    chosen = interpreters(options["python"])
    missing: dict[str, str] = {}
    for framework in FRAMEWORKS:
        try:
            require_framework(framework, **({"python": chosen[framework]} if framework in chosen else {}))
        except RequestError as error:
            missing[framework] = str(error)
    by_default = not specifications
    if by_default:
        specifications = [f"{framework}:{mode}" for (framework, mode), row in MODES.items() if row.by_default]
    arms: dict[str, Arm] = {}
    problems: list[str] = []
    wrong: list[str] = []
    for text in specifications:
        framework, mode, overrides = _parse_arm(text)
        if framework in missing:
            problems.append(f"{text}: {missing[framework]}")
            continue
        found, refused = 0, []
        for topology in _topologies(framework, mode, nodes, devices_per_node, options | overrides):
            try:
                config = build_config(
                    options | overrides | {"framework": framework, "mode": mode}
                    | {"nodes": topology[0], "devices_per_node": topology[1], "run_dir": None}
                )  # fmt: skip
                require_compiler(config.tuning)
                require_mode(framework, mode, config.python)
            except RequestError as error:
                refused.append(f"{text} on {topology[0]}x{topology[1]}: {error}")
                continue
            found += 1
            changed = "".join(
                f" {name}={'+'.join(value) if isinstance(value, tuple) else value}" for name, value in overrides.items()
            )
            name = f"{framework} {mode} {topology[0]}x{topology[1]}{changed}"
            if name in arms:
                raise RequestError(
                    f"--arm: received {name} twice; expected each arm once, or arms that differ in an option"
                )
            arms[name] = Arm(name=name, config=config)
        wrong += refused
        if not found and not refused:
            problems.append(f"{text}: none of the topologies asked for suits this mode")
    # Of all modes, taken by default, those may be left out that this machine or topology has not; a wrong request is wrong.
    if (wrong or (problems and not by_default)) and not skip_unusable:
        raise RequestError("\n".join([*problems, *wrong, "name arms that can run here, or pass --skip-unusable"]))
    problems += wrong
    if not arms:
        raise RequestError("\n".join([*problems, "no arm is left; expected at least one that can run here"]))
    for problem in problems:
        click.echo(f"left out: {problem}", err=True)
    return tuple(arms.values())


def _parse_arm(text: str) -> tuple[str, str, dict[str, Any]]:
    """`torch:ddp,precision=bfloat16` as framework, mode and options."""
    head, *changes = text.split(",")
    framework, separator, mode = head.strip().partition(":")
    if not separator or not mode:
        raise RequestError(f"--arm: received {text!r}, expected FRAMEWORK:MODE[,OPTION=VALUE...] such as torch:ddp")
    context = click.get_current_context()
    known = {option.name: option for option in context.command.params if isinstance(option, click.Option)}
    allowed = sorted(str(name) for name in known if name not in _NOT_OF_AN_ARM)
    overrides: dict[str, Any] = {}
    for change in changes:
        key, _, value = (part.strip() for part in change.partition("="))
        name = key.replace("-", "_")
        if name not in allowed or not value:
            raise RequestError(
                f"--arm: received {change!r} in {text!r}, expected OPTION=VALUE with one of {', '.join(allowed)}."
                f"{did_you_mean(name, allowed)}"
            )
        if name == "tune":
            overrides[name] = tuple(value.split("+"))  # in the place of a --tune for all
            continue
        if name == "augment":
            value = value.replace("+", ",")  # commas separate the options of an arm
        try:
            overrides[name] = known[name].type.convert(value, known[name], context)
        except click.BadParameter as error:
            raise RequestError(f"--arm: {text!r}: {name}: {error.message}") from None
    return framework, mode, overrides


_NOT_OF_AN_ARM = (
    "arm", "nodes", "devices_per_node", "repeats", "until", "budget", "order_seed", "ablate", "subject", "out", "skip_unusable", "retry_failed", "autotune", "dry_run", "as_json",
    "python", "skip_corrupt", "gpus",
)  # fmt: skip


def _topologies(
    framework: str,
    mode: str,
    nodes: tuple[int, ...] | None,
    devices_per_node: tuple[int, ...] | None,
    options: dict[str, Any],
) -> list[tuple[int, int]]:
    """(nodes, devices per node) of an arm: what was asked for as far as the mode can have it."""
    from dpcompare.config.modes import MODES
    from dpcompare.system.devices import installed_gpus, visible_gpus

    row = MODES.get((framework, mode))
    if row is None:
        return [(1, 1)]  # refused with its name when its config is built
    if not row.multi_device:
        return [(1, 1)]
    if nodes is None and devices_per_node is None:
        devices, stages = DEFAULT_REPLICAS, options["stages"] or 1
        if row.is_pipeline:
            return [(1, options["stages"] or DEFAULT_PIPELINE_STAGES)]
        if options["device"] != "cpu" and (gpus := visible_gpus(installed_gpus())):
            devices = min(devices, len(gpus))
        return [(devices + len(row.roles), stages) if row.multi_node else (1, devices)]
    pairs = [(n, d) for n in nodes or (1,) for d in devices_per_node or (1,)]
    return [(n, d) for n, d in pairs if n == 1 or row.multi_node]


def _prepared(study: Study, data_progress: Any) -> Study:
    """The same study with dataset and weights prepared, so that no run waits for them and every run reads the same."""
    from dpcompare.launch.inputs import prepare_inputs

    arms = []
    with data_progress() as images_done:
        for arm in study.arms:
            arms.append(arm.model_copy(update={"config": prepare_inputs(arm.config, images_done)}))
    return study.model_copy(update={"arms": tuple(arms)})


def _print_plan(study: Study, out: Path, *, as_json: bool) -> None:
    from rich.table import Table

    from dpcompare.cli.output import print_json, stdout_console
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
                    {"round": number, "position": position, "arm": arm.name, "run_dir": str(run_dir)}
                    for number, position, arm, run_dir in runs
                ],
                "estimated_seconds": round(seconds),
                "estimated_from": source,
            }
        )
        return
    table = Table()
    for column in ("round", "position", "arm", "run directory"):
        table.add_column(column, overflow="fold")
    for number, position, arm, run_dir in runs:
        table.add_row(str(number), str(position), printable(arm.name), printable(str(run_dir)))
    stdout_console().print(table)
    click.echo(
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, about {seconds / 60:.0f} min ({source}); nothing was started"
    )
