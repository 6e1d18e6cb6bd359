"""Custom models: those that a user writes, named `package.module:NAME`, in one or several frameworks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from dpcompare.errors import RequestError
from dpcompare.system.python_environment import find_object
from dpcompare.system.type_names import FrameworkModel

Factory = Callable[[int, int], FrameworkModel]
"""(image_size, num_classes) -> a model."""


@dataclass(frozen=True, kw_only=True)
class CustomModel:
    """A model in one or several frameworks, which must be the same one.

    All take normalised pixels and give logits, (rows, num_classes), and draw no random numbers. Their layers have the
    same names, or `layer_names` maps those of torch to those of Keras.
    """

    torch: Factory | None = None
    """Makes a torch.nn.Module that takes (rows, 3, image_size, image_size)."""
    tensorflow: Factory | None = None
    """Makes a keras.Model that takes (rows, image_size, image_size, 3)."""
    jax: Factory | None = None
    """Makes a pair of functions. `init()` gives the tensors by the names that they have in torch, and in its layouts.
    `apply(tensors, images, *, training, axis_name)` takes (rows, image_size, image_size, 3) and gives the logits, and a
    dict: in training every new running statistic by its name, and by a layer's name its features, so that `verify` can
    name the layer that differs. BatchNorm takes its mean over the replicas on `axis_name`, where that is not None."""
    layer_names: Mapping[str, str] = field(default_factory=dict)
    """Name of a torch module -> name of the Keras layer that is its twin, where it differs."""

    def build(self, framework: str, image_size: int, num_classes: int) -> FrameworkModel:
        """The model of a framework.

        Raises:
            RequestError: there is none.
        """
        factory: Factory | None = getattr(self, framework)
        if factory is None:
            raise RequestError(
                f"model: received one without a factory for {framework}; give CustomModel({framework}=...)"
            )
        return factory(image_size, num_classes)


def custom_model(name: str) -> CustomModel:
    """The model of a name: a CustomModel, or a function of no arguments that returns one.

    Raises:
        RequestError: there is none.
    """
    model = find_object(name, "model")
    if not isinstance(model, CustomModel) and callable(model):
        try:
            model = model()
        except Exception as error:
            raise RequestError(f"model: {name!r} failed ({type(error).__name__}: {error}); {EXPECTED_MODEL}") from None
    if not isinstance(model, CustomModel):
        raise RequestError(f"model: {name!r} is of type {type(model).__name__}; {EXPECTED_MODEL}")
    return model


def source_sha256(model: str) -> str:
    """sha256 of the file that a custom model's module is written in, without what that imports."""
    file = import_module(model.partition(":")[0]).__file__
    assert file is not None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


EXPECTED_MODEL = "expected a dpcompare.CustomModel, or a function of no arguments that returns one"
