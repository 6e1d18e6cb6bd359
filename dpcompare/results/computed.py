"""What a run really computed, counted and measured where it happened; the fairness sheet compares it with the claim."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from dpcompare.data.digest import combined
from dpcompare.system.quantities import Count, Finite, Norm


class ComputedByProcess(BaseModel):
    """What one training process contributes; sums are over its own samples."""

    model_config = ConfigDict(frozen=True)

    optimizer_steps: Count | None
    """Counted by the optimizer; None where its updates are not steps."""
    images: Count | None
    """Samples whose losses were computed for training."""
    batch_digests: dict[int, str]
    """Step -> digest of the rows that it received, in hexadecimal."""
    first_gradient_squares: float | None = None
    """Its share of the sum of squares of the synchronized gradient of step 1."""
    first_evaluation_loss_sum: float | None = None
    """Of its part of the batch of step 1, evaluated after that step."""
    first_evaluation_count: float = 0
    """Samples that this sum is over."""


class Computed(BaseModel):
    """What a run computed in its last attempt; a figure is None where it is not known."""

    model_config = ConfigDict(frozen=True)

    optimizer_steps: Count | None
    """Updates that the optimizer counted itself."""
    optimizer_steps_asked: Count
    images: Count | None
    """Samples whose losses were computed for training, as the loss saw them."""
    images_asked: Count
    images_claimed: Count
    """Samples that the speed and the mean losses are over."""
    batch_digests: dict[int, str]
    """Step -> digest of all rows that the training step received; of the first and of the last step."""
    first_gradient_norm: Norm | None
    """L2 norm over all parameters of the synchronized gradient of step 1."""
    first_evaluation_loss: Finite | None
    """Mean loss of the batch of step 1, evaluated after that step."""

    @classmethod
    def of(
        cls,
        processes: Sequence[ComputedByProcess],
        *,
        optimizer_steps_asked: int,
        images_asked: int,
        images_claimed: int,
    ) -> Computed:
        """Put together what all training processes contribute."""
        steps = [process.optimizer_steps for process in processes]
        images = [process.images for process in processes]
        squares = [process.first_gradient_squares for process in processes]
        loss_sums = [process.first_evaluation_loss_sum for process in processes]
        squares_sum, loss_sum = _finite_sum(squares), _finite_sum(loss_sums)
        count = sum(process.first_evaluation_count for process in processes)
        return cls(
            # Of the process that contradicts most what was asked.
            optimizer_steps=None if None in steps else max(steps, key=lambda n: abs((n or 0) - optimizer_steps_asked)),
            optimizer_steps_asked=optimizer_steps_asked,
            images=None if None in images else sum(count or 0 for count in images),
            images_asked=images_asked,
            images_claimed=images_claimed,
            batch_digests={
                step: combined([int(process.batch_digests[step], 16) for process in processes])
                for step in processes[0].batch_digests
            },
            first_gradient_norm=None if squares_sum is None else math.sqrt(squares_sum),
            first_evaluation_loss=None if loss_sum is None or not count else loss_sum / count,
        )


def _finite_sum(values: Sequence[float | None]) -> float | None:
    """None where a part is missing, or the sum is not finite, which JSON cannot express."""
    known = [value for value in values if value is not None]
    total = math.fsum(known) if all(map(math.isfinite, known)) else math.inf
    return total if len(known) == len(values) and math.isfinite(total) else None
