"""The reference of the Python API, made from the docstrings of what `import dpcompare` offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dpcompare
from dpcompare.api.saved import SavedCheck
from dpcompare.api.training import LossHandle
from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.experiments.claim_rows import ClaimRow
from dpcompare.projection.difference import Difference
from dpcompare.projection.explanation import Explanation

SECTIONS: Mapping[str, Sequence[str]] = {
    "Studies": ("compare", "gate", "load", "Arm", "Study", "Report"),
    "Proofs": ("verify", "Verification", "Check", "explain", "explain_difference"),
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
RETURNED = (ClaimRow, ArmRow, Explanation, Difference, LossHandle, SavedCheck)
"""Classes that those return; users do not construct them."""


def api_reference() -> str:
    """The page in Markdown, with a directive of mkdocstrings for each name."""
    parts = ["# Python API", "All names of `import dpcompare as dp`. [From Python](python.md) shows them at work."]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        parts += [_directive(getattr(dpcompare, name), f"dpcompare.{name}") for name in names]
    parts.append("## What these return")
    parts += [_directive(returned, returned.__qualname__) for returned in RETURNED]
    return "\n\n".join(parts) + "\n"


def _directive(public: Any, heading: str) -> str:
    options = f"    options:\n      heading: {heading}\n      toc_label: {public.__name__}"
    return f"::: {public.__module__}.{public.__qualname__}\n{options}"
