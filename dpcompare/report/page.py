"""The report as one self-contained page: it opens offline, and its Content-Security-Policy lets it load nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcompare.experiments.comparison import Comparison, SettingRow
from dpcompare.projection.document import Projection
from dpcompare.report import projection as predicted
from dpcompare.report import timelines
from dpcompare.report.answers import answers_of
from dpcompare.report.charts import COLUMN, INK, PHONE, SHADES, SIZE, Plot, as_svg
from dpcompare.report.formats import columns, figure, short_columns
from dpcompare.report.plots import PART_COLOURS, make_plots, run_in_words
from dpcompare.report.projection_plots import projection_plots
from dpcompare.report.remarks import MARKS, remarks_of
from dpcompare.report.text import arms_by_value, within
from dpcompare.system.terminal_text import pluralize, printable

if TYPE_CHECKING:
    from markupsafe import Markup


_FOLDER = files("dpcompare.report")
SECONDS_BETWEEN_LOADS = 10
"""After which a browser loads the page of a running study again."""
LARGEST_MATRIX = 20
"""Classes of a confusion matrix that a page can show."""
MOST_CONFUSED = 15
"""Pairs of classes that a page shows where the matrix is too large for it."""


def as_html(comparison: Comparison, projection: Projection | None = None, *, reloads: bool = False) -> str:
    """The page. Everything that comes from a run is escaped by the template.

    Args:
        comparison: what a study shows.
        projection: what is predicted from it, as a section of its own.
        reloads: whether the study is running, so that a browser loads the page again from time to time.

    Raises:
        RequestError: the libraries that draw are not installed.
    """
    drawn = make_plots(comparison)  # first, since it says what to install
    drawn_predictions = projection_plots(projection) if projection else []
    from markupsafe import Markup

    script = (_FOLDER / "page.js").read_text()
    traced = timelines.traced(comparison.arms)
    return _rendered(
        "page.html.j2",
        comparison=comparison,
        seconds_between_loads=SECONDS_BETWEEN_LOADS if reloads else None,
        answers=answers_of(comparison),
        columns=columns(comparison),
        short_columns=short_columns(comparison),
        definitions=short_columns(comparison) | columns(comparison),
        sheet=_sheet(comparison),
        remarks=remarks_of(comparison),
        marks=MARKS,
        contents=_contents,
        within=within,
        arms_by_value=arms_by_value,
        pluralize=pluralize,
        figure_of=figure,
        largest_matrix=LARGEST_MATRIX,
        most_confused=most_confused,
        parts=[part for part in PART_COLOURS if any(part in row.step_parts_ms for row in comparison.arms)],
        plots=[(plot, _drawings(plot)) for plot in drawn],
        run_in_words=run_in_words,
        timeline_rows=[timelines.HEADS, *timelines.table_of(traced)],
        timeline_notes=timelines.notes_on(traced),
        projection=projection,
        predicted=predicted,
        predicted_plots=[(plot, _drawings(plot)) for plot in drawn_predictions],
        script=Markup(script),
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def empty_page(study_dir: Path, *, reloads: bool) -> str:
    """The page of a study of which no run has completed; `reloads`: whether it is running, as for `as_html`."""
    seconds = SECONDS_BETWEEN_LOADS if reloads else None
    return _rendered("empty_page.html.j2", study_dir=str(study_dir), seconds_between_loads=seconds)


def _rendered(template: str, **values: Any) -> str:
    """A page from a template of this folder, with what all pages have."""
    from jinja2 import Environment
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown)
    environment.filters["code"] = in_code
    style = Markup(_shade_styles() + (_FOLDER / "page.css").read_text())
    return environment.from_string((_FOLDER / template).read_text()).render(style=style, **values)


def most_confused(counts: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """The classes that are confused most often, at most MOST_CONFUSED pairs: label, prediction, samples."""
    wrong = [
        (label, predicted, count)
        for label, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count and label != predicted
    ]
    return sorted(wrong, key=lambda each: -each[2])[:MOST_CONFUSED]


def _sheet(comparison: Comparison) -> dict[str, list[SettingRow]]:
    """The settings of the fairness sheet: first what must be equal and is not, which alone is unfolded."""
    rows = comparison.settings
    return {
        "Settings that must be equal and are not": [row for row in rows if row.reason],
        "Settings that may differ, or are not known": [row for row in rows if not row.equal and not row.reason],
        "Settings that are equal": [row for row in rows if row.equal and not row.reason],
    }


def _contents(body: str) -> list[tuple[str, Markup]]:
    """The parts of the page that a reader may go to, by their headings: name and title of each."""
    from markupsafe import Markup

    return [(name, Markup(title)) for name, title in re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', body)]


def in_code(text: str) -> Markup:
    """Text for the page, with what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def _shown(value: Any) -> Any:
    """What the template puts into the page: control characters visible, in whatever comes from a run."""
    return value if not isinstance(value, str) or hasattr(value, "__html__") else printable(value)


def _shade_names() -> dict[str, tuple[str, str]]:
    """Name of each shade of an arm in the style sheet -> its colours on a white page and on a dark one."""
    return {f"--{name}-{index}": pair for name, pairs in SHADES.items() for index, pair in enumerate(pairs)}


def _shade_styles() -> str:
    light, dark = ("".join(f"{name}: {pair[theme]};" for name, pair in _shade_names().items()) for theme in (0, 1))
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _drawings(plot: Plot) -> Markup:
    """The plot as the column of the page shows it, and as a phone does: the style sheet chooses."""
    from markupsafe import Markup

    drawn = (("column", COLUMN), ("phone", PHONE))
    return Markup("\n").join(_inline(as_svg(plot, width), plot.title, where) for where, width in drawn)


_CIRCLE = re.compile(r'<path ([^>]*?)d="M([\d.]+),0A\2,\2,0,1,1,-\2,0A\2,\2,0,1,1,\2,0"')
"""A circle as Vega writes it."""


_PLACE = r"-?[\d.]+,-?[\d.]+"
"""Where a line of a path goes."""


def _smaller(svg: str) -> str:
    """The same picture in two thirds of the letters: a page of a hundred arms has ten thousand marks."""
    svg = re.sub(r' (?:d|transform|x2|y2)="[^"]*"', _in_tenths, svg)
    svg = re.sub(rf'(?<= d=")M{_PLACE}(?:L{_PLACE}){{3,}}(?=")', _by_steps, svg)
    svg = _CIRCLE.sub(r'<circle \1r="\2"', svg)
    return re.sub(r"<(?:path|circle) [^>]*>", _without_defaults, svg)


def _in_tenths(attribute: re.Match[str]) -> str:
    """Places in tenths of a pixel, which no screen shows apart."""
    return re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), attribute[0])


def _by_steps(path: re.Match[str]) -> str:
    """A curve of places in tenths as steps from each to the next, which have fewer digits."""
    places = [[round(float(each) * 10) for each in place.split(",")] for place in re.split("[ML]", path[0])[1:]]
    steps = (f"{(x - was_x) / 10:g},{(y - was_y) / 10:g}" for (was_x, was_y), (x, y) in pairwise(places))
    return f"M{places[0][0] / 10:g},{places[0][1] / 10:g}l" + " ".join(steps)


def _without_defaults(tag: re.Match[str]) -> str:
    shown = tag[0].replace(' opacity="1"', "")
    return shown if ' stroke="' in shown else re.sub(r' stroke-width="[^"]*"', "", shown)


def _inline(svg: str, title: str, where: str) -> Markup:
    """An SVG for the page: ink in the colour of its text, scaled to the width there is, named for a screen reader."""
    svg = svg.replace(INK, "currentColor")
    for name, (on_white, _) in _shade_names().items():
        svg = svg.replace(on_white, f"var({name})")
    width, height = SIZE.search(svg).groups()  # type: ignore[union-attr]  # each has one
    svg = re.sub(r"<svg[^>]*>", "", svg, count=1)
    svg = _smaller(svg)
    from markupsafe import Markup

    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{where}" viewBox="0 0 {width} {height}" '
        'role="graphics-document" aria-label="{}">'
    ).format(printable(title)) + Markup(svg)
