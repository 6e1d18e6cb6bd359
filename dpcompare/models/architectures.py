"""The table of models: those of each family, and what stands for a custom one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dpcompare.models import efficientnet, toys
from dpcompare.models.spec import ModelSpec

MODELS: dict[str, ModelSpec] = {**efficientnet.SPECS, **toys.SPECS}

CUSTOM = ModelSpec(family="", min_image_size=1, shapes=lambda size, classes: {}, layers=())
"""The row of any custom model, of which only its `dpcompare.models.custom.CustomModel` knows more."""


def model_of(name: str) -> ModelSpec:
    """The row of a model; of a custom one, `CUSTOM`."""
    return MODELS.get(name, CUSTOM)


def family_of(name: str, framework: str) -> Any:
    """The module with the layers of a built-in model's family, in the process of a framework.

    It has `build(name, image_size, num_classes)`, which gives what the backend of that framework trains: a torch
    module, a Keras model, or in JAX a function of layers and images.
    """
    return import_module(f"dpcompare.models.{MODELS[name].family}.in_{framework}")
