"""Colours, sizes and drawing, which all plots share, and the plots over the steps of arms."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dpcompare.errors import RequestError
from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.experiments.comparison import Comparison
from dpcompare.system.python_environment import import_extra
from dpcompare.system.terminal_text import pluralize

if TYPE_CHECKING:
    import altair

COLUMN, PHONE = 992, 380
"""Pixels, labels included, for which a plot is drawn: the column of the page, and the page on a phone."""
TEXT_PIXELS = 13
"""The height of all text."""
LINE_PIXELS = 14
# After Okabe and Ito, for any kind of colour blindness; light ones are darker, for white pages. Dashes help in print.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#9F6B00", "#359AD6"]
SHADES = {
    "torch": [("#D55E00", "#F07F2E"), ("#8A3500", "#FFB98A"), ("#EE8A48", "#B85A1C")],
    "tensorflow": [("#0072B2", "#4BA3DB"), ("#003E66", "#A6D4F2"), ("#55A9E0", "#1F6699")],
    "jax": [("#008F68", "#2FB98F"), ("#005940", "#9BE3CB"), ("#4ABB99", "#137A5A")],
}
"""Framework -> the shades of its hue, one for each of its arms in turn: on white, and on a dark page."""
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [1, 3]]
ARM = "arm:N"
"""The description of a mark without a value of its own: by it a page knows what to leave out with an arm."""
INK = "#010203"
"""Stands for the colour of text; the page replaces it by the colour that follows its light and dark themes."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot, ready to be drawn."""

    name: str
    title: str
    explanation: str
    """How to read it."""
    chart: altair.TopLevelMixin


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The place of a plot in a paper."""

    width_inches: float = 6.5
    """Labels included."""
    text_points: float = 9.0

    @property
    def pixels(self) -> int:
        """The width for which the plot is drawn, so that its text has the size asked for."""
        return round(self.width_inches * 72 * TEXT_PIXELS / self.text_points)


def load_altair() -> ModuleType:
    """The library that charts are made with.

    Raises:
        RequestError: it is not installed, or the one that draws.
    """
    _require_address_space()
    import_extra("vl_convert", extra="report", needed_by="drawing")  # what altair draws with
    return import_extra("altair", extra="report", needed_by="drawing")


LEAST_ADDRESS_SPACE = 96 * 2**30
"""Bytes: V8, the JavaScript engine that draws, reserves that much and uses little; at 64 GiB it aborts the process."""


def _require_address_space() -> None:
    """Refuse a limit below which this process would be aborted without a word."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESS_SPACE:
        raise RequestError(
            f"drawing plots needs {LEAST_ADDRESS_SPACE >> 30} GiB of address space, and a limit allows "
            f"{limit / 2**30:.1f} GiB; lift it (`ulimit -v unlimited`), or ask for a format without plots"
        )


def as_svg(plot: Plot, width: int) -> str:
    """The plot as an SVG document of so many pixels, with INK as its text colour."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_styled(plot, INK, width)))


def write_files(plots: list[Plot], folder: Path, paper: Paper) -> None:
    """NAME.pdf, NAME.svg and NAME.png (300 pixels per inch) of every plot, in dark ink on white."""
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        spec = _styled(plot, "#1b1b1b", paper.pixels, background="white")
        drawn = vl_convert.vegalite_to_svg(spec)
        (folder / f"{plot.name}.svg").write_text(_sized(drawn, paper, "pt"))
        in_points = _sized(drawn, paper, "")  # without a unit: what makes PDF takes a pixel for a point
        (folder / f"{plot.name}.pdf").write_bytes(vl_convert.svg_to_pdf(in_points))
        (folder / f"{plot.name}.png").write_bytes(vl_convert.svg_to_png(in_points, ppi=300))


SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')
"""The size of an SVG as it is drawn, in pixels."""


def _sized(svg: str, paper: Paper, unit: str) -> str:
    """The drawing with its text in the size that is asked for, and so as wide as it is to be."""
    scale = paper.text_points / TEXT_PIXELS
    return SIZE.sub(
        lambda size: f'width="{float(size[1]) * scale:.1f}{unit}" height="{float(size[2]) * scale:.1f}{unit}"',
        svg,
        count=1,
    )


def _styled(plot: Plot, ink: str, width: int, background: str | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = plot.chart.to_dict()
    spec["width"] = width
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    _fold_names(spec, letters=width // 30)
    columns = max(width // 400, 1)
    axis = {
        "labelColor": ink, "titleColor": ink, "domainColor": ink, "tickColor": ink, "gridColor": ink,
        "gridOpacity": 0.15, "domainOpacity": 0.4, "tickOpacity": 0.4, "labelFontSize": TEXT_PIXELS,
        "titleFontSize": TEXT_PIXELS, "titleFontWeight": "normal", "labelLimit": 320, "labelOverlap": True,
        "labelLineHeight": LINE_PIXELS, "tickCount": max(width // 100, 4),
    }  # fmt: skip
    # Text is measured here and drawn by the reader's browser, whose font may be wider.
    spec["padding"] = {"left": width // 24, "right": 12, "top": 4, "bottom": 4}
    spec["config"] = {
        "background": background,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {
            "labelColor": ink,
            "titleColor": ink,
            "labelFontSize": TEXT_PIXELS,
            "labelLimit": 0.6 * width / columns,
            "symbolStrokeWidth": 2,
            "columnPadding": 30,
            "columns": columns,
        },
        "text": {"fontSize": TEXT_PIXELS},
        "font": "sans-serif",
    }
    return spec


def _fold_names(spec: dict[str, Any], letters: int) -> None:
    """Give long names at the y axis several lines, and the rows of a plot the height that these need."""
    layers = list(_layers(spec))
    places = [at for layer in layers if (at := layer.get("encoding", {}).get("y")) and at["type"] == "nominal"]
    if not places:
        return
    field = places[0]["field"]
    rows = [row for layer in layers for row in layer.get("data", {}).get("values", []) if field in row]
    # A pair of arms has a line for each at least.
    folded = {row[field]: [line for part in row[field].split(" / ") for line in wrap(part, letters)] for row in rows}
    for at in places:
        at["axis"] = {"title": None, "labelExpr": f"({json.dumps(folded)})[datum.label]"}
    lines = max(map(len, folded.values()))
    spec["height"]["step"] = max(spec["height"]["step"], lines * LINE_PIXELS + 10)


def _layers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A chart and the layers within it, at any depth."""
    yield spec
    for layer in spec.get("layer", ()):
        yield from _layers(layer)


def colour_of_arms(alt: ModuleType, names: list[str], arms: list[ArmRow], *, legend: bool = True) -> altair.Color:
    """The colour of each arm, which is the same in every plot of a page; and of names that are no arms.

    Arms have the hue of their framework.
    """
    places = _places(names, arms)
    shades = _shades(arms)
    colours = [shades.get(name) or COLOURS[places[name] % len(COLOURS)] for name in names]
    look = alt.Legend(title=None, orient="top", direction="horizontal") if legend else None
    return alt.Color("arm:N", scale=alt.Scale(domain=names, range=colours), legend=look)


def dash_of_arms(alt: Any, names: list[str], arms: list[ArmRow]) -> altair.StrokeDash:
    """The dashes of each arm, by which lines are distinguished in print."""
    places = _places(names, arms).values()
    dashes = [DASHES[(place // len(COLOURS) + place) % len(DASHES)] for place in places]
    return alt.StrokeDash("arm:N", scale=alt.Scale(domain=names, range=dashes), legend=None)


def _shades(arms: list[ArmRow]) -> dict[str, str]:
    """Arm -> its colour: the hue of its framework, in the next of its shades."""
    shades = {framework: cycle(pairs) for framework, pairs in SHADES.items()}
    return {row.name: next(shades[row.framework])[0] for row in arms}


def _places(names: list[str], arms: list[ArmRow]) -> dict[str, int]:
    among = {row.name: index for index, row in enumerate(arms)}
    return {name: among.get(name, index) for index, name in enumerate(names)}


MOST_VALUES_OF_CURVE, MOST_VALUES = 45, 900
"""The most values that can be pointed at, of a curve and of all curves of a plot: a page of many arms stays small."""


def accuracy_over_steps(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    """None where no arm was evaluated more than once in all of its rounds."""
    return _accuracies(arms, "step", "step", "Accuracy over the steps", "")


def accuracy_over_seconds(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    """None where no arm was evaluated more than once in all of its rounds, or no training was timed."""
    explanation = " Seconds are those of training, without evaluations and checkpoints: the median of the rounds."
    for row in arms:
        if untimed := max((point.rounds - point.timed for point in row.accuracy_curve), default=0):
            explanation += f" Those of {row.name} leave out {pluralize(untimed, 'round')} that had to be resumed."
    return _accuracies(arms, "seconds", "seconds of training", "Accuracy over time", explanation)


def _accuracies(arms: list[ArmRow], field: str, axis: str, title: str, explanation: str) -> Plot | None:
    """A line per arm, with the band of its rounds; None where all have but one point."""
    alt = load_altair()
    data = [
        {
            "arm": row.name,
            field: at,
            "accuracy": point.mean,
            "low": point.low,
            "high": point.high,
            "text": f"{row.name}, step {point.step}: accuracy {point.mean:.3f} ({point.low:.3f} to {point.high:.3f}, "
            f"{pluralize(point.rounds, 'round')})",
        }
        for row in arms
        for point in row.accuracy_curve
        if (at := getattr(point, field)) is not None
    ]
    names = list(dict.fromkeys(str(row["arm"]) for row in data))
    if len(data) == len(names):
        return None
    base = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X(f"{field}:Q", title=axis), color=colour_of_arms(alt, names, arms)
    )
    y = alt.Y("accuracy:Q", scale=alt.Scale(zero=False), title="accuracy on the validation split")
    band = base.mark_area(opacity=0.2).encode(
        y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q", description=ARM
    )
    line = base.mark_line(strokeWidth=2).encode(y=y, strokeDash=dash_of_arms(alt, names, arms), description=ARM)
    points = base.mark_point(filled=True, opacity=1, size=40).encode(y=y, description=alt.Description("text:N"))
    chart = band + line + points
    targets = {row.to_target.accuracy for row in arms if row.to_target}
    if len(targets) == 1:
        rule = alt.Chart(alt.Data(values=[{"accuracy": targets.pop()}])).mark_rule(color=INK, strokeDash=[4, 4])
        chart += rule.encode(y="accuracy:Q")
        explanation += " The level line is the accuracy that was to be reached."
    if any(len({each.steps_trained for each in row.rounds_shown if not each.failure}) > 1 for row in arms):
        explanation += " Some rounds ended earlier than others: a curve ends where the first round of its arm does."
    return Plot(
        name=f"accuracy-over-{field}",
        title=title,
        explanation=f"The mean of the rounds of each arm, and the band from the lowest to the highest.{explanation}",
        chart=chart.properties(height=260),
    )


def losses(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    """The training loss of each arm; None where none is finite."""
    alt = load_altair()
    data = [
        {"arm": row.name, "step": step, "loss": loss}
        for row in arms
        for step, loss in zip(row.loss_curve.steps, row.loss_curve.losses, strict=True)
        if loss is not None
    ]
    if not data:
        return None
    names = [row.name for row in arms]
    chart = _curves(alt, data, names, arms, "loss", "training loss")
    return Plot(
        name="losses",
        title="Loss curves",
        explanation="The training loss of every arm in its first completed round. Arms with the same number of "
        "replicas and the same settings start alike; in float32 rounding then drives them apart.",
        chart=chart,
    )


def loss_differences(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    """How far the losses are from those of the first arm of the model; None where there is nothing to compare."""
    alt = load_altair()
    first = {row.model: row for row in reversed(arms)}
    others = [row for row in arms if row is not first[row.model]]
    data = []
    for row in others:
        curve = first[row.model].loss_curve
        reference = dict(zip(curve.steps, curve.losses, strict=True))
        for step, loss in zip(row.loss_curve.steps, row.loss_curve.losses, strict=True):
            other = reference.get(step)
            if loss is not None and other is not None:
                data.append({"arm": row.name, "step": step, "difference": loss - other})
    if not data:
        return None
    subtrahend = arms[0].name if len(first) == 1 else "the first arm of the model"
    title = f"difference from the loss of {subtrahend}"
    chart = _curves(alt, data, [row.name for row in others], arms, "difference", title)
    return Plot(
        name="loss-differences",
        title="Difference of the loss curves",
        explanation=f"The loss of each arm minus that of {subtrahend}. In float32 rounding grows with the steps, "
        "also between two runs of one framework; arms with other numbers of replicas normalise by other batches.",
        chart=chart,
    )


def _curves(
    alt: ModuleType, data: list[dict[str, Any]], names: list[str], arms: list[ArmRow], field: str, title: str
) -> Any:
    base = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X("step:Q", title="step"),
        y=alt.Y(f"{field}:Q", scale=alt.Scale(zero=False), title=title),
        color=colour_of_arms(alt, names, arms),
    )
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=dash_of_arms(alt, names, arms), description=ARM)
    # What a reader can point at: unseen marks on the curve.
    arm_rows = [[row for row in data if row["arm"] == name] for name in names]
    most = min(MOST_VALUES_OF_CURVE, max(MOST_VALUES // len(names), 2))
    marks = [
        row | {"text": f"{row['arm']}, step {row['step']}: {field} {row[field]:.4g}"}
        for rows in arm_rows
        for row in rows[:: -(-len(rows) // most) or 1]
    ]
    values = (
        alt.Chart(alt.Data(values=marks))
        .mark_point(filled=True, opacity=0, size=120)
        .encode(x="step:Q", y=f"{field}:Q", description=alt.Description("text:N"))
    )
    return (lines + values).properties(height=260)
