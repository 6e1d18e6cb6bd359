"""How the values of runs are compared on the fairness sheet: as asked for, or but for rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpcompare.backends.description import NOT_KNOWN, acting_on
from dpcompare.experiments.sheet_values import in_one_line, owned_variables
from dpcompare.results.result import RunResult

Values = Mapping[str, Sequence[Any]]
"""Check of the sheet -> its value in each result."""

FEW_STEPS = 20
"""Steps over which float64 has been measured."""

TOLERANCES: dict[str, dict[str, float]] = {
    "first loss": {"float64": 1e-9, "float32": 1e-4, "TF32": 5e-3, "bfloat16": 2e-2},
    "first gradient norm": {"float64": 1e-9, "float32": 1e-3, "TF32": 2e-2, "bfloat16": 5e-2},
    "first update norm": {"float64": 1e-9, "float32": 1e-3, "TF32": 2e-2, "bfloat16": 5e-2},
    "first evaluation accuracy": {"float64": 0.02, "float32": 0.07, "TF32": 0.07, "bfloat16": 0.13},
    "second loss": {"float64": 1e-6, "float32": 5e-3, "TF32": 2e-2, "bfloat16": 5e-2},
    "first evaluation loss": {"float64": 1e-9, "float32": 1e-2, "TF32": 5e-2, "bfloat16": 1e-1},
    "later losses": {"float64": 1e-6},
    "evaluation loss": {"float64": 1e-6},
    "evaluation accuracy": {"float64": 0.02},
}
"""Check -> arithmetic -> the largest difference that rounding makes, relative to a loss above 1, or to the norm.

At least 20 times what `verify` and the runs of the tests showed on the CPU: EfficientNet-B2 in float32 1.2e-6 in the
first and 1.1e-4 in the second, a small model in bfloat16 4.6e-5 and 1.2e-4. TF32 is reasoned: 10 bits of mantissa."""


class Outcome(NamedTuple):
    """What a check finds in some results."""

    equal: bool
    is_reason: bool
    """Whether it makes them not comparable."""
    detail: str = ""
    """Where they differ, in words, if the values do not say it."""


Comparator = Callable[[Sequence[RunResult], Sequence[Any], Values], Outcome]
"""From some results, their values of a check, and those of the checks that it depends on, to what it finds."""


def as_asked(results: Sequence[RunResult], counts: Sequence[Any], values: Values) -> Outcome:
    """Compare each count with what its run was asked for; other checks compare how much that is."""
    contradict = [count for count in counts if isinstance(count, str) and count != NOT_KNOWN]
    return Outcome(equal=not contradict and len(set(map(str, counts))) == 1, is_reason=bool(contradict))


def same_origin(results: Sequence[RunResult], origins: Sequence[str], values: Values) -> Outcome:
    """Compare how weights were had; a file may hold what another run has drawn, which their checksum says."""
    equal = len(set(origins)) == 1
    return Outcome(equal=equal, is_reason=not equal and len({result.weights_sha256 for result in results}) > 1)


def same_environment(results: Sequence[RunResult], found: Sequence[Any], values: Values) -> Outcome:
    """Compare the variables that are of no arm's own environment: those are what is compared."""
    own = owned_variables(results)
    inherited = {
        in_one_line({name: value for name, value in variables.items() if name not in own})
        for variables in (acting_on(each.framework, each.settings.get("environment") or {}) for each in results)
    }
    return Outcome(equal=len(set(found)) == 1, is_reason=len(inherited) > 1)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What results must agree in where all is equal that it depends on."""

    agree: Callable[[Sequence[RunResult], Sequence[Any]], bool]
    """Whether the values of some results that are alike are the same, or differ as rounding makes them."""
    applies_to: Callable[[RunResult], bool] = lambda result: True
    """The results for which that has been measured; those of others are shown."""
    explain: Callable[[Sequence[RunResult]], str] = lambda results: ""
    """Where results that are alike and do not agree differ, in words."""

    def __call__(self, results: Sequence[RunResult], figures: Sequence[Any], values: Values) -> Outcome:
        alike: dict[str, list[int]] = {}
        for number in range(len(results)):
            alike.setdefault(str([check_values[number] for check_values in values.values()]), []).append(number)
        groups = [[results[number] for number in numbers] for numbers in alike.values()]
        agree = [
            self.agree(group, [figures[number] for number in numbers])
            for group, numbers in zip(groups, alike.values(), strict=True)
        ]
        is_reason = not all(agree) and all(self.applies_to(result) and has_one_order(result) for result in results)
        return Outcome(
            equal=all(agree) and len(alike) == 1,
            is_reason=is_reason,
            detail=self.explain(groups[agree.index(False)]) if is_reason else "",
        )


@dataclass(frozen=True)
class ByRounding:
    """Whether figures differ by no more than rounding makes of them."""

    tolerances: Mapping[str, float]
    """Arithmetic -> the largest difference, relative to the largest figure; those of others may differ as they do."""
    least: float = 1.0
    """The difference is relative to no less than this."""
    samples: Callable[[RunResult], int] | None = None
    """The samples that a figure is a share of: but in float64, rounding may decide about one of them."""

    def __call__(self, results: Sequence[RunResult], values: Sequence[Any]) -> bool:
        each = [value if isinstance(value, list) else [value] for value in values if value != NOT_KNOWN]
        known = [figures for figures in each if all(isinstance(figure, float) for figure in figures)]
        if len(known) < len(each) or len(each) < 2:
            return all(figures == each[0] for figures in each)
        tolerance = max(self._tolerance(result) for result in results)
        return all(
            max(step_losses) - min(step_losses) <= tolerance * max(self.least, *map(abs, step_losses))
            for step_losses in zip(*known, strict=False)
        )

    def _tolerance(self, result: RunResult) -> float:
        tolerance = self.tolerances.get(result.arithmetic, math.inf)
        if self.samples is None or result.arithmetic == "float64":
            return tolerance
        return max(tolerance, 1.5 / self.samples(result))


def same_batches(results: Sequence[RunResult], values: Sequence[Any]) -> bool:
    """Whether the digests of all steps that are known of several runs are the same; one that resumed has others."""
    known = [value for value in values if value != NOT_KNOWN]
    steps = {step for digests in known for step in digests}
    return all(len({digests[step] for digests in known if step in digests}) == 1 for step in steps)


def where_decisions_differ(what: str, results: Sequence[RunResult]) -> str:
    """The first step for which another run decided otherwise than the first, in words; empty if there is none."""
    decisions = [result.decisions for result in results if result.decisions is not None]
    first = next((at for other in decisions[1:] if (at := decisions[0].differs_at(other, what))), None)
    return f"first differs at {first}" if first else ""


def same_decisions(what: str) -> Agreement:
    """The rule that the host of every run decides the same for the steps that runs have in common, in any precision."""
    return Agreement(
        agree=lambda results, _: not where_decisions_differ(what, results),
        explain=lambda results: where_decisions_differ(what, results),
    )


def where_evaluated_rows_differ(results: Sequence[RunResult]) -> str:
    """The first evaluation that read something else in another run than in the first, in words."""
    rows = [{row.step: row.rows for row in result.evaluations if row.rows} for result in results]
    steps = [step for other in rows[1:] for step in other if rows[0].get(step, other[step]) != other[step]]
    return f"first differ in the evaluation after step {min(steps)}" if steps else ""


def updated_otherwise(results: Sequence[RunResult]) -> str:
    """The parameter whose first update differs most between the first of some runs and another, with its norms."""
    norms = [result.computed.first_update_norms for result in results if result.computed is not None]
    pairs = [
        (abs(other[name] - norm) / max(abs(other[name]), abs(norm), math.ulp(0.0)), name, norm, other[name])
        for other in norms[1:]
        for name, norm in norms[0].items()
        if name in other
    ]
    if not pairs:
        return ""
    _, name, first, second = max(pairs)
    return f"most in {name}, {first:.6g} against {second:.6g}"


def replicas_equal(results: Sequence[RunResult], values: Sequence[Any], all_values: Values) -> Outcome:
    """One run whose replicas train different models is enough.

    Each replica makes the update itself: processors of several kinds may add up in another order, so that what differs
    between these is shown, and is no reason.
    """
    sentences = [
        result.computed.replica_difference
        for result in results
        if result.computed and result.computed.replica_difference and _is_of_one_kind(result)
    ]
    is_any = any(result.computed and result.computed.replica_difference for result in results)
    return Outcome(equal=not is_any, is_reason=bool(sentences), detail="; ".join(dict.fromkeys(sentences)))


def _is_of_one_kind(result: RunResult) -> bool:
    """Whether all nodes have the same kind of processor, as far as that is known."""
    return len({node.machine.cpu_model for node in result.nodes if node.machine}) <= 1


def no_late_step_problem(results: Sequence[RunResult], values: Sequence[Any], all_values: Values) -> Outcome:
    """One run whose last steps another framework makes otherwise is enough; those that were not repeated are none."""
    problems = [result.late_step.problem for result in results if result.late_step and result.late_step.problem]
    return Outcome(equal=not problems, is_reason=bool(problems), detail="; ".join(dict.fromkeys(problems)))


def has_one_order(result: RunResult) -> bool:
    """Whether its updates come in the same order in every run; asynchronous ones do not, and so compute others."""
    return (result.settings or {}).get("updates") != "asynchronous"


def on_cpu(result: RunResult) -> bool:
    """Whether a run was on the CPU: for what is computed after an update on GPUs, nothing has been measured yet."""
    return result.device_type == "cpu"


def in_float64(result: RunResult) -> bool:
    """From the third step on float32 is chaotic."""
    return on_cpu(result) and result.precision == "float64"


def in_few_steps_of_float64(result: RunResult) -> bool:
    """After many steps float64 is chaotic too."""
    return in_float64(result) and len(result.train_loss) <= FEW_STEPS


def no_clock_problem(results: Sequence[RunResult], values: Sequence[Any], all_values: Values) -> Outcome:
    """One run whose clock is wrong is enough; a run that was not watched has none."""
    problem = any(result.clock_problem for result in results)
    return Outcome(equal=not problem, is_reason=problem)


def no_shared_gpu(results: Sequence[RunResult], values: Sequence[Any], all_values: Values) -> Outcome:
    """Replicas that wait for each other's GPU have no speed to compare, not even with others that do."""
    is_shared = any(result.config["cluster"].get("shared") for result in results)
    equal = len(set(values)) == 1
    return Outcome(equal=equal, is_reason=is_shared or not equal)
