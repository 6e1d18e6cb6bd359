"""A comparison as Markdown and JSON; every format shows the same digits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from dpcompare.config.cluster import topology_in_words
from dpcompare.experiments.arm_rows import ArmRow, SpreadRow
from dpcompare.experiments.claim_rows import PredictionRows
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.figures import FIGURES
from dpcompare.experiments.figures import Column as FigureColumn
from dpcompare.system.terminal_text import printable


def figure(value: float | None, form: str = "{:.1f}") -> str:
    """A figure, or a dash where nothing finite was measured."""
    return "-" if value is None else form.format(value)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One row of COLUMNS."""

    cell: Callable[[ArmRow], str]
    explanation: str
    is_text: bool = False
    is_optional: bool = False
    """Left out where no arm has a figure."""


def _efficiency(row: ArmRow) -> str:
    if row.scaling is None:
        return "-"
    return f"{row.scaling.efficiency:.0%} {row.scaling.kind}" + (" SUSPICIOUS" if row.scaling.suspicious else "")


def _to_target(row: ArmRow, name: str, form: str) -> str:
    found = row.to_target
    if found is None:
        return "-"
    if found.is_censored:
        return f"{found.reached} of {found.rounds} reached it"
    return figure(getattr(found, name), form)


def spread_in_words(spread: SpreadRow | None, *, scale: float, digits: int, unit: str = "") -> str:
    """Such as `81.2% ± 1.1% (80.3% to 82.1%)`."""
    if spread is None:
        return "-"

    def shown(value: float) -> str:
        return f"{value * scale:.{digits}f}{unit}"

    deviation = "" if spread.standard_deviation is None else f" ± {shown(spread.standard_deviation)}"
    interval = "" if spread.low is None or spread.high is None else f" ({shown(spread.low)} to {shown(spread.high)})"
    return f"{shown(spread.mean)}{deviation}{interval}"


def _shown(name: str, column: FigureColumn, row: ArmRow) -> str:
    """A figure of an arm in its cell."""
    value = getattr(row, name)
    if value is None or (column.only_gpus and row.device_type != "gpu"):
        return "-"
    return column.form.format(value / column.per)


def _columns_of_figures() -> dict[str, Column]:
    return {
        shown.title: Column(
            cell=partial(_shown, name, shown), explanation=shown.explanation, is_optional=shown.is_optional
        )
        for name, row in FIGURES.items()
        if (shown := row.column)
    }


COLUMNS: dict[str, Column] = {
    "arm": Column(
        cell=lambda row: row.name + (" (emulated)" if row.emulated else ""),
        explanation="framework, mode, nodes x devices per node; its settings, where they differ from the common ones",
        is_text=True,
    ),
    "topology": Column(
        cell=lambda row: topology_in_words(row.num_nodes, row.devices_per_node, row.device_type),
        explanation="simulated nodes or machines, and the devices of each",
        is_text=True,
    ),
    "rounds": Column(cell=lambda row: str(row.rounds), explanation="completed runs"),
    **_columns_of_figures(),
    "accuracy over seeds": Column(
        cell=lambda row: spread_in_words(row.accuracy_over_seeds, scale=100, digits=1, unit="%"),
        explanation="mean and standard deviation over the rounds, with the 95% interval of the mean",
        is_optional=True,
    ),
    "evaluation loss over seeds": Column(
        cell=lambda row: spread_in_words(row.loss_over_seeds, scale=1, digits=3),
        explanation="the same of the loss on the validation split",
        is_optional=True,
    ),
    "to target (s)": Column(
        cell=lambda row: _to_target(row, "seconds", "{:.1f}"),
        explanation="training seconds until an evaluation first reached the target accuracy, without evaluations and "
        "checkpoints, the first step with what it compiles included; median of the rounds that were not resumed",
        is_optional=True,
    ),
    "to target (steps)": Column(
        cell=lambda row: _to_target(row, "steps", "{:.0f}"), explanation="steps until then", is_optional=True
    ),
    "to target (images)": Column(
        cell=lambda row: _to_target(row, "images", "{:,.0f}"), explanation="images until then", is_optional=True
    ),
    "to target (J)": Column(
        cell=lambda row: figure(row.to_target.joules if row.to_target else None, "{:.0f}"),
        explanation="energy until then, counted as for J/image",
        is_optional=True,
    ),
    "to target ($)": Column(
        cell=lambda row: _to_target(row, "dollars", "{:.2f}"),
        explanation="price of its devices for the training seconds to the target (--price)",
        is_optional=True,
    ),
    "$ per million images": Column(
        cell=lambda row: figure(row.dollars_per_million_images, "{:,.2f}"),
        explanation="price of its devices for the time of a million images, at the steady speed (--price)",
        is_optional=True,
    ),
    "efficiency": Column(
        cell=_efficiency,
        explanation="steady speed / (devices x that of `single` of the same framework); over 105% is suspicious",
    ),
}


def _gib(row: ArmRow) -> float | None:
    memory = row.gpu_memory_bytes or row.memory_bytes
    return memory / 2**30 if memory else None


SHORT_COLUMNS: dict[str, Column] = {
    "images/s": COLUMNS["images/s"],
    "vs 1 device": Column(
        cell=lambda row: f"{row.scaling.speedup:.2f}x" if row.scaling else "-",
        explanation="steady speed / that of `single` of the same framework",
    ),
    "$ per million images": COLUMNS["$ per million images"],
    "sync": Column(
        cell=lambda row: figure(row.communication_ms, "{:.1f} ms"),
        explanation="what gradient sync adds to a mean step, where it was left out for comparison (`--ablate`)",
    ),
    "accuracy": COLUMNS["accuracy"],
    "memory": Column(
        cell=lambda row: figure(_gib(row), "{:.1f} GiB"),
        explanation="sum of the peaks of all GPUs, or of the processes' resident memory on the CPU",
    ),
}
"""What one looks for first, in the order in which a terminal keeps them where there is no room for all."""


def short_columns(comparison: Comparison) -> dict[str, Column]:
    """The columns that a page shows unfolded: those of a terminal, and what the study was to find of accuracies."""
    shown = {"arm": COLUMNS["arm"]}
    for name, column in SHORT_COLUMNS.items():
        shown[name] = column
        if name == "accuracy":
            if any(row.accuracy_over_seeds for row in comparison.arms):
                shown[name] = replace(column, cell=COLUMNS["accuracy over seeds"].cell)
            shown["to target (s)"] = COLUMNS["to target (s)"]
    return {name: column for name, column in shown.items() if any(column.cell(row) != "-" for row in comparison.arms)}


def columns(comparison: Comparison) -> dict[str, Column]:
    """The rows of COLUMNS of which a comparison has something to show."""
    return {
        name: column
        for name, column in COLUMNS.items()
        if not column.is_optional or any(column.cell(row) != "-" for row in comparison.arms)
    }


def as_json(comparison: Comparison) -> str:
    """The comparison with all its fields."""
    return json.dumps(comparison.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """What was measured, the headline, a line per arm, every claim, and the reasons of the fairness sheet."""
    lines = ["# dpcompare", "", escaped(comparison.measured), ""]
    lines += [line for machine in comparison.machines for line in (escaped(machine), "")]
    lines += [f"**{escaped(comparison.headline)}**", ""]
    shown = columns(comparison)
    lines += ["| " + " | ".join(shown) + " |"]
    lines += ["|" + "|".join("---" if column.is_text else "--:" for column in shown.values()) + "|"]
    for row in comparison.arms:
        lines.append("| " + " | ".join(escaped(column.cell(row)) for column in shown.values()) + " |")
    if comparison.claims:
        lines += ["", *(f"- {escaped(made.sentence)}" for made in comparison.claims)]
    if comparison.learning:
        lines += ["", f"**{escaped(comparison.learning.headline)}** {escaped(comparison.learning.varied)}", ""]
        lines += [f"- {escaped(made.sentence)}" for made in comparison.learning.claims]
    if comparison.target_sentences:
        lines += ["", *(f"- {escaped(sentence)}" for sentence in comparison.target_sentences)]
    lines += [line for sentence in comparison.not_judged for line in ("", escaped(sentence))]
    if scalings := [row.scaling for row in comparison.arms if row.scaling]:
        lines += ["", *(f"- {escaped(scaling.sentence)}" for scaling in scalings)]
    if comparison.predictions:
        lines += ["", *_predictions(comparison.predictions)]
    if comparison.agreement:
        lines += ["", escaped(comparison.agreement)]
    if comparison.unchecked:
        lines += ["", escaped(comparison.unchecked)]
    if comparison.stopped_by:
        lines += ["", f"Rounds were added until {escaped(comparison.stopped_by)}."]
    for row in comparison.arms:
        lines += [f"- {each.kind} {escaped(row.name)}: {escaped(each.sentence)}" for each in row.warnings]
        lines += [f"- OUTLIERS {escaped(row.name)}: {escaped(outlier)}" for outlier in row.outliers]
        lines += [f"- REPEATED {escaped(row.name)}: {escaped(why)}" for why in row.repeated]
        lines += [f"- FAILED {escaped(row.name)}: {escaped(failure)}" for failure in row.all_failures]
    if len(comparison.arms) > 1:
        lines += ["", f"Fairness: {comparison.summary}.", *(f"- {escaped(reason)}" for reason in comparison.reasons)]
    return "\n".join(lines) + "\n"


def _predictions(predictions: PredictionRows) -> Iterator[str]:
    """How often arms agree, and a table of their accuracies per class."""
    yield from (f"- {escaped(each.sentence)}" for each in predictions.agreements)
    yield from ("", "| class | " + " | ".join(escaped(arm.name) for arm in predictions.arms) + " |")
    yield "|---|" + "--:|" * len(predictions.arms)
    for number, name in enumerate(predictions.classes):
        cells = (figure(arm.class_accuracy[number], "{:.1%}") for arm in predictions.arms)
        yield f"| {escaped(name)} | " + " | ".join(cells) + " |"


def escaped(text: str) -> str:
    """Text in which Markdown, GitHub's included, finds nothing to format, no formula and no address to link to."""
    return re.sub(r"(?i)([|<>*_`\\\[\]~$]|(?<=www)\.|:(?=//))", r"\\\1", printable(text))
