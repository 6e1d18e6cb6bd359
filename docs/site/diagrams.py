"""Draws the pictures of docs/pictures: 8 GPUs as 2 nodes of 4, and what each mode exchanges.

    python -m docs.site.diagrams        # writes docs/pictures/*.svg again

Plain SVG. A picture has a background of its own and follows the reader's preference for light or dark, so that it can
be read on a page of either kind.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from docs.site.exchanges import EXCHANGES, Device, Exchange, Node, Picture

PICTURES = Path(__file__).parents[1] / "pictures"

WIDTH = 760
MARGIN = 20
NODE_GAP = 24
DEVICE_HEIGHT = 74
BUS_HEIGHT = 52
LINE_HEIGHT = 18

# class -> (property, on light, on dark)
COLOURS = {
    "paper": ("fill", "#ffffff", "#161b22"),
    "halo": ("stroke", "#ffffff", "#161b22"),
    "ink": ("fill", "#1f2328", "#e6edf3"),
    "soft": ("fill", "#57606a", "#9aa4af"),
    "node": ("stroke", "#8c959f", "#6e7681"),
    "process": ("fill", "#eaf1fb", "#1f2a3a"),
    "device": ("fill", "#ffffff", "#0d1117"),
    "edge": ("stroke", "#57606a", "#9aa4af"),
    "held": ("fill", "#6b8fc9", "#6b9bdf"),
    "gradients": ("stroke", "#b3500b", "#f0883e"),
    "parameters": ("stroke", "#1a5fb4", "#79b8ff"),
    "data": ("stroke", "#2f7d4f", "#56d364"),
}
HEADS = {name: row[1:] for name, row in COLOURS.items() if name in ("gradients", "parameters", "data", "edge")}
"""Colours of lines, which their arrowheads and labels have too."""


class Canvas:
    """SVG elements, added from back to front."""

    def __init__(self) -> None:
        self._elements: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *classes: str, radius: float = 6) -> None:
        self._elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'class="{" ".join(classes)}"/>'
        )

    def text(self, x: float, y: float, text: str, *classes: str, middle: bool = False) -> None:
        anchor = ' text-anchor="middle"' if middle else ""
        self._elements.append(
            f'<text x="{x:g}" y="{y:g}" class="{" ".join(classes)}"{anchor}>{html.escape(text, quote=False)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
        self._elements.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" class="line {colour}"/>')

    def arrowhead(self, x: float, y: float, colour: str, *, up: bool) -> None:
        """Its point is at (x, y)."""
        back = y + 9 if up else y - 9
        self._elements.append(
            f'<path d="M{x:g} {y:g}L{x - 4.5:g} {back:g}L{x + 4.5:g} {back:g}Z" class="head-{colour}"/>'
        )

    def svg(self, title: str, height: float) -> str:
        """The whole file."""
        name = html.escape(title, quote=False)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
                f'height="{height:g}" role="img" aria-labelledby="title">',
                f'<title id="title">{name}</title>',
                f"<style>{_style()}</style>",
                f'<rect width="{WIDTH}" height="{height:g}" rx="8" class="paper"/>',
                *self._elements,
                "</svg>",
                "",
            ]
        )


def _style() -> str:
    fixed = (
        "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
        ".title{font-size:16px;font-weight:600}.small{font-size:12px}"
        ".node{fill:none;stroke-dasharray:5 4}.edge,.node{stroke-width:1.2}"
        ".empty{fill:none}.line{fill:none;stroke-width:2}.halo{paint-order:stroke;stroke-width:6px}"
    )
    return f"\n{fixed}\n{_rules(1)}\n@media (prefers-color-scheme: dark){{\n{_rules(2)}\n}}\n"


def _rules(column: int) -> str:
    rules = [f".{name}{{{row[0]}:{row[column]}}}" for name, row in COLOURS.items()]
    rules += [f".head-{name}{{fill:{colours[column - 1]}}}" for name, colours in HEADS.items()]
    return "".join(rules)


def draw(picture: Picture) -> str:
    """The SVG of what a mode exchanges."""
    canvas = Canvas()
    canvas.text(MARGIN, 32, picture.title, "ink", "title")
    top = 50
    centres = _draw_nodes(canvas, picture.nodes, top)
    bottom = top + DEVICE_HEIGHT + 66
    for number, exchange in reversed(list(enumerate(picture.exchanges))):  # a label lies above the lines that cross it
        offset = (number - (len(picture.exchanges) - 1) / 2) * 22
        stubs = {device: centre + offset for device, centre in enumerate(centres)}
        _draw_exchange(canvas, exchange, stubs, bottom - 20, bottom + 18 + number * BUS_HEIGHT)
    y = bottom + 18 + len(picture.exchanges) * BUS_HEIGHT + 6
    canvas.text(MARGIN, y, picture.update, "ink")
    y += LINE_HEIGHT + 4
    canvas.box(MARGIN, y - 11, 14, 14, "held", "edge", radius=2)
    canvas.text(MARGIN + 22, y, "a part of the model that is kept between two steps", "soft", "small")
    return canvas.svg(picture.title, y + LINE_HEIGHT)


def _draw_nodes(canvas: Canvas, nodes: Sequence[Node], top: float) -> list[float]:
    """Draws them side by side; returns the middle of each device."""
    num_devices = sum(len(process.devices) for node in nodes for process in node.processes)
    unit = (WIDTH - 2 * MARGIN - NODE_GAP * (len(nodes) - 1)) / num_devices
    centres, x = [], float(MARGIN)
    for node in nodes:
        width = unit * sum(len(process.devices) for process in node.processes)
        canvas.box(x, top, width, DEVICE_HEIGHT + 56, "node")
        canvas.text(x + 10, top + 17, node.name, "soft")
        inner = x
        for process in node.processes:
            across = unit * len(process.devices)
            canvas.box(inner + 8, top + 26, across - 16, DEVICE_HEIGHT + 22, "process")
            canvas.text(inner + 16, top + 42, process.name, "soft", "small")
            for number, device in enumerate(process.devices):
                left = inner + number * unit
                _draw_device(canvas, device, left + 16, top + 48, unit - 32)
                centres.append(left + unit / 2)
            inner += across
        x += width + NODE_GAP
    return centres


def _draw_device(canvas: Canvas, device: Device, x: float, y: float, width: float) -> None:
    """A device with the four parts of a model, filled where it keeps them between two steps."""
    canvas.box(x, y, width, DEVICE_HEIGHT - 6, "device", "edge")
    canvas.text(x + width / 2, y + 18, device.name, "ink", middle=True)
    part = (width - 24 - 3 * 4) / 4
    for number in range(4):
        filled = "held" if number in device.held else "empty"
        canvas.box(x + 12 + number * (part + 4), y + 27, part, 14, filled, "edge", radius=2)
    canvas.text(x + width / 2, y + 58, device.task, "soft", "small", middle=True)


def _draw_exchange(canvas: Canvas, exchange: Exchange, stubs: dict[int, float], top: float, y: float) -> None:
    """A line below the devices, with an arrow to each that receives, and from each that sends."""
    taking_part = sorted(exchange.senders | exchange.receivers)
    left, right = stubs[taking_part[0]], stubs[taking_part[-1]]
    canvas.line(left, y, right, y, exchange.kind)
    for device in taking_part:
        x = stubs[device]
        receives, sends = device in exchange.receivers, device in exchange.senders
        canvas.line(x, top + (9 if receives else 0), x, y - (9 if sends else 0), exchange.kind)
        if receives:
            canvas.arrowhead(x, top, exchange.kind, up=True)
        if sends:
            canvas.arrowhead(x, y, exchange.kind, up=False)
    canvas.text(left, y + LINE_HEIGHT, exchange.label, f"head-{exchange.kind}", "halo")


def draw_partition() -> str:
    """The SVG of eight GPUs that become two nodes of four, for both frameworks."""
    canvas = Canvas()
    title = "8 GPUs as 2 nodes x 4"
    canvas.text(MARGIN, 32, title, "ink", "title")
    first = MARGIN + 92
    unit = (WIDTH - MARGIN - NODE_GAP - first) / 8
    rows = {"one machine": 76, "two nodes": 172, "torch": 212, "TensorFlow": 252}
    for label, y in rows.items():
        canvas.text(MARGIN, y + 19, label, "ink")
    canvas.box(first, rows["one machine"] - 10, WIDTH - MARGIN - first, 48, "node")
    for rank in range(2):
        left = first + rank * (4 * unit + NODE_GAP)
        canvas.box(left, 138, 4 * unit, 156, "node")
        canvas.text(left + 10, 158, f"node {rank}", "soft")
        for number in range(4):
            _draw_gpu(canvas, 4 * rank + number, left + number * unit, unit, rows)
        canvas.box(left + 8, rows["TensorFlow"], 4 * unit - 16, 28, "process")
        canvas.text(left + 2 * unit, rows["TensorFlow"] + 19, f"worker {rank}", "ink", "small", middle=True)
    canvas.text(MARGIN, 322, "torch: a process per GPU, started by torchrun on each node.", "ink")
    canvas.text(MARGIN, 342, "TensorFlow: a process per node, which finds the others by its TF_CONFIG.", "ink")
    return canvas.svg(title, 360)


def _draw_gpu(canvas: Canvas, number: int, x: float, width: float, rows: Mapping[str, float]) -> None:
    """A GPU in the machine and in its node, and torch's process of it."""
    for row in ("one machine", "two nodes"):
        canvas.box(x + 8, rows[row], width - 16, 28, "device", "edge")
        canvas.text(x + width / 2, rows[row] + 19, f"GPU {number}", "ink", "small", middle=True)
    canvas.line(x + width / 2, rows["one machine"] + 42, x + width / 2, 122, "edge")
    canvas.arrowhead(x + width / 2, 132, "edge", up=False)
    canvas.box(x + 8, rows["torch"], width - 16, 28, "process")
    canvas.text(x + width / 2, rows["torch"] + 19, f"rank {number}", "ink", "small", middle=True)


def pictures() -> dict[str, str]:
    """Name of a file -> the SVG that belongs into it."""
    drawn = {f"exchange-{mode}.svg": draw(picture) for mode, picture in EXCHANGES.items()}
    return {"nodes.svg": draw_partition(), **drawn}


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for file_name, svg in pictures().items():
        (PICTURES / file_name).write_text(svg)
