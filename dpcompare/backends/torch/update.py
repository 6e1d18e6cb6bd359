"""The rules around an optimizer's update, carried out by torch; an optimizer without any has no hook."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dpcompare.backends.update_rules import UpdateRules, decays
from dpcompare.models.state import AVERAGE

Rule = Callable[[torch.Tensor], torch.Tensor]


class RuledUpdates:
    """Hooks of an optimizer: they also run where a library's wrapper calls its step."""

    def __init__(
        self, rules: UpdateRules, *, steps_taken: Callable[[], int], held_part: Rule, sum_over_parts: Rule
    ) -> None:
        """Args:
        rules: what to do.
        steps_taken: how many steps have been made, the present one included.
        held_part: gives what this process holds of a parameter, of its gradient or of its mean.
        sum_over_parts: gives the sum over the processes that hold parts of one model; all of them call it.
        """
        self._rules = rules
        self._steps_taken = steps_taken
        self._held_part, self._sum_over_parts = held_part, sum_over_parts

    def register(self, optimizer: torch.optim.Optimizer) -> None:
        """Have the optimizer's steps follow the rules; it has one learning rate for all parameters."""
        if self._rules.clip_norm is not None:
            optimizer.register_step_pre_hook(self._clip)
        if self._rules.weight_decay:
            optimizer.register_step_pre_hook(self._decay)
        if self._rules.weight_average is not None:
            optimizer.register_step_post_hook(self._average)

    @torch.no_grad()
    def _clip(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = self._held(each.grad for each in _parameters(optimizer) if each.grad is not None)
        device = gradients[0].device
        norms = torch.stack([norm.to(device) for norm in torch._foreach_norm(gradients)])
        norm = self._sum_over_parts(norms.square().sum()).sqrt()
        scale = self._rules.clip_norm / norm.clamp(min=self._rules.clip_norm)
        for device, of_device in _by_device(gradients):
            torch._foreach_mul_(of_device, scale.to(device))

    @torch.no_grad()
    def _decay(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        kept = self._rules.kept(optimizer.param_groups[0]["lr"])
        decaying = self._held(each for each in _parameters(optimizer) if decays(each.dim()))
        if decaying:  # a custom model may have none
            torch._foreach_mul_(decaying, kept)

    @torch.no_grad()
    def _average(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = _parameters(optimizer)
        for parameter in parameters:
            if AVERAGE not in optimizer.state[parameter]:
                optimizer.state[parameter][AVERAGE] = torch.zeros_like(parameter)
        means = self._held(optimizer.state[parameter][AVERAGE] for parameter in parameters)
        torch._foreach_lerp_(means, self._held(parameters), self._rules.share(self._steps_taken()))

    def _held(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [self._held_part(tensor).detach() for tensor in tensors]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _by_device(tensors: list[torch.Tensor]) -> Iterable[tuple[torch.device, list[torch.Tensor]]]:
    """The tensors of each device: a model split into stages has them on several."""
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        yield device, [tensor for tensor in tensors if tensor.device == device]
