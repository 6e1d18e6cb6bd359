"""EfficientNet as timm's torch module, whose parameters have the framework-neutral names."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from dpcompare.models.layers.in_torch import Layer, import_timm
from dpcompare.system.type_names import FrameworkModel

DROP_PLACES = {"dropout": "global_pool.dropout"}
"""Drop -> the layer of the module that it is, where that has another name."""


def build(name: str, image_size: int, num_classes: int) -> nn.Module:
    """A model, with weights that are still to be replaced by the initial ones."""
    # tf_: padding as TensorFlow's "same"; torchvision's model pads strided convolutions differently.
    model: FrameworkModel = import_timm().create_model(
        f"tf_{name.replace('-', '_')}", num_classes=num_classes, drop_rate=0.0, drop_path_rate=0.0
    )
    # timm's dropout is a function call between pooling and classifier, not a layer that could be replaced.
    model.global_pool = nn.Sequential(OrderedDict(pool=model.global_pool, dropout=nn.Identity()))
    built: nn.Module = model
    return built


def layers_of(model: FrameworkModel) -> list[Layer]:
    """What a model does, cut between its layers."""
    blocks = [block for blocks in model.blocks for block in blocks]
    return [
        lambda images: model.bn1(model.conv_stem(images)),
        *blocks,
        lambda x: model.bn2(model.conv_head(x)),
        lambda x: model.classifier(model.global_pool(x)),
    ]
