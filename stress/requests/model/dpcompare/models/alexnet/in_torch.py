"""AlexNet as a torch module, whose parameters have torchvision's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from dpcompare.models.alexnet.spec import CONVOLUTIONS, HIDDEN, flat_features
from torch import nn

from dpcompare.models.layers.in_torch import Layer, Layered

DROP_PLACES: Mapping[str, str] = {}


def build(name: str, image_size: int, num_classes: int) -> nn.Module:
    """A model, with weights that are still to be replaced by the initial ones."""
    return AlexNet(image_size, num_classes)


def layers_of(model: nn.Module) -> list[Layer]:
    """What a model does, cut between its layers."""
    assert isinstance(model, Layered)
    return model.layers()


class AlexNet(Layered):
    """Five convolutions and three dense layers."""

    def __init__(self, image_size: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*_features())
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            *(nn.Identity(), nn.Linear(flat_features(image_size), HIDDEN), nn.ReLU()),
            *(nn.Identity(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
            nn.Linear(HIDDEN, num_classes),
        )

    def layers(self) -> list[Layer]:
        modules = [*self.features, self.flatten, *self.classifier]
        return [
            nn.Sequential(*modules[begin:end]) for begin, end in pairwise((0, 3, 6, 8, 10, 15, 18, 20, len(modules)))
        ]


def _features() -> Iterator[nn.Module]:
    for each in CONVOLUTIONS:
        yield nn.Conv2d(each.channels_in, each.channels_out, each.size, each.stride, each.padding)
        yield nn.ReLU()
        if each.pooled:
            yield nn.MaxPool2d(3, 2)
