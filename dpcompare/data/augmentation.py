"""Augmentation as a function of (seed, epoch, sample), computed on the host: the same in every framework."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

AUGMENTATIONS = ("flip", "brightness", "contrast")

MAX_BRIGHTNESS_CHANGE = 0.2
"""Brightness adds up to this share of the full range."""
MAX_CONTRAST_CHANGE = 0.2
"""Contrast scales the distance from the image's mean by 1 plus or minus at most this."""

Pixels = npt.NDArray[np.float32]


class Augmentation:
    """The chosen augmentations of one run."""

    def __init__(self, names: Collection[str], *, seed: int, num_samples: int) -> None:
        self._names = frozenset(names)
        self._seed = seed
        self._num_samples = num_samples
        self._epoch = -1
        self._draws: npt.NDArray[np.float64] = np.empty((0, 3))

    def __call__(self, pixels: Pixels, *, epoch: int, indices: npt.NDArray[np.int64]) -> Pixels:
        """Augment pixels in 0..1 of shape (batch, height, width, channels) in place; `indices` are their samples."""
        if not self._names:
            return pixels
        flip, brightness, contrast = self._draws_of(epoch)[indices].T
        if "flip" in self._names:
            chosen = flip < 0.5
            pixels[chosen] = pixels[chosen, :, ::-1]
        if "brightness" in self._names:
            pixels += _per_image((2 * brightness - 1) * MAX_BRIGHTNESS_CHANGE)
        if "contrast" in self._names:
            mean = pixels.mean(axis=(1, 2, 3), keepdims=True)
            pixels -= mean
            pixels *= _per_image(1 + (2 * contrast - 1) * MAX_CONTRAST_CHANGE)
            pixels += mean
        return np.clip(pixels, 0.0, 1.0, out=pixels)

    def _draws_of(self, epoch: int) -> npt.NDArray[np.float64]:
        """One row of uniform draws per sample: row i belongs to sample i whatever the batch it is in."""
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, 2, epoch])))
            self._draws, self._epoch = generator.random((self._num_samples, 3)), epoch
        return self._draws


def _per_image(values: npt.NDArray[np.float64]) -> Pixels:
    return values.astype(np.float32)[:, None, None, None]
