"""`dpcompare setup`: an environment for each framework that cannot be used yet."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dpcompare.cli.option_values import Names, listed
from dpcompare.cli.output import EXIT_NEGATIVE, print_json
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import frameworks_by_default
from dpcompare.errors import RequestError
from dpcompare.system.secrets import without_passwords

if TYPE_CHECKING:
    from dpcompare.launch.setup import DeviceType, Need


@click.command()
@click.argument("requirements", nargs=-1, metavar="[REQUIREMENT...]")
@click.option(
    "--frameworks",
    metavar="LIST",
    help=f"The frameworks to install, of {', '.join(FRAMEWORKS)}.  [default: {','.join(frameworks_by_default())}]",
)
@click.option(
    "--env",
    "name",
    metavar="NAME",
    help="Make an environment of this name with the requirements, for arms with env=NAME.",
)
@click.option("--list", "lists", is_flag=True, help="List the environments that have names.")
@click.option("--remove", metavar="NAME", help="Delete the environment of this name.")
@click.option(
    "--device",
    type=Names(["auto", "cpu", "gpu"]),
    default="auto",
    show_default=True,
    help="auto: for GPUs if there are any. gpu: for GPUs, even if there are none, as on a login node. cpu: smaller "
    "builds, for CPUs alone.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be installed, and install nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def setup(
    requirements: tuple[str, ...],
    frameworks: str | None,
    name: str | None,
    lists: bool,
    remove: str | None,
    device: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Install the frameworks that are not usable yet, or an environment with other versions.

    \b
    dpcompare setup
    dpcompare setup --env old 'torch==2.13.*' timm
    dpcompare setup --list

    A framework that works in this environment stays there. Any other gets an environment of its own, made with uv if it
    is installed and with venv and pip otherwise; the other commands find it by themselves. Run it again to continue an
    interrupted set-up. DPCOMPARE_ENVIRONMENTS_DIR names another folder for the environments, for all commands. Exit
    code 3: a framework still cannot be used.

    Without GPUs, torch comes from PyTorch's index of builds for CPUs, if that can be reached. DPCOMPARE_TORCH_CPU_INDEX
    gives the address of a mirror; if it is empty, the usual builds are taken.
    """
    from dpcompare.launch.setup import make, needs, require_space, sizes_of

    if lists or remove is not None:
        given = requirements or frameworks or dry_run or name is not None or (as_json and not lists)
        if given or (lists and remove is not None):
            raise RequestError("--list and --remove NAME: received with other arguments; expected one of them alone")
        return _list(as_json) if lists else _remove(str(remove))
    found = (
        [_named(name, requirements, frameworks, device)]
        if name is not None
        else needs(_frameworks(frameworks or ",".join(frameworks_by_default())), _device_type(device))
    )
    if requirements and name is None:
        raise RequestError(
            f"received {' '.join(requirements)} without --env; expected a name for the environment that is to have "
            f"them, such as --env old {requirements[0]!r}"
        )
    to_make = [need for need in found if need.requirements]
    for need in found:
        _say(need)
    if len(to_make) > 1:
        click.echo(f"in all, {sizes_of(to_make).in_words}", err=True)
    if not dry_run:
        require_space(to_make)
        made = {}
        for need in to_make:
            start = time.monotonic()
            made[need.framework] = make(need)
            _say(made[need.framework], f" (made in {time.monotonic() - start:.0f} s)")
        found = [made.get(need.framework, need) for need in found]
    if as_json:
        shown = [dataclasses.asdict(need) | {"index": without_passwords(need.index)} for need in found]
        print_json({"frameworks": [row | {"usable": need.is_met} for row, need in zip(shown, found, strict=True)]})
    return 0 if dry_run or all(need.is_met for need in found) else EXIT_NEGATIVE


def _named(name: str, requirements: Sequence[str], frameworks: str | None, device: str) -> Need:
    from dpcompare.config.environment import is_name
    from dpcompare.launch.setup import named_need

    if not is_name(name):
        raise RequestError(f"--env: received {name!r}, expected letters, digits and . _ - such as old")
    return named_need(name, requirements, _frameworks(frameworks) if frameworks else (), _device_type(device))


def _list(as_json: bool) -> int:
    """Print the environments that have names, with what they were made with."""
    from dpcompare.launch.setup import interpreter_called, named_environment, names_made

    made = {name: named_environment(name) for name in names_made()}
    usable = {name for name in made if interpreter_called(name) is not None}
    if as_json:
        rows = [
            {"name": name, "usable": name in usable, "python": one.python, "requirements": one.requirements}
            for name, one in made.items()
        ]
        print_json({"environments": rows})
        return 0
    for name, environment in made.items():
        state = environment.python if name in usable else "unfinished, or made for another dpcompare; make it again"
        click.echo(f"{name}: {state} ({' '.join(environment.requirements)})")
    if not made:
        click.echo(
            "there are no named environments; make one with: dpcompare setup --env old 'torch==2.13.*'", err=True
        )
    return 0


def _remove(name: str) -> int:
    from dpcompare.launch.setup import names_made, remove

    if name not in names_made():
        raise RequestError(
            f"--remove: there is no environment called {name!r}; `dpcompare setup --list` lists those with names"
        )
    remove(name)
    click.echo(f"{name}: removed", err=True)
    return 0


def _frameworks(text: str) -> list[str]:
    names = listed(text)
    if not names or set(names) - FRAMEWORKS.keys():
        raise RequestError(f"--frameworks: received {text!r}, expected some of {','.join(FRAMEWORKS)}")
    return names


def _device_type(device: str) -> DeviceType:
    from dpcompare.system.devices import installed_gpus, visible_gpus

    if device == "cpu":
        return "cpu"
    gpus = visible_gpus(installed_gpus())
    click.echo(f"GPUs: {len(gpus)} visible" if gpus else "GPUs: none visible", err=True)
    return "gpu" if gpus or device == "gpu" else "cpu"


def _say(need: Need, time_taken: str = "") -> None:
    """A few lines on stderr."""
    from dpcompare.launch.setup import sizes_of
    from dpcompare.system.python_environment import installer_name

    what = f"{need.framework} in env={need.name}" if need.name else need.framework
    if need.is_met:
        click.echo(f"{what}: usable, {need.python}{time_taken}", err=True)
        return
    click.echo(f"{what}: {need.lacks}", err=True)
    index = FRAMEWORKS[need.framework].cpu_index
    if index and need.index and not need.first:
        click.echo(
            f"  {without_passwords(need.index)} (builds for CPUs) cannot be reached, so the usual builds are taken, "
            f"which bring the CUDA libraries; {index.variable} names a mirror",
            err=True,
        )
    if need.requirements:
        first = f"{' '.join(need.first)} from {without_passwords(need.index)}, and " if need.first else ""
        click.echo(
            f"  {installer_name()} makes an environment for it, {need.python}, with {first}"
            f"{' '.join(need.requirements)}; {sizes_of([need]).in_words}",
            err=True,
        )
