"""What the reports of all kinds share: the record, and statistics over seeds."""

import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
import xarray as xr
from matplotlib.figure import Figure

from offspan.errors import OffspanError
from offspan.experiments.registry import kind
from offspan.report.tables import Table
from offspan.training import Status

DIVERGED = int(Status.diverged)


class Report(NamedTuple):
    """Tables by name, the main one first, and the main one's numbers; a caption for each figure. Drawing takes longer, so that figures,
    each with the data behind it, and animations, as lists of images, are functions."""

    tables: dict[str, Table]
    data: pd.DataFrame
    captions: dict[str, str]
    figures: Callable[[], dict[str, tuple[Figure, pd.DataFrame]]]
    animations: Callable[[], dict[str, list[Any]]] = dict


def report(result: xr.Dataset, beside: xr.Dataset | None = None) -> Report:
    """By the module of the result's kind; `beside` is a result to compare with."""
    name = result.attrs.get("kind", "lqr")
    kind(name)  # which says what there is, where there is no such kind
    return importlib.import_module(f"offspan.report.{name}").report(result, beside)


def quick_mark(result: xr.Dataset) -> str:
    return "QUICK LOOK: " if result.attrs["quick"] else ""


def quartiles(values: xr.DataArray) -> xr.DataArray:
    """The 25, 50 and 75 % quantiles over `seed` (dimension `quantile`), infinities included.

    The q-quantile lies q(N − 1) of the way along the ordered values; `numpy.quantile` gives NaN next to an infinity.
    """
    shares = [0.25, 0.5, 0.75]
    ordered = np.sort(values.transpose("seed", ...), axis=0)
    places = [share * (len(ordered) - 1) for share in shares]
    lower, upper = (np.stack([ordered[int(neighbour(place))] for place in places]) for neighbour in (np.floor, np.ceil))
    with np.errstate(invalid="ignore"):
        between = lower + np.reshape(np.mod(places, 1.0), (-1,) + (1,) * (ordered.ndim - 1)) * (upper - lower)
    kept = values.isel(seed=0, drop=True)
    return xr.DataArray(
        np.where(np.isinf(upper), upper, between), dims=("quantile", *kept.dims), coords={"quantile": shares, **kept.coords}
    )


class Estimate(NamedTuple):
    """A number with its confidence interval."""

    value: float
    low: float
    high: float


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
        raise OffspanError("rank_correlation: NaN has no rank; replace it by the value that it stands for.")
    if len(np.unique(a)) < 2 or len(np.unique(b)) < 2:
        return float("nan")
    return float(scipy.stats.spearmanr(a, b).statistic)  # pyright: ignore[reportAttributeAccessIssue]
