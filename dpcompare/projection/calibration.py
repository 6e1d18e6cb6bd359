"""Calibration: what of the exchange is the machine's own, fitted to steps that were measured with and without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.exchange import Exchange
from dpcompare.projection.step import seconds_with_exchange

MOST_COPYING = 1e-7
"""Seconds per byte: 10 MB/s, slower than any machine copies."""
LEAST_PAYLOAD = 0.5
LARGEST_ERROR = 0.1
"""Relative, of the model at the step that was measured: beyond it, its figures are not to be relied on."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """One cluster on which a step was measured with and without the exchange."""

    exchange: Exchange
    computing_seconds: float
    """Without it."""
    seconds: float
    """With it."""
    interconnect: Interconnect
    """Its `copying`, and the payload of its link between nodes, are what is fitted."""

    def predicted(self, fitted: Fitted) -> float:
        """Seconds of the step with these constants."""
        return seconds_with_exchange(self.exchange, self.computing_seconds, fitted.applied_to(self.interconnect))

    def error(self, fitted: Fitted) -> float:
        """Of that, relative to the step that was measured."""
        return self.predicted(fitted) / self.seconds - 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The constants of one collective on one kind of machine."""

    copying: float = 0.0
    """Seconds of CPU time per byte that a rank sends."""
    payload: float | None = None
    """Of the link between nodes; None: that of the link itself, since no cell was bound by a limited link."""

    def applied_to(self, interconnect: Interconnect) -> Interconnect:
        """An interconnect with these constants."""
        between = interconnect.between
        if self.payload is not None:
            between = replace(between, payload=self.payload)
        return replace(interconnect, copying=self.copying, between=between)


def fit(cells: Sequence[MeasuredCell]) -> Fitted:
    """The constants with which the model comes nearest to measured cells, by the sum of squared relative errors.

    The copying comes from all cells. The payload is fitted only where some link had a limit, and other cells had none
    or another one, since one cell cannot tell the two apart.
    """
    if not cells:
        return Fitted()
    limits = {cell.interconnect.between.bytes_per_second for cell in cells}
    payload, copying = None, _fitted_copying(cells, None)
    if len(limits) > 1:
        for _ in range(ROUNDS):
            payload = _fitted_payload(cells, copying)
            copying = _fitted_copying(cells, payload)
    return Fitted(copying=copying, payload=payload)


ROUNDS = 3
"""In which one constant after the other is fitted; each moves the other little."""
GRID = 13
"""Values that are tried between two ends."""


def _fitted_copying(cells: Sequence[MeasuredCell], payload: float | None) -> float:
    return _best(lambda value: _squares(cells, Fitted(copying=value, payload=payload)), 0.0, MOST_COPYING)


def _fitted_payload(cells: Sequence[MeasuredCell], copying: float) -> float:
    return _best(lambda value: _squares(cells, Fitted(copying=copying, payload=value)), LEAST_PAYLOAD, 1.0)


def _squares(cells: Sequence[MeasuredCell], fitted: Fitted) -> float:
    return sum(cell.error(fitted) ** 2 for cell in cells)


def _best(error: Callable[[float], float], low: float, high: float) -> float:
    """The value with the least error: on a grid that is drawn closer around it, since the error has kinks."""
    for _ in range(7):
        grid = np.linspace(low, high, GRID)
        best = int(np.argmin([error(float(value)) for value in grid]))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(GRID - 1, best + 1)])
    return (low + high) / 2
