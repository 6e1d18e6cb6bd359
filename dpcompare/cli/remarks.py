"""The remarks on the runs of a study; in short at most three lines, and how many more there are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from dpcompare.experiments.comparison import Comparison
from dpcompare.system.terminal_text import pluralize

MOST_REMARKS = 3


def remarks(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """(kind, arm, sentence) of each, those that cast most doubt on the figures first."""
    for row in comparison.arms:
        if row.scaling and row.scaling.suspicious:
            yield "SUSPICIOUS", row.name, "its efficiency is above 105%"
    for row in comparison.arms:
        yield from ((warning.kind, row.name, warning.sentence) for warning in row.warnings)
    for row in comparison.arms:
        yield from (("OUTLIERS", row.name, outlier) for outlier in row.outliers)
        yield from (("RUN AGAIN", row.name, why) for why in row.repeated)


def all_remarks(comparison: Comparison) -> list[str]:
    """A line for each."""
    return [f"{kind} {arm}: {sentence}" for kind, arm, sentence in remarks(comparison)]


def short_remarks(comparison: Comparison, width: int | None) -> list[str]:
    """A line for each kind, MOST_REMARKS at most, then a line that counts the others.

    Args:
        comparison: any.
        width: characters of a line, at which a remark is cut; None: it is not.
    """
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for kind, arm, sentence in remarks(comparison):
        by_kind.setdefault(kind, []).append((arm, sentence))
    lines = []
    for kind, found in list(by_kind.items())[:MOST_REMARKS]:
        arm, sentence = found[0]
        line = f"{kind} {arm}: {sentence}"
        if len(found) > 1:
            line = f"{kind} {pluralize(len(found), 'time')}, such as {arm}: {sentence}"
        lines.append(line if width is None else textwrap.shorten(line, width, placeholder=" ..."))
    others = {kind: len(found) for kind, found in list(by_kind.items())[MOST_REMARKS:]}
    if others:
        counted = ", ".join(f"{kind} {count}" for kind, count in others.items())
        lines.append(f"{pluralize(sum(others.values()), 'more remark')} ({counted}), see --full")
    return lines
