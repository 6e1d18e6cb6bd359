"""The state of a training: the tensors of its model and of its optimizer, in names of neither framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

State = dict[str, npt.NDArray[Any]]
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
