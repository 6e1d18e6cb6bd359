"""What the host decided for each step of a run, as digests by which two runs can be compared in every precision."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from dpcompare.system.json_files import Count, Number

RATES = ("learning rate", "decay and average")
"""What all processes decide alike; of everything else each decides its part, and the digests of all are added up."""
MOST_BLOCKS = 4096
"""A result keeps a digest of each step up to so many, and of blocks of steps beyond, so that it stays small."""

Digests = npt.NDArray[np.uint32]


def encoded(digests: Sequence[int] | Digests) -> str:
    """The lowest 32 bits of each digest, in base64: two that differ are the same once in 4e9 times."""
    lowest = np.array(digests, np.uint64).astype("<u4")
    return base64.b64encode(lowest.tobytes()).decode()


def decoded(text: str) -> Digests:
    """What `encoded` was given.

    Raises:
        ValueError: it is another text.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4").astype(np.uint32)


class Decisions(BaseModel):
    """The decisions of the steps of the last attempt."""

    model_config = ConfigDict(frozen=True)

    first_step: Count
    """Steps made before."""
    last_step: Number
    steps_per_digest: Number = 1
    """A power of 2. The first digest is of the step after `first_step` up to the next multiple of it."""
    digests: dict[str, str]
    """What was decided -> a digest of 32 bits for each step, or each block of steps, in base64; what a workload does
    not have is left out."""

    @classmethod
    def of(
        cls, parts: Mapping[int, Mapping[str, Sequence[int]]], *, first_step: int, num_steps: int
    ) -> Decisions | None:
        """The decisions of a run; None where a process did not record all of them.

        Args:
            parts: part of the global batch -> what was decided for it -> a digest of each step of the attempt.
            first_step: steps made before.
            num_steps: of the attempt.
        """
        if not num_steps or not all(parts.values()) or len({frozenset(part) for part in parts.values()}) != 1:
            return None
        digests = {}
        for what in next(iter(parts.values())):
            steps = [np.array(part[what][:num_steps], np.uint32) for part in parts.values()]
            if any(len(part) < num_steps for part in steps):
                return None
            digests[what] = steps[0] if what in RATES else np.stack(steps).sum(axis=0, dtype=np.uint32)
        stride = 1
        while num_steps > MOST_BLOCKS * stride:
            stride *= 2
        return cls(
            first_step=first_step,
            last_step=first_step + num_steps,
            steps_per_digest=stride,
            digests={what: encoded(_blocks(of_step, first_step, 1, stride)) for what, of_step in digests.items()},
        )

    def differs_at(self, other: Decisions, what: str) -> str | None:
        """The first of the steps that both made for which something else was decided, in words; None: there is none.

        Args:
            what: a key of `digests`; where only one has it, they differ from the beginning.
        """
        if what not in self.digests or what not in other.digests:
            return f"step {self.first_step + 1}" if what in self.digests or what in other.digests else None
        stride = max(self.steps_per_digest, other.steps_per_digest)
        first, second = (one._by_block(what, stride) for one in (self, other))
        steps = next((steps for steps in first if second.get(steps, first[steps]) != first[steps]), None)
        if steps is None:
            return None
        return f"step {steps[-1]}" if len(steps) == 1 else f"one of steps {steps[0]} to {steps[-1]}"

    def _by_block(self, what: str, stride: int) -> dict[range, int]:
        """The steps of each block -> its digest."""
        digests = _blocks(decoded(self.digests[what]), self.first_step, self.steps_per_digest, stride)
        made = range(self.first_step + 1, self.last_step + 1)
        ends = [0, *range(stride - self.first_step % stride, len(made), stride), len(made)]
        return {made[start:end]: int(digest) for (start, end), digest in zip(pairwise(ends), digests, strict=True)}


def _blocks(digests: Digests, first_step: int, stride: int, wider: int) -> Digests:
    """Digests of blocks of `wider` steps from those of blocks of `stride`, of which it is a multiple."""
    if wider == stride or not len(digests):
        return digests
    numbers = (first_step // stride + np.arange(len(digests))) // (wider // stride)
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    return np.add.reduceat(digests, starts, dtype=np.uint32)


def contradiction_of(processes: Sequence[tuple[int, Mapping[str, Sequence[int]]]], first_step: int) -> str | None:
    """A sentence about processes that decided otherwise what is the same for all of them; None where none did.

    Args:
        processes: of each that trains, its part of the global batch, and what was decided -> a digest of each step.
        first_step: steps made before.
    """
    firsts: dict[tuple[str, int | None], tuple[int, Sequence[int]]] = {}
    for number, (part, decisions) in enumerate(processes):
        for what, digests in decisions.items():
            key = (what, None if what in RATES else part)
            first_number, first = firsts.setdefault(key, (number, digests))
            steps = enumerate(zip(first, digests, strict=False), start=first_step + 1)
            if step := next((step for step, (one, other) in steps if one != other), None):
                return f"training processes {first_number} and {number} differ in the {what} of step {step}"
    return None
