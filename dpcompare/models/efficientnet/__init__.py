"""EfficientNet: a module that all frameworks share, and one with the layers in each of them."""

from dpcompare.models.efficientnet.spec import SPECS

__all__ = ["SPECS"]
