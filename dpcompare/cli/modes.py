"""`dpcompare modes`: every mode of every framework, and whether it can be used here."""

from __future__ import annotations

from typing import Any

import click

from dpcompare.cli.option_values import interpreters
from dpcompare.cli.output import print_json, print_sentence


@click.command()
@click.option("--python", multiple=True, metavar="FRAMEWORK=PATH", help="As for `run`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def modes(python: tuple[str, ...], as_json: bool) -> None:
    """List every mode and whether it is usable here, or why not."""
    from dpcompare.backends.availability import require_mode
    from dpcompare.config.frameworks import FRAMEWORKS
    from dpcompare.config.modes import MODES
    from dpcompare.config.tuning import tuning_options
    from dpcompare.errors import RequestError
    from dpcompare.system.devices import installed_gpus, visible_gpus

    try:
        device_type = "gpu" if visible_gpus(installed_gpus()) else "cpu"
    except RequestError as error:  # modes can be listed all the same
        click.echo(f"warning: {error}", err=True)
        device_type = "cpu"
    chosen_pythons = interpreters(python)
    rows: list[dict[str, Any]] = []
    for (framework, name), mode in MODES.items():
        chosen = {"python": chosen_pythons[framework]} if framework in chosen_pythons else {}
        reason = None
        try:
            require_mode(framework, name, **chosen)
        except RequestError as error:
            reason = str(error)
        rows.append(
            {
                "framework": framework,
                "mode": name,
                "usable": reason is None,
                "reason": reason,
                "summary": mode.summary,
                "multi_device": mode.multi_device,
                "multi_node": mode.multi_node,
                "device_type": device_type,
                "emulated": device_type in mode.emulated_on,
                "tuning": {
                    setting: row.values_on(device_type)
                    for setting, row in tuning_options(framework, name, device_type).items()
                },
            }
        )
    if as_json:
        print_json({"modes": rows})
        return
    for framework in FRAMEWORKS:
        click.echo(framework)
        for row in (row for row in rows if row["framework"] == framework):
            usable = "emulated" if row["usable"] and row["emulated"] else "yes" if row["usable"] else "no"
            reach = "1 device" if not row["multi_device"] else "any nodes" if row["multi_node"] else "1 node"
            print_sentence(f"  {row['mode']:18}{usable:10}{reach:11}{row['summary']}", indent=41)
    if any(row["emulated"] for row in rows):
        print_sentence("emulated: imitated by dpcompare, since the framework itself cannot run it on these devices")
    for reason in dict.fromkeys(row["reason"] for row in rows if row["reason"]):
        print_sentence(reason)
