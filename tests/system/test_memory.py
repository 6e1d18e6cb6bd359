"""The memory that processes may still take: the kernel's estimate, or less in a container."""

import pytest

from dpcompare.system.memory import available_memory


@pytest.mark.parametrize(("limit", "expected"), [(None, 4096), ("max", 4096), ("3000", 2000), ("9000", 4096)])
def test_the_smaller_of_what_the_kernel_and_a_container_leave(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal:       8 kB\nMemAvailable:       4 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("1000\n")
    assert available_memory(tmp_path, tmp_path) == expected


def test_this_machine_has_some():
    assert available_memory() > 1e6
