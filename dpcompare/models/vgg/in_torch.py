"""VGG as a torch module, whose parameters have torchvision's names.

timm's computes its hidden layers as convolutions; torchvision's averages to 7 x 7 positions whatever the image size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from dpcompare.models.layers.in_torch import Layer, Layered
from dpcompare.models.vgg.spec import WIDTHS, num_flat, stages

DROP_PLACES: Mapping[str, str] = {}
"""Every drop is a layer of its name."""


def build(name: str, image_size: int, num_classes: int) -> nn.Module:
    """A model, with weights that are still to be replaced by the initial ones."""
    return Vgg(name, image_size, num_classes)


def layers_of(model: nn.Module) -> list[Layer]:
    """What a model does, cut between its layers."""
    assert isinstance(model, Layered)
    return model.layers()


class Vgg(Layered):
    """Stages of 3x3 convolutions, each followed by a max-pooling, and three dense layers."""

    def __init__(self, name: str, image_size: int, num_classes: int) -> None:
        super().__init__()
        hidden = WIDTHS[name].hidden
        self.features = nn.Sequential(*_features(name))
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            *(nn.Linear(num_flat(name, image_size), hidden), nn.ReLU(), nn.Identity()),
            *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Identity()),
            nn.Linear(hidden, num_classes),
        )
        # Not found again later: a stage of a pipeline has other modules in the place of what it does not compute.
        products = [isinstance(each, nn.Conv2d | nn.Linear) for each in self._modules_in_order()]
        self._starts = [index for index, is_product in enumerate(products) if is_product]

    def layers(self) -> list[Layer]:
        modules = self._modules_in_order()
        borders = [*self._starts, len(modules)]
        return [partial(_through, modules[begin:end]) for begin, end in pairwise(borders)]

    def _modules_in_order(self) -> list[nn.Module]:
        return [*self.features, self.flatten, *self.classifier]


def _through(modules: Sequence[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for module in modules:
        x = module(x)
    return x


def _features(name: str) -> Iterator[nn.Module]:
    for stage in stages(name):
        for _, channels_in, channels_out in stage:
            yield from (nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU())
        yield nn.MaxPool2d(2)
