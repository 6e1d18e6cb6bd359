"""A user's own model, loss and optimizer, as the methods of a backend that they replace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from dpcompare.backends.custom_optimizer import CustomOptimizer
from dpcompare.errors import RequestError
from dpcompare.models.custom import CustomModel, is_built
from dpcompare.models.initial_weights import Weights, custom_weights, require_rules
from dpcompare.objects import name_of
from dpcompare.system.type_names import FrameworkArray, FrameworkModel

FrameworkOptimizer: TypeAlias = Any
"""In torch a torch.optim.Optimizer, in TensorFlow and JAX an `Optimizer` of dpcompare."""
Loss: TypeAlias = Callable[[FrameworkArray, FrameworkArray], FrameworkArray]
"""From logits (rows, classes) and labels (rows,) to the loss of each row, (rows,)."""


def named_model(model: str | CustomModel | Callable[[int, int], FrameworkModel], framework: str) -> str:
    """The name of a model; an object gets one."""
    if isinstance(model, str):
        return model
    if not isinstance(model, CustomModel):
        if not callable(model) or is_built(model):
            raise RequestError(
                f"model: received a {type(model).__name__}, expected a name, a CustomModel, or a function from (image "
                "size, number of classes) to a model, such as lambda size, classes: model"
            )
        model = CustomModel(**{framework: model})  # type: ignore[arg-type]  # a field of that name
    return name_of(model, "model")


def own_parts(
    *,
    is_object: bool,
    own_weights: bool,
    loss: Loss | None,
    optimizer: CustomOptimizer | Callable[..., FrameworkOptimizer] | None,
) -> dict[str, Any]:
    """The methods of a backend that a user's parts replace; see docs/adding_a_backend.md."""
    own: dict[str, Any] = {}
    if own_weights:
        own["initial_state"] = lambda self: None
    elif is_object:  # no other process could build it to find its shapes
        own["initial_state"] = _drawn
    for name, part, expected in (
        ("loss", loss, "a function"),
        (
            "optimizer",
            optimizer,
            "a CustomOptimizer or a function; to use one of dpcompare's own, pass Workload(optimizer=...)",
        ),
    ):
        if not (part is None or callable(part) or isinstance(part, CustomOptimizer)):
            received = repr(part) if isinstance(part, str) else f"a {type(part).__name__}"
            raise RequestError(f"{name}: received {received}, expected {expected}")
    if optimizer is not None and _num_required(optimizer) >= LEAST_FORMULA_ARGUMENTS:
        raise RequestError(
            "optimizer: received a function of the parameter, its gradient and more; expected "
            "CustomOptimizer(update=that function, slots=[...])"
        )
    if loss is not None:
        own["row_losses"] = lambda self, logits, labels, *, training: _of_rows(loss(logits, labels), labels)
    if optimizer is not None:
        own["build_optimizer"] = lambda self, *variables: self.custom_optimizer(optimizer, *variables)
    return own


def _drawn(backend: Any) -> Weights:
    """The initial weights of a model that only this process can build, from the backend of its framework."""
    shapes = backend.tensor_shapes()
    require_rules(backend.workload.model, shapes, "; or own_weights=True, which keeps the values it was built with")
    return custom_weights(shapes, backend.workload.seed)


LEAST_FORMULA_ARGUMENTS = 4
"""Arguments from which on a function is taken for the formula of an optimizer, which has five."""


def _num_required(function: Any) -> int:
    """How many arguments a function needs; 0 if that is not known."""
    if isinstance(function, (type, CustomOptimizer)):
        return 0
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(each.default is each.empty and each.kind is not each.VAR_POSITIONAL for each in parameters)


def _of_rows(losses: FrameworkArray, labels: FrameworkArray) -> FrameworkArray:
    shape = tuple(getattr(losses, "shape", ()))
    if shape != tuple(labels.shape):
        raise RequestError(
            f"loss: received a loss of the shape {shape} for {labels.shape[0]} rows, expected that of each row, "
            f"{tuple(labels.shape)}: not their mean, by which rows that only fill up a batch would count"
        )
    return losses
