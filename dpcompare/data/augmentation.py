"""Augmentation and regularization: functions of seed and sample, the same in every framework."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpcompare.data.names import CROP
from dpcompare.data.pixels import BRIGHTNESSES
from dpcompare.models.spec import Drop

MAX_BRIGHTNESS_CHANGE = 0.2
"""Brightness adds up to this share of the full range."""
MAX_CONTRAST_CHANGE = 0.2
"""Contrast scales the distance from the image's mean by 1 plus or minus at most this."""

_EPOCHS_KEPT = 2
"""Draws of so many epochs: readers that run ahead begin the next one while others end this one."""


@dataclass(frozen=True, kw_only=True)
class Augmented:
    """What augmentation makes of images, without touching their pixels."""

    brightnesses: npt.NDArray[np.float32]
    """(images, 256), or (1, 256) for all of them: what each byte becomes, in 0..1."""
    flips: npt.NDArray[np.bool_] | None = None
    """Images that are mirrored from left to right; None: none is."""
    corners: npt.NDArray[np.int64] | None = None
    """(images, 2): rows above and columns to the left of what is cut out of each image, before it is mirrored; None:
    all is cut out of the centre."""


UNCHANGED = Augmented(brightnesses=BRIGHTNESSES[None])


class Augmentation:
    """The chosen augmentations of one run."""

    def __init__(self, names: Collection[str], *, seed: int, num_samples: int, margin: int = 0) -> None:
        """Args:
        names: of AUGMENTATIONS.
        seed: of the draws.
        num_samples: of the training split.
        margin: pixels by which images are larger than what is cut out of them; `crop` needs some.
        """
        self._names = frozenset(names)
        self._seed = seed
        self._num_samples = num_samples
        self._margin = margin
        self._draws_of = lru_cache(_EPOCHS_KEPT)(self._draw)

    def __call__(self, *, epoch: int, indices: npt.NDArray[np.int64], means: npt.NDArray[np.float64]) -> Augmented:
        """Augment the samples `indices`, whose pixels have these means in 0..1."""
        if not self._names:
            return UNCHANGED
        flip, brightness, contrast, *corner = self._draws_of(epoch)[indices].T
        values = BRIGHTNESSES[None]
        if "brightness" in self._names:
            added = ((2 * brightness - 1) * MAX_BRIGHTNESS_CHANGE).astype(np.float32)
            values = values + added[:, None]
            means = means + added
        if "contrast" in self._names:
            factors = (1 + (2 * contrast - 1) * MAX_CONTRAST_CHANGE).astype(np.float32)
            around = means.astype(np.float32)[:, None]
            values = (values - around) * factors[:, None] + around
        return Augmented(
            brightnesses=np.clip(values, 0.0, 1.0),
            flips=flip < 0.5 if "flip" in self._names else None,
            corners=np.floor(np.stack(corner, 1) * (self._margin + 1)).astype(np.int64) if corner else None,
        )

    def _draw(self, epoch: int) -> npt.NDArray[np.float64]:
        """One row of uniform draws per sample: row i belongs to sample i whatever the batch it is in."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, 2, epoch])))
        draws = generator.random((self._num_samples, 3))
        if CROP not in self._names:
            return draws
        return np.hstack([draws, generator.random((self._num_samples, 2))])


DropMasks = npt.NDArray[np.float64]


class Regularization:
    """What the features of each sample are multiplied by where a model drops some of them.

    A feature that is kept is multiplied by 1 / (1 - rate), so that its expectation stays (Srivastava et al. 2014,
    section 10, "inverted dropout"), and one that is dropped by 0. Both frameworks get exactly these numbers, and round
    them to the precision of the features.

    The draws come from Philox, a counter-based generator (Salmon et al. 2011): key = (seed, step), counter = sample,
    and a layer's draws follow those of the layers before it. So they depend neither on the batch that a sample is in
    nor on the number of replicas, processes and micro-batches.
    """

    def __init__(self, drops: Sequence[Drop], *, seed: int) -> None:
        self._seed = seed
        rates = np.repeat([drop.rate for drop in drops], [drop.features for drop in drops])
        self._rates = rates
        self._kept = 1 / (1 - rates)

    def __call__(self, *, step: int, indices: npt.NDArray[np.int64]) -> DropMasks:
        """(samples, features of all layers side by side) for the samples `indices` at a step."""
        draws = np.array([self._draws(step, index) for index in indices.tolist()]).reshape(
            len(indices), len(self._rates)
        )
        return np.where(draws >= self._rates, self._kept, 0.0)

    def _draws(self, step: int, index: int) -> DropMasks:
        # As an array: NumPy takes a list with an integer above 2^63 for floats.
        philox = np.random.Philox(key=np.array([self._seed, step], np.uint64), counter=[0, index, 0, 0])
        return np.random.Generator(philox).random(len(self._rates))
