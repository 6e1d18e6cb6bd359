"""Documents in JSON, and the numbers that a figure in one can be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from dpcompare.errors import OtherFormatError, RequestError
from dpcompare.system.files import no_link

MOST = 1e18
"""Above any duration, energy or rate; what is scaled, squared or divided by stays finite. Messages print it whole."""
LARGEST_INTEGER = 2**63 - 1
"""The largest integer that most programs that read results have; far larger ones are no floats, and their quotients an
OverflowError."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
"""Any number, such as a difference of two readings of a clock that is set meanwhile."""
Measured = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
"""A duration, an energy or a part."""
Duration = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]
"""A duration of what takes some time on any clock."""
Rate = Annotated[float, Field(ge=1 / MOST, le=MOST, allow_inf_nan=False)]
"""Images per second: of no images in a second there is no result."""
Norm = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A norm, such as a gradient's, which is as large as its type allows if a training explodes."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A part of a whole."""
Integer = Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
"""Any of them, such as a difference of two readings of a counter."""
Count = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Number = Annotated[int, Field(ge=1, le=LARGEST_INTEGER)]
"""A number of things of which there is at least one."""


D = TypeVar("D", bound=BaseModel)


def write_document(document: BaseModel, path: Path) -> None:
    """Write a file whose readers find the old content or the new one, never half of it."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed
        with temporary.open("x") as file:  # not what somebody else has put there, such as a link
            file.write(document.model_dump_json(indent=2) + "\n")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class _Format(BaseModel):
    """What every document with a format says of itself, in any format."""

    format: int = 1
    """The first format has no number."""
    dpcompare_version: str = "of an unknown version"


def read_document(model: type[D], path: Path, *, kind: str, expected: str, format_number: int | None = None) -> D:
    """Read a document.

    Args:
        model: what it holds.
        path: the file.
        kind: what the file is to be, such as `a study`.
        expected: what its directory should have been, such as `the directory of a study`.
        format_number: the only format that is read, where documents of this kind have one.

    Raises:
        OtherFormatError: another version of dpcompare wrote it, in another format.
        RequestError: it is not there, or is something else.
    """
    try:
        with open(path, opener=no_link) as file:
            content = file.read()
        if format_number is not None:
            _require_format(_Format.model_validate_json(content), format_number, path)
        return model.model_validate_json(content)
    except OSError as error:
        raise RequestError(
            f"{str(path.parent)!r} holds no readable {path.name} ({error.strerror}); expected {expected}"
        ) from None
    except ValidationError as error:
        _refuse_unknown_fields(error, path)
        raise RequestError(f"{str(path)!r} is not {kind}: {_problems(error)}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{str(path)!r} is not {kind}: {error}") from None


MOST_PROBLEMS = 3


def _problems(error: ValidationError) -> str:
    """The first problems of a file, in one line."""
    each = [": ".join(filter(None, (".".join(map(str, one["loc"])), _message(one)))) for one in error.errors()]
    more = [f"{len(each) - MOST_PROBLEMS} more"] if len(each) > MOST_PROBLEMS else []
    return "; ".join(each[:MOST_PROBLEMS] + more)


def _message(problem: ErrorDetails) -> str:
    return problem["msg"].removeprefix("Value error, ")


def _refuse_unknown_fields(error: ValidationError, path: Path) -> None:
    """Say of a file with fields that this version does not know that another version wrote it."""
    unknown = [".".join(map(str, each["loc"])) for each in error.errors() if each["type"] == "extra_forbidden"]
    if unknown:
        raise OtherFormatError(
            f"{str(path)!r} has fields that this version of dpcompare does not know ({', '.join(unknown)}): another "
            "version wrote it; use that one, or start again"
        ) from None


def _require_format(found: _Format, expected: int, path: Path) -> None:
    if found.format != expected:
        raise OtherFormatError(
            f"{str(path)!r} has format {found.format}, expected {expected}; dpcompare {found.dpcompare_version} wrote "
            "it: read it with that version, or run again"
        )
