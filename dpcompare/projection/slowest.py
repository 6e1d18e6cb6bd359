"""The slowest of many processes: a step that ends with an exchange waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from dpcompare.results.steadiness import JITTER_SCALE


@cache
def expected_maximum(count: int) -> float:
    """Of that many draws from the standard normal distribution: 0 of one, 0.56 of two, 2.83 of 256, 3.25 of 1,024.

    The first order statistic from above, by integration of x d(F(x)^n) (David and Nagaraja, Order Statistics, 2003).
    """
    from scipy.special import log_ndtr

    if count < 1:
        raise ValueError(f"count: received {count}, expected at least 1")
    edges = np.linspace(-9.0, 9.0, 9001)
    cumulated = np.exp(count * log_ndtr(edges))
    return float(((edges[1:] + edges[:-1]) / 2 * np.diff(cumulated)).sum())


def slowdown(spread: float, ranks: int, measured_ranks: int = 1) -> float:
    """How many times longer the slowest of many ranks takes than the slowest of those that were measured.

    Args:
        spread: standard deviation of a rank's step, relative to its mean.
        ranks: in the cluster that is predicted.
        measured_ranks: of which the slowest is known.
    """
    measured = 1 + spread * expected_maximum(measured_ranks)
    return max(1.0, (1 + spread * expected_maximum(ranks)) / measured)


def slowest_of_each_step(step_seconds: Sequence[Sequence[float]]) -> float:
    """The median step if all processes waited for the slowest one in each step, as they do where they exchange.

    Args:
        step_seconds: per process, those of the same steps, made without waiting for the others.
    """
    return float(np.median(np.max(step_seconds, axis=0)))


def spread_of(step_seconds: Sequence[Sequence[float]]) -> float:
    """The relative standard deviation of a step, from the steps of each process of one run.

    What differs from step to step within a process and what differs between processes add up. Robust, so that a stall
    is none: by the median absolute deviation of all steps from their process's median.

    Args:
        step_seconds: per process, those of its measured steps, made without waiting for the others.
    """
    processes = [np.asarray(seconds, np.float64) for seconds in step_seconds if len(seconds)]
    if not processes:
        return 0.0
    medians = np.array([np.median(seconds) for seconds in processes])
    residuals = np.concatenate([seconds / median - 1 for seconds, median in zip(processes, medians, strict=True)])
    within = JITTER_SCALE * float(np.median(np.abs(residuals)))
    between = float(medians.std(ddof=1) / medians.mean()) if len(medians) > 1 else 0.0
    return float(np.hypot(within, between))
