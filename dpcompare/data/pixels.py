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
    images = np.empty(pixels.shape, tables.dtype)
    rows = max(1, min(len(pixels), _VALUES_AT_A_TIME // pixels[0].size))
    firsts = _first_entries(rows if len(tables) > 1 else 1, pixels.shape[1:])
    entries = np.empty((rows, *pixels.shape[1:]), np.intp)
    for start in range(0, len(pixels), rows):
        some = slice(start, start + rows)
        chunk = entries[: len(pixels[some])]
        np.copyto(chunk, pixels[some])  # widening and adding in one operation takes longer than both
        if flips is not None:
            for row in np.flatnonzero(flips[some]):
                # A channel at a time: NumPy reverses numbers faster than groups of three.
                for channel in range(pixels.shape[-1]):
                    chunk[row, ..., channel] = pixels[start + row, :, ::-1, channel]
        chunk += firsts[: len(chunk)]
        # "clip": NumPy writes to `out` without a copy of it only where no index can be refused.
        row_tables = tables[some] if len(tables) > 1 else tables
        np.take(row_tables.reshape(-1), chunk, out=images[some], mode="clip")
    return images


@cache
def _first_entries(num_rows: int, shape: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """For every value of so many images of a shape, where the entries of its image and channel begin in the tables."""
    channel_starts = np.arange(num_rows * shape[-1], dtype=np.intp).reshape(num_rows, 1, 1, -1) * NUM_BYTES
    return np.ascontiguousarray(np.broadcast_to(channel_starts, (num_rows, *shape)))
