"""The validation that all configs share, and its errors as a user reads them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.python_environment import is_custom


def one_of(what: str, known: Iterable[str], *, or_custom: bool = False) -> Callable[[str], str]:
    """A validator of a name.

    Args:
        what: the kind of thing that is named, for the error.
        known: the names that are accepted.
        or_custom: whether `package.module:NAME` is accepted too.
    """
    names = tuple(known)

    def check(received: str) -> str:
        if received not in names and not (or_custom and is_custom(received)):
            hint = did_you_mean(received, names)
            custom = f", or a custom {what} as package.module:NAME" if or_custom else ""
            raise ValueError(f"unknown {what} {received!r}; expected one of {', '.join(names)}{custom}.{hint}")
        return received

    return check


def raise_problems(problems: list[str]) -> None:
    """Raise one ValueError that names all problems, if there are any."""
    if problems:
        raise ValueError("; ".join(problems))


def in_several_lines(value: Any, name: str) -> Iterator[str]:
    """A problem for every text in a value that has control characters, or is no text in UTF-8.

    Values end up in scripts, manifests and JSON: a line break in one of them would begin a line of its own there.
    """
    if isinstance(value, (str, PurePath)):
        if any(unicodedata.category(character) in _NOT_IN_ONE_LINE for character in str(value)):
            yield f"{name}: received {str(value)!r}; expected text in one line, of characters that can be shown"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from in_several_lines(key, name)
            yield from in_several_lines(each, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from in_several_lines(each, name)


_NOT_IN_ONE_LINE = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, lone surrogates (bytes that are not UTF-8), and separators."""


def require_one_line(path: PurePath, what: str) -> None:
    """Raise RequestError where the name of a file or folder has control characters or is not UTF-8."""
    for problem in in_several_lines(path, what):
        raise RequestError(problem)


class Config(BaseModel):
    """A part of a config: frozen, without unknown fields, and refused as the command line refuses it.

    Raises:
        RequestError: one line per problem, each named by its field.
    """

    # JSON has neither infinity nor NaN: a config with one could never be read again.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RequestError("\n".join(_describe(each, type(self).model_fields) for each in error.errors())) from None
        except UnicodeEncodeError:  # pydantic cannot say what is wrong with a text that is not UTF-8
            raise RequestError("\n".join(p for name in values for p in in_several_lines(values[name], name))) from None

    # A model that holds this one must not call it, or the places of problems in a document would be lost.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _describe(error: Any, known: Iterable[str]) -> str:
    field = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{field} is required"
    if error["type"] == "extra_forbidden":
        return f"{field} is unknown, received {error['input']!r}.{did_you_mean(field, known)}"
    message: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    if not message.startswith(_SHOULD_BE):
        return f"{field}: received {error['input']!r}: {message[0].lower()}{message[1:]}"
    expected = message.removeprefix(_SHOULD_BE)
    for theirs, ours in _BOUNDS.items():
        expected = expected.replace(theirs, ours)
    return f"{field}: received {error['input']!r}, expected {expected}"


_SHOULD_BE = "Input should be "
_BOUNDS = {
    **{"greater than or equal to": "at least", "less than or equal to": "at most"},
    **{"greater than": "a number above", "less than": "a number below"},
}
"""pydantic's words -> shorter ones."""
