"""ViT: a module that all frameworks share, and one with the layers in each of them."""

from dpcompare.models.vit.spec import SPECS

__all__ = ["SPECS"]
