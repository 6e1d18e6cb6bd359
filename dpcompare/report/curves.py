"""The plots of what arms learn over their steps: accuracy, loss, and how far losses are apart."""

from __future__ import annotations

from typing import Any

from dpcompare.experiments.comparison import ArmRow, Comparison
from dpcompare.report.charts import INK, WIDTH, Plot, colour_of_arms, dash_of_arms, load_altair
from dpcompare.system.terminal_text import counted

LARGEST_NUMBER_OF_VALUES = 45
"""Of a curve, that can be pointed at."""


def accuracy_over_steps(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    """None where no arm was evaluated more than once in all of its rounds."""
    return _accuracies(arms, "step", "step", "Accuracy over the steps", "")


def accuracy_over_seconds(comparison: Comparison, arms: list[ArmRow]) -> Plot | None:
    """None where no arm was evaluated more than once in all of its rounds, or no training was timed."""
    explanation = " Seconds are those of training, without evaluations and checkpoints: the median of the rounds."
    for row in arms:
        if untimed := max((point.rounds - point.timed for point in row.accuracy_curve), default=0):
            explanation += f" Those of {row.name} leave out {counted(untimed, 'round')} that had to be resumed."
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
            f"{counted(point.rounds, 'round')})",
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
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=y, strokeDash=dash_of_arms(alt, names, arms))
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
        chart=chart.properties(width=WIDTH, height=260),
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
    """How far the losses are from those of the first arm; None where there is nothing to compare."""
    alt = load_altair()
    if len(arms) < 2 or not arms[0].loss_curve.steps:
        return None
    reference = dict(zip(arms[0].loss_curve.steps, arms[0].loss_curve.losses, strict=True))
    data = []
    for row in arms[1:]:
        for step, loss in zip(row.loss_curve.steps, row.loss_curve.losses, strict=True):
            other = reference.get(step)
            if loss is not None and other is not None:
                data.append({"arm": row.name, "step": step, "difference": loss - other})
    if not data:
        return None
    chart = _curves(
        alt, data, [row.name for row in arms[1:]], arms, "difference", f"difference from the loss of {arms[0].name}"
    )
    return Plot(
        name="loss-differences",
        title="Difference of the loss curves",
        explanation=f"The loss of each arm minus that of {arms[0].name}. In float32 rounding grows with the steps, "
        "also between two runs of one framework; arms with other numbers of replicas normalise by other batches.",
        chart=chart,
    )


def _curves(alt: Any, data: list[dict[str, Any]], names: list[str], arms: list[ArmRow], field: str, title: str) -> Any:
    base = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X("step:Q", title="step"),
        y=alt.Y(f"{field}:Q", scale=alt.Scale(zero=False), title=title),
        color=colour_of_arms(alt, names, arms),
    )
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=dash_of_arms(alt, names, arms))
    # What a reader can point at: unseen marks on the curve, few enough for a page of many arms.
    of_arms = [[row for row in data if row["arm"] == name] for name in names]
    marks = [
        row | {"text": f"{row['arm']}, step {row['step']}: {field} {row[field]:.4g}"}
        for rows in of_arms
        for row in rows[:: -(-len(rows) // LARGEST_NUMBER_OF_VALUES) or 1]
    ]
    values = (
        alt.Chart(alt.Data(values=marks))
        .mark_point(filled=True, opacity=0, size=120)
        .encode(x="step:Q", y=f"{field}:Q", description=alt.Description("text:N"))
    )
    return (lines + values).properties(width=WIDTH, height=260)
