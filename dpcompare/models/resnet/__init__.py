"""ResNet: a module that all frameworks share, and one with the layers in each of them."""

from dpcompare.models.resnet.spec import SPECS

__all__ = ["SPECS"]
