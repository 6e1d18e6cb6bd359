"""The reference of the Python API, made from the docstrings of what `import dpcompare` offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dpcompare

SECTIONS: Mapping[str, Sequence[str]] = {
    "Studies": ("compare", "load", "Arm", "Study", "Report"),
    "Proofs": ("verify", "Verification", "Check", "explain"),
    "A loop of your own": (
        *(
            "backend",
            "Training",
            "Batch",
            "Evaluation",
            "batches",
            "run_script",
            "ScriptRun",
            "verify_saved",
            "SavedVerification",
        ),
        *("CustomModel", "CustomOptimizer"),
    ),
    "Single runs": ("run", "resume", "RunConfig", "RunResult"),
    "What is trained, and where": ("Workload", "Cluster", "Node"),
    "Errors": ("RequestError", "RunFailedError"),
}
"""Title -> public names."""


def api_reference() -> str:
    """The page in Markdown, with a directive of mkdocstrings for each name."""
    parts = ["# Python API", "All names of `import dpcompare as dp`. [From Python](python.md) shows them at work."]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        parts += [_directive(name) for name in names]
    return "\n\n".join(parts) + "\n"


def _directive(name: str) -> str:
    public = getattr(dpcompare, name)
    options = f"    options:\n      heading: dpcompare.{name}\n      toc_label: {name}"
    return f"::: {public.__module__}.{public.__qualname__}\n{options}"
