"""The option of `project` and `explain` that names the link between machines, which no run can tell."""

from __future__ import annotations

import click


def _checked(context: click.Context, parameter: click.Parameter, rate: str | None) -> str | None:
    """The rate as it was typed, once it is known to be one."""
    from dpcompare.projection.link import rate_of

    if rate is not None:
        rate_of(rate, "--measured-link")
    return rate


measured_link = click.option(
    "--measured-link",
    metavar="RATE",
    callback=_checked,
    help="Link of the machines that were measured, if there were several, such as 10gbit.",
)
