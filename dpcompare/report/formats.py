"""A comparison as Markdown and JSON, and conditions on its figures; every format shows the same digits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dpcompare.config.cluster import topology_in_words
from dpcompare.errors import RequestError
from dpcompare.experiments.comparison import ArmRow, Comparison
from dpcompare.results.remarks import UNSTABLE
from dpcompare.system.terminal_text import printable

MIB = 1024 * 1024


def figure(value: float | None, form: str = "{:.1f}") -> str:
    """A figure, or a dash where nothing finite was measured."""
    return "-" if value is None else form.format(value)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One row of FIGURES."""

    cell: Callable[[ArmRow], str]
    explanation: str
    is_text: bool = False
    is_optional: bool = False
    """Left out where no arm has a figure."""


def _efficiency(row: ArmRow) -> str:
    if row.scaling is None:
        return "-"
    return f"{row.scaling.efficiency:.0%} {row.scaling.kind}" + (" SUSPICIOUS" if row.scaling.suspicious else "")


FIGURES: dict[str, Column] = {
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
    "images/s": Column(
        cell=lambda row: figure(row.images_per_second),
        explanation="of all replicas, by the slowest process, over the measured steps; median of the rounds",
    ),
    "steady": Column(
        cell=lambda row: figure(row.steady_images_per_second),
        explanation="images/s of the median tenth of the measured steps, which a stall leaves alone: ratios are of it",
    ),
    "jitter": Column(
        cell=lambda row: figure(row.jitter),
        explanation="1.4826 x median absolute deviation of images/s over the rounds",
    ),
    "ms/step": Column(cell=lambda row: figure(row.step_ms), explanation="median step, median of the rounds"),
    "p95 (ms)": Column(cell=lambda row: figure(row.step_p95_ms), explanation="95th percentile of the steps"),
    "between": Column(
        cell=lambda row: figure(row.between_steps_fraction, "{:.1%}"),
        explanation="fraction of the time that passes between steps, which images/s leave out",
    ),
    "data wait": Column(
        cell=lambda row: figure(row.data_wait_fraction, "{:.1%}"),
        explanation="fraction of a step spent waiting for data",
    ),
    "sync (ms)": Column(
        cell=lambda row: figure(row.communication_ms),
        explanation="what gradient sync adds to a mean step, where that was measured (--ablate)",
        is_optional=True,
    ),
    "start (s)": Column(
        cell=lambda row: figure(row.time_to_first_step_seconds),
        explanation="from the start of the launch to the first step",
    ),
    "memory (MiB)": Column(
        cell=lambda row: figure(row.memory_bytes / MIB if row.memory_bytes else None, "{:,.0f}"),
        explanation="sum of the processes' peaks of resident memory",
    ),
    "GPU (MiB)": Column(
        cell=lambda row: figure(row.gpu_memory_bytes / MIB if row.gpu_memory_bytes else None, "{:,.0f}"),
        explanation="peak memory of all GPUs, from the first measured step on",
        is_optional=True,
    ),
    "J/image": Column(
        cell=lambda row: figure(row.joules_per_image, "{:.3f}"),
        explanation="energy over the measured steps, counted by the GPUs, or on the CPU by all packages of the machine",
        is_optional=True,
    ),
    "last loss": Column(cell=lambda row: figure(row.last_loss, "{:.4f}"), explanation="training loss of the last step"),
    "accuracy": Column(cell=lambda row: figure(row.accuracy, "{:.3f}"), explanation="on the validation split"),
    "efficiency": Column(
        cell=_efficiency,
        explanation="steady speed / (devices x that of `single` of the same framework); over 105% is suspicious",
    ),
}


def columns(comparison: Comparison) -> dict[str, Column]:
    """The rows of FIGURES of which a comparison has something to show."""
    return {
        name: column
        for name, column in FIGURES.items()
        if not column.is_optional or any(column.cell(row) != "-" for row in comparison.arms)
    }


def as_json(comparison: Comparison) -> str:
    """The comparison with all its fields."""
    return json.dumps(comparison.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """The headline, a table with a line per arm, every claim, and the reasons of the fairness sheet."""
    lines = ["# dpcompare", "", f"**{_escaped(comparison.headline)}**", ""]
    shown = columns(comparison)
    lines += ["| " + " | ".join(shown) + " |"]
    lines += ["|" + "|".join("---" if column.is_text else "--:" for column in shown.values()) + "|"]
    for row in comparison.arms:
        lines.append("| " + " | ".join(_escaped(column.cell(row)) for column in shown.values()) + " |")
    if comparison.claims:
        lines += ["", *(f"- {_escaped(made.sentence)}" for made in comparison.claims)]
    if scalings := [row.scaling for row in comparison.arms if row.scaling]:
        lines += ["", *(f"- {_escaped(scaling.sentence)}" for scaling in scalings)]
    if comparison.agreement:
        lines += ["", _escaped(comparison.agreement)]
    if comparison.unchecked:
        lines += ["", _escaped(comparison.unchecked)]
    if comparison.stopped_by:
        lines += ["", f"Rounds were added until {_escaped(comparison.stopped_by)}."]
    for row in comparison.arms:
        lines += [f"- {each.kind} {_escaped(row.name)}: {_escaped(each.sentence)}" for each in row.remarks]
        lines += [f"- OUTLIERS {_escaped(row.name)}: {_escaped(outlier)}" for outlier in row.outliers]
        lines += [f"- RUN AGAIN {_escaped(row.name)}: {_escaped(why)}" for why in row.repeated]
        lines += [f"- FAILED {_escaped(row.name)}: {_escaped(failure)}" for failure in row.all_failures]
    if len(comparison.arms) > 1:
        lines += ["", f"Fairness: {comparison.summary}.", *(f"- {_escaped(reason)}" for reason in comparison.reasons)]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([|<>*_`\\\[\]])", r"\\\1", printable(text))


@dataclass(frozen=True)
class Condition:
    """A condition of --fail-if: a figure, a comparison and a number."""

    text: str
    subject: str
    holds: Callable[[float], bool]

    def where_it_holds(self, comparison: Comparison) -> Iterator[str]:
        """A line for every value that meets the condition, or one where there is no value to judge."""
        values = list(self._values(comparison))
        if all(value is None for _, value in values) and not self._missing(comparison):
            yield f"{self.text} cannot be judged: there is no {self.subject} here"
        for name in self._missing(comparison):
            yield f"{self.text} cannot be judged for {name}"
        for name, value in values:
            if value is not None and self.holds(value):
                yield f"{self.text} holds for {name}: {value:.4g}"

    def _missing(self, comparison: Comparison) -> list[str]:
        """What should have a figure and has none: arms that failed or were not run, pairs with too few rounds."""
        failed = [row.name for row in comparison.arms if row.failures or not row.rounds]
        if self.subject != "ratio":
            return failed
        too_few = [f"{made.first} / {made.second}" for made in comparison.claims if made.outcome == "too few rounds"]
        return failed + too_few

    def _values(self, comparison: Comparison) -> Iterator[tuple[str, float | None]]:
        if self.subject == "ratio":
            for made in comparison.claims:
                name = f"{made.first} / {made.second}"
                if made.outcome in ("faster", "slower"):
                    yield name, made.ratio
                elif made.outcome == "no difference shown":
                    yield name, math.nan  # it was judged, and meets nothing: noise would decide
                else:
                    yield name, None
            return
        for row in comparison.arms:
            value = row.scaling.efficiency if self.subject == "efficiency" and row.scaling else None
            yield row.name, value if self.subject == "efficiency" else getattr(row, self.subject)


@dataclass(frozen=True)
class Unstable:
    """The condition of --fail-if that has no figure: a run was not steady, or its clock is not to be trusted."""

    def where_it_holds(self, comparison: Comparison) -> Iterator[str]:
        """A line for every such run, and for every arm that has no run."""
        for row in comparison.arms:
            if not row.rounds:
                yield f"unstable cannot be judged for {row.name}"
            for remark in row.remarks:
                if remark.kind in UNSTABLE:
                    yield f"unstable holds for {row.name}: {remark.kind}: {remark.sentence}"


_CONDITION_SUBJECTS = ("ratio", "efficiency", "accuracy", "images_per_second")


def parse_condition(text: str) -> Condition | Unstable:
    """`ratio<0.97` or `unstable` as a condition.

    Raises:
        RequestError: it is none.
    """
    if text.strip() == "unstable":
        return Unstable()
    match = re.fullmatch(r"\s*(\w+)\s*(<|>)\s*([0-9.eE+-]+)\s*", text)
    try:
        limit = float(match[3]) if match else float("nan")
    except ValueError:
        limit = float("nan")
    if match is None or match[1] not in _CONDITION_SUBJECTS or limit != limit:
        raise RequestError(
            f"--fail-if: received {text!r}, expected FIGURE<NUMBER or FIGURE>NUMBER with FIGURE one of "
            f"{', '.join(_CONDITION_SUBJECTS)}, such as ratio<0.97; or unstable"
        )
    below = match[2] == "<"
    return Condition("".join(match.groups()), match[1], lambda value: value < limit if below else value > limit)
