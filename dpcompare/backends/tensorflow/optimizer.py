"""The optimizers by the formulas that both frameworks share, as TensorFlow's fused update kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from dpcompare.backends.constants import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM


class Optimizer(ABC):
    """Updates variables in place from gradients that are already summed over all replicas.

    Not Keras's optimizers: those keep the learning rate inside SGD's momentum buffer, round their constants to
    float32 in a float64 run, and spend a dozen graph operations per variable where the kernels spend one, which
    nearly doubles the time to trace a step of EfficientNet-B2 on two replicas.
    """

    slot_names: ClassVar[tuple[str, ...]]

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        """Create the slots; call it inside the strategy's scope."""
        self.variables = list(variables)
        self.slots = {
            name: [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables]
            for name in self.slot_names
        }
        self.steps_taken = tf.Variable(0, dtype=tf.int64, trainable=False)

    def step_constants(self, step: int, learning_rate: float) -> list[float]:
        """What changes from step to step (from 1), computed on the host in float64."""
        return [learning_rate]

    def apply(self, gradients: Sequence[tf.Tensor], constants: tf.Tensor) -> list[tf.Operation]:
        """Update this replica's copy of every variable; call it in a replica context. Returns the updates."""
        # Once for each type and not for each variable: on a GPU every one of these operations is a launch.
        arguments = {
            dtype: self.arguments(tf.cast(constants, dtype)) for dtype in dict.fromkeys(v.dtype for v in self.variables)
        }
        slots = zip(*self.slots.values(), strict=True)
        updates = [
            self.update(variable.handle, [slot.handle for slot in of_variable], gradient, arguments[variable.dtype])
            for variable, gradient, of_variable in zip(self.variables, gradients, slots, strict=True)
        ]
        return [*updates, tf.raw_ops.AssignAddVariableOp(resource=self.steps_taken.handle, value=np.int64(1))]

    @abstractmethod
    def arguments(self, constants: tf.Tensor) -> dict[str, tf.Tensor]:
        """What the kernel takes beside what each variable has, from a step's constants in the type of the variables."""

    @abstractmethod
    def update(
        self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, arguments: dict[str, tf.Tensor]
    ) -> tf.Operation:
        """Update one variable, given by its resource handle."""


class Sgd(Optimizer):
    """buffer = momentum * buffer + gradient; variable -= learning_rate * buffer (as torch.optim.SGD)."""

    slot_names = ("momentum",)

    def arguments(self, constants: tf.Tensor) -> dict[str, tf.Tensor]:
        (learning_rate,) = tf.unstack(constants)
        return {"lr": learning_rate, "momentum": tf.constant(SGD_MOMENTUM, constants.dtype)}

    def update(
        self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, arguments: dict[str, tf.Tensor]
    ) -> tf.Operation:
        return tf.raw_ops.ResourceApplyMomentum(var=variable, accum=slots[0], grad=gradient, **arguments)


class Adam(Optimizer):
    """Adam with epsilon added before the bias correction (Kingma and Ba 2015, section 2, "epsilon hat")."""

    slot_names = ("exp_avg", "exp_avg_sq")

    def step_constants(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, ADAM_BETAS[0] ** step, ADAM_BETAS[1] ** step]

    def arguments(self, constants: tf.Tensor) -> dict[str, tf.Tensor]:
        learning_rate, beta1_power, beta2_power = tf.unstack(constants)
        fixed = {"beta1": ADAM_BETAS[0], "beta2": ADAM_BETAS[1], "epsilon": ADAM_EPSILON}
        return {
            "lr": learning_rate,
            "beta1_power": beta1_power,
            "beta2_power": beta2_power,
            **{name: tf.constant(value, constants.dtype) for name, value in fixed.items()},
        }

    def update(
        self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, arguments: dict[str, tf.Tensor]
    ) -> tf.Operation:
        return tf.raw_ops.ResourceApplyAdam(var=variable, m=slots[0], v=slots[1], grad=gradient, **arguments)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam}
