"""`dpcompare verify`: show on this machine that the modes compute the same."""

from __future__ import annotations

import math
from typing import Any

import click

from dpcompare.cli.option_values import interpreters, listed
from dpcompare.cli.output import EXIT_NEGATIVE, print_json, stderr_console, stdout_console


@click.command()
@click.option("--frameworks", default="torch,tensorflow", show_default=True, help="By commas.")
@click.option(
    "--modes",
    default="single,dp,ddp,mirrored,multiworker",
    show_default=True,
    help="By commas; also fsdp, pipeline, fabric, accelerate, parameter-server, ddp-spawn, ddp-stages, or all.",
)
@click.option("--model", default="efficientnet-b2", show_default=True)
@click.option("--replicas", help="Numbers of replicas to compare at.  [default: 1,2,4; with --quick 1,2]")
@click.option("--precision", default="float32,float64", show_default=True, help="By commas.")
@click.option("--quick", is_flag=True, help="The model on one device only and few steps; tiny models elsewhere.")
@click.option("--device", type=click.Choice(["cpu", "auto"]), default="cpu", show_default=True)
@click.option("--python", multiple=True, metavar="FRAMEWORK=PATH", help="As for `run`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    frameworks: str,
    modes: str,
    model: str,
    replicas: str | None,
    precision: str,
    quick: bool,
    device: str,
    python: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run every mode on the same work and compare what they compute, array by array. Exit code 3: a check failed."""
    from dpcompare.experiments.verify import verify as run_checks
    from dpcompare.experiments.verify_groups import known_modes, plan_groups

    chosen = interpreters(python)
    replicas = replicas or ("1,2" if quick else "1,2,4")
    present = _usable(listed(frameworks), chosen)
    groups = plan_groups(
        present,
        known_modes(model) if modes == "all" else listed(modes),
        model=_known_model(model),
        replicas=_numbers(replicas),
        precisions=_known_precisions(listed(precision)),
        quick=quick,
    )
    if not groups:
        raise click.UsageError(
            f"nothing to compare: {', '.join(present) or 'no framework'} with modes {modes} and replicas {replicas} "
            "leaves fewer than two sides; expected at least two"
        )
    console = stderr_console()
    checks = []
    for check in run_checks(
        groups, device=device, interpreters=chosen, say=lambda line: console.print(line, soft_wrap=True)
    ):
        checks.append(check)
        if not check.passed:
            console.print(f"FAILED {check.name}: {check.pair}\n{check.detail}".rstrip(), soft_wrap=True)
    passed = all(check.passed for check in checks)
    if as_json:
        fields = (
            "name",
            "modes",
            "pair",
            "workload",
            "precision",
            "measured",
            "floor",
            "tolerance",
            "passed",
            "detail",
        )
        rows = [{name: getattr(check, name) for name in fields} for check in checks]
        for row in rows:
            if row["measured"] is not None and not math.isfinite(row["measured"]):
                row |= {"measured": None, "detail": "the difference is not a finite number"}  # JSON has no infinity
        print_json({"passed": passed, "checks": rows})
    else:
        _print_table(checks)
        failed = sum(not check.passed for check in checks)
        click.echo(f"{len(checks) - failed} of {len(checks)} checks passed")
    return 0 if passed else EXIT_NEGATIVE


def _usable(frameworks: list[str], chosen: dict[str, str]) -> list[str]:
    """The asked frameworks that are installed; says which are not."""
    from dpcompare.backends.availability import require_framework
    from dpcompare.config.modes import FRAMEWORKS
    from dpcompare.errors import RequestError, did_you_mean

    usable = []
    for framework in frameworks:
        if framework not in FRAMEWORKS:
            raise RequestError(
                f"unknown framework {framework!r}; expected some of {', '.join(FRAMEWORKS)}."
                f"{did_you_mean(framework, FRAMEWORKS)}"
            )
        try:
            require_framework(framework, **({"python": chosen[framework]} if framework in chosen else {}))
            usable.append(framework)
        except RequestError as error:
            click.echo(f"left out: {error}", err=True)
    return usable


def _known_model(model: str) -> str:
    from dpcompare.config.workload import Workload

    checked = Workload(model=model)
    return str(checked.model)


def _known_precisions(precisions: list[str]) -> list[str]:
    if not precisions or (wrong := [name for name in precisions if name not in ("float32", "float64")]):
        raise click.BadParameter(
            f"received {precisions and wrong}, expected float32 and/or float64", param_hint="--precision"
        )
    return precisions


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in listed(text)]
    except ValueError:
        raise click.BadParameter(
            f"received {text!r}, expected numbers such as 1,2,4", param_hint="--replicas"
        ) from None


def _print_table(checks: list[Any]) -> None:
    from rich.table import Table

    with_floor = any(check.floor is not None for check in checks)
    figures = ("measured", *(["floor"] if with_floor else []), "tolerance")
    table = Table()
    for column in ("check", "workload", "precision", "of", "the pair that differs most", *figures, ""):
        table.add_column(column, justify="right" if column in figures else "left", overflow="fold")
    for check in checks:
        measured = "did not run" if check.measured is None else f"{check.measured:.1e}"
        floor = "" if check.floor is None else f"{check.floor:.1e}"
        table.add_row(
            check.name,
            check.workload,
            check.precision,
            f"{check.modes.count(',') + 1} modes",
            check.pair,
            *(measured, *([floor] if with_floor else []), f"{check.tolerance:.1e}"),
            "pass" if check.passed else "FAIL",
        )
    stdout_console().print(table)
