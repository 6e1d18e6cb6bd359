"""Bytes that a device looks up: the same bits as on the host, in every framework."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dpcompare.data.augmentation import Augmentation
from dpcompare.data.names import AUGMENTATIONS
from dpcompare.data.pixels import look_up, normalised

LOOKED_UP = {
    "torch": """
import sys, numpy, torch
from dpcompare.backends.torch.feed import look_up
given = numpy.load(sys.argv[1])
as_tensor = torch.from_numpy
as_array = lambda images: images.numpy()
""",
    "tensorflow": """
import sys, numpy, tensorflow as tf
from dpcompare.backends.tensorflow.feed import look_up
given = numpy.load(sys.argv[1])
as_tensor = tf.constant
as_array = lambda images: images.numpy()
""",
    "jax": """
import sys, jax, numpy
jax.config.update("jax_enable_x64", True)
from dpcompare.backends.jax.feed import look_up
given = numpy.load(sys.argv[1])
as_tensor = jax.numpy.asarray
as_array = numpy.asarray
""",
}
DTYPES = ("float32", "float64")
ALL_CASES = """
pixels, flips = as_tensor(given["pixels"]), as_tensor(given["flips"])
got = {{}}
for dtype in {dtypes}:
    tables = as_tensor(given[dtype])
    cases = {{"augmented": (tables, flips), "flipped": (tables[:1], flips), "plain": (tables[:1], None)}}
    got |= {{f"{{dtype}} {{name}}": as_array(look_up(pixels, *case)) for name, case in cases.items()}}
numpy.savez(sys.argv[2], **got)
"""


@pytest.mark.slow
@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in LOOKED_UP])
def test_a_device_looks_up_the_same_bits_as_the_host(framework, tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 9, 9, 3), dtype=np.uint8)
    means = pixels.mean(axis=(1, 2, 3)) / 255
    augmented = Augmentation(AUGMENTATIONS, seed=0, num_samples=4)(epoch=0, indices=np.arange(4), means=means)
    tables = {dtype: normalised(augmented.brightnesses).astype(dtype) for dtype in DTYPES}
    flips = np.array([True, False, False, True])
    np.savez(tmp_path / "given.npz", pixels=pixels, flips=flips, **tables)
    script = LOOKED_UP[framework] + ALL_CASES.format(dtypes=DTYPES)
    subprocess.run([sys.executable, "-c", script, tmp_path / "given.npz", tmp_path / "got.npz"], check=True)
    got = np.load(tmp_path / "got.npz")
    for dtype, table in tables.items():
        assert got[f"{dtype} augmented"].tobytes() == look_up(pixels, table, flips).tobytes()
        assert got[f"{dtype} flipped"].tobytes() == look_up(pixels, table[:1], flips).tobytes()
        assert got[f"{dtype} plain"].tobytes() == look_up(pixels, table[:1]).tobytes()


FED = """
import json, numpy, torch
from dpcompare.backends.torch.feed import DeviceFeed
from dpcompare.data.batches import HostBatch

rng = numpy.random.default_rng(0)
batch = HostBatch(
    pixels=rng.integers(0, 256, (4, 8, 9, 3), dtype=numpy.uint8), tables=rng.random((1, 3, 256), numpy.float32),
    flips=None, labels=numpy.arange(4, dtype=numpy.int32), weights=numpy.float32([1, 1, 1, 0]), global_count=3, step=1,
    indices=numpy.arange(4), drop_masks=rng.random((4, 5)),
)
found = {}
for dtype in (torch.float32, torch.float64):
    for layout in (torch.contiguous_format, torch.channels_last):
        fed = DeviceFeed(torch.device("cpu"), dtype, layout)
        placed = fed.place(batch)
        read = fed.read_back(placed)
        found[f"{dtype} {layout}"] = {
            "types": [str(array.dtype) for array in placed.arrays.values()],
            "has the layout": placed.images.is_contiguous(memory_format=layout),
            "is the batch": all(
                numpy.array_equal(read[name], getattr(batch, name).astype(read[name].dtype)) for name in read
            ),
        }
print(json.dumps(found))
"""


@pytest.mark.torch
@pytest.mark.slow
def test_torch_gets_a_batch_in_its_type_and_layout():
    done = subprocess.run([sys.executable, "-c", FED], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found) == 4
    for name, fed in found.items():
        dtype = name.split()[0]
        assert fed == {"types": [dtype, "torch.int64", dtype, dtype], "has the layout": True, "is the batch": True}
