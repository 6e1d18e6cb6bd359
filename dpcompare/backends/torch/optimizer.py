"""The optimizers by the formulas that all frameworks share, and what is done around their updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch

from dpcompare.backends.custom_optimizer import CustomOptimizer
from dpcompare.backends.torch.parallel import Parallel
from dpcompare.backends.update_rules import UpdateRules, decays
from dpcompare.config.optimizers import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM, require_all_kernels
from dpcompare.errors import RequestError
from dpcompare.models.state import AVERAGE
from dpcompare.system.terminal_text import pluralize
from dpcompare.system.type_names import Array


class Kernel(torch.optim.Optimizer):
    """What each of them adds to torch's interface."""

    slots: Mapping[str, str]
    """torch's names of what it remembers of a parameter -> those of checkpoints."""

    @property
    def names_in_checkpoints(self) -> dict[str, str]:
        """torch's name of each slot, that of a weight average included -> its name in checkpoints."""
        return {**self.slots, AVERAGE: AVERAGE}

    def require_loadable(self, steps_taken: int) -> None:
        """Refuse the memory of a training after so many steps, before anything of it is loaded.

        Raises:
            RequestError: this optimizer cannot have it.
        """

    def continue_after(self, steps_taken: int) -> None:
        """Make its next step that after so many steps, of which it has the memory."""


class Sgd(Kernel, torch.optim.SGD):
    """SGD by torch's formula, which the other frameworks follow and which does not depend on the step."""

    slots: Mapping[str, str] = {"momentum_buffer": "momentum"}

    def __init__(self, parameters: Iterable[torch.nn.Parameter], **kernels: bool) -> None:
        super().__init__(parameters, momentum=SGD_MOMENTUM, **kernels)


class Adam(Kernel, torch.optim.Adam):
    """Adam with TensorFlow's epsilon, which is added before the bias correction ("epsilon hat").

    Kingma and Ba 2015, section 2, last paragraph: update = lr_t * m / (sqrt(v) + epsilon_hat) with
    lr_t = lr * sqrt(1 - beta2^t) / (1 - beta1^t). torch adds its epsilon to sqrt(v) / sqrt(1 - beta2^t), so
    epsilon_hat / sqrt(1 - beta2^t) given to torch at step t is the same formula.
    """

    slots: Mapping[str, str] = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}

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


KERNELS: dict[str, type[Sgd | Adam]] = {"sgd": Sgd, "adam": Adam}
require_all_kernels({name: tuple(kernel.slots.values()) for name, kernel in KERNELS.items()}, "torch")


class Custom(Kernel):
    """The optimizer of a formula that a user gives; see `CustomOptimizer`."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], formula: CustomOptimizer) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.slots = {name: name for name in formula.slots}
        self._formula = formula
        self._steps_taken = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._steps_taken += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:  # the loss does not depend on it
                    continue
                memory = self.state[parameter]
                before = [memory[name] if name in memory else torch.zeros_like(parameter) for name in self.slots]
                updated, after = self._formula.updated(
                    parameter, parameter.grad, before, group["lr"], self._steps_taken
                )
                # Copies: a slot may be the parameter itself, or its gradient, whose memory DDP uses again.
                memory.update({name: slot.clone() for name, slot in zip(self.slots, after, strict=True)})
                parameter.copy_(updated)

    def continue_after(self, steps_taken: int) -> None:
        self._steps_taken = steps_taken


def as_kernel(optimizer: torch.optim.Optimizer) -> Kernel:
    """Any optimizer of torch in the place of ours; what it remembers is in no checkpoint, and none can be loaded.

    Raises:
        RequestError: it is not an optimizer of torch.
    """
    if isinstance(optimizer, Kernel):
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise RequestError(
            f"optimizer: the function gave a {type(optimizer).__name__}, expected a torch.optim.Optimizer of the "
            "parameters that it got"
        )
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_WithoutMemory, kind), {})
    return cast(Kernel, optimizer)


class _WithoutMemory(Kernel):
    slots: Mapping[str, str] = {}

    def require_loadable(self, steps_taken: int) -> None:
        if steps_taken:
            raise RequestError(
                f"optimizer: a state after {pluralize(steps_taken, 'step')} was to be loaded into "
                f"{type(self).__name__}, whose memory has no names; expected an optimizer of dpcompare, or a "
                "CustomOptimizer"
            )


def custom_optimizer(
    given: CustomOptimizer | Callable[..., torch.optim.Optimizer], parameters: Iterable[torch.nn.Parameter]
) -> Kernel:
    """The optimizer of a formula, or that which a function makes of the parameters.

    Raises:
        RequestError: the function makes no optimizer of torch.
    """
    return Custom(parameters, given) if isinstance(given, CustomOptimizer) else as_kernel(given(parameters))


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
    slots: Mapping[str, Array],
    steps_taken: int,
    copy_into: Callable[[torch.Tensor, Array], None],
) -> None:
    """Replace what an optimizer remembers by what another remembered after some steps.

    Args:
        optimizer: to replace the memory of.
        parameters: by their names.
        slots: named `<slot>.<parameter>`.
        steps_taken: steps of the other.
        copy_into: copies the values of a full tensor into a tensor like the parameter.
    """
    torch_names = {neutral: name for name, neutral in optimizer.names_in_checkpoints.items()}
    optimizer.state.clear()
    for name, value in slots.items():
        slot, _, parameter_name = name.partition(".")
        parameter = parameters[parameter_name]
        memory = optimizer.state[parameter]
        # In the layout of the parameter, as the optimizer itself makes it.
        memory[torch_names[slot]] = torch.empty_like(parameter, requires_grad=False)
        copy_into(memory[torch_names[slot]], value)
    optimizer.continue_after(steps_taken)


class RuledUpdates:
    """Hooks of an optimizer: they also run where a library's wrapper calls its step."""

    def __init__(self, rules: UpdateRules, parallel: Parallel, *, steps_taken: Callable[[], int]) -> None:
        """Args:
        rules: what to do.
        parallel: says what this process holds of a tensor, and adds up over the processes that hold the others.
        steps_taken: how many steps have been made, the present one included.
        """
        self._rules = rules
        self._parallel = parallel
        self._steps_taken = steps_taken

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
        clip_norm = self._rules.clip_norm
        assert clip_norm is not None  # or this hook is not registered
        gradients = self._held(each.grad for each in _parameters(optimizer) if each.grad is not None)
        device = gradients[0].device
        norms = torch.stack([norm.to(device) for norm in torch._foreach_norm(gradients)])
        norm = self._parallel.all_reduce_shards(norms.square().sum()).sqrt()
        scale = clip_norm / norm.clamp(min=clip_norm)
        for device, device_gradients in _by_device(gradients):
            torch._foreach_mul_(device_gradients, scale.to(device))

    @torch.no_grad()
    def _decay(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        decay_factor = self._rules.decay_factor(optimizer.param_groups[0]["lr"])
        decaying = self._held(each for each in _parameters(optimizer) if decays(each.dim()))
        if decaying:  # a custom model may have none
            torch._foreach_mul_(decaying, decay_factor)

    @torch.no_grad()
    def _average(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = _parameters(optimizer)
        for parameter in parameters:
            if AVERAGE not in optimizer.state[parameter]:
                optimizer.state[parameter][AVERAGE] = torch.zeros_like(parameter)
        means = self._held(optimizer.state[parameter][AVERAGE] for parameter in parameters)
        torch._foreach_lerp_(means, self._held(parameters), self._rules.ema_weight(self._steps_taken()))

    def _held(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [self._parallel.local_shard(tensor).detach() for tensor in tensors]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _by_device(tensors: list[torch.Tensor]) -> Iterable[tuple[torch.device, list[torch.Tensor]]]:
    """The tensors of each device: a model split into stages has them on several."""
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        yield device, [tensor for tensor in tensors if tensor.device == device]
