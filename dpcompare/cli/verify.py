"""`dpcompare verify`: show on this machine that the modes compute the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dpcompare.cli import completion
from dpcompare.cli.option_table import add_options
from dpcompare.cli.options import OPTIONS
from dpcompare.cli.output import (
    EXIT_INTERRUPTED,
    EXIT_NEGATIVE,
    if_anybody_reads,
    print_json,
    print_sentence,
    stderr_console,
    stdout_console,
)
from dpcompare.cli.verify_plan import QUICK_MODES, Plan, plan_asked_for
from dpcompare.config.modes import frameworks_by_default
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from dpcompare.experiments.verify import Check

_ROWS = tuple(
    replace(row, settings={**row.settings, "help": row.settings["help"].partition("  [default")[0]})
    for row in OPTIONS
    if row.in_verify
)
"""Options of a run that may be asked for of what is verified; their defaults are those of verify or of the run."""


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
    f"[default: all that are installed; with --quick {','.join(QUICK_MODES)}]",
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
