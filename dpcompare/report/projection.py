"""A projection as text, Markdown and JSON; every format shows the same digits, each called predicted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

from dpcompare.projection.document import PredictedArm, PredictedPoint, Projection, Range
from dpcompare.projection.measured import NO_LIMIT
from dpcompare.report.formats import escaped, figure
from dpcompare.report.text import folded, right_aligned
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
            three_digits(point.images_per_second.typical),
            _between(point.images_per_second, three_digits),
            f"{point.efficiency.typical:.0%}",
            _between(point.efficiency, "{:.0%}".format),
            three_digits(point.step_ms),
            three_digits(parts["exchange"]),
            three_digits(parts["waiting for the slowest"]),
        ]
        row += [three_digits(parts["input"])] if "input ms" in titles else []
        row += [f"{point.fraction_training:.0%}"] if "time in steps" in titles else []
        rows.append([*row, *([figure(point.dollars_per_million_images, "{:,.2f}")] if with_price else [])])
    return rows


def three_digits(value: float) -> str:
    """`807,000`, `11,200`, `2.93`: no prediction is known to more digits."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(float(f"{value:.2e}"))))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def _between(shown: Range, form: Callable[[float], str]) -> str:
    """Both ends, or one where they do not differ."""
    return " to ".join(dict.fromkeys((form(shown.low), form(shown.high))))


def warning(arm: PredictedArm) -> Iterator[str]:
    """What stands above the table of an arm: that the model misses what was measured."""
    if arm.misfit:
        yield f"{arm.name}: {arm.misfit}."


def notes(arm: PredictedArm) -> Iterator[str]:
    """All that is said of an arm."""
    yield from warning(arm)
    yield from explanations(arm)


def explanations(arm: PredictedArm) -> Iterator[str]:
    """What stands below the table of an arm: where it stops paying, goals, what was measured and what is assumed."""
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


def aligned(arm: PredictedArm, width: int) -> Iterator[str]:
    """The table for a terminal; columns that do not fit stand in further tables below, next to the nodes."""
    for line in folded([right_aligned(column) for column in zip(*table(arm), strict=True)], width - 2):
        yield f"  {line}".rstrip()


def as_markdown(projection: Projection) -> str:
    """A table per arm, and every sentence."""
    lines = [f"# {escaped(headline(projection))}"]
    for arm in projection.arms:
        titles, *rows = table(arm)
        above = [f"- {escaped(line)}" for line in warning(arm)]
        lines += ["", f"## {escaped(arm.name)}", *([""] if above else []), *above]
        lines += ["", "| " + " | ".join(titles) + " |", "|" + "--:|" * len(titles)]
        lines += ["| " + " | ".join(map(escaped, row)) + " |" for row in rows]
        lines += ["", *(f"- {escaped(line)}" for line in explanations(arm))]
    return "\n".join([*lines, "", *(f"- {escaped(line)}" for line in closing(projection))]) + "\n"


def as_json(projection: Projection) -> str:
    """The projection with all its fields."""
    return json.dumps(projection.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
