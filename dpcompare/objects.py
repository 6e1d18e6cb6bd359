"""Objects of this process that are given where a name is expected: models and datasets that cannot be imported."""

from __future__ import annotations

import re
from typing import Any


def name_of(given: Any, kind: str) -> str:
    """The name `dpcompare.objects:NAME` under which this process finds an object from now on.

    Processes that name the same objects in the same order give them the same names.
    """
    known = globals()
    own = getattr(given, "__name__", type(given).__name__)
    readable = f"{kind}_{re.sub(r'[^A-Za-z0-9_]', '_', own)}"
    name, number = readable, 1
    while name in known and known[name] is not given:
        number += 1
        name = f"{readable}_{number}"
    known[name] = given
    return f"{__name__}:{name}"
