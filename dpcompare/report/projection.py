"""A projection as text, Markdown and JSON; every format shows the same digits, each called predicted."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dpcompare.projection.document import PredictedArm, PredictedPoint, Projection, Range
from dpcompare.projection.measured import NO_LIMIT
from dpcompare.report.formats import escaped, figure
from dpcompare.system.terminal_text import pluralize

TITLE = "Predicted, not measured"


def table(arm: PredictedArm) -> list[list[str]]:
    """A title row, and a row per cluster; figures are in their columns as every format shows them."""
    with_price = any(point.dollars_per_million_images is not None for point in arm.points)
    titles = [
        "nodes", "devices", "predicted images/s", "range", "predicted efficiency", "range", "step ms", "exchange ms",
        "waiting ms",
    ]  # fmt: skip
    if any(point.step_parts_ms["input"] for point in arm.points):
        titles.append("input ms")
    if any(point.fraction_training < 1 for point in arm.points):
        titles.append("time in steps")
    rows = [[*titles, *(["predicted $ per million images"] if with_price else [])]]
    for point in arm.points:
        parts = point.step_parts_ms
        row = [
            f"{point.nodes:,}{'*' if point.extrapolated else ''}",
            f"{point.devices:,}",
            f"{point.images_per_second.typical:,.1f}",
            _between(point.images_per_second, "{:,.1f}"),
            f"{point.efficiency.typical:.0%}",
            _between(point.efficiency, "{:.0%}"),
            f"{point.step_ms:,.1f}",
            f"{parts['exchange']:,.1f}",
            f"{parts['waiting for the slowest']:,.1f}",
        ]
        row += [f"{parts['input']:,.1f}"] if "input ms" in titles else []
        row += [f"{point.fraction_training:.0%}"] if "time in steps" in titles else []
        rows.append([*row, *([figure(point.dollars_per_million_images, "{:,.2f}")] if with_price else [])])
    return rows


def _between(shown: Range, form: str) -> str:
    return f"{form.format(shown.low)} to {form.format(shown.high)}"


def notes(arm: PredictedArm) -> Iterator[str]:
    """What stands below the table of an arm: where it stops paying, goals, what was measured and what is assumed."""
    if arm.misfit:
        yield f"{arm.name}: {arm.misfit}."
    yield arm.sentence
    yield from (f"{goal.sentence}." for goal in arm.goals)
    measured = f"measured on {pluralize(arm.measured_nodes, 'node')}: {arm.computing_ms:.1f} ms without exchange"
    if arm.measured_step_ms is not None and arm.refitted_step_ms is not None:
        measured += f", {arm.measured_step_ms:.1f} ms with it (the fitted model gives {arm.refitted_step_ms:.1f})"
    yield (
        f"{measured}, {arm.exchanged_bytes / 1e6:.1f} MB exchanged in each step, {arm.copying_ns_per_byte:.2f} ns of "
        f"copying per byte, a spread of {arm.spread:.1%} between steps and processes."
    )
    yield from (f"Assumed: {sentence}." for sentence in arm.assumed)
    yield from (f"Left out: {sentence}." for sentence in arm.left_out)


def headline(projection: Projection) -> str:
    """What was asked for, in a line."""
    devices = projection.devices_per_node
    parts = [f"{pluralize(len(projection.arms), 'arm')} over {projection.link} between nodes"]
    parts += [f"{projection.intra_link} within them"] if projection.intra_link != NO_LIMIT.name else []
    parts += [f"{pluralize(devices, 'device')} per node"] if devices else []
    return f"{TITLE}: {', '.join(parts)}"


def closing(projection: Projection) -> Iterator[str]:
    """What holds for all arms, the fairness verdict, and what was left out."""
    if any(point.extrapolated for point in _points(projection)):
        yield "* extrapolated: beyond the measurements with which the model was compared"
    yield from projection.sentences
    if len(projection.arms) > 1:
        yield f"Fairness: {projection.summary}."
    yield from (f"Left out: {name}: {why}." for name, why in projection.left_out.items())


def _points(projection: Projection) -> Iterator[PredictedPoint]:
    for arm in projection.arms:
        yield from arm.points


def aligned(arm: PredictedArm) -> Iterator[str]:
    """The table for a terminal, a line per row."""
    rows = table(arm)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  " + "  ".join(cells).rstrip()


def as_markdown(projection: Projection) -> str:
    """A table per arm, and every sentence."""
    lines = [f"# {escaped(headline(projection))}"]
    for arm in projection.arms:
        titles, *rows = table(arm)
        lines += ["", f"## {escaped(arm.name)}", "", "| " + " | ".join(titles) + " |", "|" + "--:|" * len(titles)]
        lines += ["| " + " | ".join(map(escaped, row)) + " |" for row in rows]
        lines += ["", *(f"- {escaped(note)}" for note in notes(arm))]
    return "\n".join([*lines, "", *(f"- {escaped(line)}" for line in closing(projection))]) + "\n"


def as_json(projection: Projection) -> str:
    """The projection with all its fields."""
    return json.dumps(projection.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
