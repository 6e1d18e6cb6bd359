"""Bytes that a device looks up: the same bits as on the host, in every framework."""

import subprocess
import sys

import numpy as np
import pytest

from dpcompare.data.augmentation import AUGMENTATIONS, Augmentation
from dpcompare.data.pixels import look_up, normalised

LOOKED_UP = {
    "torch": """
import sys, numpy, torch
from dpcompare.backends.torch.pixels import look_up
given = numpy.load(sys.argv[1])
pixels, tables, flips = (torch.from_numpy(given[name]) for name in ("pixels", "tables", "flips"))
as_array = lambda images: images.numpy()
""",
    "tensorflow": """
import sys, numpy, tensorflow as tf
from dpcompare.backends.tensorflow.pixels import look_up
given = numpy.load(sys.argv[1])
pixels, tables, flips = (tf.constant(given[name]) for name in ("pixels", "tables", "flips"))
as_array = lambda images: images.numpy()
""",
    "jax": """
import sys, jax, numpy
jax.config.update("jax_enable_x64", True)
from dpcompare.backends.jax.pixels import look_up
given = numpy.load(sys.argv[1])
pixels, tables, flips = (given[name] for name in ("pixels", "tables", "flips"))
as_array = numpy.asarray
""",
}
ALL_CASES = """
cases = {
    "augmented": (pixels, tables, flips), "flipped": (pixels, tables[:1], flips), "plain": (pixels, tables[:1], None),
}
numpy.savez(sys.argv[2], **{name: as_array(look_up(*case)) for name, case in cases.items()})
"""


@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in LOOKED_UP])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_device_looks_up_the_same_bits_as_the_host(framework, dtype, tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 9, 9, 3), dtype=np.uint8)
    means = pixels.mean(axis=(1, 2, 3)) / 255
    augmented = Augmentation(AUGMENTATIONS, seed=0, num_samples=4)(epoch=0, indices=np.arange(4), means=means)
    tables = normalised(augmented.brightnesses).astype(dtype)
    flips = np.array([True, False, False, True])
    np.savez(tmp_path / "given.npz", pixels=pixels, tables=tables, flips=flips)
    script = LOOKED_UP[framework] + ALL_CASES
    subprocess.run([sys.executable, "-c", script, tmp_path / "given.npz", tmp_path / "got.npz"], check=True)
    got = np.load(tmp_path / "got.npz")
    assert got["augmented"].tobytes() == look_up(pixels, tables, flips).tobytes()
    assert got["flipped"].tobytes() == look_up(pixels, tables[:1], flips).tobytes()
    assert got["plain"].tobytes() == look_up(pixels, tables[:1]).tobytes()
