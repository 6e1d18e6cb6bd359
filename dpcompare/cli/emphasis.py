"""The words of a verdict in colour, and the headline in bold, on a terminal that shows them."""

from __future__ import annotations

from rich.text import Text

from dpcompare.report.remarks import MARKS

_RED = ("FAILED", "FAIL", "NOT COMPARABLE", "SUSPICIOUS", "do not rely on this")
_YELLOW = ("FIRST LOOK", "PARTIAL", *(kind for kind in MARKS if kind not in _RED))
VERDICTS = {
    rf"\b({'|'.join(_RED)})\b": "bold red",
    rf"\b({'|'.join(_YELLOW)})\b": "yellow",
    r"\b([Nn]o difference( in \w+)? shown|too few rounds|too short|Inconclusive)\b": "yellow",
    r"\bNo comparable pair .*?shows a difference\b": "yellow",
    r"(?<!NOT )\bCOMPARABLE\b|\bpass\b|[\d.]+ times as fast\b": "green",
}
"""Pattern -> style; colours are of the sixteen that every terminal has."""


def emphasised(text: str, bold: str = "") -> Text:
    """Lines with their verdicts in colour.

    Args:
        text: one or several lines.
        bold: a part of it.
    """
    styled = Text(text)
    if bold:
        start = text.index(bold)
        styled.stylize("bold", start, start + len(bold))
    for pattern, style in VERDICTS.items():
        styled.highlight_regex(pattern, style)
    return styled
