"""JSON documents on disk: replaced as a whole, and read with an error that says what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dpcompare.errors import RequestError

D = TypeVar("D", bound=BaseModel)


def write_document(document: BaseModel, path: Path) -> None:
    """Write a file whose readers find the old content or the new one, never half of it."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(document.model_dump_json(indent=2) + "\n")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_document(model: type[D], path: Path, *, kind: str, expected: str) -> D:
    """Read a document.

    Args:
        model: what it holds.
        path: the file.
        kind: what the file is to be, such as `a study`.
        expected: what its directory should have been, such as `the directory of a study`.

    Raises:
        RequestError: it is not there, or is something else.
    """
    try:
        return model.model_validate_json(path.read_text())
    except OSError as error:
        raise RequestError(
            f"{str(path.parent)!r} holds no readable {path.name} ({error.strerror}); expected {expected}"
        ) from None
    except (ValidationError, UnicodeDecodeError) as error:
        raise RequestError(f"{str(path)!r} is not {kind}: {error}") from None
