"""What runs compute, judged by figures of their own: counts as asked for, and agreement but for rounding.

Settings say what was asked for. A knob of the fairness sheet that is judged here says whether that was obeyed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpcompare.results.result import RunResult

Values = Mapping[str, Sequence[Any]]
"""Knob of the sheet -> its value in each result."""


NOT_KNOWN = "not known"
LATER_STEPS = range(3, 7)
FEW_STEPS = 20
"""Steps over which float64 has been measured."""

BATCHES_DEPEND_ON = (
    "data", "sample order", "augmentation", "model", "image size", "global batch size", "steps trained",
    "regularization", "dropout", "stochastic depth", "precision", "dpcompare",
)  # fmt: skip
"""Knobs that are equal where two runs train the same rows, digested by the same rule."""
FIRST_LOSS_DEPENDS_ON = (
    "data", "sample order", "augmentation", "model", "source of the model", "image size", "initial weights",
    "global batch size", "replicas", "micro-batches per step", "updates", "BatchNorm scope", "BatchNorm epsilon",
    "label smoothing", "regularization", "dropout", "stochastic depth", "precision",
)  # fmt: skip
"""Knobs that are equal where two runs compute the same first loss."""
FIRST_GRADIENT_DEPENDS_ON = (*FIRST_LOSS_DEPENDS_ON, "gradient clipping", "optimizer", "gradient sync")
SECOND_LOSS_DEPENDS_ON = (
    *FIRST_GRADIENT_DEPENDS_ON, "learning rate", "schedule", "learning-rate warm-up", "learning-rate scaling",
    "weight decay",
)  # fmt: skip
LATER_LOSSES_DEPEND_ON = (*SECOND_LOSS_DEPENDS_ON, "steps trained")
"""A schedule ends with them."""
EVALUATION_DEPENDS_ON = (*SECOND_LOSS_DEPENDS_ON, "BatchNorm momentum")

TOLERANCES: dict[str, dict[str, float]] = {
    "first loss": {"float64": 1e-9, "float32": 1e-4, "TF32": 5e-3, "bfloat16": 2e-2},
    "first gradient norm": {"float64": 1e-9, "float32": 1e-3, "TF32": 2e-2, "bfloat16": 5e-2},
    "second loss": {"float64": 1e-6, "float32": 5e-3, "TF32": 2e-2, "bfloat16": 5e-2},
    "first evaluation loss": {"float64": 1e-9, "float32": 1e-2, "TF32": 5e-2, "bfloat16": 1e-1},
    "later losses": {"float64": 1e-6},
    "evaluation loss": {"float64": 1e-6},
}
"""Knob -> arithmetic -> the largest difference that rounding makes, relative to a loss above 1, or to the norm.

At least 20 times what `verify` and the runs of the tests showed on the CPU: EfficientNet-B2 in float32 1.2e-6 in the
first and 1.1e-4 in the second, a small model in bfloat16 4.6e-5 and 1.2e-4. TF32 is reasoned: 10 bits of mantissa."""


class Judgement(NamedTuple):
    """What some results have of a knob."""

    equal: bool
    is_reason: bool
    """Whether it makes them not comparable."""


Judge = Callable[[Sequence[RunResult], Sequence[Any], Values], Judgement]
"""From some results, their values of a knob and of all, to what they have of it."""


def loss_of_step(step: int) -> Callable[[RunResult], Any]:
    """The loss of a step, from 1; unknown where it is not finite."""
    return lambda result: result.train_loss[step - 1] if len(result.train_loss) >= step else "no such step"


def computed(name: str) -> Callable[[RunResult], Any]:
    """A figure of what was computed; some modes have none, and results of 0.1.0 neither."""

    def value(result: RunResult) -> Any:
        figure = getattr(result.computed, name, None)
        return NOT_KNOWN if figure is None else figure

    return value


def later_losses(result: RunResult) -> Any:
    """The losses of LATER_STEPS, or of as many of them as there are."""
    losses = result.train_loss[LATER_STEPS.start - 1 : LATER_STEPS.stop - 1]
    return losses or "no such steps"


def evaluation_loss(result: RunResult) -> Any:
    return NOT_KNOWN if not result.evaluations or result.evaluations[-1].loss is None else result.evaluations[-1].loss


def counted(name: str) -> Callable[[RunResult], Any]:
    """A count of what was computed, beside what was asked for where that is another."""

    def value(result: RunResult) -> Any:
        if result.computed is None or (count := getattr(result.computed, name)) is None:
            return NOT_KNOWN
        others = {
            word: number
            for word in ("asked", "claimed")
            if (number := getattr(result.computed, f"{name}_{word}", count)) != count
        }
        return ", ".join([str(count), *(f"{number} {word}" for word, number in others.items())]) if others else count

    return value


def as_asked(results: Sequence[RunResult], counts: Sequence[Any], values: Values) -> Judgement:
    """Of counts, each must be what its run was asked for: how much that is, other knobs compare."""
    contradict = [count for count in counts if isinstance(count, str) and count != NOT_KNOWN]
    return Judgement(equal=not contradict and len(set(map(str, counts))) == 1, is_reason=bool(contradict))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What results must agree in where all is equal that it depends on."""

    depends_on: tuple[str, ...]
    """Knobs."""
    agree: Callable[[Sequence[RunResult], Sequence[Any]], bool]
    """Whether the values of some results that are alike are the same, or differ as rounding makes them."""
    judges: Callable[[RunResult], bool] = lambda result: True
    """Of which results that has been measured; those of others are shown."""

    def __call__(self, results: Sequence[RunResult], figures: Sequence[Any], values: Values) -> Judgement:
        alike: dict[str, list[int]] = {}
        for number in range(len(results)):
            alike.setdefault(str([values[name][number] for name in self.depends_on]), []).append(number)
        agree = all(
            self.agree([results[number] for number in group], [figures[number] for number in group])
            for group in alike.values()
        )
        return Judgement(
            equal=agree and len(alike) == 1,
            is_reason=not agree and all(self.judges(result) and not _is_asynchronous(result) for result in results),
        )


@dataclass(frozen=True)
class ByRounding:
    """Whether figures differ by no more than rounding makes of them."""

    tolerances: Mapping[str, float]
    """Arithmetic -> the largest difference, relative to the largest figure; those of others may differ as they do."""
    least: float = 1.0
    """The difference is relative to no less than this."""

    def __call__(self, results: Sequence[RunResult], values: Sequence[Any]) -> bool:
        each = [value if isinstance(value, list) else [value] for value in values if value != NOT_KNOWN]
        known = [figures for figures in each if all(isinstance(figure, float) for figure in figures)]
        if len(known) < len(each) or len(each) < 2:
            return all(figures == each[0] for figures in each)
        tolerance = max(self.tolerances.get(_arithmetic(result), math.inf) for result in results)
        return all(
            max(of_step) - min(of_step) <= tolerance * max(self.least, *map(abs, of_step))
            for of_step in zip(*known, strict=False)
        )


def same_batches(results: Sequence[RunResult], values: Sequence[Any]) -> bool:
    """Whether the digests of all steps that are known of several runs are the same; one that resumed has others."""
    known = [value for value in values if value != NOT_KNOWN]
    steps = {step for digests in known for step in digests}
    return all(len({digests[step] for digests in known if step in digests}) == 1 for step in steps)


def _is_asynchronous(result: RunResult) -> bool:
    """Whether the order of the workers decides what is computed, which is another one in every run."""
    return (result.settings or {}).get("updates") == "asynchronous"


def _arithmetic(result: RunResult) -> str:
    return "TF32" if result.precision == "float32" and result.settings.get("tf32") else result.precision


def on_cpu(result: RunResult) -> bool:
    """Of what is computed after an update on GPUs nothing has been measured yet."""
    return result.device_type == "cpu"


def in_float64(result: RunResult) -> bool:
    """From the third step on float32 is chaotic."""
    return on_cpu(result) and result.precision == "float64"


def in_few_steps_of_float64(result: RunResult) -> bool:
    """After many steps float64 is chaotic too."""
    return in_float64(result) and len(result.train_loss) <= FEW_STEPS
