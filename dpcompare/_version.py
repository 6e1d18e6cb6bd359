"""The release of dpcompare, and which releases measure alike."""

from __future__ import annotations

__version__ = "0.2.0"


def major_minor(version: str) -> str:
    """Results of one such version are comparable."""
    return ".".join(version.split(".")[:2])
