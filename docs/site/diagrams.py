"""Draws the pictures of docs/pictures: two nodes of 4 GPUs, what modes exchange, what is the same, and a claim.

`python -m docs.site.diagrams` writes docs/pictures/*.svg again, those of `docs.site.figures` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from docs.site.canvas import MARGIN, WIDTH, Canvas
from docs.site.exchanges import EXCHANGES, Device, Exchange, Node, Picture
from docs.site.figures import figures
from dpcompare.experiments.statistics import Plan, RatioPair, claims_of, paired_ratio

PICTURES = Path(__file__).parents[1] / "pictures"

NODE_GAP = 24
DEVICE_HEIGHT = 74
BUS_HEIGHT = 52
LINE_HEIGHT = 18


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
    canvas.text(x + width / 2, y + 18, device.name, "ink", anchor="middle")
    part = (width - 24 - 3 * 4) / 4
    for number in range(4):
        filled = "held" if number in device.held else "empty"
        canvas.box(x + 12 + number * (part + 4), y + 27, part, 14, filled, "edge", radius=2)
    canvas.text(x + width / 2, y + 58, device.task, "soft", "small", anchor="middle")


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


DEFINED_ONCE = (
    ("one order", "of samples, by the seed"),
    ("one store of pixels", "augmented on the host"),
    ("one file of weights", "to begin with"),
    ("one set of rules", "loss, update, BatchNorm"),
)
FRAMEWORKS = ("PyTorch", "TensorFlow", "JAX")


def draw_fairness() -> str:
    """The SVG of what is defined once, for all frameworks, and compared afterwards."""
    canvas = Canvas()
    title = "The same by construction, then proved"
    canvas.text(MARGIN, 32, title, "ink", "title")
    once, lanes, loop, proof = 54, 158, 250, 334
    across = WIDTH - 2 * MARGIN
    sources = _columns(len(DEFINED_ONCE))
    targets = _columns(len(FRAMEWORKS))
    for (left, width), (name, detail) in zip(sources, DEFINED_ONCE, strict=True):
        canvas.box(left, once, width, 52, "process", "edge")
        canvas.text(left + width / 2, once + 22, name, "ink", anchor="middle")
        canvas.text(left + width / 2, once + 40, detail, "soft", "small", anchor="middle")
    canvas.line(MARGIN, once + 72, WIDTH - MARGIN, once + 72, "data")
    for left, width in sources:
        canvas.line(left + width / 2, once + 52, left + width / 2, once + 72, "data")
    for (left, width), name in zip(targets, FRAMEWORKS, strict=True):
        middle = left + width / 2
        canvas.line(middle, once + 72, middle, lanes - 9, "data")
        canvas.arrowhead(middle, lanes, "data", up=False)
        canvas.box(left, lanes, width, 52, "device", "edge")
        canvas.text(middle, lanes + 22, name, "ink", anchor="middle")
        canvas.text(middle, lanes + 40, "its own kernels and exchange", "soft", "small", anchor="middle")
        canvas.line(middle, lanes + 52, middle, loop - 9, "edge")
        canvas.arrowhead(middle, loop, "edge", up=False)
        canvas.line(middle, loop + 44, middle, proof - 9, "edge")
        canvas.arrowhead(middle, proof, "edge", up=False)
    canvas.box(MARGIN, loop, across, 44, "process", "edge")
    canvas.text(
        WIDTH / 2, loop + 27, "one loop with one clock: every mode is timed the same way", "ink", anchor="middle"
    )
    canvas.box(MARGIN, proof, across, 44, "device", "edge")
    words = "dpcompare verify: weights, gradients, updates and losses, array by array"
    canvas.text(WIDTH / 2, proof + 27, words, "ink", anchor="middle")
    return canvas.svg(title, proof + 64)


SPEEDS = {"A": (100.0, 103.0, 97.0, 101.0, 99.0, 104.0), "B": (113.0, 114.0, 109.0, 110.0, 112.0, 116.0)}
"""Made-up images/s of two arms in six rounds, of which the picture of a claim is drawn."""
ORDERS = ("AB", "BA", "BA", "AB", "BA", "AB")


def draw_claim() -> str:
    """The SVG of how six rounds become a claim, with the interval that dpcompare computes for them."""
    canvas = Canvas()
    ratio = paired_ratio(SPEEDS["B"], SPEEDS["A"])
    assert ratio is not None
    (claim,) = claims_of([RatioPair(first="B", second="A", ratio=ratio)], Plan(rounds=len(ORDERS)))
    title = "Six rounds become a claim"
    canvas.text(MARGIN, 32, title, "ink", "title")
    top, row, axis = 84, 30, 470
    lowest, highest = 0.98, 1.18

    def at(value: float) -> float:
        return axis + (value - lowest) / (highest - lowest) * (WIDTH - MARGIN - axis)

    canvas.text(MARGIN, 62, "each round runs every arm once, in random order", "soft", "small")
    canvas.text(axis, 62, "ratio of the round: B ÷ A", "soft", "small")
    bottom = top + len(ORDERS) * row
    canvas.line(at(1), top - 10, at(1), bottom + 34, "edge")
    for number, (order, of_round) in enumerate(zip(ORDERS, zip(*SPEEDS.values(), strict=True), strict=True)):
        y = top + number * row
        speeds = dict(zip(SPEEDS, of_round, strict=True))
        canvas.text(MARGIN, y + 15, f"round {number + 1}", "ink")
        for place, name in enumerate(order):
            canvas.box(MARGIN + 76 + place * 170, y, 156, 22, "process" if name == "A" else "held", "edge", radius=3)
            canvas.text(
                MARGIN + 154 + place * 170, y + 15, f"{name}: {speeds[name]:.0f} images/s", "ink", anchor="middle"
            )
        canvas.box(at(speeds["B"] / speeds["A"]) - 4, y + 7, 8, 8, "held", "edge", radius=4)
    low, high = claim.interval or (ratio.value, ratio.value)
    canvas.line(at(low), bottom + 14, at(high), bottom + 14, "gradients")
    canvas.box(at(ratio.value) - 5, bottom + 9, 10, 10, "held", "edge", radius=5)
    canvas.text(at(1), bottom + 50, "1: equally fast", "soft", "small", anchor="middle")
    canvas.text(MARGIN, bottom + 76, claim.sentence, "ink")
    canvas.text(MARGIN, bottom + 96, "The interval excludes 1, so the difference may be claimed.", "soft", "small")
    return canvas.svg(title, bottom + 112)


def _columns(count: int) -> list[tuple[float, float]]:
    """Left edge and width of boxes next to each other."""
    unit = (WIDTH - 2 * MARGIN + NODE_GAP) / count
    return [(MARGIN + number * unit, unit - NODE_GAP) for number in range(count)]


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
        canvas.text(left + 2 * unit, rows["TensorFlow"] + 19, f"worker {rank}", "ink", "small", anchor="middle")
    canvas.text(MARGIN, 322, "torch: a process per GPU, started by torchrun on each node.", "ink")
    canvas.text(MARGIN, 342, "TensorFlow: a process per node, which finds the others by its TF_CONFIG.", "ink")
    return canvas.svg(title, 360)


def _draw_gpu(canvas: Canvas, number: int, x: float, width: float, rows: Mapping[str, float]) -> None:
    """A GPU in the machine and in its node, and torch's process of it."""
    for row in ("one machine", "two nodes"):
        canvas.box(x + 8, rows[row], width - 16, 28, "device", "edge")
        canvas.text(x + width / 2, rows[row] + 19, f"GPU {number}", "ink", "small", anchor="middle")
    canvas.line(x + width / 2, rows["one machine"] + 42, x + width / 2, 122, "edge")
    canvas.arrowhead(x + width / 2, 132, "edge", up=False)
    canvas.box(x + 8, rows["torch"], width - 16, 28, "process")
    canvas.text(x + width / 2, rows["torch"] + 19, f"rank {number}", "ink", "small", anchor="middle")


def pictures() -> dict[str, str]:
    """Name of a file -> the SVG that belongs into it."""
    drawn = {f"exchange-{mode}.svg": draw(picture) for mode, picture in EXCHANGES.items()}
    of_claims = {"nodes.svg": draw_partition(), "fairness.svg": draw_fairness(), "claim.svg": draw_claim()}
    return {**of_claims, **drawn, **figures()}


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for file_name, svg in pictures().items():
        (PICTURES / file_name).write_text(svg)
