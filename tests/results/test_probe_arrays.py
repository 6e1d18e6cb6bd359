"""The arrays of a probe are read from its files, and only when they are looked at."""

import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpcompare.results.predictions import load
from dpcompare.results.run_dir import probe_path
from dpcompare.system.files import atomic_write

pytestmark = pytest.mark.unit

ARRAYS = {
    "rows.images": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
    "rows.drop_masks": np.array([[True, False], [False, True]]),
    "rows.labels": np.array([3, 2**40], np.int64),
    "evaluation_logits": np.array([[0.5, -1.25], [3.0, np.nan]]),
    "initial.conv.weight": np.linspace(-1, 1, 7, dtype=np.float32),
    "initial.norm.num_batches_tracked": np.array(5, np.int32),
    "averaged.empty": np.empty((0, 3), np.float16),
}


def keep(run_dir, rank, arrays):
    with atomic_write(probe_path(run_dir, rank)) as path:
        save_file({name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}, path)


def test_arrays_are_those_that_were_written(tmp_path):
    keep(tmp_path, 0, ARRAYS)
    keep(tmp_path, 1, {name: array for name, array in ARRAYS.items() if not name.startswith("initial.")})
    loaded = load(tmp_path, [0, 1])
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        of_all = name.startswith("rows.") or name.endswith("_logits")
        expected = np.concatenate([array, array]) if of_all else array
        assert loaded[name].dtype == expected.dtype
        np.testing.assert_array_equal(loaded[name], expected)


def test_a_bfloat16_is_read_as_the_float32_that_it_is(tmp_path):
    """Features of custom models in bfloat16, which the core reads without a framework's type for it."""
    content = np.array([0x3FC0, 0xC000, 0x7F80], "<u2").tobytes()
    header = b'{"activation.0000.conv":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]}}'
    probe_path(tmp_path, 0).write_bytes(len(header).to_bytes(8, "little") + header + content)
    np.testing.assert_array_equal(load(tmp_path, [0])["activation.0000.conv"], [[1.5, -2.0, np.inf]])


def test_tensors_take_no_memory_until_they_are_read(tmp_path):
    size = 2**24
    keep(tmp_path, 0, {"initial.weight": np.ones(size // 8), "evaluation_logits": np.ones((2, 2))})
    tracemalloc.start()
    try:
        loaded = load(tmp_path, [0])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < size / 16
    assert loaded["initial.weight"].sum() == size / 8


def test_a_file_that_takes_its_place_changes_nothing(tmp_path):
    """A resumed run writes its own, while those of the whole run are still compared."""
    keep(tmp_path, 0, {"trained.weight": np.ones(1000), "evaluation_logits": np.ones((2, 2))})
    whole = load(tmp_path, [0])
    keep(tmp_path, 0, {"trained.weight": np.zeros(10), "evaluation_logits": np.zeros((2, 2))})
    resumed = load(tmp_path, [0])
    probe_path(tmp_path, 0).unlink()
    assert whole["trained.weight"].sum() == 1000
    assert resumed["trained.weight"].shape == (10,)
