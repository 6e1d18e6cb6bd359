"""The environment variables from which options are read: which one was wrong, and which no command reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
from click.core import ParameterSource

from dpcompare.cli.commands import LazyGroup
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.errors import did_you_mean

PREFIX = "DPCOMPARE_"
READ_ELSEWHERE = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("CACHE_DIR", "ENVIRONMENTS_DIR", "AGENT_PID", "POD_IP"),
        *(f"{framework.upper()}_PYTHON" for framework in FRAMEWORKS),
    )
)
"""Variables that are no options of a command."""


def unread_variables(environment: Mapping[str, str], cli: LazyGroup) -> Iterator[str]:
    """A line for each variable with our prefix that nothing reads: a misspelt one would change nothing, silently."""
    if not any(name.startswith(PREFIX) and name not in READ_ELSEWHERE for name in environment):
        return
    known = {
        str(option.envvar)
        for command in cli.all_commands().values()
        for option in command.params
        if isinstance(option, click.Option) and option.envvar
    } | READ_ELSEWHERE
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            yield f"the environment variable {name} is set, but no option reads it.{did_you_mean(name, sorted(known))}"


def blame_variable(error: click.ClickException) -> str | None:
    """The message about a wrong value that came from a variable, which Click would say of the option."""
    if not isinstance(error, click.BadParameter) or error.param is None or error.ctx is None:
        return None
    if error.ctx.get_parameter_source(str(error.param.name)) is not ParameterSource.ENVIRONMENT:
        return None
    return f"environment variable {error.param.envvar}: {error.message}"
