"""A TOML file whose values are the defaults of a command's options."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import click

from dpcompare.cli.option_values import Percentage, WarmupSteps
from dpcompare.errors import RequestError, closest
from dpcompare.system.type_names import FieldValue


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.3
    """One or more positive numbers, by commas; in TOML also a number or a list."""

    name = "numbers"

    def convert(
        self, value: FieldValue, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        try:
            parts = parts if isinstance(parts, (list, tuple)) else [parts]
            if not all(type(part) in (int, str) for part in parts):  # a bool is an int, and 1.9 would become 1
                raise TypeError
            numbers = tuple(map(int, parts))
        except (TypeError, ValueError):
            numbers = ()
        if not numbers or min(numbers) < 1:
            self.fail(f"received {value!r}, expected positive numbers such as 1,2", parameter, context)
        return numbers


def read_config_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the values of a TOML file the defaults of the other options."""
    if path is None:
        return
    text, content = _read(path)
    options = {
        option.name: option
        for option in context.command.params
        if isinstance(option, click.Option) and option.name not in (None, "config", "as_json", "dry_run", "out")
    }
    if isinstance(environments := content.get("env"), dict):
        content["env"] = _as_typed(environments, path)
    problems = []
    for key, value in content.items():
        where = f"{path}{_line_of(key, text)}: key {key!r}"
        if key not in options:
            problems.append(f"{where} is unknown; {names_like(key, sorted(map(str, options)))}")
        elif problem := _type_problem(options[key], value, context):
            problems.append(f"{where}: received {value!r}, {problem}")
    if problems:
        raise RequestError("\n".join(problems))
    context.default_map = content


def _as_typed(environments: dict[str, Any], path: Path) -> list[str]:
    """A table of environments as --env takes them: `old = "/envs/old/bin/python"`, `nofuse = {TORCH_X = "0"}`.

    The key `python` of an environment that has variables is its interpreter.
    """
    typed = []
    for name, value in environments.items():
        values = value if isinstance(value, dict) else {"python": value}
        for key, text in values.items():
            if not isinstance(text, str):
                raise RequestError(
                    f"{path}: key 'env.{name}': received {text!r}, expected an interpreter such as "
                    f'{name} = "/envs/{name}/bin/python", or variables such as {name} = {{TORCH_X = "0"}}'
                )
            typed.append(f"{name}={text}" if key == "python" else f"{name}={key}={text}")
    return typed


MOST_BYTES = 1_000_000
"""The largest TOML file: a longer one was not written for a command, and reading it takes many seconds."""
MOST_DOTS = 100
"""In a line of one: the time that a key takes grows with the square of its parts."""


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file, and what it says.

    Raises:
        RequestError: it cannot be read, or is not TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        text = content.decode()
        if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
            raise ValueError(f"a line has more than {MOST_DOTS:,} dots")
        return text, tomllib.loads(text)
    except OSError as error:
        raise RequestError(f"{str(path)!r} cannot be read: {error.strerror}; expected a TOML file") from None
    except RecursionError:
        raise RequestError(f"{str(path)!r} is not valid TOML: its brackets are too deep") from None
    except ValueError as error:  # also of bytes that are not UTF-8, and of integers of thousands of digits
        reason = str(error).partition(";")[0]  # after which Python says how to lift its limit of digits
        raise RequestError(f"{str(path)!r} is not valid TOML: {reason}") from None


def names_like(key: str, known: list[str]) -> str:
    """What was expected in the place of an unknown option: the names like it, since all would be a page."""
    near = closest(key, known, 3)
    listed = f"expected an option such as {', '.join(near)}; " if near else "expected the name of an option; "
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{listed}`--help` lists all {len(known)}.{hint}"


def _line_of(key: str, text: str) -> str:
    """`:LINE` of a top-level key; tomllib keeps no positions."""
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]", line):
            return f":{number}"
    return ""


def _type_problem(option: click.Option, value: Any, context: click.Context) -> str | None:
    """Why a TOML value is not a value of an option; TOML has types, so '32' is not a number here."""
    if option.multiple:
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return None
        return f'expected a list of strings, such as {option.name} = ["{option.metavar or "..."}"]'
    kinds: dict[str, tuple[tuple[type, ...], str]] = {
        "integer": ((int,), "an integer"),
        "integer range": ((int,), "an integer"),
        "float": ((int, float), "a number"),
        "boolean": ((bool,), "true or false"),
        WarmupSteps.name: ((int, str), "a number of steps or auto"),
        Percentage.name: ((int, float, str), 'a number, or a percentage such as "90%"'),
    }
    if isinstance(option.type, Numbers):
        kinds["numbers"] = ((int, str, list), "a number, or a list of them")
    types, name = kinds["boolean"] if option.is_flag else kinds.get(option.type.name, ((str,), "a string"))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return f"expected {name}"
    try:
        option.type.convert(value, option, context)
    except click.BadParameter as error:
        return error.message
    return None
