"""ViT as timm's torch module, whose parameters have the framework-neutral names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from dpcompare.models.layers.in_torch import Layer, import_timm
from dpcompare.models.vit.spec import MLP_RATIO, PATCH, SIZES
from dpcompare.system.type_names import FrameworkModel

DROP_PLACES: Mapping[str, str] = {}
"""Every drop is a layer of its name."""


def build(name: str, image_size: int, num_classes: int) -> nn.Module:
    """A model, with weights that are still to be replaced by the initial ones."""
    import_timm()
    from timm.models.vision_transformer import VisionTransformer

    size = SIZES[name]
    model: nn.Module = VisionTransformer(
        img_size=image_size,
        patch_size=PATCH,
        num_classes=num_classes,
        embed_dim=size.width,
        depth=size.num_blocks,
        num_heads=size.num_heads,
        mlp_ratio=MLP_RATIO,
    )
    return model


def layers_of(model: FrameworkModel) -> list[Layer]:
    """What a model does, cut between its layers."""
    return [
        lambda images: model._pos_embed(model.patch_embed(images)),
        *model.blocks,
        lambda x: model.forward_head(model.norm(x)),
    ]
