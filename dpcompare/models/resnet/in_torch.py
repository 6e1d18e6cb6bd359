"""ResNet as timm's torch module, whose parameters have the framework-neutral names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from dpcompare.models.layers.in_torch import Layer, import_timm
from dpcompare.system.type_names import FrameworkModel

DROP_PLACES: Mapping[str, str] = {}
"""It drops nothing."""


def build(name: str, image_size: int, num_classes: int) -> nn.Module:
    """A model, with weights that are still to be replaced by the initial ones."""
    model: nn.Module = import_timm().create_model(name, num_classes=num_classes)
    return model


def layers_of(model: FrameworkModel) -> list[Layer]:
    """What a model does, cut between its layers."""
    stages = (model.layer1, model.layer2, model.layer3, model.layer4)
    return [
        lambda images: model.maxpool(model.act1(model.bn1(model.conv1(images)))),
        *(block for stage in stages for block in stage),
        lambda x: model.fc(model.global_pool(x)),
    ]
