"""The optimizers by the formulas that both frameworks share."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dpcompare.arithmetic import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM


class Adam(torch.optim.Adam):
    """Adam with TensorFlow's epsilon, which is added before the bias correction ("epsilon hat").

    Kingma and Ba 2015, section 2, last paragraph: update = lr_t * m / (sqrt(v) + epsilon_hat) with
    lr_t = lr * sqrt(1 - beta2^t) / (1 - beta1^t). torch adds its epsilon to sqrt(v) / sqrt(1 - beta2^t), so
    epsilon_hat / sqrt(1 - beta2^t) given to torch at step t is the same formula.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], fused: bool) -> None:
        super().__init__(parameters, betas=ADAM_BETAS, eps=ADAM_EPSILON, fused=fused or None)
        self.steps_taken = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps_taken += 1
        correction = 1 - ADAM_BETAS[1] ** self.steps_taken
        for group in self.param_groups:
            group["eps"] = ADAM_EPSILON / correction**0.5
        super().step(closure)


def build_optimizer(name: str, parameters: Iterable[torch.nn.Parameter], *, fused: bool) -> torch.optim.Optimizer:
    """An optimizer whose learning rate is set before every step. `fused`: one kernel for all tensors, same formula."""
    if name == "adam":
        return Adam(parameters, fused)
    return torch.optim.SGD(parameters, momentum=SGD_MOMENTUM, fused=fused or None)


# torch's names of what an optimizer remembers -> the framework-neutral ones.
SLOTS = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
