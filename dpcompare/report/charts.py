"""What all plots share: sizes, colours and dashes of arms, and how a chart becomes SVG and PNG without a browser."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcompare.errors import RequestError
from dpcompare.experiments.comparison import ArmRow
from dpcompare.system.python_environment import import_extra

if TYPE_CHECKING:
    import altair

WIDTH = 380
"""Of a plot without its labels: small, so that on a phone its text stays legible; the page enlarges it elsewhere."""
# After Okabe and Ito, for any kind of colour blindness; light ones are darker, for white pages. Dashes help in print.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#9F6B00", "#359AD6"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [1, 3]]
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


def load_altair() -> Any:
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


def as_svg(plot: Plot) -> str:
    """The plot as an SVG document with INK as its text colour."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_styled(plot, INK)))


def write_files(plots: list[Plot], folder: Path) -> None:
    """NAME.svg and NAME.png of every plot, in dark ink on white."""
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        spec = _styled(plot, "#1b1b1b", background="white")
        (folder / f"{plot.name}.svg").write_text(vl_convert.vegalite_to_svg(spec))
        (folder / f"{plot.name}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=2))


def _styled(plot: Plot, ink: str, background: str | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = plot.chart.to_dict()
    axis = {
        "labelColor": ink, "titleColor": ink, "domainColor": ink, "tickColor": ink, "gridColor": ink,
        "gridOpacity": 0.15, "domainOpacity": 0.4, "tickOpacity": 0.4, "labelFontSize": 13, "titleFontSize": 13,
        "titleFontWeight": "normal", "labelLimit": 320, "labelOverlap": True, "tickCount": 6,
    }  # fmt: skip
    # Text is measured here and drawn by the reader's browser, whose font may be wider.
    spec["padding"] = {"left": 32, "right": 12, "top": 4, "bottom": 4}
    spec["config"] = {
        "background": background,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {
            "labelColor": ink,
            "titleColor": ink,
            "labelFontSize": 13,
            "labelLimit": 400,
            "symbolStrokeWidth": 2,
            "columnPadding": 40,
        },
        "font": "sans-serif",
    }
    return spec


def colour_of_arms(alt: Any, names: list[str], arms: list[ArmRow], *, legend: bool = True) -> Any:
    """The colour of each arm, which is the same in every plot of a page; and of names that are no arms."""
    places = _places(names, arms)
    colours = [COLOURS[places[name] % len(COLOURS)] for name in names]
    look = alt.Legend(title=None, orient="top", columns=2, direction="horizontal") if legend else None
    return alt.Color("arm:N", scale=alt.Scale(domain=names, range=colours), legend=look)


def dash_of_arms(alt: Any, names: list[str], arms: list[ArmRow]) -> Any:
    """The dashes of each arm, by which lines are told apart in print."""
    places = _places(names, arms).values()
    dashes = [DASHES[(place // len(COLOURS) + place) % len(DASHES)] for place in places]
    return alt.StrokeDash("arm:N", scale=alt.Scale(domain=names, range=dashes), legend=None)


def _places(names: list[str], arms: list[ArmRow]) -> dict[str, int]:
    among = {row.name: index for index, row in enumerate(arms)}
    return {name: among.get(name, index) for index, name in enumerate(names)}
