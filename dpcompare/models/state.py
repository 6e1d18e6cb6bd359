"""The state of a training, and the gradients of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dpcompare.system.json_files import Count
from dpcompare.system.type_names import Array

MOST_POINTS = 64
"""The points of the curve that are kept."""


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """What a process knows of the gradients of its replica."""

    num_bytes: Count
    """The bytes of all gradients, as they are exchanged."""
    messages: tuple[Count, ...] = ()
    """Bytes of each collective of a step, in the order in which they are made; of sharded layers, the bytes of the
    parameters of each. Empty if the framework does not report them."""
    ready: tuple[tuple[Count, float], ...] = ()
    """(bytes, share): how many bytes of gradients there are after which share of a step; growing. Of a warm-up step of
    the first process; empty where it was not observed."""
    backward_ends: float | None = None
    """The share of that step after which the backward pass ends, and the update begins."""


def ready_curve(ready_at: Mapping[int, float], num_bytes: Mapping[int, int]) -> tuple[tuple[int, float], ...]:
    """How many bytes of gradients there are after which share of a step, in MOST_POINTS points at most.

    Args:
        ready_at: tensor -> share of the step after which its gradient is ready.
        num_bytes: tensor -> size of its gradient.
    """
    in_order = sorted(ready_at, key=ready_at.__getitem__)
    curve, total = [], 0
    for tensor in in_order:
        total += num_bytes[tensor]
        curve.append((total, round(ready_at[tensor], 4)))
    return tuple(_thinned(curve))


def _thinned(curve: list[tuple[int, float]]) -> Iterable[tuple[int, float]]:
    """The last point of each of equally many bytes: of those between them, when the later ones are ready is kept."""
    if len(curve) <= MOST_POINTS:
        return curve
    total = curve[-1][0]
    last_of = {min(MOST_POINTS - 1, MOST_POINTS * num_bytes // total): (num_bytes, share) for num_bytes, share in curve}
    return last_of.values()


State = dict[str, Array]
"""Name -> tensor, on the host."""


AVERAGE = "average"
"""The slot that holds a parameter's mean over the steps; see `dpcompare.backends.update_rules`."""


def is_statistic(name: str) -> bool:
    """Whether a tensor is a running statistic of BatchNorm, and not a parameter."""
    return name.endswith((".running_mean", ".running_var"))


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """A training after a number of steps: the order of the samples and all random numbers follow from the step."""

    model: State
    """Tensors of the model, BatchNorm statistics of replica 0 included."""
    optimizer: State
    """What the optimizer remembers, as `<slot>.<tensor>`: momentum, or exp_avg and exp_avg_sq; and AVERAGE."""
    step: int
    """Steps trained."""

    @property
    def average(self) -> State:
        """Parameter -> its mean over the steps; empty where the training keeps none."""
        prefix = f"{AVERAGE}."
        return {name.removeprefix(prefix): value for name, value in self.optimizer.items() if name.startswith(prefix)}
