"""Every optimizer has a kernel in each framework; what lacks one is refused by name."""

import pytest

from dpcompare.config.optimizers import OPTIMIZERS, require_all_kernels
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError

SLOTS = {name: row.slots for name, row in OPTIMIZERS.items()}


def test_an_optimizer_without_a_kernel_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "lamb", OPTIMIZERS["adam"])
    with pytest.raises(TypeError, match="optimizer 'lamb': the kernel of torch remembers None"):
        require_all_kernels(SLOTS, "torch")


def test_a_kernel_without_a_row_is_refused_by_name():
    with pytest.raises(TypeError, match=r"optimizer 'lamb': .* its row in OPTIMIZERS None"):
        require_all_kernels(SLOTS | {"lamb": ("exp_avg",)}, "JAX")


def test_a_kernel_with_another_memory_is_refused_by_name():
    with pytest.raises(TypeError, match="optimizer 'sgd'"):
        require_all_kernels(SLOTS | {"sgd": ("velocity",)}, "TensorFlow")


def test_an_unknown_optimizer_is_refused_with_the_known_ones():
    with pytest.raises(RequestError, match="unknown optimizer 'lamb'; expected one of sgd, adam"):
        Workload(optimizer="lamb")
