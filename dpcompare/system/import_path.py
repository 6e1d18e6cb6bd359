"""Python objects that a user names as `package.module:NAME`."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from dpcompare.errors import RequestError


def is_custom(name: str) -> bool:
    """Whether a name is `package.module:NAME`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def find_object(name: str, what: str) -> Any:
    """The object of a name, found from the current directory too.

    Raises:
        RequestError: it cannot be imported; `what` it was to be, such as `model`.
    """
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: a folder named torch/ there is not the framework
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a user's module does
        raise RequestError(
            f"{what}: {name!r} cannot be imported ({type(error).__name__}: {error}); expected package.module:NAME that "
            "Python finds from the current directory"
        ) from None
