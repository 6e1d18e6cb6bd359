"""The plots of a projection: predicted speed, efficiency and cost over the nodes, with their ranges."""

from __future__ import annotations

from typing import Any

from dpcompare.projection.document import PredictedPoint, Projection, Range
from dpcompare.report.charts import ARM, COLOURS, Plot, load_altair
from dpcompare.system.terminal_text import joined, pluralize


def projection_plots(projection: Projection) -> list[Plot]:
    """Speed and efficiency of every arm, and the cost of its images where devices have a price.

    Raises:
        RequestError: the libraries that draw are not installed.
    """
    alt = load_altair()
    plots = [
        Plot(
            name="predicted-speed",
            title="Predicted speed",
            explanation=f"Predicted images per second over {projection.link} between nodes. Each band reaches from "
            "high latency and the measured spread between processes to low latency and no more waiting than was "
            "measured."
            f"{_misfits(projection)}",
            chart=_over_nodes(alt, projection, "images_per_second", "predicted images/s", scale="log"),
        ),
        Plot(
            name="predicted-efficiency",
            title="Predicted efficiency",
            explanation=f"Relative to the same devices with no gradient exchange and no waiting.{_misfits(projection)}",
            chart=_over_nodes(alt, projection, "efficiency", "predicted efficiency", scale="linear"),
        ),
    ]
    if any(point.dollars_per_million_images is not None for arm in projection.arms for point in arm.points):
        title = "predicted $ per million images"
        plots.append(
            Plot(
                name="predicted-cost",
                title="Predicted cost",
                explanation="Of a million images, at the price of a device per hour; bands follow from the speed."
                f"{_misfits(projection)}",
                chart=_over_nodes(alt, projection, "dollars_per_million_images", title, scale="log"),
            )
        )
    return plots


def _misfits(projection: Projection) -> str:
    names = [arm.name for arm in projection.arms if arm.misfit]
    return f" Not to be relied on: {joined(names)}, whose measured steps the model is far off." if names else ""


def _over_nodes(alt: Any, projection: Projection, field: str, title: str, *, scale: str) -> Any:
    names = [arm.name for arm in projection.arms]
    data = [
        _row(arm.name, point, shown, field)
        for arm in projection.arms
        for point in arm.points
        if (shown := _shown(point, field)) is not None
    ]
    colour = alt.Color(
        "arm:N",
        scale=alt.Scale(domain=names, range=[COLOURS[index % len(COLOURS)] for index in range(len(names))]),
        legend=alt.Legend(title=None, orient="top", direction="horizontal"),
    )
    nodes = sorted({row["nodes"] for row in data})
    x = alt.X("nodes:Q", title="nodes", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=nodes, format="d"))
    domain = alt.Undefined if scale == "log" else [0, 1]
    y_scale = alt.Scale(type=scale, domain=domain)
    base = alt.Chart(alt.Data(values=data)).encode(x=x, color=colour)
    band = base.mark_area(opacity=0.2).encode(
        y=alt.Y("low:Q", title=title, scale=y_scale), y2="high:Q", description=ARM
    )
    line = base.mark_line(strokeDash=[6, 3]).encode(y=alt.Y("typical:Q", title=title, scale=y_scale), description=ARM)
    points = base.mark_point(filled=True, opacity=1, size=40).encode(
        y=alt.Y("typical:Q", title=title, scale=y_scale), description=alt.Description("text:N")
    )
    return (band + line + points).properties(height=260)


def _shown(point: PredictedPoint, field: str) -> Range | None:
    """The figure of a point with its range; that of the cost follows from the speed's."""
    if field != "dollars_per_million_images":
        found: Range = getattr(point, field)
        return found
    speed, cost = point.images_per_second, point.dollars_per_million_images
    if cost is None or not speed.low:
        return None
    return Range(low=cost * speed.typical / speed.high, typical=cost, high=cost * speed.typical / speed.low)


_FORMS = {"efficiency": "{:.0%}", "images_per_second": "{:,.1f}", "dollars_per_million_images": "${:,.2f}"}


def _row(arm: str, point: PredictedPoint, shown: Range, field: str) -> dict[str, Any]:
    form = _FORMS[field]
    low, typical, high = (form.format(value) for value in (shown.low, shown.typical, shown.high))
    return {
        "arm": arm,
        "nodes": point.nodes,
        "low": max(shown.low, 1e-9),  # a logarithm has none of 0
        "typical": max(shown.typical, 1e-9),
        "high": max(shown.high, 1e-9),
        "text": f"{arm}, {pluralize(point.nodes, 'node')}: predicted {typical} ({low} to {high})",
    }
