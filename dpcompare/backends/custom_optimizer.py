"""Custom optimizers: a formula that a user writes once, for all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpcompare.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class CustomOptimizer:
    """An optimizer given by its formula, which is computed in each framework with that framework's tensors.

    The same momentum in torch, TensorFlow and JAX, since the formula needs arithmetic only:

        def momentum(parameter, gradient, slots, learning_rate, step):
            velocity = 0.9 * slots[0] + gradient
            return parameter - learning_rate * velocity, [velocity]

        CustomOptimizer(slots=["velocity"], update=momentum)
    """

    update: Callable[[Any, Any, Sequence[Any], Any, Any], tuple[Any, Sequence[Any]]]
    """`update(parameter, gradient, slots, learning_rate, step)` gives the parameter after a step, and its slots.

    A tensor of the model, the gradient of the mean loss over the global batch, what was remembered of this parameter
    (zeros before the first step), and two numbers of the same precision: the learning rate, and the step from 1. It
    changes none of them in place.
    """
    slots: Sequence[str] = ()
    """Names of the tensors that it remembers of each parameter, each like the parameter, as in checkpoints."""

    def updated(
        self, parameter: Any, gradient: Any, slots: Sequence[Any], learning_rate: Any, step: Any
    ) -> tuple[Any, list[Any]]:
        """What `update` gives.

        Raises:
            RequestError: it gives something else than a tensor and its slots.
        """
        given = self.update(parameter, gradient, slots, learning_rate, step)
        if not (isinstance(given, tuple) and len(given) == 2 and len(given[1]) == len(self.slots)):
            raise RequestError(
                f"optimizer: its update gave {_in_words(given)}; expected the parameter and a list of its "
                f"{len(self.slots)} slots ({', '.join(self.slots) or 'an empty one'})"
            )
        return given[0], list(given[1])


def _in_words(given: Any) -> str:
    if isinstance(given, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in given) or 'nothing'}"
    return f"a {type(given).__name__}"
