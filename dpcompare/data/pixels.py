"""Pixels as bytes, with the tables that say what a model gets for each byte: a quarter of what floats would weigh."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

# The usual per-channel statistics of ImageNet, for pixels in 0..1 (red, green, blue).
PIXEL_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
PIXEL_STD = np.array([0.229, 0.224, 0.225], np.float32)

NUM_BYTES = 256
"""Values that a byte has, and entries of a table per channel."""
BRIGHTNESSES = np.divide(np.arange(NUM_BYTES), 255, dtype=np.float32)
"""What each byte stands for, in 0..1."""

_VALUES_AT_A_TIME = 32_768
"""Whose indices, of 8 bytes each, stay in a core's cache."""

Bytes = npt.NDArray[np.uint8]
Tables = npt.NDArray[np.float32]


def normalised(brightnesses: npt.NDArray[np.float32]) -> Tables:
    """(brightnesses - PIXEL_MEAN) / PIXEL_STD of every channel: (tables, 256) in, (tables, channels, 256) out."""
    return (brightnesses[:, None, :] - PIXEL_MEAN[:, None]) / PIXEL_STD[:, None]


def look_up(pixels: Bytes, tables: Tables, flips: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.float32]:
    """What models get, (rows, height, width, channels), in the precision of the tables.

    The rule for all devices and frameworks: entries of a table are copied, so their bits are the same everywhere.

    Args:
        pixels: (rows, height, width, channels).
        tables: (rows, channels, 256), or (1, channels, 256) for all rows.
        flips: rows to be mirrored from left to right.
    """
    values = pixels.reshape(len(pixels), -1)
    looked_up = np.empty(values.shape, tables.dtype)
    of_channel = _first_entries(tables.shape[1], values.shape[1])
    of_row = np.arange(len(pixels))[:, None] * (tables[0].size if len(tables) > 1 else 0)
    rows = max(1, _VALUES_AT_A_TIME // values.shape[1])
    for start in range(0, len(values), rows):
        some = slice(start, start + rows)
        entries = values[some] + of_channel
        entries += of_row[some]
        # "clip": NumPy writes to `out` without a copy of it only where no index can be refused.
        np.take(tables.reshape(-1), entries, out=looked_up[some], mode="clip")
    images = looked_up.reshape(pixels.shape)
    if flips is not None:
        images[flips] = images[flips, :, ::-1]
    return images


@cache
def _first_entries(num_channels: int, num_values: int) -> npt.NDArray[np.intp]:
    """For every value of an image, where the entries of its channel begin in a table."""
    return np.tile(np.arange(num_channels, dtype=np.intp) * NUM_BYTES, num_values // num_channels)
