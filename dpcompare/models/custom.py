"""Custom models: those that a user writes, named `package.module:NAME`, in one or several frameworks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

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
    return _sha256(_file_of(import_module(model.partition(":")[0])))


def module_digests(model: str) -> dict[str, str]:
    """File -> sha256 of each module that this process has imported from the folder of a custom model or its package.

    Paths are relative to that folder. Empty where the model is installed, or no file has it.
    """
    root = _folder(model)
    if _INSTALLED.intersection(root.parts) or root.is_relative_to(_OURS):
        return {}
    files = {_file_of(module) for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
    return {str(file.relative_to(root)): _sha256(file) for file in sorted(files) if _is_of_user(file, root)}


def changed_modules(model: str, recorded: Mapping[str, str]) -> list[str]:
    """Files of `module_digests` that are not any more what they were."""
    root = _folder(model)
    return [name for name, digest in recorded.items() if not (root / name).is_file() or _sha256(root / name) != digest]


_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of what is installed, whose versions results have."""
_OURS = Path(__file__).resolve().parents[1]


def _folder(model: str) -> Path:
    """The folder of a model's module, or that of the outermost package around it."""
    name = model.partition(":")[0]
    file, depth = _file_of(import_module(name)), name.count(".")
    return file.parents[max(0, depth - 1 + (file.name == "__init__.py"))]


def _file_of(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__).resolve()


def _is_of_user(file: Path, root: Path) -> bool:
    """Whether a module is below a folder, and neither installed there nor ours nor a framework's."""
    if not file.is_relative_to(root) or not file.is_file() or _INSTALLED.intersection(file.relative_to(root).parts):
        return False
    others = (_OURS, Path(sys.base_prefix).resolve())
    return not any(file.is_relative_to(other) and not root.is_relative_to(other) for other in others)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


EXPECTED_MODEL = "expected a dpcompare.CustomModel, or a function of no arguments that returns one"
