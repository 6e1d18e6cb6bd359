"""One rule for BatchNorm's running variance: that of the biased batch variance, as TensorFlow keeps it."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from dpcompare.backends.torch.model import batch_norms


class RunningVariance:
    """Converts torch's running variance to the shared rule for evaluation, and back for training.

    torch updates the running variance r with the unbiased variance of a batch, TensorFlow with the biased one,
    which is (n - 1) / n of it, n being batch * height * width. Both updates are linear with the same momentum m, so
    after T steps with the same n, started from r_0, shared = c + (r - c) * (n - 1) / n with c = (1 - m)^T * r_0.
    Converting at the few places where statistics are read costs nothing in a training step.
    """

    def __init__(self, model: nn.Module) -> None:
        self._norms = list(batch_norms(model).values())
        self._sizes = [0] * len(self._norms)
        for index, norm in enumerate(self._norms):
            # By index: emulated replicas are copies of the modules, which share these hooks.
            norm.register_forward_pre_hook(partial(self._remember_size, index))
        self.restart()

    def restart(self) -> None:
        """Start to count steps from the present values, which follow the shared rule."""
        self._start = [norm.running_var.clone() for norm in self._norms]
        self._steps = 0
        self._torchs_own: list[torch.Tensor] | None = None

    def count_step(self) -> None:
        self._steps += 1

    def use_for_evaluation(self) -> None:
        """Put the values by the shared rule in place."""
        self._torchs_own = [norm.running_var.clone() for norm in self._norms]
        if not self._steps:
            return
        for norm, start, n in zip(self._norms, self._start, self._sizes, strict=True):
            rest_of_start = (1 - norm.momentum) ** self._steps * start
            norm.running_var.sub_(rest_of_start).mul_((n - 1) / n).add_(rest_of_start)

    def use_for_training(self) -> None:
        """Put torch's own values back."""
        if self._torchs_own is None:
            return
        for norm, value in zip(self._norms, self._torchs_own, strict=True):
            norm.running_var.copy_(value)
        self._torchs_own = None

    def _remember_size(self, index: int, norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if norm.training and not self._sizes[index]:
            (features,) = inputs
            self._sizes[index] = features.numel() // features.shape[1]
