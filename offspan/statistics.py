"""What is said of many outcomes at once: tails, ranks, and intervals by resampling."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from offspan.errors import OffspanError


class Estimate(NamedTuple):
    """A number with its interval of confidence."""

    value: float
    low: float
    high: float


def largest_distance(K: np.ndarray) -> float:
    """max_{i,j} ‖K_i − K_j‖ (Frobenius)."""
    flat = K.reshape(len(K), -1)
    return max(float(np.linalg.norm(flat - one, axis=1).max()) for one in flat)


def cvar(values: np.ndarray, share: float = 0.2, axis: int = -1) -> np.ndarray:
    """The mean of the worst `share` of the values (at least one of them): the conditional value at risk."""
    ordered = np.sort(np.asarray(values, float), axis=axis)
    worst = max(1, round(share * ordered.shape[axis]))
    return np.take(ordered, range(ordered.shape[axis] - worst, ordered.shape[axis]), axis=axis).mean(axis=axis)


def bootstrap(statistic: Callable[..., float], *samples: np.ndarray, resamples: int = 2000, level: float = 0.95, seed: int = 0) -> Estimate:
    """`statistic(*samples)` with its percentile interval over resamples of the first axis, which all samples share: they are paired."""
    rng = np.random.default_rng(seed)
    count = len(samples[0])
    drawn = []
    for _ in range(resamples):
        rows = rng.integers(count, size=count)
        drawn.append(statistic(*(sample[rows] for sample in samples)))
    low, high = np.quantile(np.asarray(drawn, float), [(1 - level) / 2, (1 + level) / 2], method="closest_observation")
    return Estimate(float(statistic(*samples)), float(low), float(high))


def ratio(above: float, below: float) -> float:
    """above / below, and 1 where they are equal: also where both are 0, or both ∞."""
    if above == below:
        return 1.0
    return math.copysign(math.inf, above) if below == 0 else above / below


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's ρ, with mean ranks for ties and ∞ as the largest; NaN where either is constant."""
    if np.any(np.isnan(a)) or np.any(np.isnan(b)):
        raise OffspanError("rank_correlation: NaN has no rank; say first what it stands for.")
    x, y = (_ranks(np.asarray(values, float)) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    length = np.sqrt(np.sum(x**2) * np.sum(y**2))
    return float(np.sum(x * y) / length) if length > 0 else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]
