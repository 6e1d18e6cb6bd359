"""The explanation of a run as text and as Markdown; both show the same digits."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from dpcompare.projection.explanation import WORDS, Explanation, PartRow
from dpcompare.report.formats import escaped, figure
from dpcompare.report.text import NARROWEST, WIDEST, aligned, filled
from dpcompare.system.terminal_text import joined

HEADS = ("part of the step", "share", "interval", "ms", "floor, ms")


def as_text(explanation: Explanation, width: int) -> str:
    """The verdict, a table of the parts, and what would help.

    Args:
        explanation: any.
        width: characters of a line; below NARROWEST lines are longer than it.
    """
    width = max(NARROWEST, min(width, WIDEST))
    blocks = [
        filled([_measured(explanation), explanation.verdict], width),
        aligned([HEADS, *map(_cells, explanation.parts)]),
        filled(list(_sentences(explanation)), width),
    ]
    helps = [
        "\n".join([textwrap.indent(filled([line], width - 2), "  "), *([f"    {command}"] if command else [])])
        for line, command in _remedies(explanation)
    ]
    blocks.append("\n".join(["what would help:", *helps]))
    return "\n\n".join(block for block in blocks if block) + "\n"


def as_markdown(explanation: Explanation) -> str:
    """The same."""
    lines = [f"# {escaped(explanation.run)}", "", escaped(_measured(explanation)), ""]
    lines += [f"**{escaped(explanation.verdict)}**", "", "| " + " | ".join((*HEADS, "what it is")) + " |"]
    lines += ["|---|" + "--:|" * (len(HEADS) - 1) + "---|"]
    lines += ["| " + " | ".join((*_cells(row), escaped(row.meaning))) + " |" for row in explanation.parts]
    lines += ["", *(f"- {escaped(sentence)}" for sentence in _sentences(explanation))]
    lines += ["", "What would help:", ""]
    for line, command in _remedies(explanation):
        lines.append(f"- {escaped(line)}" + (f": `{command}`" if command else ""))
    return "\n".join(lines) + "\n"


def _measured(explanation: Explanation) -> str:
    return (
        f"{explanation.run} · {explanation.workload} · {explanation.devices} · a step of "
        f"{explanation.step_milliseconds:.3g} ms, {explanation.images_per_second:.1f} images/s"
    )


def _cells(row: PartRow) -> tuple[str, ...]:
    return (
        ("of which " if row.part == "sharing" else "") + row.words + (" *" if row.stands_out else ""),
        row.share_in_words,
        row.interval_in_words,
        f"{row.milliseconds_shown:.3g}",
        figure(row.floor_milliseconds, "{:.3g}"),
    )


def _sentences(explanation: Explanation) -> Iterator[str]:
    if explanation.confidence:
        intervals = f"{explanation.confidence} intervals over {explanation.rounds} rounds"
        yield f"{intervals}; differences are taken within each round."
    if cut := [row.words for row in explanation.parts if row.is_cut]:
        yield f"Noise between the runs goes below 0% or above 100% of a step in {joined(cut)}, which is cut there."
    yield from (f"{row.words} floor: {row.floor}." for row in explanation.parts if row.floor)
    yield from ([explanation.slowest] if explanation.slowest else [])
    if explanation.speedup is not None:
        yield (
            f"Without input, all devices together train {explanation.speedup:.2f} times as many images per second as "
            "one of them alone."
        )
    for reason, parts in _by_reason(explanation).items():
        yield f"Not measured: {', '.join(parts)} ({reason})."
    yield from (warning for warning in explanation.warnings if warning not in explanation.verdict)


def _by_reason(explanation: Explanation) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part, reason in explanation.unmeasured.items():
        found.setdefault(reason, []).append(WORDS[part])
    return found


def _remedies(explanation: Explanation) -> Iterator[tuple[str, str | None]]:
    for remedy in explanation.remedies:
        if remedy.speedup is None:
            gain = "Only a trial can show by how much"
        else:
            size = f"{remedy.speedup:.2f} times as many images per second"
            gain = f"At most {size}" if remedy.at_most else f"Predicted: {size}"
        yield f"{remedy.words}. {gain}", remedy.command
