"""The toys as torch modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn
from torch.nn import functional

from dpcompare.models.layers.in_torch import Conv2dSame, Layer, Layered, flatten
from dpcompare.models.spec import IMAGE_CHANNELS

DROP_PLACES: Mapping[str, str] = {}
"""Every drop is a layer of its name."""


def build(name: str, image_size: int, num_classes: int) -> nn.Module:
    """A toy, with weights that are still to be replaced by the initial ones."""
    models: Mapping[str, Callable[[], nn.Module]] = {
        "toy-cnn": lambda: ToyCnn(image_size, num_classes),
        "toy-bn": lambda: ToyBn(num_classes),
        "mlp": lambda: Mlp(image_size, num_classes),
    }
    return models[name]()


def layers_of(model: nn.Module) -> list[Layer]:
    """What a model does, cut between its layers."""
    assert isinstance(model, Layered)
    return model.layers()


class ToyCnn(Layered):
    """conv(5)-pool-conv(5)-pool and three dense layers, with valid padding."""

    def __init__(self, image_size: int, num_classes: int) -> None:
        super().__init__()
        side = ((image_size - 4) // 2 - 4) // 2
        self.conv1 = nn.Conv2d(IMAGE_CHANNELS, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(side * side * 16, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def layers(self) -> list[Layer]:
        return [
            lambda images: functional.max_pool2d(functional.relu(self.conv1(images)), 2),
            lambda x: functional.max_pool2d(functional.relu(self.conv2(x)), 2),
            lambda x: functional.relu(self.fc1(flatten(x))),
            lambda x: functional.relu(self.fc2(x)),
            self.fc3,
        ]


class ToyBn(Layered):
    """Two strided convolutions with TensorFlow's "same" padding, a residual, BatchNorm, and a dense layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv_stem = Conv2dSame(IMAGE_CHANNELS, 8, 3, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv_dw = Conv2dSame(8, 8, 3, stride=2, groups=8, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.conv_pwl = nn.Conv2d(8, 8, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(8)
        self.drop_path = nn.Identity()
        self.dropout = nn.Identity()
        self.classifier = nn.Linear(8, num_classes)

    def layers(self) -> list[Layer]:
        return [
            lambda images: functional.relu(self.bn1(self.conv_stem(images))),
            lambda x: functional.relu(self.bn2(self.conv_dw(x))),
            lambda x: x + self.drop_path(self.bn3(self.conv_pwl(x))),
            lambda x: self.classifier(self.dropout(x.mean((2, 3)))),
        ]


class Mlp(Layered):
    """One hidden layer of 512 units on the flattened pixels."""

    def __init__(self, image_size: int, num_classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(image_size * image_size * IMAGE_CHANNELS, 512)
        self.dropout = nn.Identity()
        self.fc2 = nn.Linear(512, num_classes)

    def layers(self) -> list[Layer]:
        return [
            lambda images: functional.relu(self.fc1(flatten(images))),
            lambda x: self.fc2(self.dropout(x)),
        ]
