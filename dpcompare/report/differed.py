"""The difference between two runs, part by part, as text and as Markdown; both show the same digits."""

from __future__ import annotations

from collections.abc import Iterator

from dpcompare.projection.difference import Difference, DifferenceRow, OperatorRow
from dpcompare.projection.explanation import MEANINGS
from dpcompare.report.formats import escaped
from dpcompare.report.text import NARROWEST, WIDEST, aligned, filled
from dpcompare.system.terminal_text import pluralize

STEP = "a step"
LONGEST_NAME = 50
OPERATOR_HEADS = ("operator, ms of a traced step", "A", "B", "B - A")


def as_text(difference: Difference, width: int) -> str:
    """The verdict, a table of the parts, and what has disturbed the runs.

    Args:
        difference: any.
        width: characters of a line; below NARROWEST lines are longer than it.
    """
    width = max(NARROWEST, min(width, WIDEST))
    arms = [f"A: {difference.first}", f"B: {difference.second}"]
    blocks = [
        filled([_measured(difference), difference.verdict], width),
        filled(arms, width),
        aligned([("part of the step, ms", "A", "B", "B - A", "interval"), *_rows(difference)]),
        filled(list(_sentences(difference)), width),
        aligned([OPERATOR_HEADS, *map(_operator_cells, difference.operators)]) if difference.operators else "",
        filled(list(_of_traces(difference)), width),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def as_markdown(difference: Difference) -> str:
    """The same, with what each part is."""
    heads = ("part of the step, ms", difference.first, difference.second, "difference", "interval", "what it is")
    meanings = [MEANINGS[row.part] if row.part else "" for row in difference.parts]
    lines = [f"# {escaped(difference.second)} against {escaped(difference.first)}", "", escaped(_measured(difference))]
    lines += ["", f"**{escaped(difference.verdict)}**", "", f"| {' | '.join(map(escaped, heads))} |"]
    lines += ["|---|" + "--:|" * (len(heads) - 2) + "---|"]
    for row, meaning in zip(_rows(difference), [*meanings, "the whole"], strict=True):
        lines.append(f"| {' | '.join((*row, escaped(meaning)))} |")
    lines += ["", *(f"- {escaped(sentence)}" for sentence in _sentences(difference))]
    if difference.operators:
        lines += ["", f"| {' | '.join(OPERATOR_HEADS)} |", "|---|--:|--:|--:|"]
        lines += [f"| {' | '.join(map(escaped, _operator_cells(row)))} |" for row in difference.operators]
    lines += [line for sentence in _of_traces(difference) for line in ("", escaped(sentence))]
    return "\n".join(lines) + "\n"


def _measured(difference: Difference) -> str:
    return f"{difference.workload} · {difference.devices}"


def _rows(difference: Difference) -> Iterator[tuple[str, ...]]:
    """The cells of all parts, and of the step that they add up to."""
    yield from (_cells(row, row.words) for row in difference.parts)
    yield _cells(difference.step, STEP)


def _cells(row: DifferenceRow, words: str) -> tuple[str, ...]:
    interval = "-" if row.low is None else f"{row.low:+.3g} to {row.high:+.3g}"
    shown = f"{row.milliseconds:+.3g}"
    return (
        words + (" *" if row.is_shown else ""),
        *map(_figure, (row.first_milliseconds, row.second_milliseconds)),
        shown,
        interval,
    )


def _figure(milliseconds: float) -> str:
    return f"{milliseconds:.3g}"


def shorten(name: str) -> str:
    """The beginning of a name: those of kernels of a GPU have hundreds of characters."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."


def _operator_cells(row: OperatorRow) -> tuple[str, ...]:
    figures = (f"{row.first_milliseconds:.3g}", f"{row.second_milliseconds:.3g}", f"{row.milliseconds:+.3g}")
    return shorten(row.name), *figures


def _of_traces(difference: Difference) -> Iterator[str]:
    if difference.operators:
        yield (
            "Operator times are from the traced steps of the first process, without the operators that they call. "
            "Tracing slows steps down, so nothing is claimed."
        )
    if difference.without_operators:
        yield f"No operators: {difference.without_operators}."


def _sentences(difference: Difference) -> Iterator[str]:
    if difference.confidence:
        yield (
            f"{difference.confidence} intervals over {pluralize(difference.rounds, 'round')}; differences are taken "
            "within each round, and * marks those that are shown."
        )
    yield "The parts add up to the step; each is what leaving it out saves, which noise can take below 0."
    if difference.unlike:
        yield f"A and B also differ in settings, which is part of the difference: {', '.join(difference.unlike)}."
    yield from (warning for warning in difference.warnings if warning not in difference.verdict)
