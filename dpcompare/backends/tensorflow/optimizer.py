"""The optimizers by the formulas that all frameworks share, as TensorFlow's fused update kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from dpcompare.backends.custom_optimizer import CustomOptimizer, require_ruled
from dpcompare.backends.update_rules import UpdateRules, decays
from dpcompare.config.optimizers import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM, require_all_kernels
from dpcompare.models.state import AVERAGE

NO_RULES = UpdateRules()
DECAY_FACTOR, EMA_WEIGHT = -2, -1
"""Where a step's constants have those of its rules, if they have any."""


class Optimizer(ABC):
    """Updates variables in place from gradients that are already summed over all replicas.

    Not Keras's optimizers: those keep the learning rate inside SGD's momentum buffer, round their constants to
    float32 in a float64 run, and spend a dozen graph operations per variable where the kernels spend one, which
    nearly doubles the time to trace a step of EfficientNet-B2 on two replicas.
    """

    slot_names: ClassVar[tuple[str, ...]]

    def __init__(self, variables: Sequence[tf.Variable], rules: UpdateRules = NO_RULES) -> None:
        """Create the slots; call it inside the strategy's scope.

        Args:
            variables: to update.
            rules: what is done around each update.
        """
        self.variables = list(variables)
        self.rules = rules
        self.slots = {
            name: [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables]
            for name in (*self.slot_names, *([AVERAGE] if rules.weight_average is not None else []))
        }
        self.steps_taken = tf.Variable(0, dtype=tf.int64, trainable=False)

    def step_constants(self, step: int, learning_rate: float) -> list[float]:
        """What changes from step to step (from 1), computed on the host in float64."""
        return [*self.kernel_constants(step, learning_rate), *self.rules.step_constants(step, learning_rate)]

    def kernel_constants(self, step: int, learning_rate: float) -> list[float]:
        """Those of them that the kernel takes."""
        return [learning_rate]

    def apply(self, gradients: Sequence[tf.Tensor], constants: tf.Tensor) -> list[tf.Operation]:
        """Update this replica's copy of every variable; call it in a replica context. Returns the updates."""
        if self.rules.clip_norm is not None:
            gradients = _clipped(gradients, self.rules.clip_norm)
        # Once for each type and not for each variable: on a GPU every one of these operations is a launch.
        values = {
            dtype: tf.unstack(tf.cast(constants, dtype)) for dtype in dict.fromkeys(v.dtype for v in self.variables)
        }
        arguments = {dtype: self.arguments(constants) for dtype, constants in values.items()}
        slots = zip(*self.slots.values(), strict=True)
        updates: list[tf.Operation] = []
        for variable, gradient, variable_slots in zip(self.variables, gradients, slots, strict=True):
            if self.rules.weight_decay and decays(len(variable.shape)):
                decayed = _value(variable) * values[variable.dtype][DECAY_FACTOR]
                updates.append(tf.raw_ops.AssignVariableOp(resource=variable.handle, value=decayed))
            handles = [slot.handle for slot in variable_slots]
            updates.append(self.update(variable.handle, handles, gradient, arguments[variable.dtype]))
            if self.rules.weight_average is not None:
                change = (_value(variable) - _value(variable_slots[-1])) * values[variable.dtype][EMA_WEIGHT]
                updates.append(tf.raw_ops.AssignAddVariableOp(resource=handles[-1], value=change))
        return [*updates, tf.raw_ops.AssignAddVariableOp(resource=self.steps_taken.handle, value=np.int64(1))]

    @abstractmethod
    def arguments(self, constants: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """What the kernel takes apart from each variable's own: a step's constants, in the type of the variables."""

    @abstractmethod
    def update(
        self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, arguments: dict[str, tf.Tensor]
    ) -> tf.Operation:
        """Update one variable, given by its resource handle."""


def _value(variable: tf.Variable) -> tf.Tensor:
    """What this replica's copy of a variable holds, after the updates before."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _clipped(gradients: Sequence[tf.Tensor], limit: float) -> list[tf.Tensor]:
    """Gradients whose norm, over all of them together, is no larger than the limit."""
    norm = tf.linalg.global_norm(gradients)
    scale = limit / tf.maximum(norm, limit)
    return [gradient * scale for gradient in gradients]


class Sgd(Optimizer):
    """buffer = momentum * buffer + gradient; variable -= learning_rate * buffer (as torch.optim.SGD)."""

    slot_names = ("momentum",)

    def arguments(self, constants: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        learning_rate, *_ = constants
        return {"lr": learning_rate, "momentum": tf.constant(SGD_MOMENTUM, learning_rate.dtype)}

    def update(
        self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, arguments: dict[str, tf.Tensor]
    ) -> tf.Operation:
        return tf.raw_ops.ResourceApplyMomentum(var=variable, accum=slots[0], grad=gradient, **arguments)


class Adam(Optimizer):
    """Adam with epsilon added before the bias correction (Kingma and Ba 2015, section 2, "epsilon hat")."""

    slot_names = ("exp_avg", "exp_avg_sq")

    def kernel_constants(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, ADAM_BETAS[0] ** step, ADAM_BETAS[1] ** step]

    def arguments(self, constants: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        learning_rate, beta1_power, beta2_power, *_ = constants
        fixed = {"beta1": ADAM_BETAS[0], "beta2": ADAM_BETAS[1], "epsilon": ADAM_EPSILON}
        return {
            "lr": learning_rate,
            "beta1_power": beta1_power,
            "beta2_power": beta2_power,
            **{name: tf.constant(value, learning_rate.dtype) for name, value in fixed.items()},
        }

    def update(
        self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, arguments: dict[str, tf.Tensor]
    ) -> tf.Operation:
        return tf.raw_ops.ResourceApplyAdam(var=variable, m=slots[0], v=slots[1], grad=gradient, **arguments)


class Custom(Optimizer):
    """The optimizer of a formula that a user gives; see `CustomOptimizer`."""

    def __init__(self, variables: Sequence[tf.Variable], rules: UpdateRules, formula: CustomOptimizer) -> None:
        self.slot_names = tuple(formula.slots)  # type: ignore[misc]  # a formula's own, not its class's
        self._formula = formula
        super().__init__(variables, rules)

    def kernel_constants(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, float(step)]

    def arguments(self, constants: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        learning_rate, step, *_ = constants
        return {"learning_rate": learning_rate, "step": step}

    def update(
        self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, arguments: dict[str, tf.Tensor]
    ) -> tf.Operation:
        own = slots[: len(self.slot_names)]
        read = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=gradient.dtype) for handle in (variable, *own)]
        parameter, *before = read
        updated, after = self._formula.updated(parameter, gradient, before, **arguments)
        return tf.group(
            *(
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                for handle, value in zip((variable, *own), (updated, *after), strict=True)
            )
        )


def custom_optimizer(
    given: CustomOptimizer | Callable[..., Optimizer], variables: Sequence[tf.Variable], rules: UpdateRules
) -> Optimizer:
    """The optimizer of a formula, or that which a function makes of the variables.

    Raises:
        RequestError: the function makes something else, or one without the rules of the workload.
    """
    if isinstance(given, CustomOptimizer):
        return Custom(variables, rules, given)
    made = given(variables)
    require_ruled(made, Optimizer, rules)
    return made


KERNELS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam}
require_all_kernels({name: kernel.slot_names for name, kernel in KERNELS.items()}, "TensorFlow")
