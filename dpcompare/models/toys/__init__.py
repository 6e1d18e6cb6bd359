"""The toys: a module that all frameworks share, and one with the layers in each of them."""

from dpcompare.models.toys.spec import SPECS

__all__ = ["SPECS"]
