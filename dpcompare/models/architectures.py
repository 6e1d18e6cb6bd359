"""The table of models: those of each family, and what stands for a custom one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from dpcompare.models import efficientnet, resnet, toys, vgg, vit
from dpcompare.models.spec import DRAWN, ZERO_INIT, ModelSpec

MODELS: dict[str, ModelSpec] = {**efficientnet.SPECS, **resnet.SPECS, **vgg.SPECS, **vit.SPECS, **toys.SPECS}

CUSTOM = ModelSpec(family="", min_image_size=1, shapes=lambda size, classes: {}, layers=())
"""The row of any custom model, of which only its `dpcompare.models.custom.CustomModel` knows more."""


def model_of(name: str) -> ModelSpec:
    """The row of a model; of a custom one, `CUSTOM`."""
    return MODELS.get(name, CUSTOM)


def may_have_batchnorm(name: str) -> bool:
    """Whether a model may have BatchNorm, as a custom one may: what it has shows when it is built."""
    return name not in MODELS or MODELS[name].batchnorm_stride is not None


def misfits(name: str, *, image_size: int, regularization: str, weights: str) -> Iterator[str]:
    """What these fields of a workload ask of a model that it does not offer, with what is expected instead."""
    model = model_of(name)
    if image_size < model.min_image_size:
        yield f"image_size: received {image_size}, but {name} needs at least {model.min_image_size} pixels"
    elif rest := image_size % model.multiple_of:
        yield (
            f"image_size: received {image_size}, but {name} needs a multiple of {model.multiple_of} pixels; expected "
            f"one such as {image_size - rest} or {image_size - rest + model.multiple_of}"
        )
    if regularization == "shared" and not model.drops and model is not CUSTOM:
        regularized = [other for other, row in MODELS.items() if row.drops]
        yield (
            f"regularization: received shared, but {name} has no dropout and no stochastic depth; expected off, or one "
            f"of the models {', '.join(regularized)}"
        )
    if weights == "imagenet" and model.published is None:
        published = [other for other, row in MODELS.items() if row.published]
        yield (
            f"weights: received imagenet, but none are published for {name}; expected random or a file, or one of the "
            f"models {', '.join(published)}"
        )
    elif weights == ZERO_INIT and not model.ends_of_branches:
        branched = ", ".join(other for other, row in MODELS.items() if row.ends_of_branches)
        yield f"weights: received {ZERO_INIT} with {name}; expected {DRAWN} or a file, or one of the models {branched}"
    elif weights == "imagenet" and model.published_image_size not in (None, image_size):
        yield (
            f"image_size: received {image_size}, but the published weights of {name} are for "
            f"{model.published_image_size} pixels; expected that size, or --weights random"
        )


def family_of(name: str, framework: str) -> ModuleType:
    """The module with the layers of a built-in model's family, in the process of a framework.

    It has `build(name, image_size, num_classes)`, which gives what the backend of that framework trains: a torch
    module, a Keras model, or in JAX a function of layers and images.
    """
    return import_module(f"dpcompare.models.{MODELS[name].family}.in_{framework}")
