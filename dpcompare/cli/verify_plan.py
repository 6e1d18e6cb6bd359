"""What `verify` compares: the groups that its options ask for, or those that prove a run."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from dpcompare.cli.option_values import (
    environments_called,
    interpreters,
    listed,
    named_interpreters,
    refuse_other_names,
    require_trusted_interpreter,
)
from dpcompare.cli.options import RunOptions, values_of
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

QUICK_MODES = tuple(dict.fromkeys(mode for _, mode in modes_of_each_framework()))
"""What `--quick` verifies unless modes are named."""

PLANNED_BY_A_RUN = ("frameworks", "modes", "model", "replicas", "quick")
"""What --like decides."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is verified, on which devices, with which interpreters, and what is left out."""

    groups: list[Group]
    device: str
    interpreters: dict[str, str]
    left_out: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    """Checks that a run has made of itself."""


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
        listed(modes) if modes is not None else QUICK_MODES if quick else ["all"],
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
        replace(group, contenders=in_environments(of_framework, environments), baseline=None)
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
        if row.unverifiable or (framework in frameworks_by_default() and mode in QUICK_MODES):
            continue
        try:
            require_mode(framework, mode, interpreters.get(framework, sys.executable))
        except RequestError:
            continue
        others.append(f"{framework} {mode}")
    return others


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
            for environment, python in environments or [(None, None)]:
                require_framework(framework, python or usual, environment.name if environment and python else None)
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
