"""Parsers of option values, the variables that options are read from, and an option that two commands share."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dpcompare.cli.commands import LazyGroup
from dpcompare.config.frameworks import FRAMEWORKS, python_variable
from dpcompare.config.other_names import name_here
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.files import expanded
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from dpcompare.config.environment import Environment
    from dpcompare.config.run import RunConfig

_PERCENTAGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


class Number(click.types.FloatParamType):
    """A number that is neither infinite nor NaN."""

    def convert(self, value: FieldValue, parameter: click.Parameter | None, context: click.Context | None) -> float:
        number = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"received {value!r}, expected a finite number", parameter, context)
        return number


class Percentage(Number):
    """A number that may be a percentage: `95%` is 0.95, as a fraction, or 95 where points are asked for."""

    name = "percentage"

    def __init__(self, *, of_points: bool = False) -> None:
        """`of_points`: whether a number without a sign is in points, not a fraction."""
        self._whole = 1 if of_points else 100

    def convert(self, value: FieldValue, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """The number in its unit."""
        match = _PERCENTAGE.fullmatch(value) if isinstance(value, str) else None
        # Divided: 70 hundredths of 1 are more than 0.7, which a target would then be.
        return float(match[1]) / self._whole if match else super().convert(value, parameter, context)


class NumberWithin(click.FloatRange):
    """A number within a range; neither infinite nor NaN, which no range excludes."""

    name = "float"

    def convert(self, value: FieldValue, parameter: click.Parameter | None, context: click.Context | None) -> float:
        return super().convert(Number().convert(value, parameter, context), parameter, context)


class Names(click.Choice):  # type: ignore[type-arg]  # generic only since click 8.2
    """One of several names, or what it is called elsewhere; a usual one that is not among them is refused with why."""

    def convert(
        self, value: FieldValue, parameter: click.Parameter | None, context: click.Context | None
    ) -> FieldValue:
        try:
            value = name_here(parameter.name or "" if parameter else "", value)
        except ValueError as error:
            self.fail(str(error), parameter, context)
        return super().convert(value, parameter, context)


class WarmupSteps(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """A number of steps, or `auto`."""

    name = "integer|auto"

    def convert(
        self, value: FieldValue, parameter: click.Parameter | None, context: click.Context | None
    ) -> FieldValue:
        if value == "auto" or isinstance(value, int):
            return value
        if not re.fullmatch(r"-?\d+", str(value)):
            self.fail(f"received {value!r}, expected a number of steps or auto", parameter, context)
        return int(value)


def listed(text: str) -> list[str]:
    """`a, b` as ["a", "b"]."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_augmentations(text: str) -> tuple[str, ...]:
    """`flip,contrast` as ("flip", "contrast"); `none` as no augmentation."""
    names = tuple(listed(text))
    return () if names == ("none",) else names


def parse_steps(text: str) -> tuple[int, int]:
    """`5:8` as (5, 8)."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        raise RequestError(f"--profile-steps: received {text!r}, expected FIRST:LAST such as 5:8")
    return int(match[1]), int(match[2])


def parse_tuning(pairs: Sequence[str]) -> dict[str, str]:
    """name -> value of --tune."""
    chosen = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or not value:
            raise RequestError(f"--tune: received {pair!r}, expected NAME=VALUE such as compilation=none")
        chosen[name] = value
    return chosen


def interpreters(pairs: Sequence[str]) -> dict[str, str]:
    """framework -> interpreter: of --python, else of DPCOMPARE_<FRAMEWORK>_PYTHON, else made by `dpcompare setup`."""
    from dpcompare.launch.setup import interpreter_made_for

    made = {framework: python for framework in FRAMEWORKS if (python := interpreter_made_for(framework))}
    return made | named_interpreters(pairs)


def named_interpreters(pairs: Sequence[str]) -> dict[str, str]:
    """framework -> interpreter: of --python, else of DPCOMPARE_<FRAMEWORK>_PYTHON."""
    chosen = {framework: python for framework in FRAMEWORKS if (python := os.environ.get(python_variable(framework)))}
    for pair in pairs:
        framework, separator, path = pair.partition("=")
        if not separator or framework not in FRAMEWORKS or not path:
            raise RequestError(
                f"--python: received {pair!r}, expected FRAMEWORK=PATH with FRAMEWORK one of {', '.join(FRAMEWORKS)}"
            )
        chosen[framework] = path
    return chosen


@dataclass(frozen=True, kw_only=True)
class NamedEnvironment:
    """What --env says of a name."""

    python: str | None = None
    """None: the usual interpreter of the framework."""
    variables: Mapping[str, str] = field(default_factory=dict)


def environment_called(name: str, pairs: Sequence[str]) -> NamedEnvironment:
    """What --env says of an environment; where it names no interpreter, that which `dpcompare setup --env` made.

    Raises:
        RequestError: there is none of this name, or --env cannot be read.
    """
    from dpcompare.launch.setup import interpreter_called, names_made

    named = named_environments(pairs).get(name, NamedEnvironment())
    made = interpreter_called(name)
    if made is None and named.python is None and name in names_made():
        raise RequestError(
            f"env: the environment {name!r} is unfinished, or was made for another dpcompare; make it again: dpcompare "
            f"setup --env {name} REQUIREMENT..."
        )
    if named.python is None and not named.variables and made is None:
        raise RequestError(
            f"env: there is no environment called {name!r}; expected --env {name}=PYTHON or --env "
            f"{name}=VARIABLE=VALUE, or one that is made with: dpcompare setup --env {name} REQUIREMENT..."
        )
    return replace(named, python=named.python or made)


def environments_called(pairs: Sequence[str]) -> list[tuple[Environment, str | None]]:
    """All environments that --env names, each with its interpreter; None: the usual one of each framework.

    Raises:
        RequestError: as `environment_called`, or one cannot be.
    """
    from dpcompare.config.environment import Environment

    named = {name: environment_called(name, pairs) for name in named_environments(pairs)}
    return [(Environment(name=name, variables=dict(each.variables)), each.python) for name, each in named.items()]


def named_environments(pairs: Sequence[str]) -> dict[str, NamedEnvironment]:
    """name -> what --env says of it."""
    from dpcompare.config.environment import is_name

    found: dict[str, NamedEnvironment] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not is_name(name) or (separator and not value):
            raise RequestError(
                f"--env: received {pair!r}, expected NAME=PYTHON or NAME=VARIABLE=VALUE, or NAME alone, with a NAME of "
                "letters, digits and . _ - such as old=/envs/old/bin/python"
            )
        known = found.get(name, NamedEnvironment())
        variable, is_variable, text = value.partition("=")
        if is_variable and re.fullmatch(r"[A-Za-z_]\w*", variable):
            if known.variables.get(variable, text) != text:
                raise RequestError(f"--env: received {variable} twice for {name!r}, with two values; expected one")
            known = replace(known, variables={**known.variables, variable: text})
        elif is_variable and "/" not in variable:
            raise RequestError(
                f"--env: received {pair!r}, expected NAME=VARIABLE=VALUE with a variable of letters, digits and _"
            )
        elif value:
            python = str(expanded(value).absolute())
            if known.python not in (None, python):
                raise RequestError(
                    f"--env: received the interpreters {known.python} and {python} for {name!r}; expected one"
                )
            known = replace(known, python=python)
        found[name] = known
    return found


def refuse_other_names(pairs: Sequence[str], used: Collection[str | None], expected: str) -> None:
    """Raise RequestError where --env names an environment that nothing uses, which would change nothing."""
    if unused := sorted(named_environments(pairs).keys() - used):
        raise RequestError(f"--env: received {unused[0]!r}, which nothing uses; expected {expected}")


def only_environment(pairs: Sequence[str]) -> str | None:
    """The name of the environment of a single run.

    Raises:
        RequestError: --env names several.
    """
    names = list(named_environments(pairs))
    if len(names) > 1:
        raise RequestError(f"--env: received {', '.join(names)}; expected one, since a run has one environment")
    return names[0] if names else None


def require_trusted_interpreter(
    config: RunConfig, known: Mapping[str, str], env: Sequence[str], *, named_by: str
) -> None:
    """Refuse an interpreter that only a file names, which may be another's: it would be executed.

    Args:
        config: that the file holds.
        known: framework -> interpreter, of --python or made by `dpcompare setup`.
        env: the values of --env.
        named_by: what names it, for the error.

    Raises:
        RequestError: it is neither this one nor one of them, or --env says something else of its environment.
    """
    from dpcompare.launch.setup import interpreter_called

    own, framework = config.environment, config.framework
    trusted = {sys.executable, known.get(framework)}
    remedy = f"--python {framework}={config.python}"
    if own is not None:
        named = named_environments(env).get(own.name, NamedEnvironment())
        if named.python not in (None, config.python):
            raise RequestError(
                f"{named_by} uses {config.python} as env={own.name}, and --env names {named.python}; expected the same "
                "or none"
            )
        if dict(named.variables) != own.variables:  # of a file that is another's, one could load a library
            needed = " ".join(f"--env {own.name}={name}={value}" for name, value in own.variables.items())
            raise RequestError(
                f"{named_by} and --env do not set the same variables in env={own.name}; if those of the file are "
                f"yours, pass them: {needed or f'--env {own.name} without any'}"
            )
        trusted |= {named.python, interpreter_called(own.name)}
        remedy = f"--env {own.name}={config.python}"
    if config.python not in trusted:
        raise RequestError(
            f"{named_by} names the interpreter {config.python!r}, which is neither this one nor one that "
            f"`dpcompare setup` has made; if it is yours, pass it with {remedy}"
        )


def parse_percentage(text: str, flag: str = "--until") -> float:
    """`2%` as 0.02; `flag` is the option that it is the value of."""
    match = _PERCENTAGE.fullmatch(text)
    if match is None or not 0 < float(match[1]) < 100:
        raise RequestError(f"{flag}: received {text!r}, expected a percentage such as 2%")
    return float(match[1]) / 100


LONGEST_BUDGET = 1e9
"""Seconds: 30 years."""


def parse_seconds(text: str | None) -> float:
    """`30m` as 1800.0; no text means no limit."""
    if text is None:
        return math.inf
    match = re.fullmatch(r"(\d+(\.\d+)?)\s*([smh])", text.strip())
    if match is None or not 0 < float(match[1]) < math.inf:
        raise RequestError(f"--budget: received {text!r}, expected a time such as 90s, 30m or 2h")
    return min(float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[3]], LONGEST_BUDGET)


PREFIX = "DPCOMPARE_"
READ_ELSEWHERE = frozenset(
    (
        *(f"{PREFIX}{name}" for name in ("CACHE_DIR", "ENVIRONMENTS_DIR", "AGENT_PID", "POD_IP")),
        *map(python_variable, FRAMEWORKS),
        *(row.cpu_index.variable for row in FRAMEWORKS.values() if row.cpu_index),
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


def refuse_own_backend(text: str, received: str, expected: str) -> None:
    """Raise RequestError where a user's backend stands in the place of a mode.

    Args:
        text: such as `package.module:CLASS`.
        received: what it is part of.
        expected: how the mode and the backend are given, with {} for the latter.
    """
    from dpcompare.system.python_environment import is_custom  # which imports pydantic, and --help needs none

    framework = text.partition(":")[0]
    if framework in FRAMEWORKS or did_you_mean(framework, FRAMEWORKS) or not is_custom(text):
        return
    raise RequestError(
        f"{received}: {framework!r} is not a framework; expected one of {', '.join(FRAMEWORKS)}. If {text} is a "
        f"backend of your own, also name the mode that it is started like: {expected.format(text)}"
    )
