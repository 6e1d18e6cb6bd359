"""The digest of the rows that a training step received: the same for every division of a global batch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_BYTES = 8
MODULUS: int = 2 ** (8 * _BYTES)


def digest_of_rows(arrays: Mapping[str, npt.NDArray[Any]], global_count: int) -> int:
    """The sum, modulo MODULUS, of a hash of each row that counts.

    A sum has no order: micro-batches, replicas and processes may be added in any.

    Args:
        arrays: what a step received, by name, a row per sample; `weights` is 0 for the rows of padding, which are
            left out.
        global_count: what the sum of losses is divided by; part of every hash.
    """
    total = 0
    for row in np.flatnonzero(arrays["weights"]):
        hashed = hashlib.blake2b(str(global_count).encode(), digest_size=_BYTES)
        for name in sorted(arrays):
            hashed.update(arrays[name][row].tobytes())
        total += int.from_bytes(hashed.digest(), "little")
    return total % MODULUS


def combined(digests: list[int]) -> str:
    """The digest of all rows of which these are parts, in hexadecimal."""
    return f"{sum(digests) % MODULUS:0{2 * _BYTES}x}"
