"""The models of libraries by their names, such as `timm:resnet50`: each in the frameworks of its library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from types import ModuleType

from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.python_environment import import_extra
from dpcompare.system.type_names import FrameworkModel


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library of models: where it is, what is in it, and how one is built, without pretrained weights."""

    frameworks: tuple[str, ...]
    """Which can train its models."""
    extra: str
    """Of dpcompare, which brings it."""
    module: str
    names: Callable[[ModuleType], Iterable[str]]
    make: Callable[[ModuleType, str, int, int], FrameworkModel]
    """(module, name, image_size, num_classes) -> the model, which gives logits."""

    def build(self, name: str, image_size: int, num_classes: int) -> FrameworkModel:
        """A model of this library.

        Raises:
            RequestError: it has none of this name, or is not installed.
        """
        library = self.module.partition(".")[0]
        module = import_extra(self.module, extra=self.extra, needed_by=f"--model {library}:{name}")
        known = list(self.names(module))
        if name not in known:
            raise RequestError(
                f"model: received {name!r}, which is none of the {len(known)} models of {self.module} "
                f"{getattr(import_module(library), '__version__', '')}.{did_you_mean(name, known)}"
            )
        return self.make(module, name, image_size, num_classes)


def _functions(module: ModuleType) -> Iterable[str]:
    """Keras has a function for each model, in capital letters."""
    return (name for name in dir(module) if name[:1].isupper() and callable(getattr(module, name)))


def _of_keras(applications: ModuleType, name: str, image_size: int, num_classes: int) -> FrameworkModel:
    """A model of Keras that takes pixels as they come: normalised already, so that it must not scale them again."""
    make = getattr(applications, name)
    options = {"include_preprocessing": False} if "include_preprocessing" in signature(make).parameters else {}
    return make(
        weights=None,
        classes=num_classes,
        classifier_activation=None,
        input_shape=(image_size, image_size, 3),
        **options,
    )


LIBRARIES: Mapping[str, Library] = {
    "timm": Library(
        frameworks=("torch",),
        extra="torch",
        module="timm",
        names=lambda timm: timm.list_models(),
        make=lambda timm, name, _, num_classes: timm.create_model(name, num_classes=num_classes),
    ),
    "torchvision": Library(
        frameworks=("torch",),
        extra="torch",
        module="torchvision.models",
        names=lambda models: models.list_models(module=models),
        make=lambda models, name, _, num_classes: models.get_model(name, num_classes=num_classes),
    ),
    "keras": Library(
        frameworks=("torch", "tensorflow", "jax"),
        extra="keras",
        module="keras.applications",
        names=_functions,
        make=_of_keras,
    ),
}
"""What stands before the colon -> the library. Their models are custom models: `dpcompare.models.custom` asks here."""


def library_of(model: str) -> Library | None:
    """The library of a model that is named `LIBRARY:NAME`; None where there is none."""
    return LIBRARIES.get(model.partition(":")[0])
