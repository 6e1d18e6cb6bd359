"""`dpcompare verify`: show on this machine that the modes compute the same."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from dpcompare.cli import completion
from dpcompare.cli.option_table import add_options
from dpcompare.cli.option_values import (
    environments_called,
    interpreters,
    listed,
    named_interpreters,
    refuse_other_names,
    require_trusted_interpreter,
)
from dpcompare.cli.options import OPTIONS, RunOptions, values_of
from dpcompare.cli.output import (
    EXIT_INTERRUPTED,
    EXIT_NEGATIVE,
    if_anybody_reads,
    print_json,
    print_sentence,
    stderr_console,
    stdout_console,
)
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES, USUAL_MODES, frameworks_by_default, modes_of_each_framework
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from typing import TypeAlias

    from dpcompare.config.environment import Environment
    from dpcompare.experiments.contenders import Group
    from dpcompare.experiments.verify import Check

    Environments: TypeAlias = Sequence[tuple[Environment | None, str | None]]
    """With their interpreters; None and None: the usual one. Empty where none is named."""

_ROWS = tuple(
    replace(row, settings={**row.settings, "help": row.settings["help"].partition("  [default")[0]})
    for row in OPTIONS
    if row.in_verify
)
"""Options of a run that may be asked for of what is verified; their defaults are those of verify or of the run."""

PLANNED_BY_A_RUN = ("frameworks", "modes", "model", "replicas", "quick")
"""What --like decides."""


_QUICK_MODES = tuple(dict.fromkeys(mode for _, mode in modes_of_each_framework()))
"""What `--quick` verifies unless modes are named."""


@click.command()
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    shell_complete=completion.runs,
    metavar="RUN_DIR",
    help="Verify what this run trained, by its mode, by another framework's and by one device.",
)
@click.option(
    "--frameworks",
    help="Of torch, tensorflow and jax, separated by commas.  "
    f"[default: those that are installed; with --quick {','.join(frameworks_by_default())}]",
)
@click.option(
    "--modes",
    help="Separated by commas, of the named frameworks; also ddp-spawn, ddp-stages.  "
    f"[default: all that are installed; with --quick {','.join(_QUICK_MODES)}]",
)
@click.option("--model", default="efficientnet-b2", show_default=True, shell_complete=completion.models)
@click.option("--replicas", help="Numbers of replicas to compare at.  [default: 1,2,4; with --quick 1,2]")
@click.option("--precision", help="Separated by commas.  [default: float32,float64; with --like the run's]")
@add_options(_ROWS)
@click.option("--quick", is_flag=True, help="The model on one device only and few steps; tiny models elsewhere.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "auto"]),
    help="[default: cpu; with --against auto, which takes the GPUs; with --like the run's]",
)
@click.option(
    "--against",
    type=click.Choice(["cpu"]),
    help="Also run each on the CPU, and compare what the GPUs compute with that.",
)
@click.option("--python", multiple=True, metavar="FRAMEWORK=PATH", help="As for `run`.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME,...|NAME=...",
    help="As for `run`: verify each mode of a framework in these environments; a single one is compared with the "
    "usual environment.",
)
@click.option("--full", is_flag=True, help="Print every check, not only those that failed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def verify(
    context: click.Context,
    /,
    against: Literal["cpu"] | None,
    full: bool,
    as_json: bool,
    **values: FieldValue,
) -> int:
    """Run every mode on the same work and compare what they compute, array by array.

    Prints the checks that failed, and a summary: how many passed, and which was closest to its tolerance. Exit code 3:
    a check failed, or no two modes could be compared.

    Unless --modes or --quick is given, the less usual modes (fsdp, pipelines, all of JAX) train a big model once for
    each number of replicas, in the last precision. Every mode trains the small models.

    \b
    dpcompare verify --quick
    dpcompare verify --like runs/a
    dpcompare verify --like runs/a --precision float64
    dpcompare verify --quick --replicas 1 --against cpu
    """
    plan = plan_asked_for(context, against=against, **values)
    checks: list[Check] = []
    interrupted = False
    try:
        make_checks(plan, against, checks)
    except KeyboardInterrupt:  # what has been found by then is still reported
        interrupted = True
    passed = bool(checks) and all(check.passed for check in checks) and not interrupted
    if as_json:
        shown = {"passed": passed, "checks": list(map(_as_json, checks)), "not_compared": plan.left_out}
        print_json(shown | ({"interrupted": True} if interrupted else {}))
    else:
        with if_anybody_reads():
            _print_checks(checks, plan.left_out, full=full)
            if interrupted:
                click.echo("interrupted: the other checks were not made")
    return EXIT_INTERRUPTED if interrupted else 0 if passed else EXIT_NEGATIVE


def plan_asked_for(
    context: click.Context,
    /,
    like: Path | None,
    frameworks: str | None,
    modes: str | None,
    model: str,
    replicas: str | None,
    precision: str | None,
    quick: bool,
    device: str | None,
    against: Literal["cpu"] | None,
    python: tuple[str, ...],
    env: tuple[str, ...],
    **workload_options: FieldValue,
) -> Plan:
    """What the options of the command ask to be verified.

    Raises:
        RequestError: it cannot be.
    """
    for name in ("as_json", "full"):  # how the command shows it
        workload_options.pop(name, None)
    asked = values_of(Workload, RunOptions.of(workload_options))
    if like is not None:
        _reject_with_like(context)
        return _like(like, asked, precision, device, python, env, against)
    plan = _asked_for(
        listed(frameworks) if frameworks is not None else frameworks_by_default() if quick else None,
        listed(modes) if modes is not None else _QUICK_MODES if quick else ["all"],
        _known_model(model),
        _numbers(replicas or ("1,2" if quick else "1,2,4")),
        _known_precisions(listed("float32,float64" if precision is None else precision)),
        asked,
        quick=quick,
        device=device or ("cpu" if against is None else "auto"),
        against=against,
        interpreters=interpreters(python),
        environments=_environments(env),
        seldom=[key for key in MODES if key not in USUAL_MODES] if modes is None and not quick else [],
    )
    if quick and frameworks is None and modes is None and (others := _beyond_quick(plan.interpreters)):
        plan.left_out.append(
            f"{', '.join(others)}: installed here and left out by --quick; add --frameworks {','.join(FRAMEWORKS)} and "
            "--modes all"
        )
    return plan


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is verified, on which devices, with which interpreters, and what is left out."""

    groups: list[Group]
    device: str
    interpreters: dict[str, str]
    left_out: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    """Checks that a run has made of itself."""


def _asked_for(
    frameworks: list[str] | None,
    modes: Sequence[str],
    model: str,
    replicas: list[int],
    precisions: list[str],
    asked: dict[str, FieldValue],
    *,
    quick: bool,
    device: str,
    against: Literal["cpu"] | None,
    interpreters: dict[str, str],
    environments: Environments,
    seldom: Collection[tuple[str, str]],
) -> Plan:
    """The groups of the named modes, of the named frameworks or of all that are installed."""
    from dpcompare.experiments.contenders import known_modes
    from dpcompare.experiments.verify_groups import lacking_batchnorm, not_compared, plan_groups

    present, unusable = _usable(frameworks, interpreters, environments)
    named = known_modes(model) if list(modes) == ["all"] else list(modes)
    groups = plan_groups(
        present,
        named,
        model=model,
        replicas=replicas,
        precisions=precisions,
        quick=quick,
        device=device,
        against=against,
        asked=asked,
        seldom=seldom,
        least=1 if environments else 2,  # each is then compared with itself elsewhere
    )
    if not present:
        expected = (
            "expected one that all environments have"
            if environments
            else "install one, or name its environment with --python"
        )
        raise RequestError("\n".join([f"no framework is left to verify; {expected}", *unusable]))
    if environments:
        groups = _in_environments(groups, environments)
    lacking = lacking_batchnorm(present, named, model, replicas, asked)
    others = [] if environments else not_compared(groups, present, named, lacking)
    left_out = [*unusable, *lacking.values(), *others]
    return Plan(groups=groups, device=device, interpreters=interpreters, left_out=left_out)


def _environments(pairs: Sequence[str]) -> Environments:
    """Those that are named; of a single one the usual one first; none if none is.

    Raises:
        RequestError: there is no such environment.
    """
    pairs = [part for pair in pairs for part in ([pair] if "=" in pair else listed(pair))]
    named = environments_called(pairs) if pairs else []
    return [(None, None), *named] if len(named) == 1 else [*named]


def _in_environments(groups: Sequence[Group], environments: Environments) -> list[Group]:
    """The same groups, each with its contenders of one framework in all environments.

    Raises:
        RequestError: no mode is left.
    """
    from dpcompare.experiments.contenders import in_environments

    found = [
        replace(group, contenders=in_environments(of_framework, environments))
        for group in groups
        for framework in FRAMEWORKS
        if (of_framework := [each for each in group.contenders if each.framework == framework])
    ]
    if not found:
        raise RequestError("--env: nothing is left to verify; expected modes of a framework that all environments have")
    return found


def _beyond_quick(interpreters: dict[str, str]) -> list[str]:
    """The modes, with their framework, that could be verified here and that `--quick` leaves out."""
    from dpcompare.backends.availability import require_mode

    others = []
    for (framework, mode), row in MODES.items():
        if row.unverifiable or (framework in frameworks_by_default() and mode in _QUICK_MODES):
            continue
        try:
            require_mode(framework, mode, interpreters.get(framework, sys.executable))
        except RequestError:
            continue
        others.append(f"{framework} {mode}")
    return others


def make_checks(plan: Plan, against: Literal["cpu"] | None, checks: list[Check]) -> None:
    """Make the checks, say of each that it fails, and append them to `checks`."""
    from dpcompare.experiments.verify import verify as run_checks
    from dpcompare.experiments.verify_runs import runs_at_once
    from dpcompare.system.devices import installed_gpus, visible_gpus

    console = stderr_console()
    if against is not None and plan.device == "auto" and not visible_gpus(installed_gpus()):
        console.print("no GPU is visible here: both sides of every comparison run on the CPU", soft_wrap=True)
    for line in plan.left_out:
        console.print(f"not compared: {line}", soft_wrap=True)
    made_now = run_checks(
        plan.groups,
        device=plan.device,
        interpreters=plan.interpreters,
        say=lambda line: console.print(line, soft_wrap=True),
        at_once=runs_at_once(plan.device),
    )
    for check in chain(made_now, plan.checks):  # what is known of the run says less about the cause
        checks.append(check)
        if not check.passed:
            console.print(f"FAILED {check.name}: {check.pair}\n{check.detail}".rstrip(), soft_wrap=True)


def _as_json(check: Check) -> dict[str, Any]:
    shown = {name: getattr(check, name) for name in _JSON_FIELDS}
    if check.measured is not None and not math.isfinite(check.measured):  # JSON has no infinity
        shown |= {"measured": None, "detail": "the difference is not a finite number"}
    return shown


_JSON_FIELDS = (
    *("name", "modes", "pair", "workload", "precision", "measured", "floor", "tolerance", "passed", "detail"),
)


def _print_checks(checks: Sequence[Check], left_out: Sequence[str], *, full: bool) -> None:
    from dpcompare.report import verified

    for line in verified.rows(checks, stdout_console().width) if full else verified.failures(checks):
        print_sentence(line, indent=8)
    for line in verified.summary(checks):
        print_sentence(line, indent=4)
    for line in left_out:
        print_sentence(f"not compared: {line}", indent=2)
    if checks and not full:
        click.echo("all checks: the same command with --full, or --json", err=True)


def _reject_with_like(context: click.Context) -> None:
    given = [name for name in PLANNED_BY_A_RUN if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]
    if given:
        raise RequestError(
            f"--like: received with {', '.join('--' + name for name in given)}, which the run decides; expected one of "
            "them alone"
        )


def _like(
    run_dir: Path,
    asked: dict[str, FieldValue],
    precision: str | None,
    device: str | None,
    python: tuple[str, ...],
    env: tuple[str, ...],
    against: Literal["cpu"] | None,
) -> Plan:
    """The groups that prove a run, with its own interpreters unless others are named."""
    from dpcompare.config.run import RunConfig
    from dpcompare.experiments.verify_groups import has_one_gpu, on_one_gpu, with_each_on
    from dpcompare.experiments.verify_like import group_like, late_step_of, run_to_prove
    from dpcompare.results.run_dir import CONFIG_FILE

    chosen = interpreters(python)
    named = RunConfig.load(run_dir / CONFIG_FILE)
    names = {named.environment.name} if named.environment else set()
    refuse_other_names(env, names, "the environment of the run, or none")
    own = {} if named.framework in named_interpreters(python) else {named.framework: named.python}
    # Before anything of a run that may be another's is imported.
    if named.environment is not None or (own and Path(named.python).exists()):
        require_trusted_interpreter(named, chosen, env, named_by="--like: the run")
        chosen |= own if named.environment is None else {}
    config = run_to_prove(run_dir, other_data="dataset" in asked)
    precisions = (
        [None] if precision is None else _known_precisions(listed(precision), ("float32", "bfloat16", "float64"))
    )
    device = device or ("cpu" if config.cluster.device_type == "cpu" else "auto")
    groups = [group_like(config, each, asked, chosen) for each in precisions]
    groups = groups if against is None else [with_each_on(against, group) for group in groups]
    groups = [on_one_gpu(group) for group in groups] if device == "auto" and has_one_gpu() else groups
    late, why_none = late_step_of(run_dir)
    return Plan(
        groups=groups,
        device=device,
        interpreters=chosen,
        checks=[late] if late else [],
        left_out=[f"late step: {why_none}"] if why_none else [],
    )


def _usable(
    frameworks: list[str] | None, chosen: dict[str, str], environments: Environments
) -> tuple[list[str], list[str]]:
    """The named frameworks that are installed, in every environment, and why others are not. None: all that are."""
    from dpcompare.backends.availability import require_framework
    from dpcompare.errors import did_you_mean

    usable, reasons = [], []
    for framework in FRAMEWORKS if frameworks is None else frameworks:
        if framework not in FRAMEWORKS:
            raise RequestError(
                f"unknown framework {framework!r}; expected some of {', '.join(FRAMEWORKS)}."
                f"{did_you_mean(framework, FRAMEWORKS)}"
            )
        usual = chosen.get(framework, sys.executable)
        try:
            for python in [python or usual for _, python in environments] or [usual]:
                require_framework(framework, python)
            usable.append(framework)
        except RequestError as error:
            # JAX is optional: one who does not name it need not read that it is missing everywhere.
            if frameworks is not None or environments or framework in frameworks_by_default():
                reasons.append(str(error))
    return usable, reasons


def _known_model(model: str) -> str:
    checked = Workload(model=model)
    return str(checked.model)


def _known_precisions(precisions: list[str], known: Sequence[str] = ("float32", "float64")) -> list[str]:
    if not precisions or (wrong := [name for name in precisions if name not in known]):
        raise click.BadParameter(
            f"received {precisions and wrong}, expected {' and/or '.join(known)}", param_hint="--precision"
        )
    return precisions


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in listed(text)]
    except ValueError:
        raise click.BadParameter(
            f"received {text!r}, expected numbers such as 1,2,4", param_hint="--replicas"
        ) from None
