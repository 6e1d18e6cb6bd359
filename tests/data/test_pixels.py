"""Bytes and the tables they are looked up in."""

import numpy as np
import pytest

from dpcompare.data.pixels import BRIGHTNESSES, PIXEL_MEAN, PIXEL_STD, look_up, normalised


@pytest.mark.parametrize("size", [1, 8, 64, 130])  # many images in a block of indices, few, less than one
@pytest.mark.parametrize("num_tables", [1, 5])
def test_every_byte_gets_the_entry_of_its_row_and_channel(size, num_tables):
    rng = np.random.default_rng(size)
    pixels = rng.integers(0, 256, (5, size, size, 3), dtype=np.uint8)
    tables = rng.random((num_tables, 3, 256), dtype=np.float32)
    flips = np.array([True, False, True, True, False])
    images = look_up(pixels, tables, flips)
    for row in range(5):
        table = tables[row % num_tables]
        expected = np.stack([table[channel][pixels[row, :, :, channel]] for channel in range(3)], axis=-1)
        assert np.array_equal(images[row], expected[:, ::-1] if flips[row] else expected)
    assert images.dtype == np.float32
    assert np.array_equal(look_up(pixels[:, :, ::-1], tables)[flips], images[flips])


def test_a_table_equals_arithmetic_on_pixels_to_the_last_bit():
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    images = np.divide(pixels, np.float32(255), dtype=np.float32)
    images -= PIXEL_MEAN
    images /= PIXEL_STD
    assert look_up(pixels, normalised(BRIGHTNESSES[None])).tobytes() == images.tobytes()
