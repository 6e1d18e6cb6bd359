"""The conditions of `--fail-if`: figures of arms, and ratios of two, that may not go below or above a number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dpcompare.errors import RequestError, did_you_mean
from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.experiments.claim_rows import ClaimRow
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.figures import FIGURES
from dpcompare.experiments.statistics import UNMEASURED
from dpcompare.results.clock import UNSTABLE

Value = float | None
"""None: it cannot be judged; NaN: it was judged, and meets no condition."""


def _figure(name: str) -> Callable[[ArmRow], Value]:
    return lambda row: getattr(row, name)


def _of_target(name: str) -> Callable[[ArmRow], Value]:
    """A figure of the way to the target accuracy; an arm that has missed it has none."""
    return lambda row: getattr(row.to_target, name) if row.to_target else None


def _efficiency(row: ArmRow) -> Value:
    return row.scaling.efficiency if row.scaling and not row.scaling.doubt else None


OF_ARMS: Mapping[str, Callable[[ArmRow], Value]] = {
    "efficiency": _efficiency,
    **{name: _figure(name) for name, row in FIGURES.items() if row.over_rounds},
    "steps_to_target": _of_target("steps"),
    "seconds_to_target": _of_target("seconds"),
    "images_to_target": _of_target("images"),
    "joules_to_target": _of_target("joules"),
    "dollars_to_target": _of_target("dollars"),
    "dollars_per_million_images": _figure("dollars_per_million_images"),
}
"""What a condition may be about, of any arm -> how it is read."""
RATIO = "ratio"
"""A condition on any pair: the speed of the arm that stands first in the study over that of the other."""


@dataclass(frozen=True)
class Condition:
    """A figure, or a ratio, and the number that it may not pass."""

    text: str
    subject: str
    """A key of OF_ARMS, RATIO, or `ARM / ARM`."""
    holds: Callable[[float], bool]

    def where_it_holds(self, comparison: Comparison) -> Iterator[str]:
        """A line for every value that meets the condition, and for all that should have one and has none.

        Raises:
            RequestError: it names arms that are no pair, or a cost without a price.
        """
        if self.subject.startswith("dollars") and comparison.dollars_per_device_hour is None:
            raise RequestError(f"--fail-if: received {self.text!r} without a price; give --price too")
        values = self._values(comparison)
        missing = self._missing(comparison)
        if all(value is None for value in values.values()) and not missing:
            yield f"{self.text} cannot be judged: there is no {self.subject} here"
        for name in missing:
            yield f"{self.text} cannot be judged for {name}"
        for name, value in values.items():
            if value is not None and self.holds(value):
                yield f"{self.text} holds for {name}: {value:.4g}"

    def _missing(self, comparison: Comparison) -> list[str]:
        """What should have a figure and has none: arms that failed or were not run, pairs with too few sound rounds."""
        failed = [row.name for row in comparison.arms if row.failures or not row.rounds]
        if self.subject == "efficiency":
            scalings = [(row.name, row.scaling) for row in comparison.arms if row.scaling]
            return failed + [f"{name} ({scaling.doubt})" for name, scaling in scalings if scaling.doubt]
        if read := OF_ARMS.get(self.subject):  # a run that ends at its target may have no step after its warm-up
            return [row.name for row in comparison.arms if row.name in failed or read(row) is None]
        if self.subject == RATIO:
            return failed + [
                f"{claim.first} / {claim.second} ({claim.outcome})"
                for claim in comparison.claims
                if claim.outcome in UNMEASURED
            ]
        without_figure = [name for name in failed if name in self._names(comparison)]
        claim, _ = self._named(comparison)
        if claim and not without_figure and _ratio_of(claim) is None:
            return [f"{self.subject} ({claim.outcome})"]
        return without_figure

    def _values(self, comparison: Comparison) -> dict[str, Value]:
        if read := OF_ARMS.get(self.subject):
            return {row.name: read(row) for row in comparison.arms}
        if self.subject == RATIO:
            return {f"{claim.first} / {claim.second}": _ratio_of(claim) for claim in comparison.claims}
        claim, is_inverse = self._named(comparison)
        ratio = _ratio_of(claim) if claim else None
        return {" / ".join(self._names(comparison)): 1 / ratio if ratio and is_inverse else ratio}

    def _names(self, comparison: Comparison) -> list[str]:
        """The two arms that it names; `torch:ddp` stands for the arm of this mode, if there is one alone."""
        names = self.subject.split(" / ")
        of_modes: dict[str, list[str]] = {}
        for row in comparison.arms:
            of_modes.setdefault(f"{row.framework}:{row.mode}", []).append(row.name)
        return [of_modes[name][0] if len(of_modes.get(name, ())) == 1 else name for name in names]

    def _named(self, comparison: Comparison) -> tuple[ClaimRow | None, bool]:
        """The claim about the two arms that the condition names, and whether it is about them the other way round.

        None where an arm has no completed run.
        """
        names = self._names(comparison)
        if any(row.name in names and not row.rounds for row in comparison.arms):
            return None, False
        for claim in comparison.claims:
            if [claim.first, claim.second] in (names, names[::-1]):
                return claim, [claim.first, claim.second] != names
        pairs = [f"{claim.first} / {claim.second}" for claim in comparison.claims]
        raise RequestError(
            f"--fail-if: received {self.subject!r}, expected a pair of this study, either way round: "
            f"{'; '.join(pairs) or 'it has none'} (several devices against one: efficiency)."
            f"{did_you_mean(self.subject, pairs)}"
        )


def _ratio_of(claim: ClaimRow) -> Value:
    """The ratio where it is shown; NaN where none is, so that noise does not decide."""
    if claim.outcome in ("faster", "slower"):
        return claim.ratio
    return math.nan if claim.outcome == "no difference shown" else None


@dataclass(frozen=True)
class Unstable:
    """The condition that has no figure: a run was not steady, or its clock is not to be trusted."""

    text: str = "unstable"

    def where_it_holds(self, comparison: Comparison) -> Iterator[str]:
        """A line for every such run, and for every arm that has no run."""
        for row in comparison.arms:
            if not row.rounds:
                yield f"unstable cannot be judged for {row.name}"
            for warning in row.warnings:
                if warning.kind in UNSTABLE:
                    yield f"unstable holds for {row.name}: {warning.kind}: {warning.sentence}"


def parse_condition(text: str) -> Condition | Unstable:
    """`ratio<0.97`, `torch ddp 1x2 / tensorflow mirrored 1x2 < 0.97` or `unstable` as a condition.

    Raises:
        RequestError: it is not a valid condition.
    """
    if text.strip() == "unstable":
        return Unstable()
    match = re.fullmatch(r"\s*(.*?)\s*(<|>)\s*([0-9.eE+-]+)\s*", text)
    try:
        limit = float(match[3]) if match else math.nan
    except ValueError:
        limit = math.nan
    subjects = (RATIO, *OF_ARMS)
    if match is None or not (match[1] in subjects or match[1].count(" / ") == 1) or math.isnan(limit):
        raise RequestError(
            f"--fail-if: received {text!r}, expected FIGURE<NUMBER or FIGURE>NUMBER with FIGURE one of "
            f"{', '.join(subjects)}, such as ratio<0.97; a pair of arms, such as "
            "'torch ddp 1x2 / tensorflow mirrored 1x2 < 0.97'; or unstable."
            f"{did_you_mean(match[1], subjects) if match else ''}"
        )
    below = match[2] == "<"
    return Condition("".join(match.groups()), match[1], lambda value: value < limit if below else value > limit)
