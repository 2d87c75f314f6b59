"""What is read of the results of every kind."""

import numpy as np
import xarray as xr

DIVERGED = 2  # in the stored variables `status`


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
