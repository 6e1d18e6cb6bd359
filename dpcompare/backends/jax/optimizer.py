"""The optimizers by the formulas that all frameworks share, as functions of what they update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import jax
from jax import numpy as jnp

from dpcompare.backends.custom_optimizer import CustomOptimizer, require_ruled
from dpcompare.backends.update_rules import UpdateRules, decays
from dpcompare.config.optimizers import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM, require_all_kernels
from dpcompare.models.state import AVERAGE

NO_RULES = UpdateRules()
DECAY_FACTOR, EMA_WEIGHT = -2, -1
"""Where a step's constants have those of its rules, if they have any."""

Tensors = Mapping[str, jax.Array]
Slots = Mapping[str, Tensors]


class Optimizer(ABC):
    """Updates parameters by gradients that are already summed over all replicas.

    Not optax's: its Adam adds epsilon after the bias correction, and corrects in the precision of the parameters.
    """

    slot_names: ClassVar[tuple[str, ...]]

    def __init__(self, rules: UpdateRules = NO_RULES) -> None:
        """`rules` are what is done around each update."""
        self.rules = rules
        self.slots = (*self.slot_names, *([AVERAGE] if rules.weight_average is not None else []))
        """Names of what it remembers of each parameter."""

    def step_constants(self, step: int, learning_rate: float) -> list[float]:
        """What changes from step to step (from 1), computed on the host in float64."""
        return [*self.kernel_constants(step, learning_rate), *self.rules.step_constants(step, learning_rate)]

    def kernel_constants(self, step: int, learning_rate: float) -> list[float]:
        """Those of them that `update` takes."""
        return [learning_rate]

    def apply(
        self, parameters: Tensors, gradients: Tensors, slots: Slots, constants: jax.Array
    ) -> tuple[Tensors, Slots]:
        """The new parameters, and what is remembered of them."""
        if self.rules.clip_norm is not None:
            gradients = _clipped(gradients, self.rules.clip_norm)
        updated: dict[str, jax.Array] = {}
        remembered: dict[str, dict[str, jax.Array]] = {slot: {} for slot in self.slots}
        for name, parameter in parameters.items():
            if self.rules.weight_decay and decays(parameter.ndim):
                parameter = parameter * constants[DECAY_FACTOR]
            own = [slots[slot][name] for slot in self.slot_names]
            updated[name], own = self.update(parameter, own, gradients[name], constants)
            if self.rules.weight_average is not None:
                mean = slots[AVERAGE][name]
                own.append(mean + constants[EMA_WEIGHT] * (updated[name] - mean))
            for slot, value in zip(self.slots, own, strict=True):
                remembered[slot][name] = value
        return updated, remembered

    @abstractmethod
    def update(
        self, parameter: jax.Array, slots: Sequence[jax.Array], gradient: jax.Array, constants: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        """One parameter and its slots after a step."""


def _clipped(gradients: Tensors, limit: float) -> Tensors:
    """Gradients whose norm, over all of them together, is no larger than the limit."""
    norm = jnp.sqrt(sum(jnp.square(gradient).sum() for gradient in gradients.values()))
    scale = limit / jnp.maximum(norm, limit)
    return {name: gradient * scale for name, gradient in gradients.items()}


class Sgd(Optimizer):
    """buffer = momentum * buffer + gradient; parameter -= learning_rate * buffer (as torch.optim.SGD)."""

    slot_names = ("momentum",)

    def update(
        self, parameter: jax.Array, slots: Sequence[jax.Array], gradient: jax.Array, constants: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        momentum = SGD_MOMENTUM * slots[0] + gradient
        return parameter - constants[0] * momentum, [momentum]


class Adam(Optimizer):
    """Adam with epsilon added before the bias correction (Kingma and Ba 2015, section 2, "epsilon hat")."""

    slot_names = ("exp_avg", "exp_avg_sq")

    def kernel_constants(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate * (1 - ADAM_BETAS[1] ** step) ** 0.5 / (1 - ADAM_BETAS[0] ** step)]

    def update(
        self, parameter: jax.Array, slots: Sequence[jax.Array], gradient: jax.Array, constants: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        mean = ADAM_BETAS[0] * slots[0] + (1 - ADAM_BETAS[0]) * gradient
        square = ADAM_BETAS[1] * slots[1] + (1 - ADAM_BETAS[1]) * jnp.square(gradient)
        return parameter - constants[0] * mean / (jnp.sqrt(square) + ADAM_EPSILON), [mean, square]


class Custom(Optimizer):
    """The optimizer of a formula that a user gives; see `CustomOptimizer`."""

    def __init__(self, rules: UpdateRules, formula: CustomOptimizer) -> None:
        self.slot_names = tuple(formula.slots)  # type: ignore[misc]  # a formula's own, not its class's
        self._formula = formula
        super().__init__(rules)

    def kernel_constants(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, float(step)]

    def update(
        self, parameter: jax.Array, slots: Sequence[jax.Array], gradient: jax.Array, constants: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        return self._formula.updated(parameter, gradient, slots, constants[0], constants[1])


def custom_optimizer(given: CustomOptimizer | Callable[[], Optimizer], rules: UpdateRules) -> Optimizer:
    """The optimizer of a formula, or that which a function makes.

    Raises:
        RequestError: the function makes something else, or one without the rules of the workload.
    """
    if isinstance(given, CustomOptimizer):
        return Custom(rules, given)
    made = given()
    require_ruled(made, Optimizer, rules)
    return made


KERNELS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam}
require_all_kernels({name: kernel.slot_names for name, kernel in KERNELS.items()}, "JAX")
