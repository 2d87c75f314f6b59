"""Medians and quartiles over seeds."""

import numpy as np
import xarray as xr


def quartiles(values: xr.DataArray) -> xr.DataArray:
    """The 25, 50 and 75 % quantiles over `seed` (dimension `quantile`); a diverged run is +∞ and counts as such."""
    shares = [0.25, 0.5, 0.75]
    axis = values.get_axis_num("seed")
    with np.errstate(invalid="ignore"):  # between two infinities, interpolation would give NaN
        interpolated = np.quantile(values, shares, axis=axis)
    upper_neighbour = np.quantile(values, shares, axis=axis, method="higher")
    return xr.DataArray(
        np.where(np.isinf(upper_neighbour), np.inf, interpolated),
        dims=("quantile", *(dim for dim in values.dims if dim != "seed")),
        coords={"quantile": shares, **{name: coord for name, coord in values.coords.items() if name != "seed"}},
    )
