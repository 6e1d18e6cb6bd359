"""The plots of a comparison as Vega-Lite charts."""

from __future__ import annotations

from typing import Any

from dpcompare.config.modes import MODES
from dpcompare.experiments.arm_rows import ArmRow, Round, Scaling
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.statistics import FALSE_CLAIMS, mean_speed
from dpcompare.report import timelines
from dpcompare.report.charts import (
    ARM,
    COLOURS,
    INK,
    Plot,
    accuracy_over_seconds,
    accuracy_over_steps,
    colour_of_arms,
    dash_of_arms,
    load_altair,
    loss_differences,
    losses,
)
from dpcompare.report.formats import figure
from dpcompare.system.terminal_text import pluralize

PART_COLOURS = {
    "waiting for data": COLOURS[4],
    "communication": COLOURS[1],
    "computing": "#7A828C",
    "other": "#B5B9BF",
}
SPEED_AXIS = "images/s, steady"
OUTCOME_COLOURS = {
    "faster": INK,
    "slower": INK,
    "no difference shown": "#888888",
    "too few rounds": "#a0a0a0",
    "disturbed or too short": "#a09060",
    "exploratory": "#bbbbbb",
}


def make_plots(comparison: Comparison) -> list[Plot]:
    """Every plot for which there is something to show.

    Raises:
        RequestError: the libraries that draw are not installed.
    """
    load_altair()
    shown = [row for row in comparison.arms if row.rounds]
    plots = []
    builders = (
        *(_speeds, _ratios, _rounds, _scaling, _micro_batches, _breakdown),
        *(accuracy_over_steps, accuracy_over_seconds, losses, loss_differences, _memory, _timeline),
    )
    for build in builders:
        if (plot := build(comparison, shown)) is not None:
            plots.append(plot)
    return plots


def _timeline(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    return timelines.plot_of(timelines.traced(arms))


def _speeds(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    alt = load_altair()
    by_name = {row.name: row for row in arms}
    data = [
        found
        for group in comparison.groups
        for name in group.arms
        if name in by_name and (found := _speed(by_name[name], group.num_devices)) is not None
    ]
    if not data:
        return None
    names = [row["arm"] for row in data]
    room = 1.2 * max(row["label at"] for row in data)  # for the value behind the longest bar
    base = alt.Chart(alt.Data(values=data)).encode(y=alt.Y("arm:N", sort=None, title=None))
    bars = base.mark_bar(size=16).encode(
        x=alt.X("images/s:Q", title=SPEED_AXIS, scale=alt.Scale(domain=[0, room], nice=False)),
        color=colour_of_arms(alt, names, arms, legend=False),
        opacity=alt.condition("datum.emulated", alt.value(0.45), alt.value(1)),
        description=alt.Description("text:N"),
    )
    intervals = (
        alt.Chart(alt.Data(values=[row for row in data if row["low"] is not None]))
        .mark_rule(strokeWidth=2, color=INK)
        .encode(y=alt.Y("arm:N", sort=None, title=None), x="low:Q", x2="high:Q", description=ARM)
    )
    values = base.mark_text(align="left", dx=6, color=INK).encode(
        x="label at:Q", text=alt.Text("images/s:Q", format=",.1f"), description=ARM
    )
    of_model = " within each model" if any(group.model for group in comparison.groups) else ""
    return Plot(
        name="speed",
        title="Speed",
        explanation="Images per second of all devices together, as the table has them, fewest devices first"
        f"{of_model}. A line at the end of a bar is the 95% interval over the rounds of this arm alone: whether two "
        "arms differ is judged by their ratio within rounds, below."
        f"{' Pale: emulated.' if any(row['emulated'] for row in data) else ''}",
        chart=(bars + intervals + values).properties(height=alt.Step(30)),
    )


def _speed(row: ArmRow, num_devices: int) -> dict[str, Any] | None:
    mean = mean_speed([shown.steady_images_per_second for shown in row.rounds_shown])
    if mean is None:
        return None
    low, high = mean.interval(FALSE_CLAIMS) or (None, None)
    between = f", 95% interval {low:.1f} to {high:.1f}" if low and high else ""
    return {
        "arm": row.name,
        "images/s": mean.value,
        "low": low,
        "high": high,
        "label at": max(mean.value, high or 0),
        "emulated": row.emulated,
        "text": f"{row.name}, {pluralize(num_devices, 'device')}: {mean.value:.1f} images/s{between}",
    }


def _rounds(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    alt = load_altair()
    names = [row.name for row in arms]
    data = [
        {
            "arm": row.name,
            "row": index,
            "round": f"{row.source} {shown.number}",
            "images/s": shown.steady_images_per_second,
            "text": run_in_words(row, shown),
        }
        for index, row in enumerate(arms)
        for shown in row.rounds_shown
        if shown.steady_images_per_second is not None
    ]
    if not data:
        return None
    # Arms downwards: their names are long, and a phone is narrow. On a linear axis equal ratios would not be parallel.
    base = alt.Chart(alt.Data(values=data)).encode(
        y=alt.Y("arm:N", sort=names, title=None),
        x=alt.X("images/s:Q", scale=alt.Scale(type="log", nice=False, padding=12), title=SPEED_AXIS),
        detail="round:N",
    )
    lines = base.mark_line(strokeWidth=1, opacity=0.5, color="#888888").encode(order=alt.Order("row:Q"))
    points = base.mark_point(filled=True, opacity=1, size=60).encode(
        color=colour_of_arms(alt, names, arms, legend=False), description=alt.Description("text:N")
    )
    return Plot(
        name="rounds",
        title="Every round",
        explanation="The speeds that claims are of: a line joins the runs of one round, whose speeds are divided by "
        "each other. The axis is logarithmic: where lines run in parallel, the rounds drift together and their ratio "
        "is the same; lines that cross are noise. Select a point to see its run in the table of runs.",
        chart=(lines + points).properties(height=alt.Step(36)),
    )


def run_in_words(row: ArmRow, shown: Round) -> str:
    """Which run a point is, and its speed."""
    speed = figure(shown.steady_images_per_second)
    return f"{row.name}, round {shown.number}, ran as number {shown.position} of its round: {speed} images/s"


def _ratios(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    alt = load_altair()
    data = [
        {
            "pair": f"{made.first} / {made.second}",
            "ratio": made.ratio,
            "low": made.low,
            "high": made.high,
            "outcome": made.outcome,
            "text": made.sentence,
        }
        for made in comparison.claims
        if made.ratio is not None
    ]
    if not data:
        return None
    return Plot(
        name="ratios",
        title="Ratios",
        explanation="Right of 1 the first of a pair is faster. A bar is the interval of its sentence; where it "
        "touches 1, no difference is shown. Without a bar there are too few rounds, or most of them were disturbed or "
        "too short.",
        chart=_intervals(alt, data).properties(height=alt.Step(40)),
    )


def _intervals(alt: Any, data: list[dict[str, Any]]) -> Any:
    """A point per ratio, with a bar from its `low` to its `high` where it has them, and a line at 1."""
    shown = [outcome for outcome in OUTCOME_COLOURS if any(row["outcome"] == outcome for row in data)]
    colours = alt.Color(
        "outcome:N",
        scale=alt.Scale(domain=shown, range=[OUTCOME_COLOURS[outcome] for outcome in shown]),
        legend=alt.Legend(title=None, orient="top", direction="horizontal"),
    )
    y = alt.Y("pair:N", sort=None, title=None)
    line = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(color=INK, strokeDash=[4, 4]).encode(x="one:Q")
    intervals = (
        alt.Chart(alt.Data(values=[row for row in data if row["low"] is not None]))
        .mark_rule(strokeWidth=3)
        .encode(x=alt.X("low:Q", title="ratio of images/s"), x2="high:Q", y=y, color=colours)
    )
    points = (
        alt.Chart(alt.Data(values=data))
        .mark_point(filled=True, opacity=1, size=70)
        .encode(
            x=alt.X("ratio:Q", scale=alt.Scale(zero=False), title="ratio of images/s"),
            y=y,
            color=colours,
            description=alt.Description("text:N"),
        )
    )
    return line + intervals + points


def _scaling(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    alt = load_altair()
    data = [_speedup(row.name, row.scaling) for row in arms if row.scaling]
    if not data:
        return None
    counts = {row["devices"] for row in data}
    chart = _over_devices(alt, data, arms) if len(counts) > 1 else _beside_ideal(alt, data, arms, *counts)
    return Plot(
        name="scaling",
        title="Scaling",
        explanation="The dashed line is ideal: n devices, n times the speed of one device of the same framework. "
        "Simulated devices share the cores of one machine and cannot reach it.",
        chart=chart,
    )


def _beside_ideal(alt: Any, data: list[dict[str, Any]], arms: list[ArmRow], num_devices: int) -> Any:
    """A bar per arm, where all have as many devices."""
    ideal = alt.Chart(alt.Data(values=[{"speedup": num_devices}])).mark_rule(color=INK, strokeDash=[4, 4])
    bars = (
        alt.Chart(alt.Data(values=data))
        .mark_bar(size=16)
        .encode(
            y=alt.Y("arm:N", sort=None, title=None),
            x=alt.X("speedup:Q", title=f"times the speed of one device, with {num_devices}"),
            color=colour_of_arms(alt, [row["arm"] for row in data], arms, legend=False),
            description=alt.Description("text:N"),
        )
    )
    return (bars + ideal.encode(x="speedup:Q")).properties(height=alt.Step(30))


def _over_devices(alt: Any, data: list[dict[str, Any]], arms: list[ArmRow]) -> Any:
    """A point per arm, over its number of devices."""
    names = [row["arm"] for row in data]
    largest = max(row["devices"] for row in data)
    ideal = (
        alt.Chart(alt.Data(values=[{"devices": n, "speedup": n} for n in (1, largest)]))
        .mark_line(color=INK, strokeDash=[4, 4], opacity=0.5)
        .encode(x="devices:Q", y="speedup:Q")
    )
    points = (
        alt.Chart(alt.Data(values=data))
        .mark_point(filled=True, opacity=1, size=80)
        .encode(
            x=alt.X(
                "devices:Q",
                axis=alt.Axis(values=list(range(1, largest + 1)), format="d"),
                scale=alt.Scale(domain=[1, largest]),
                title="devices",
            ),
            y=alt.Y("speedup:Q", title="times the speed of one device"),
            color=colour_of_arms(alt, names, arms),
            shape=alt.Shape("arm:N", scale=alt.Scale(domain=names), legend=None),
            description=alt.Description("text:N"),
        )
    )
    return (ideal + points).properties(height=260)


def _speedup(name: str, scaling: Scaling) -> dict[str, Any]:
    text = f"{name}: {scaling.speedup:.2f}x the speed of one device, {scaling.efficiency:.0%} efficient"
    return {"arm": name, "devices": scaling.num_devices, "speedup": scaling.speedup, "text": text}


def _micro_batches(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    alt = load_altair()
    measured = [row for row in arms if row.steady_images_per_second is not None]
    names = list(dict.fromkeys(row.pipeline for row in measured if row.pipeline))
    numbers = sorted({row.micro_batches for row in measured if row.pipeline})
    if len(numbers) < 2:
        return None
    data = [
        {
            "arm": row.pipeline,
            "micro-batches": row.micro_batches,
            "images/s": row.steady_images_per_second,
            "text": f"{row.name}: {row.steady_images_per_second:.1f} images/s",
        }
        for row in measured
        if row.pipeline
    ]
    x = alt.X(
        "micro-batches:Q",
        scale=alt.Scale(type="log", base=2, domain=[numbers[0], numbers[-1]]),
        axis=alt.Axis(values=numbers, format="d"),
        title="micro-batches per step",
    )
    y = alt.Y("images/s:Q", scale=alt.Scale(zero=False), title=SPEED_AXIS)
    base = alt.Chart(alt.Data(values=data)).encode(x=x, y=y, color=colour_of_arms(alt, names, arms))
    chart = base.mark_line(strokeWidth=2).encode(
        strokeDash=dash_of_arms(alt, names, arms), description=ARM
    ) + base.mark_point(filled=True, opacity=1, size=70).encode(description=alt.Description("text:N"))
    if on_one_device := _on_one_device(measured):
        values = [{"images/s": row.steady_images_per_second, "arm": row.name} for row in on_one_device]
        line = alt.Chart(alt.Data(values=values)).mark_rule(color=INK, strokeDash=[4, 4], opacity=0.5)
        chart = line.encode(y=y) + chart
    return Plot(
        name="micro-batches",
        title="Micro-batches of a pipeline",
        explanation="With one micro-batch one stage works at a time. More overlap the stages, until the micro-batches "
        "are too small to keep a device busy." + (" The level line is one device." if on_one_device else ""),
        chart=chart.properties(height=260),
    )


def _on_one_device(arms: list[ArmRow]) -> list[ArmRow]:
    """Those of the frameworks that have a pipeline among them."""
    frameworks = {row.framework for row in arms if row.pipeline}
    return [row for row in arms if row.framework in frameworks and not MODES[row.framework, row.mode].multi_device]


def _breakdown(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    alt = load_altair()
    data = [
        {"arm": row.name, "part": part, "order": order, "ms": value, "text": f"{row.name}, {part}: {value:.1f} ms"}
        for row in arms
        for order, (part, value) in enumerate(row.step_parts_ms.items())
    ]
    if not data:
        return None
    parts = list(dict.fromkeys(str(row["part"]) for row in data))
    colours = alt.Color(
        "part:N",
        scale=alt.Scale(domain=parts, range=[PART_COLOURS[part] for part in parts]),
        legend=alt.Legend(title=None, orient="top", direction="horizontal"),
    )
    chart = _bars(alt, data, arms, "ms", "ms per mean step").encode(color=colours, order=alt.Order("order:Q"))
    return Plot(
        name="breakdown",
        title="Where the time goes: a mean step, stalls included",
        explanation="The mean of all measured steps in parts. Communication is what gradient sync adds to it, measured "
        "by leaving it out; where it was not measured, it is part of computing. Other is what the loop does between "
        "two steps (reading losses, writing events), which images/s leave out, as they do stalls.",
        chart=chart,
    )


def _bars(alt: Any, data: list[dict[str, Any]], arms: list[ArmRow], field: str, title: str) -> Any:
    """A horizontal bar per arm."""
    return (
        alt.Chart(alt.Data(values=data))
        .mark_bar(size=18)
        .encode(
            y=alt.Y("arm:N", sort=[row.name for row in arms], title=None),
            x=alt.X(f"{field}:Q", title=title),
            color=colour_of_arms(alt, [row["arm"] for row in data], arms, legend=False),
            description=alt.Description("text:N"),
        )
        .properties(height=alt.Step(32))
    )


def _memory(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    alt = load_altair()
    data = [
        {
            "arm": row.name,
            "MiB": row.memory_bytes / 2**20,
            "text": f"{row.name}: {row.memory_bytes / 2**20:,.0f} MiB",
        }
        for row in arms
        if row.memory_bytes
    ]
    if not data:
        return None
    chart = _bars(alt, data, arms, "MiB", "sum of the peaks of resident memory, MiB")
    return Plot(
        name="memory",
        title="Memory",
        explanation="The peaks of resident memory of all processes of an arm, added up, frameworks included.",
        chart=chart,
    )
