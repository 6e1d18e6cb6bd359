"""Layers as torch modules, which the models in torch are made of."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional


def import_timm() -> ModuleType:
    """timm, imported where its models or layers are needed: those of ours need not wait for it.

    It imports wandb where that is installed, which takes seconds, and leaves a folder in /tmp if the process is killed.
    """
    if "wandb" in sys.modules:
        import timm
    else:
        sys.modules["wandb"] = None  # type: ignore[assignment]  # an import of it then fails, and timm does without
        try:
            import timm
        finally:
            del sys.modules["wandb"]
    return timm


Layer = Callable[[torch.Tensor], torch.Tensor]


class Layered(nn.Module, ABC):
    """A model that is its layers one after the other."""

    @abstractmethod
    def layers(self) -> list[Layer]:
        """In the order of `dpcompare.models.spec.ModelSpec.layers`."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for layer in self.layers():
            x = layer(x)
        return x


class Conv2dSame(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: the odd pixel goes to the right and to the bottom."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = (
            max((-(-side // stride) - 1) * stride + kernel - side, 0)
            for side, stride, kernel in zip(images.shape[2:], self.stride, self.kernel_size, strict=True)
        )
        padding = (width // 2, width - width // 2, height // 2, height - height // 2)
        return super().forward(functional.pad(images, padding))


def flatten(features: torch.Tensor) -> torch.Tensor:
    """(batch, channels, height, width) flattened in the order of the shared weights: height, width, channel."""
    return features.permute(0, 2, 3, 1).flatten(1)
