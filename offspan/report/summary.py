"""What figures and tables show: medians and quartiles over seeds of the measures at the end of training."""

from typing import NamedTuple

import numpy as np
import xarray as xr

MEASURES = ("normalized_optimality", "normalized_cost")
DIVERGED = 2  # in the stored variable `status`


class Quartiles(NamedTuple):
    low: float
    median: float
    high: float


class Row(NamedTuple):
    """One bar of a figure, one row of a table."""

    system: str
    dim: int
    horizon: int
    learning_rate: float
    seen: int
    runs: int
    diverged: int
    normalized_optimality: Quartiles
    normalized_cost: Quartiles
    excess_training_cost: Quartiles


def summary(result: xr.Dataset) -> list[Row]:
    """A row for each system, dimension, horizon, learning rate and number of seen states, over all seeds."""
    final = finals(result)
    rows = []
    for system in result.system.values:
        for dim in result.dim.values:
            for horizon in result.horizon.values:
                for rate in result.learning_rate.values:
                    for seen in result.seen.values:
                        where = {"system": system, "dim": dim, "horizon": horizon, "learning_rate": rate, "seen": seen}
                        one = final.sel(where)
                        measures = [Quartiles(*quartiles(one[name]).values) for name in (*MEASURES, "excess_training_cost")]
                        diverged = int((result.status.sel(where) == DIVERGED).sum())
                        rows.append(
                            Row(str(system), int(dim), int(horizon), float(rate), int(seen), one.sizes["seed"], diverged, *measures)
                        )
    return rows


def finals(result: xr.Dataset) -> xr.Dataset:
    """The measures after the last iteration; a diverged run counts as +∞, never as missing."""
    final = result[[*MEASURES, "excess_training_cost"]].isel(iteration=-1)
    return final.where(result.status != DIVERGED, np.inf)


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
