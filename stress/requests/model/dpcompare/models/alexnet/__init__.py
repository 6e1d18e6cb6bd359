"""AlexNet: a module that all frameworks share, and one with the layers in each of them."""

from dpcompare.models.alexnet.spec import SPECS

__all__ = ["SPECS"]
