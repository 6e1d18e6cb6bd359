"""BatchNorm by the rules that all frameworks share: biased running variance, and statistics of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from dpcompare.backends.torch.model import BatchNorm, batch_norms
from dpcompare.backends.torch.own_batch_norms import OwnBatchNorms


class RunningVariance:
    """Converts torch's running variance to the shared rule for evaluation, and back for training.

    torch updates the running variance r with the unbiased variance of a batch, TensorFlow with the biased one,
    which is (n - 1) / n of it, n being batch * height * width. Both updates are linear with the same momentum m, so
    after T updates with the same n, started from r_0, shared = c + (r - c) * (n - 1) / n with c = (1 - m)^T * r_0.
    Converting at the few places where statistics are read costs nothing in a training step. torch's SyncBatchNorm has
    the unbiased variance too, with the n of all replicas (`unbiasedVar` of batch_norm_reduce_statistics_kernel).
    """

    def __init__(self, model: nn.Module, image: torch.Tensor) -> None:
        """Args:
        model: its BatchNorm layers are converted.
        image: any image as the model takes it, (1, channels, height, width), to find the feature size at each layer.
        """
        norms = batch_norms(model)
        self._norms = list(norms.values())
        positions = _positions(model, norms, image) if norms else {}
        self._positions = [positions[name] for name in norms]
        self._rows = 0
        self.restart()

    def keep(self, model: nn.Module) -> None:
        """Convert only the layers of this part of the model from now on."""
        kept = set(batch_norms(model).values())
        pairs = [pair for pair in zip(self._norms, self._positions, strict=True) if pair[0] in kept]
        self._norms, self._positions = [norm for norm, _ in pairs], [positions for _, positions in pairs]
        self.restart()

    def restart(self) -> None:
        """Count updates from 0, from the present values, which follow the shared rule."""
        self._start = [_running_variance(norm).clone() for norm in self._norms]
        self._updates = 0
        self._torchs_own: list[torch.Tensor] | None = None

    def count_update(self, rows: int) -> None:
        """Count a forward pass of training with statistics over so many rows, the same number every time."""
        self._rows = rows
        self._updates += 1

    def use_for_evaluation(self) -> None:
        """Replace the running variances by those of the shared rule."""
        self._torchs_own = [_running_variance(norm).clone() for norm in self._norms]
        if not self._updates:
            return
        for norm, start, positions in zip(self._norms, self._start, self._positions, strict=True):
            n = self._rows * positions
            rest_of_start = (1 - _momentum(norm)) ** self._updates * start
            _running_variance(norm).sub_(rest_of_start).mul_((n - 1) / n).add_(rest_of_start)

    def use_for_training(self) -> None:
        """Put torch's values back."""
        if self._torchs_own is None:
            return
        for norm, value in zip(self._norms, self._torchs_own, strict=True):
            _running_variance(norm).copy_(value)
        self._torchs_own = None


def _positions(model: nn.Module, norms: Mapping[str, nn.Module], image: torch.Tensor) -> dict[str, int]:
    """Height times width of the features that each layer gets of an image.

    By a separate forward pass: hooks that stay while a model trains would be compiled into it.
    """
    found: dict[str, int] = {}

    def remember(name: str, norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        found[name] = inputs[0].numel() // inputs[0].shape[1]

    hooks = [norm.register_forward_pre_hook(partial(remember, name)) for name, norm in norms.items()]
    training = model.training
    with torch.no_grad():
        model.eval()(image)
    model.train(training)
    for hook in hooks:
        hook.remove()
    return found


def _running_variance(norm: BatchNorm) -> torch.Tensor:
    assert norm.running_var is not None  # `custom_layers` refuses others
    return norm.running_var


def _momentum(norm: BatchNorm) -> float:
    assert norm.momentum is not None
    return norm.momentum


AllReduceSum = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over all replicas, differentiably."""


class GlobalBatchNorm(nn.Module):
    """BatchNorm by the statistics of the batch of all replicas.

    torch.nn.SyncBatchNorm refuses CPU tensors. Formula and order of operations are Keras's (`synchronized=True`): sums
    and sums of squares are summed over the replicas, variance = E[x^2] - E[x]^2, and the running variance takes the
    biased one.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, norm: BatchNorm, all_reduce_sum: AllReduceSum, num_replicas: int) -> None:
        """Take the place of `norm`: same parameters and buffers, and timm's activation behind it."""
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.act = getattr(norm, "act", None) or nn.Identity()
        self._epsilon, self._momentum = norm.eps, _momentum(norm)
        self._all_reduce_sum = all_reduce_sum
        self._num_replicas = num_replicas

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = features.to(self.running_mean.dtype)  # under autocast, features may be bfloat16
        if self.training:
            mean, variance = self._moments(x)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self._momentum)
                self.running_var.lerp_(variance, self._momentum)
        else:
            mean, variance = self.running_mean, self.running_var
        scale = torch.rsqrt(variance + self._epsilon)
        if self.weight is not None:  # it is with affine=False
            scale = self.weight * scale
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        of_channels = (-1, *[1] * (x.dim() - 2))
        return self.act((x * scale.view(of_channels) + shift.view(of_channels)).to(features.dtype))

    def _moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        axes = (0, *range(2, x.dim()))
        sums = torch.cat([x.sum(axes), (x * x).sum(axes)])
        mean, mean_of_squares = (self._all_reduce_sum(sums) / (x.numel() // x.shape[1] * self._num_replicas)).chunk(2)
        return mean, mean_of_squares - mean * mean


def synchronize_batch_norms(model: nn.Module, all_reduce_sum: AllReduceSum, num_replicas: int) -> None:
    """Have every BatchNorm of the model normalise by the batch of all replicas."""
    if isinstance(model, OwnBatchNorms):
        model.mean_over_replicas = lambda moments: all_reduce_sum(moments) / num_replicas
        return
    for name, norm in batch_norms(model).items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, GlobalBatchNorm(norm, all_reduce_sum, num_replicas))
