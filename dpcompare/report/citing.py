"""What a paper says of a study: a paragraph on the methods, the machine and the versions, and how to cite dpcompare."""

from __future__ import annotations

from collections.abc import Iterator

from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.statistics import FALSE_CLAIMS, ROUNDS_TO_TRIM
from dpcompare.system.terminal_text import joined, pluralize

TITLE = "dpcompare: the same model on the same batches in every data-parallel mode of PyTorch, TensorFlow and JAX"
AUTHOR = "The dpcompare developers"
YEAR = 2026


def as_citation(comparison: Comparison) -> str:
    """The paragraph and a BibTeX entry, as plain text."""
    bibtex = (
        "@software{dpcompare,\n"
        f"  title = {{{{{TITLE}}}}},\n"
        f"  author = {{{{{AUTHOR}}}}},\n"
        f"  version = {{{_version(comparison)}}},\n"
        f"  year = {{{YEAR}}},\n"
        "}\n"
    )
    return f"{' '.join(_methods(comparison))}\n\n{bibtex}"


def _version(comparison: Comparison) -> str:
    """Of the dpcompare that measured, which a later one may report."""
    return joined(comparison.measured_by or [comparison.dpcompare_version])


def _methods(comparison: Comparison) -> Iterator[str]:
    arms = [row for row in comparison.arms if row.rounds]
    names = joined([f"{row.name} ({pluralize(row.rounds, 'round')})" for row in arms])
    with_dpcompare = f"with dpcompare {_version(comparison)} ({comparison.measured})"
    if len(arms) == 1:
        yield f"{names} was trained {with_dpcompare}."
    else:
        yield f"{pluralize(len(arms), 'arm')} were compared {with_dpcompare}: {names}."
        yield (
            "Within a round all start from the same initial weights and train on the same batches in the same order, "
            "augmentation included, unless a difference is named here; each run has processes of its own."
        )
    if comparison.order_seed is not None:
        yield (f"Within a round the arms ran one after the other, in an order drawn from seed {comparison.order_seed}.")
    if comparison.partial:
        yield "Rounds of the study are missing."
    yield (
        "The speed of a run is the steady one: images per second of all replicas, by the slowest process, in the "
        "median tenth of the measured steps."
    )
    if comparison.claims:
        trimmed = f", without the largest and the smallest sixth from {pluralize(ROUNDS_TO_TRIM, 'round')} on"
        yield (
            "Two arms are compared by the geometric mean of the ratios of their speeds within rounds"
            f"{trimmed if comparison.repeats >= ROUNDS_TO_TRIM else ''}; all pairs together claim a difference where "
            f"there is none with a probability of at most {FALSE_CLAIMS:.0%}."
        )
    if len(arms) > 1:
        yield _equality(comparison)
    for machine in comparison.machines:
        yield f"Machine: {machine}."
    versions = [row for row in comparison.settings if row.setting == "versions"]
    for found in dict.fromkeys(value for row in versions for value in row.values):
        yield f"Versions: {found}."


def _equality(comparison: Comparison) -> str:
    """What the fairness sheet says."""
    if not comparison.reasons:
        subject = f" The comparison is about {joined(comparison.subject)}." if comparison.subject else ""
        return f"Fairness sheet of all arms: {comparison.summary}.{subject}"
    return f"The arms differ in what must be equal for a comparison of all of them: {joined(comparison.reasons)}."
