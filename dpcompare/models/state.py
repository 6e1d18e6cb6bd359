"""The state of a training: the tensors of its model and of its optimizer, in names of neither framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

State = dict[str, npt.NDArray[Any]]
"""Name -> tensor, on the host."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """A training after a number of steps: the order of the samples and all random numbers follow from the step."""

    model: State
    """Tensors of the model, BatchNorm statistics of replica 0 included."""
    optimizer: State
    """What the optimizer remembers, as `<slot>.<tensor>`: momentum, or exp_avg and exp_avg_sq."""
    step: int
    """Steps trained."""
