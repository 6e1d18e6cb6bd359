"""The canvas of the pictures: SVG elements in the colours of the docs, on a background of their own.

A picture follows the reader's preference for light or dark, so that it can be read on a page of either kind.
"""

from __future__ import annotations

import html
from typing import Literal

Anchor = Literal["start", "middle", "end"]

WIDTH = 760
MARGIN = 20

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

    def __init__(self, width: float = WIDTH) -> None:
        self._width = width
        self._elements: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *classes: str, radius: float = 6) -> None:
        self._elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'class="{" ".join(classes)}"/>'
        )

    def text(self, x: float, y: float, text: str, *classes: str, anchor: Anchor = "start") -> None:
        """Which begins, has its middle or ends at x."""
        anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._elements.append(
            f'<text x="{x:g}" y="{y:g}" class="{" ".join(classes)}"{anchored}>{html.escape(text, quote=False)}</text>'
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
        name, width = html.escape(title, quote=False), f"{self._width:g}"
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" '
                f'height="{height:g}" role="img" aria-labelledby="title">',
                f'<title id="title">{name}</title>',
                f"<style>{_style()}</style>",
                f'<rect width="{width}" height="{height:g}" rx="8" class="paper"/>',
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
