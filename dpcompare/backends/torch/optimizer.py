"""The optimizers by the formulas that all frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import torch

from dpcompare.config.optimizers import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM, require_all_kernels
from dpcompare.models.state import AVERAGE


class Kernel(torch.optim.Optimizer):
    """What each of them adds to torch's interface."""

    slots: ClassVar[Mapping[str, str]]
    """torch's names of what it remembers of a parameter -> those of checkpoints."""

    def continue_after(self, steps_taken: int) -> None:
        """Make its next step that after so many steps, of which it has the memory."""


class Sgd(Kernel, torch.optim.SGD):
    """SGD by torch's formula, which the other frameworks follow and which does not depend on the step."""

    slots: ClassVar[Mapping[str, str]] = {"momentum_buffer": "momentum"}

    def __init__(self, parameters: Iterable[torch.nn.Parameter], **kernels: bool) -> None:
        super().__init__(parameters, momentum=SGD_MOMENTUM, **kernels)


class Adam(Kernel, torch.optim.Adam):
    """Adam with TensorFlow's epsilon, which is added before the bias correction ("epsilon hat").

    Kingma and Ba 2015, section 2, last paragraph: update = lr_t * m / (sqrt(v) + epsilon_hat) with
    lr_t = lr * sqrt(1 - beta2^t) / (1 - beta1^t). torch adds its epsilon to sqrt(v) / sqrt(1 - beta2^t), so
    epsilon_hat / sqrt(1 - beta2^t) given to torch at step t is the same formula.
    """

    slots: ClassVar[Mapping[str, str]] = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}

    def __init__(self, parameters: Iterable[torch.nn.Parameter], **kernels: bool) -> None:
        super().__init__(parameters, betas=ADAM_BETAS, eps=ADAM_EPSILON, **kernels)
        self.steps_taken = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps_taken += 1
        correction = 1 - ADAM_BETAS[1] ** self.steps_taken
        for group in self.param_groups:
            group["eps"] = ADAM_EPSILON / correction**0.5
        super().step(closure)

    def continue_after(self, steps_taken: int) -> None:
        self.steps_taken = steps_taken
        for parameter, memory in self.state.items():
            # The fused kernels read the count on the device of the parameter, the others on the host.
            device = parameter.device if self.defaults["fused"] else "cpu"
            memory["step"] = torch.tensor(float(steps_taken), device=device)


KERNELS: dict[str, type[Kernel]] = {"sgd": Sgd, "adam": Adam}
require_all_kernels({name: tuple(kernel.slots.values()) for name, kernel in KERNELS.items()}, "torch")

SLOTS = {torch_name: name for kernel in KERNELS.values() for torch_name, name in kernel.slots.items()} | {
    AVERAGE: AVERAGE
}
"""torch's names of what an optimizer remembers -> those of checkpoints."""


def build_optimizer(name: str, parameters: Iterable[torch.nn.Parameter], kernels: str) -> Kernel:
    """An optimizer whose learning rate is set before every step.

    Args:
        name: of a row of OPTIMIZERS.
        parameters: to update.
        kernels: "fused" is one kernel for all tensors, "foreach" one per operation, of the same formula; see
            `dpcompare.config.tuning`.
    """
    chosen = {kernels: True} if kernels in ("fused", "foreach") else {}
    return KERNELS[name](parameters, **chosen)


def load_slots(
    optimizer: Kernel,
    parameters: Mapping[str, torch.nn.Parameter],
    slots: Mapping[str, npt.NDArray[Any]],
    steps_taken: int,
    copy_into: Callable[[torch.Tensor, npt.NDArray[Any]], None],
) -> None:
    """Replace what an optimizer remembers by what another remembered after some steps.

    Args:
        optimizer: to replace the memory of.
        parameters: by their names.
        slots: named `<slot>.<parameter>`.
        steps_taken: steps of the other.
        copy_into: copies the values of a full tensor into a tensor like the parameter.
    """
    torch_names = {neutral: name for name, neutral in SLOTS.items()}
    optimizer.state.clear()
    for name, value in slots.items():
        slot, _, parameter_name = name.partition(".")
        parameter = parameters[parameter_name]
        memory = optimizer.state[parameter]
        # In the layout of the parameter, as the optimizer itself makes it.
        memory[torch_names[slot]] = torch.empty_like(parameter, requires_grad=False)
        copy_into(memory[torch_names[slot]], value)
    optimizer.continue_after(steps_taken)
