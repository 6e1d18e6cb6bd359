"""What a training process tells of itself."""

import pytest

from dpcompare.training import process


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("Name:\tpython\nVmHWM:\t 2048 kB\nVmRSS:\t 1024 kB\n", 2048 << 10),
        ("Name:\tpython\nVmRSS:\t 1024 kB\n", 1024 << 10),  # gVisor
    ],
)
def test_peak_memory_is_what_the_kernel_tells(tmp_path, status, expected):
    (tmp_path / "status").write_text(status)
    assert process._peak_memory_bytes(tmp_path / "status") == expected
