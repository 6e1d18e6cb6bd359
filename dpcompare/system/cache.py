"""The folder in which prepared inputs are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """DPCOMPARE_CACHE_DIR, or the user's cache folder."""
    from platformdirs import user_cache_path

    chosen = os.environ.get("DPCOMPARE_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else user_cache_path("dpcompare", appauthor=False)
