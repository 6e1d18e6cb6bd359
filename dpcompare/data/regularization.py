"""Dropout and stochastic depth from (seed, step, sample, layer), drawn on the host: the same in every framework."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpcompare.models.spec import Drop

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
