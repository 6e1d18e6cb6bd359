"""The parts of a step: what it takes longer than the same step with something left out, as shares with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dpcompare.experiments.accuracy_statistics import paired_difference
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM, Plan
from dpcompare.experiments.variants import TIMES_THE_BATCH, Variant
from dpcompare.results.steadiness import median_of_parts

Part = Literal["input", "exchange", "waiting", "devices", "launching", "computing", "sharing", "together"]
"""`devices`: exchange, waiting and contention, where a mode has no step without its exchange. `sharing`: contention
between devices, a part of launching and computing. `together`: what is saved only by leaving out both input and
exchange."""
JUDGED: tuple[Part, ...] = ("input", "exchange", "waiting", "devices", "launching")
"""Parts that a run need not have, of which one may stand out."""

Seconds = Sequence[Sequence[float]]
"""Of the measured steps of each process of a run."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the step, relative to the whole."""

    value: float
    interval: tuple[float, float] | None
    """Student's, over the rounds; None with too few of them."""
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Round:
    """The runs of one round: of each variant that completed, the seconds of its steps."""

    seconds: Mapping[Variant, Seconds]
    slowest: int
    """Rank of the process that is the slowest over all rounds; 0 of one process."""
    alone: Variant
    """The one that only computes, as far as the mode has such a step."""

    def step(self, variant: Variant) -> float | None:
        """Seconds of a step of the slowest process, for which all others wait."""
        processes = self.seconds.get(variant)
        return _steady(max(processes, key=sum)) if processes else None

    def of_all(self, variant: Variant) -> float | None:
        """Seconds of a step that would end with the last process to make it: those of a variant without exchange."""
        processes = self.seconds.get(variant)
        return _steady(np.max(processes, axis=0)) if processes else None

    def typical(self, variant: Variant) -> float | None:
        """Seconds of a step of the other processes, the slowest apart; of the only one where there is no other."""
        processes = self.seconds.get(variant)
        if not processes:
            return None
        others = [each for rank, each in enumerate(processes) if rank != self.slowest] or processes
        return float(np.median([_steady(each) for each in others]))

    @property
    def computing(self) -> float | None:
        """Seconds of a step that only computes, of a typical process."""
        return self.typical(self.alone)

    @property
    def per_batch(self) -> float | None:
        """What a step takes longer when its batch is larger by itself: what it takes for the images alone."""
        longer = _difference(self.typical("larger batch"), self.computing)
        return None if longer is None else longer / (TIMES_THE_BATCH - 1)

    @property
    def unhidden_input(self) -> float | None:
        """Seconds that input adds to a step: one without exchange, where there is one, behind which nothing hides."""
        found = _difference(self.of_all("no exchange"), self.of_all("computing alone"))
        return _LEFT["input"](self) if found is None else found


def _steady(seconds: Sequence[float]) -> float:
    """Of a step, without single stalls: as `steady_images_per_second` has it."""
    return 1 / median_of_parts([1.0] * len(seconds), seconds)


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """The parts of the step of a run."""

    rounds: Sequence[Round]
    num_processes: int
    waits_within: bool
    """Whether processes wait for each other within computing too, as with synchronized BatchNorm."""

    @classmethod
    def of(cls, seconds: Sequence[Mapping[Variant, Seconds]], *, alone: Variant, waits_within: bool) -> StepParts:
        """From the seconds of the steps of each variant, round by round."""
        apart = [
            np.array([_steady(each) for each in of["computing alone"]]) for of in seconds if "computing alone" in of
        ]
        slowest = int(np.mean([each / each.mean() for each in apart], axis=0).argmax()) if apart else 0
        return cls(
            rounds=[Round(seconds=of, slowest=slowest, alone=alone) for of in seconds],
            num_processes=len(apart[0]) if apart else 1,
            waits_within=waits_within,
        )

    @cached_property
    def seconds(self) -> float | None:
        """Of the whole step: the median over the rounds."""
        return self.median(lambda each: each.step("as it is"))

    @cached_property
    def shares(self) -> dict[Part, Share]:
        """Of every part that was measured."""
        found = {part: self._share(part, left) for part, left in _LEFT.items() if self._is_told(part)}
        return {part: share for part, share in found.items() if share is not None}

    @property
    def level(self) -> float:
        """Probability with which an interval misses the truth: all parts that are judged share that of a study."""
        return Plan().level / len(JUDGED)

    def median(self, seconds: Callable[[Round], float | None]) -> float | None:
        """Over the rounds that have it."""
        known = [value for each in self.rounds if (value := seconds(each)) is not None]
        return float(np.median(known)) if known else None

    @property
    def slowest(self) -> int:
        """Rank of the process that is the slowest over all rounds."""
        return self.rounds[0].slowest

    @property
    def is_always_slowest(self) -> bool:
        """Whether that process was slower than the others in every round, and in enough of them to be no chance."""
        both = [(_process(each, self.slowest), each.typical("computing alone")) for each in self.rounds]
        known = [(own, others) for own, others in both if own is not None and others is not None]
        is_slower = all(own > others for own, others in known)
        return self.num_processes > 1 and len(known) >= ROUNDS_FOR_CLAIM and is_slower

    @property
    def slowest_ratio(self) -> float | None:
        """How many times as long as the others it takes: the median over the rounds."""

        def ratio(each: Round) -> float | None:
            own, others = _process(each, self.slowest), each.typical("computing alone")
            return own / others if own is not None and others is not None else None

        return self.median(ratio)

    def _is_told(self, part: Part) -> bool:
        if part == "waiting":
            return self.num_processes > 1 and not self.waits_within
        return True

    def _share(self, part: Part, left: Callable[[Round], float | None]) -> Share | None:
        """What leaving a part out saves, relative to the step as it is, within each round."""
        values: list[float | None] = []
        for each in self.rounds:
            whole, saved = each.step("as it is"), left(each)
            values.append(None if whole is None or saved is None else saved / whole)
        found = paired_difference(values, [None if value is None else 0.0 for value in values])
        if found is None:
            return None
        return Share(value=found.mean, interval=found.interval(self.level), rounds=found.rounds)


def _process(each: Round, rank: int) -> float | None:
    processes = each.seconds.get("computing alone")
    return _steady(processes[rank]) if processes else None


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def _together(each: Round) -> float | None:
    both = _difference(each.step("as it is"), each.of_all("computing alone"))
    apart = [_LEFT["input"](each), _LEFT["exchange"](each)]
    if both is None or None in apart:
        return None
    return both - sum(value for value in apart if value is not None)


def _devices(each: Round) -> float | None:
    if each.alone != "one device":
        return None
    return _difference(each.step("no input"), each.step("one device"))


def _sharing(each: Round) -> float | None:
    return _difference(each.typical("computing alone"), each.step("one device"))


_LEFT: dict[Part, Callable[[Round], float | None]] = {
    "input": lambda each: _difference(each.step("as it is"), each.step("no input")),
    "exchange": lambda each: _difference(each.step("as it is"), each.of_all("no exchange")),
    "waiting": lambda each: _difference(each.of_all("computing alone"), each.typical("computing alone")),
    "devices": _devices,
    "launching": lambda each: _difference(each.computing, each.per_batch),
    "computing": lambda each: each.per_batch,
    "sharing": _sharing,
    "together": _together,
}
"""Part -> the seconds of a step that it takes, from one round."""
