"""ResNet as timm's torch module, whose parameters have the framework-neutral names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from dpcompare.models.layers.in_torch import Layer, import_timm
from dpcompare.models.resnet.spec import DEPTHS
from dpcompare.system.type_names import FrameworkModel

DROP_PLACES: Mapping[str, str] = {}
"""It drops nothing."""


def build(name: str, image_size: int, num_classes: int) -> nn.Module:
    """A model, with weights that are still to be replaced by the initial ones."""
    depth = DEPTHS[name]
    resnet = import_timm().models.resnet
    block = resnet.Bottleneck if depth.is_bottleneck else resnet.BasicBlock
    model: nn.Module = resnet.ResNet(block, depth.repeats, num_classes=num_classes, channels=depth.channels)
    return model


def layers_of(model: FrameworkModel) -> list[Layer]:
    """What a model does, cut between its layers."""
    stages = (model.layer1, model.layer2, model.layer3, model.layer4)
    return [
        lambda images: model.maxpool(model.act1(model.bn1(model.conv1(images)))),
        *(block for stage in stages for block in stage),
        lambda x: model.fc(model.global_pool(x)),
    ]
