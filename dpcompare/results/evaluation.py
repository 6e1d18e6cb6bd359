"""An evaluation of a run, and what may be wrong with its loss."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from dpcompare.system.quantities import Count, Finite, Number, Share

LARGEST_MEAN, LARGEST_BATCH = 1.25, 3.0
"""Times the loss of the median batch that the mean and the worst batch of an evaluation may have unmentioned."""


class Evaluation(BaseModel):
    """One pass over the validation split, every sample once."""

    model_config = ConfigDict(frozen=True)

    epoch: Count
    """Epochs started when it was made, from 1."""
    step: Count
    """Steps trained when it was made."""
    loss: Finite | None
    """None where it is not finite."""
    accuracy: Share
    count: Number
    median_batch_loss: Finite | None = None
    """The median of the mean losses of its global batches, which a few samples do not move."""
    largest_batch_loss: Finite | None = None

    @property
    def outlier(self) -> str | None:
        """A sentence about a few samples that make much of the loss; None where there are none."""
        mean, median, largest = self.loss, self.median_batch_loss, self.largest_batch_loss
        if mean is None or not median or largest is None:
            return None
        if mean <= LARGEST_MEAN * median or largest <= LARGEST_BATCH * median:
            return None
        return (
            f"the evaluation loss of {mean:.4f} comes from a few samples: {median:.4f} in the median batch, "
            f"{largest:.4g} in the worst; BatchNorm's running statistics may not have settled yet"
        )
