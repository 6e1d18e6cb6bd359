"""Custom optimizers: a formula that a user writes once, for all frameworks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpcompare.backends.update_rules import UpdateRules
from dpcompare.errors import RequestError, require_type
from dpcompare.models.state import AVERAGE
from dpcompare.system.terminal_text import pluralize


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
    (zeros before the first step), and two numbers, which TensorFlow and JAX give as tensors: the learning rate, and the
    step from 1. It changes none of them in place.
    """
    slots: Sequence[str] = ()
    """Names of the tensors that it remembers of each parameter, each like the parameter, as in checkpoints."""

    def __post_init__(self) -> None:
        if not callable(self.update):
            raise RequestError(f"optimizer: received the update {self.update!r}, expected a function")
        require_type(self.slots, (list, tuple), "optimizer: slots")
        wrong = [name for name in self.slots if not re.fullmatch(r"[A-Za-z]\w*", str(name)) or name == AVERAGE]
        if wrong or len(set(self.slots)) < len(self.slots):
            raise RequestError(
                f"optimizer: received the slots {', '.join(map(repr, self.slots))}, expected different names of "
                f"letters, digits and _, other than {AVERAGE}"
            )

    def updated(
        self, parameter: Any, gradient: Any, slots: Sequence[Any], learning_rate: Any, step: Any
    ) -> tuple[Any, list[Any]]:
        """What `update` gives.

        Raises:
            RequestError: it gives something else than a tensor and its slots.
        """
        given = self.update(parameter, gradient, slots, learning_rate, step)
        is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], (list, tuple))
        if not is_pair or len(given[1]) != len(self.slots):
            raise RequestError(
                f"optimizer: its update gave {_in_words(given)}; expected the parameter and a list of "
                f"{pluralize(len(self.slots), 'slot')} ({', '.join(self.slots) or 'an empty one'})"
            )
        for name, tensor in (("parameter", given[0]), *zip(self.slots, given[1], strict=True)):
            if tuple(getattr(tensor, "shape", ())) != tuple(parameter.shape):
                raise RequestError(
                    f"optimizer: its update gave a {name} of the shape {tuple(getattr(tensor, 'shape', ()))}, expected "
                    f"that of the parameter, {tuple(parameter.shape)}"
                )
        return given[0], list(given[1])


def require_ruled(made: object, expected: type, rules: UpdateRules) -> None:
    """Refuse what a user's function has made in the place of an optimizer.

    Raises:
        RequestError: it is something else, or leaves out what the workload asks of every update.
    """
    if not isinstance(made, expected):
        raise RequestError(
            f"optimizer: the function gave a {type(made).__name__}, expected an {expected.__name__} of "
            f"{expected.__module__}, or a CustomOptimizer in the place of the function"
        )
    if made.rules != rules:  # type: ignore[attr-defined]  # all optimizers of backends have them
        raise RequestError(
            "optimizer: the function made one without the workload's weight decay, clipping and weight average; "
            "expected a CustomOptimizer, rules=UpdateRules.of(workload), or a workload without these"
        )


def _in_words(given: Any) -> str:
    if isinstance(given, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in given) or 'nothing'}"
    return f"a {type(given).__name__}"
