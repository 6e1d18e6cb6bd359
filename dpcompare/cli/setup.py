"""`dpcompare setup`: an environment for each framework that cannot be used yet."""

from __future__ import annotations

import dataclasses
import time
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
@click.option(
    "--frameworks",
    default=",".join(frameworks_by_default()),
    show_default=True,
    metavar="LIST",
    help=f"The frameworks to install, of {', '.join(FRAMEWORKS)}.",
)
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
def setup(frameworks: str, device: str, dry_run: bool, as_json: bool) -> int:
    """Install the frameworks that are not usable yet.

    A framework that works in this environment stays there. Any other gets an environment of its own, made with uv if it
    is installed and with venv and pip otherwise; the other commands find it by themselves. Run it again to continue an
    interrupted set-up. DPCOMPARE_ENVIRONMENTS_DIR names another folder for the environments, for all commands. Exit
    code 3: a framework still cannot be used.

    Without GPUs, torch comes from PyTorch's index of builds for CPUs, if that can be reached. DPCOMPARE_TORCH_CPU_INDEX
    gives the address of a mirror; if it is empty, the usual builds are taken.
    """
    from dpcompare.launch.setup import make, needs, require_space, sizes_of

    found = needs(_frameworks(frameworks), _device_type(device))
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

    if need.is_met:
        click.echo(f"{need.framework}: usable, {need.python}{time_taken}", err=True)
        return
    click.echo(f"{need.framework}: {need.lacks}", err=True)
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
