"""The builder of a study from the options of a command line or of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpcompare.cli import completion
from dpcompare.cli.build_arms import arm_request, completed_arms
from dpcompare.cli.config_file import Numbers
from dpcompare.cli.option_table import option
from dpcompare.cli.option_values import (
    Percentage,
    interpreters,
    parse_percentage,
    parse_seconds,
    refuse_other_names,
)
from dpcompare.cli.options import RunOptions
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import modes_by_default
from dpcompare.errors import RequestError
from dpcompare.system.terminal_text import pluralize

if TYPE_CHECKING:
    from dpcompare.config.workload import Workload
    from dpcompare.experiments.study import Arm, Study


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of a study as they were given, but for those that are options of a run."""

    arm: tuple[str, ...] = option(
        shell_complete=completed_arms,
        multiple=True,
        metavar="FRAMEWORK:MODE[,OPTION=VALUE...]",
        help="An arm to compare; once for each.  [default: every usable mode]",
    )
    nodes: tuple[int, ...] | None = option(type=Numbers(), help="Numbers of nodes, separated by commas.")
    devices_per_node: tuple[int, ...] | None = option(
        type=Numbers(), help="Numbers of devices per node, separated by commas."
    )
    devices: int | None = option(
        type=click.IntRange(min=1),
        metavar="N",
        help="Devices of each arm in all, on one node or shared out over --nodes.",
    )
    repeats: int = option(
        type=click.IntRange(min=1), default=1, show_default=True, help="Rounds to run; a claim needs 6."
    )
    until: str | None = option(
        metavar="PERCENT", help="Add rounds until every interval is as narrow as this, such as 2%."
    )
    budget: str | None = option(metavar="TIME", help="With --until: start no round after this time, such as 30m or 2h.")
    order_seed: int = option(
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Seed of the order in which the arms of a round run.",
    )
    vary_seed: bool = option(
        is_flag=True,
        help="Give each round its own seed, shared by all arms, so that their accuracies can be compared.",
    )
    margin: float | None = option(
        type=Percentage(of_points=True),
        metavar="POINTS",
        help="With --vary-seed: treat accuracies within this many points as equal, such as 2%.  [default: 1%]",
    )
    ablate: bool = option(is_flag=True, help="Run each arm also without gradient sync, to measure its cost.")
    subject: tuple[str, ...] = option(
        multiple=True,
        metavar="SETTING",
        help="What the study is about, so that it may differ: an option of its arms, such as precision, or a row of "
        "the fairness sheet. With batch or model, what follows from it may differ too.",
    )
    pair: tuple[str, ...] = option(
        shell_complete=completed_arms,
        multiple=True,
        metavar="ARM",
        help="Twice, for the two arms that the study is to judge; all other pairs are then exploratory.",
    )
    out: Path | None = option(
        type=click.Path(path_type=Path), help="Directory of the study.  [default: below studies/]"
    )
    resume: Path | None = option(
        shell_complete=completion.studies,
        type=click.Path(path_type=Path),
        metavar="STUDY_DIR",
        help="Continue this study as it was started; --repeats or --until may add rounds.",
    )
    skip_unusable: bool = option(is_flag=True, help="Leave out arms that cannot run here instead of refusing.")
    retry_failed: bool = option(is_flag=True, help="In a resumed study, run the failed runs again.")
    accept_changed: bool = option(
        is_flag=True,
        help="Continue a study although versions or the machine have changed; its arms are then NOT COMPARABLE.",
    )
    autotune: bool = option(
        is_flag=True, help="First find the fastest settings of arms with --profile native on this machine."
    )
    html: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the HTML report after every run; a browser that shows it reloads it.",
    )
    dry_run: bool = option(is_flag=True, help="List every run, with an estimate of the time, and start nothing.")
    as_json: bool = option(flags=("--json",), is_flag=True, help="Print the comparison as one JSON object.")


def build_study(options: StudyOptions, run_options: RunOptions) -> Study:
    """The study that was asked for.

    Raises:
        RequestError: it cannot be run here, or there is none to run.
    """
    from dpcompare.experiments.accuracy_statistics import DEFAULT_MARGIN
    from dpcompare.experiments.fairness import checks_named
    from dpcompare.experiments.study import Study

    subject = checks_named(options.subject)
    repeats = num_rounds(options)
    _refuse_wrong_margin(options, repeats)
    arms = _arms(options, run_options, subject)
    if options.until is not None and len(arms) < 2:
        raise RequestError(
            f"--until: received one arm ({arms[0].name}), expected at least 2: an interval is that of a ratio"
        )
    if subject and len(arms) < 2:
        raise RequestError(
            f"--subject: received one arm ({arms[0].name}), expected at least 2, which differ in it, such as "
            "torch:ddp,global_batch_size=32 torch:ddp,global_batch_size=64 with --subject batch"
        )
    _say_what_differs(arms, subject)
    if options.ablate:
        arms += tuple(filter(None, map(_ablated, arms)))
    pair = _pair(options.pair, arms, run_options, subject)
    if options.vary_seed:
        _check_seeds(arms, repeats)
    return Study(
        arms=arms,
        pair=pair,
        repeats=repeats,
        order_seed=options.order_seed,
        subject=subject,
        vary_seed=options.vary_seed,
        margin=DEFAULT_MARGIN if options.margin is None else options.margin,
        adding=options.until is not None,
    )


def _say_what_differs(arms: Sequence[Arm], subject: Sequence[str]) -> None:
    """Say before the first run that arms differ in what makes them NOT COMPARABLE."""
    from dpcompare.experiments.fairness import fields_that_differ

    alike: dict[tuple[str, int], list[Workload]] = {}
    for arm in arms:  # of several models, those of one are compared; other devices may have another batch
        model = "" if "model" in subject else arm.config.workload.model
        alike.setdefault((model, arm.config.cluster.num_devices), []).append(arm.config.workload)
    fields = dict.fromkeys(field for workloads in alike.values() for field in fields_that_differ(workloads, subject))
    if fields:
        click.echo(
            f"arms differ in {', '.join(fields)}, and those that do will be NOT COMPARABLE, unless that is the "
            f"question: {' '.join(f'--subject {field}' for field in fields)}",
            err=True,
        )


def _ablated(arm: Arm) -> Arm | None:
    from dpcompare.experiments.study import ablated

    try:
        return ablated(arm)
    except RequestError as error:
        raise RequestError(f"--ablate: {arm.name} cannot be measured without gradient sync: {error}") from None


def _refuse_wrong_margin(options: StudyOptions, repeats: int) -> None:
    """Refuse --vary-seed without rounds to vary it in, and a --margin that says nothing."""
    from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM

    if options.vary_seed and repeats < 2:
        raise RequestError(
            f"--vary-seed: received {pluralize(repeats, 'round')}, expected at least 2, each with a seed of its own; "
            f"{ROUNDS_FOR_CLAIM} for a claim: --repeats {ROUNDS_FOR_CLAIM}"
        )
    if options.margin is None:
        return
    if not options.vary_seed:
        raise RequestError(
            "--margin: received without --vary-seed; accuracies are compared over rounds of different seeds: give both"
        )
    if not 0 < options.margin < 100:
        raise RequestError(
            f"--margin: received {options.margin:g}, expected points of accuracy above 0 and below 100, such as 1: no "
            "number of rounds shows that two accuracies do not differ at all"
        )


def _check_seeds(arms: tuple[Arm, ...], repeats: int) -> None:
    """Refuse seeds beyond the largest one, and say what varies where weights come from a file."""
    from dpcompare.config.workload import LARGEST_SEED
    from dpcompare.experiments.learning import varied_by_seed
    from dpcompare.models.spec import ARE_DRAWN

    for arm in arms:
        if arm.config.workload.seed + repeats > LARGEST_SEED:
            raise RequestError(
                f"--seed: received {arm.config.workload.seed} with --vary-seed, which adds the number of the round; "
                f"expected at most {LARGEST_SEED - repeats}"
            )
    if any(arm.config.workload.weights not in ARE_DRAWN for arm in arms):
        click.echo(f"--vary-seed: {varied_by_seed([arm.config.model_dump() for arm in arms])}", err=True)


def _pair(
    texts: tuple[str, ...], arms: tuple[Arm, ...], run_options: RunOptions, subject: Sequence[str]
) -> tuple[str, ...] | None:
    """The names of the two arms that were named beforehand, each as for --arm or by its name."""
    if not texts:
        return None
    if len(texts) != 2:
        raise RequestError(f"--pair: received {', '.join(texts)}, expected two arms: --pair torch:ddp --pair torch:dp")
    names = tuple(_named_arm(text, arms, run_options) for text in texts)
    models = {arm.config.workload.model for arm in arms if arm.name in names}
    if len(models) > 1 and "model" not in subject:
        raise RequestError(
            f"--pair: received arms of {' and '.join(sorted(models))}, expected two of one model; or pass "
            "--subject model"
        )
    return names


def _named_arm(text: str, arms: tuple[Arm, ...], run_options: RunOptions) -> str:
    names = [arm.name for arm in arms]
    if text in names:
        return text
    expected = f"expected one of {', '.join(names)}"
    if ":" not in text:
        raise RequestError(f"--pair: received {text!r}, {expected}")
    wanted = arm_request(text, run_options, named_by="--pair")
    found = [
        arm.name
        for arm in arms
        if arm.name == wanted.name_on(arm.config.cluster.num_nodes, arm.config.cluster.devices_per_node)
        and wanted.nodes in (None, arm.config.cluster.num_nodes)
        and wanted.devices_per_node in (None, arm.config.cluster.devices_per_node)
    ]
    if len(found) != 1:
        several = f"which names {pluralize(len(found), 'arm')}" if found else "which is none of the arms"
        raise RequestError(f"--pair: received {text!r}, {several}; {expected}")
    return found[0]


def num_rounds(options: StudyOptions) -> int:
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


def _compared_by_default(pythons: Mapping[str, str]) -> list[str]:
    """The frameworks whose modes are: all but an optional one that is not installed, and for which none is named."""
    from dpcompare.backends.availability import is_usable

    return [
        framework
        for framework, row in FRAMEWORKS.items()
        if not row.is_optional or framework in pythons or is_usable(framework)
    ]


def _arms(options: StudyOptions, run_options: RunOptions, subject: Sequence[str]) -> tuple[Arm, ...]:
    """The arms on all their topologies; all that cannot run are named at once."""
    from dpcompare.experiments.arms import expand_arms, reasons_of

    pythons = interpreters(run_options.python)
    texts = options.arm or list(map(":".join, modes_by_default(_compared_by_default(pythons))))
    requests = [arm_request(text, run_options) for text in _with_each_model(texts, run_options)]
    used = {request.environment for request in requests}
    refuse_other_names(run_options.env, used, f"an arm with it, such as {texts[0]},env=NAME")
    arms, refusals = expand_arms(
        *(requests, options.nodes, options.devices_per_node, pythons, options.devices),
        emulated=bool(options.arm),
        subject=subject,
    )
    reasons = reasons_of(refusals)
    # Of all modes, taken by default, those may be left out that this machine or topology does not have.
    is_refused = any(refusal.is_wrong or options.arm for refusal in refusals)
    if is_refused and not options.skip_unusable:
        others = ["name arms that can run here, or pass --skip-unusable"] if arms else []
        raise RequestError("\n".join([*reasons, *others]))
    if not arms:
        raise RequestError("\n".join([*reasons, "no arm is left; expected at least one that can run here"]))
    for reason in reasons:
        click.echo(f"left out: {reason}", err=True)
    models = {arm.config.workload.model for arm in arms}
    if len(models) == len(arms) > 1 and "model" not in subject:
        click.echo(
            "one arm of each model: arms of different models are not compared; add an arm, or pass --subject model",
            err=True,
        )
    if len(arms) == 1 and not options.ablate:
        click.echo(f"one arm alone, {arms[0].name}: its speed is measured, and compared with nothing", err=True)
    return arms


def _with_each_model(texts: Sequence[str], run_options: RunOptions) -> list[str]:
    """The arms with each of the models that were asked for, model by model; one that names its own model stays alone.

    Raises:
        RequestError: a model is empty or named twice.
    """
    received = run_options.fields.get("model") or ""
    models = [model.strip() for model in received.split(",")]
    if len(models) == 1:
        return list(texts)
    if "" in models or len(set(models)) < len(models):
        raise RequestError(f"--model: received {received!r}, expected each model once, such as resnet18,vit-ti16")
    own = [text for text in texts if any(part.partition("=")[0].strip() == "model" for part in text.split(",")[1:])]
    return [*own, *(f"{text},model={model}" for model in models for text in texts if text not in own)]
