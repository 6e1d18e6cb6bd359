"""The validation that all configs share, and its errors as a user reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.import_path import is_custom


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


def request(kind: type[BaseModel], /, **values: Any) -> Any:
    """Build a config from a user's values.

    Raises:
        RequestError: one line per problem, each named by its field.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        raise RequestError("\n".join(map(_describe, error.errors()))) from None


def _describe(error: Any) -> str:
    field = ".".join(map(str, error["loc"]))
    message: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    return f"{field}: {message[0].lower()}{message[1:]}, received {error['input']!r}"
