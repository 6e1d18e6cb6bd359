"""The rules around an optimizer's update, as numbers of each step that the host computes for all frameworks."""

from __future__ import annotations

from dataclasses import dataclass

from dpcompare.config.workload import Workload


@dataclass(frozen=True, kw_only=True)
class UpdateRules:
    """What is done to gradients and weights around the optimizer's own formula.

    In this order: gradients that are summed over micro-batches and replicas are clipped by their global norm, weights
    decay, the optimizer updates them, and their mean takes them in.
    """

    clip_norm: float | None = None
    """Gradients of a larger norm, over all parameters together, are scaled by clip_norm / norm (Pascanu et al. 2013,
    algorithm 1). None: they stay as they are."""
    weight_decay: float = 0.0
    """Decoupled from the gradient: see `decay_factor`."""
    weight_average: float | None = None
    """How much the weights of a step count in the mean, relative to those of the step after it; None: no mean."""

    @classmethod
    def of(cls, workload: Workload) -> UpdateRules:
        return cls(
            clip_norm=workload.clip_norm,
            weight_decay=workload.weight_decay,
            weight_average=workload.weight_average,
        )

    def decay_factor(self, learning_rate: float) -> float:
        """What a step leaves of a weight before its update: weight *= 1 - learning_rate * weight_decay.

        Loshchilov and Hutter 2019, algorithm 2, as torch's AdamW has it: the decay follows the learning rate.
        """
        return 1 - learning_rate * self.weight_decay

    def ema_weight(self, step: int) -> float:
        """What the weights after `step` (from 1) have of their mean: mean += share * (weights - mean).

        With it the mean is sum(d^(step - i) * weights_i) / sum(d^(step - i)) over all steps i: an exponential moving
        average whose start is corrected (Kingma and Ba 2015, section 3), so that the initial weights never count.
        """
        decay = self.weight_average or 0.0
        return (1 - decay) / (1 - decay**step)

    def step_constants(self, step: int, learning_rate: float) -> list[float]:
        """`decay_factor` and `ema_weight`; nothing where weights neither decay nor have a mean."""
        if not self.weight_decay and self.weight_average is None:
            return []
        return [self.decay_factor(learning_rate), self.ema_weight(step)]


def decays(num_dimensions: int) -> bool:
    """Whether weight decay applies to a parameter: to kernels, not to biases, scales and shifts.

    The token and the positions of ViT, which have more axes than one, decay too; timm excludes them.

    He et al. 2019, "Bag of Tricks for Image Classification with Convolutional Neural Networks", section 3.1.
    """
    return num_dimensions > 1
