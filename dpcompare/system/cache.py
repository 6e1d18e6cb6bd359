"""The folder in which prepared inputs are kept."""

from __future__ import annotations

import os
from pathlib import Path

from dpcompare.errors import RequestError
from dpcompare.system.files import expanded


def cache_dir() -> Path:
    """DPCOMPARE_CACHE_DIR, or the user's cache folder.

    Raises:
        RequestError: neither is known.
    """
    from platformdirs import user_cache_path

    if chosen := os.environ.get("DPCOMPARE_CACHE_DIR"):
        return expanded(chosen)
    try:
        return user_cache_path("dpcompare", appauthor=False)
    except RuntimeError:
        raise RequestError(
            "this user has no home directory (HOME is not set), and the cache would be there; expected HOME, or "
            "DPCOMPARE_CACHE_DIR with a folder"
        ) from None
