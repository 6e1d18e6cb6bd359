"""Draws the figures of docs/pictures that show what a result file holds; `python -m docs.site.diagrams` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median

from benchmarks.evidence import RESULTS, Cell, Result, Spread, load
from docs.site.canvas import MARGIN, Canvas
from dpcompare.projection.link import rate_of

WIDTH = 480
"""Narrow, so that words stay legible on the screen of a phone."""

Row = dict[str, Cell]
"""Title of a column -> the cell."""


def rows_of(result: Result) -> list[Row]:
    """The rows of its first table."""
    titles = [column.title for column in result.tables[0].columns]
    return [dict(zip(titles, cells, strict=True)) for cells in result.tables[0].rows]


def number_of(cell: Cell) -> float:
    """A number, which older result files hold as text."""
    assert isinstance(cell, str | int | float), cell
    return float(cell)


def spread_of(cell: Cell) -> Spread:
    """Median, lowest and highest of a cell's numbers: a spread, also as text (`1.2 (1.1 to 1.4)`), or only rounds."""
    numbers = cell if isinstance(cell, tuple) else [float(each) for each in re.findall(r"[\d.]+", str(cell))]
    return median(numbers), min(numbers), max(numbers)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Values from 0 on, along an axis of the picture."""

    most: float
    start: float
    """Where 0 is."""
    end: float
    """Where the largest value is."""

    def at(self, value: float) -> float:
        """Where a value is."""
        return round(self.start + value / self.most * (self.end - self.start), 1)

    def ticks(self) -> range:
        """Round values, six and 0 at most."""
        steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
        return range(0, int(self.most) + 1, next(step for step in steps if self.most <= 6 * step))


LANES = {"computing": ("forward", "backward", "update", "other"), "exchange": ("exchange",), "waiting": ("waiting",)}
"""Row of a process -> the kinds of its spans, which `benchmarks.step_timeline` keeps."""
FILLS = {
    "forward": "head-data",
    "backward": "head-parameters",
    "update": "ink",
    "other": "soft",
    "exchange": "head-gradients",
    "waiting": "head-edge",
}
LANE_HEIGHT = 16


def draw_step(result: Result) -> str:
    """The SVG of what each traced process does in one step."""
    canvas = Canvas(WIDTH)
    title = "One step: when gradients are exchanged"
    canvas.text(MARGIN, 32, title, "ink", "title")
    rows = rows_of(result)
    kinds = [kind for kind in LANES["computing"] if any(row["kind"] == kind for row in rows)]
    for number, kind in enumerate(kinds):
        canvas.box(MARGIN + 82 + number * 90, 47, 12, 12, FILLS[kind], radius=2)
        canvas.text(MARGIN + 100 + number * 90, 57, kind, "soft", "small")
    scale = Scale(most=max(number_of(row["end, ms"]) for row in rows), start=MARGIN + 82, end=WIDTH - MARGIN - 4)
    y = 86.0
    for (arm, rank), spans in groupby(rows, lambda row: (row["arm"], row["process"])):
        canvas.text(MARGIN, y, f"{arm}, process {rank}", "ink")
        _draw_process(canvas, list(spans), scale, y + 8)
        y += 8 + len(LANES) * LANE_HEIGHT + 24
    y -= 16
    canvas.line(scale.start, y, scale.end, y, "edge")
    for tick in scale.ticks():
        canvas.line(scale.at(tick), y, scale.at(tick), y + 5, "edge")
        canvas.text(scale.at(tick), y + 20, f"{tick} ms", "soft", "small", anchor="middle")
    canvas.text(MARGIN, y + 46, "Tracing slows steps down: read the order, not the speed.", "soft", "small")
    return canvas.svg(title, y + 62)


def _draw_process(canvas: Canvas, spans: Sequence[Row], scale: Scale, top: float) -> None:
    """A row for each lane, with the spans in it."""
    for number, (lane, kinds) in enumerate(LANES.items()):
        y = top + number * LANE_HEIGHT
        canvas.text(MARGIN, y + 11, lane, "soft", "small")
        canvas.box(scale.start, y, scale.end - scale.start, LANE_HEIGHT - 3, "process", radius=0)
        for row in (row for row in spans if row["kind"] in kinds):
            left, right = scale.at(number_of(row["start, ms"])), scale.at(number_of(row["end, ms"]))
            canvas.box(left, y, max(right - left, 0.5), LANE_HEIGHT - 3, FILLS[str(row["kind"])], radius=0)


MODE_COLOURS = {"torch": "gradients", "tensorflow": "parameters"}
"""As in the reports."""
NO_LIMIT = "free"
"""The link that has none, in the rows of `benchmarks.links`."""


def draw_links(result: Result) -> str:
    """The SVG of images per second over the rate of the link, with the lowest and highest of the rounds."""
    canvas = Canvas(WIDTH)
    title = "Images per second over the speed of the link"
    canvas.text(MARGIN, 32, title, "ink", "title")
    rows = sorted(rows_of(result), key=lambda row: _rate(str(row["link"])))
    links = list(dict.fromkeys(str(row["link"]) for row in rows))
    modes = sorted({str(row["mode"]) for row in rows}, reverse=True)
    left, right = MARGIN + 34, WIDTH - MARGIN
    speeds = {(row["mode"], row["link"]): spread_of(row["images/s"]) for row in rows}
    scale = Scale(most=max(highest for _, _, highest in speeds.values()), start=290, end=84)
    _draw_levels(canvas, scale, left, right)
    width = (right - left) / len(links)
    middles = {link: left + (number + 0.5) * width for number, link in enumerate(links)}
    for link, middle in middles.items():
        canvas.text(middle, scale.start + 20, link_in_words(link), "soft", "small", anchor="middle")
    for number, mode in enumerate(modes):
        colour = MODE_COLOURS[mode.partition(" ")[0]]
        _draw_key(canvas, left + number * 120, mode, colour)
        shift = (number - (len(modes) - 1) / 2) * 10
        points = [(middle + shift, speeds[mode, link]) for link, middle in middles.items() if link != NO_LIMIT]
        _draw_curve(canvas, points, scale, colour)
        if NO_LIMIT in middles:  # on no scale of rates, so no line leads there
            _draw_curve(canvas, [(middles[NO_LIMIT] + shift, speeds[mode, NO_LIMIT])], scale, colour)
    return canvas.svg(title, scale.start + 38)


def _rate(link: str) -> float:
    return float("inf") if link == NO_LIMIT else rate_of(link, "link")


def link_in_words(link: str) -> str:
    """`100mbit` as 100 Mbit/s."""
    return "no limit" if link == NO_LIMIT else link.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")


MEASURED, PREDICTED = "measured s", "predicted s"
WITHOUT_EXCHANGE = "s without exchange, before and after / of each round"
LINK_COLOURS = ("parameters", "gradients")
"""Of the links, the fastest first."""


def draw_speed(result: Result) -> str:
    """The SVG of measured and predicted speed over nodes, with that of steps without exchange as the ideal."""
    canvas = Canvas(WIDTH)
    title = "Speed over nodes: measured and predicted"
    canvas.text(MARGIN, 32, title, "ink", "title")
    rows = rows_of(result)
    links = sorted({str(row["link"]) for row in rows}, key=_rate, reverse=True)
    colours = dict(zip(links, LINK_COLOURS, strict=True))
    for number, link in enumerate(links):
        _draw_key(canvas, MARGIN + 6 + number * 94, link_in_words(link), colours[link])
    _draw_ring(canvas, MARGIN + 194, 57)
    canvas.text(MARGIN + 204, 61, "predicted", "soft", "small")
    canvas.line(MARGIN + 280, 57, MARGIN + 302, 57, "node")
    canvas.text(MARGIN + 310, 61, "ideal: no exchange", "soft", "small")
    canvas.text(MARGIN, 86, "batches per second, of all nodes together", "soft", "small")
    scale = Scale(most=max(_speed(row, WITHOUT_EXCHANGE)[0] for row in rows), start=300, end=104)
    modes = {mode: [row for row in rows if row["mode"] == mode] for mode in dict.fromkeys(row["mode"] for row in rows)}
    left, gap = MARGIN + 26, 12
    width = (WIDTH - MARGIN - left + gap) / len(modes)
    _draw_levels(canvas, scale, left, WIDTH - MARGIN)
    canvas.text(MARGIN, scale.start + 20, "nodes", "soft", "small")
    for number, (mode, of_mode) in enumerate(modes.items()):
        start = left + number * width
        _draw_mode(canvas, of_mode, colours, scale, start, start + width - gap)
        name = str(mode).rpartition(":")[2]
        canvas.text(start + (width - gap) / 2, scale.start + 40, name, "ink", anchor="middle")
    note = "Simulated nodes share one machine's cores, so the ideal need not rise."
    canvas.text(MARGIN, scale.start + 64, note, "soft", "small")
    return canvas.svg(title, scale.start + 80)


def _speed(row: Row, title: str) -> Spread:
    """Batches per second, each node having one in a step."""
    nodes, (middle, shortest, longest) = number_of(row["nodes"]), spread_of(row[title])
    return nodes / middle, nodes / longest, nodes / shortest


def _draw_mode(
    canvas: Canvas, rows: Sequence[Row], colours: Mapping[str, str], scale: Scale, left: float, right: float
) -> None:
    """The curves of a mode's links, and above them the steps without exchange, which have none."""
    counts = sorted({number_of(row["nodes"]) for row in rows})
    width = (right - left) / len(counts)
    places = {count: left + (number + 0.5) * width for number, count in enumerate(counts)}
    for count, x in places.items():
        canvas.text(x, scale.start + 20, f"{count:g}", "soft", "small", anchor="middle")
    for number, (link, colour) in enumerate(colours.items()):
        of_link = [row for row in rows if row["link"] == link]
        at = [places[number_of(row["nodes"])] for row in of_link]
        if number == 0:
            ideals = [scale.at(_speed(row, WITHOUT_EXCHANGE)[0]) for row in of_link]
            for (x, y), (next_x, next_y) in pairwise(zip(at, ideals, strict=True)):
                canvas.line(x, y, next_x, next_y, "node")
        _draw_curve(canvas, [(x, _speed(row, MEASURED)) for x, row in zip(at, of_link, strict=True)], scale, colour)
        for x, row in zip(at, of_link, strict=True):
            _draw_ring(canvas, x + 8, scale.at(_speed(row, PREDICTED)[0]), colour)


def _draw_key(canvas: Canvas, x: float, words: str, colour: str) -> None:
    """What a colour stands for, in the line below the title."""
    canvas.box(x - 4, 53, 8, 8, f"head-{colour}", radius=4)
    canvas.text(x + 10, 61, words, "soft", "small")


def _draw_levels(canvas: Canvas, scale: Scale, left: float, right: float) -> None:
    """A line at each round value, with its number."""
    for tick in scale.ticks():
        canvas.box(left, scale.at(tick), right - left, 1, "process", radius=0)
        canvas.text(left - 6, scale.at(tick) + 4, f"{tick}", "soft", "small", anchor="end")


def _draw_curve(canvas: Canvas, points: Sequence[tuple[float, Spread]], scale: Scale, colour: str) -> None:
    """Medians that lines connect, and upright the lowest to the highest of each."""
    for (x, (middle, _, _)), (next_x, (next_middle, _, _)) in pairwise(points):
        canvas.line(x, scale.at(middle), next_x, scale.at(next_middle), colour)
    for x, (middle, lowest, highest) in points:
        canvas.line(x, scale.at(lowest), x, scale.at(highest), colour)
        canvas.box(x - 4, scale.at(middle) - 4, 8, 8, f"head-{colour}", radius=4)


def _draw_ring(canvas: Canvas, x: float, y: float, colour: str = "edge") -> None:
    canvas.box(x - 4, y - 4, 8, 8, "empty", colour, radius=4)


PART_FILLS = {
    "computing": "head-data",
    "launching and updating": "ink",
    "input": "head-parameters",
    "exchange": "head-gradients",
    "waiting for the slowest": "head-edge",
    "exchange, waiting and contention": "head-gradients",
    "overlap of input and exchange": "soft",
}
"""Words of a part of the step, as `benchmarks.explain_parts` keeps them, in the order of the bars."""
BAR_HEIGHT = 26
LEAST_FOR_LABEL = 0.07
"""Share of the longest step from which on a part has room for its milliseconds."""


def draw_parts(result: Result) -> str:
    """The SVG of the parts of a step, a bar for each arm, with a line where the step itself ends."""
    canvas = Canvas(WIDTH)
    title = "What a step consists of"
    canvas.text(MARGIN, 32, title, "ink", "title")
    rows = rows_of(result)
    arms = {arm: list(of_arm) for arm, of_arm in groupby(rows, lambda row: str(row["arm"]))}
    steps = {arm: number_of(of_arm[0]["ms"]) for arm, of_arm in arms.items()}
    sums = [sum(number_of(row["ms"]) for row in of_arm[1:]) for of_arm in arms.values()]
    scale = Scale(most=max([*sums, *steps.values()]), start=MARGIN, end=WIDTH - MARGIN)
    y = 60.0
    for arm, of_arm in arms.items():
        canvas.text(MARGIN, y, f"{arm}: {steps[arm]:.0f} ms per step, where the line ends it", "ink")
        _draw_bar(canvas, of_arm[1:], scale, y + 8)
        canvas.line(scale.at(steps[arm]), y + 5, scale.at(steps[arm]), y + 11 + BAR_HEIGHT, "edge")
        y += BAR_HEIGHT + 36
    shown = [part for part in PART_FILLS if any(row["part"] == part for row in rows)]
    for number, part in enumerate(shown):
        column, line = number % 2, number // 2
        x, top = MARGIN + column * 220, y - 10 + line * 20
        canvas.box(x, top, 12, 12, PART_FILLS[part], radius=2)
        canvas.text(x + 18, top + 10, part, "soft", "small")
    return canvas.svg(title, y + 10 + (len(shown) + 1) // 2 * 20)


def _draw_bar(canvas: Canvas, rows: Sequence[Row], scale: Scale, top: float) -> None:
    """The parts of one step, one after another, with the milliseconds of those that have room."""
    before = 0.0
    order = list(PART_FILLS)
    for row in sorted(rows, key=lambda row: order.index(str(row["part"]))):
        milliseconds, part = number_of(row["ms"]), str(row["part"])
        left, right = scale.at(before), scale.at(before + milliseconds)
        canvas.box(left, top, right - left, BAR_HEIGHT, PART_FILLS[part], radius=0)
        if milliseconds > LEAST_FOR_LABEL * scale.most:
            canvas.text((left + right) / 2, top + 17, f"{milliseconds:.0f}", "paper", anchor="middle")
        before += milliseconds


EXCHANGE_FILLS = {"computing": "parameters", "exchange that it does not hide": "gradients"}


def draw_exchange(result: Result) -> str:
    """The SVG of a step of each model over each link: its exchange as a part of the whole."""
    canvas = Canvas(WIDTH)
    title = "How much of a step is exchange, by model"
    canvas.text(MARGIN, 32, title, "ink", "title")
    for number, (words, fill) in enumerate(EXCHANGE_FILLS.items()):
        canvas.box(MARGIN + number * 110, 47, 12, 12, f"head-{fill}", radius=2)
        canvas.text(MARGIN + 18 + number * 110, 57, words, "soft", "small")
    scale = Scale(most=1.0, start=MARGIN + 92, end=WIDTH - MARGIN)
    y = 88.0
    for model, rows in groupby(rows_of(result), lambda row: row["model"]):
        of_model = list(rows)
        canvas.text(MARGIN, y, f"{model}, {number_of(of_model[0]['MB of gradients']):.0f} MB of gradients", "ink")
        for row in of_model:
            fraction, _, _ = spread_of(row["fraction of the step"])
            border = scale.at(1 - max(fraction, 0.0))
            canvas.text(MARGIN, y + 22, link_in_words(str(row["link"])), "soft", "small")
            canvas.box(scale.start, y + 10, border - scale.start, 16, "head-parameters", radius=0)
            canvas.box(border, y + 10, scale.end - border, 16, "head-gradients", radius=0)
            canvas.text(scale.start + 6, y + 22, f"{fraction:.0%} exchange", "paper", "small")
            y += 20
        y += 32
    canvas.text(MARGIN, y - 8, "Two simulated nodes of CPU cores; GPUs compute faster.", "soft", "small")
    return canvas.svg(title, y + 8)


FIGURES: Mapping[str, tuple[str, Callable[[Result], str]]] = {
    "step-timeline.svg": ("step-timeline", draw_step),
    "speed-over-devices.svg": ("projection-700mbit-300mbit", draw_speed),
    "links.svg": ("links", draw_links),
    "exchange-by-model.svg": ("exchange-by-model", draw_exchange),
    "explain-parts.svg": ("explain-parts", draw_parts),
}
"""Name of a file -> the result that it shows, and what draws it."""


def figures() -> dict[str, str]:
    """Name of a file -> the SVG that belongs into it."""
    return {name: draw(load(RESULTS / f"{result}.json")) for name, (result, draw) in FIGURES.items()}
