import numpy as np
import pytest
import xarray as xr

from offspan.report.figures import measure_bars
from offspan.report.summary import quartiles
from offspan.report.tables import measure_table


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0]),
        ([1.0, 2.0, 3.0, 4.0], [1.75, 2.5, 3.25]),
        ([1.0, 2.0, 3.0, 4.0, np.inf], [2.0, 3.0, 4.0]),
        ([1.0, 2.0, 3.0, np.inf], [1.75, 2.5, np.inf]),
        ([1.0, 2.0, np.inf, np.inf], [1.75, np.inf, np.inf]),
        ([np.inf, np.inf], [np.inf, np.inf, np.inf]),
    ],
)
def test_quartiles_count_a_diverged_run_as_the_worst(values, expected):
    """By hand: the q-quantile of N values lies q(N − 1) of the way along them, and any step towards +∞ is +∞."""
    np.testing.assert_allclose(quartiles(xr.DataArray(values, dims="seed")), expected)


def result(seeds: int) -> xr.Dataset:
    """Made-up measures: 1 for the identity, seed-dependent for the others."""
    shape = (3, 2, seeds)
    values = np.linspace(0.2, 0.8, int(np.prod(shape))).reshape(shape)
    values[0] = 1.0
    return xr.Dataset(
        dict.fromkeys(("normalized_optimality", "normalized_cost", "excess_training_cost"), (("system", "seen", "seed"), values)),
        coords={"system": ["identity", "shift", "gaussian"], "seen": [1, 3], "seed": range(seeds)},
        attrs={"dim": 5, "horizon": 4, "learning_rate": 1e-3, "iterations": 100},
    )


def test_bars_have_the_height_of_the_medians_and_whiskers_the_quartiles():
    data = result(seeds=4)
    figure = measure_bars(data)
    for ax in figure.axes:
        for system, bars in zip(data.system.values, ax.containers[1::2], strict=True):
            expected = data.normalized_cost.sel(system=system).median("seed")
            np.testing.assert_allclose([bar.get_height() for bar in bars], expected)
        for system, whiskers in zip(data.system.values, ax.containers[0::2], strict=True):
            ends = np.array([segment[:, 1] for segment in whiskers.lines[2][0].get_segments()])  # pyright: ignore[reportAttributeAccessIssue]
            np.testing.assert_allclose(ends.T, data.normalized_cost.sel(system=system).quantile([0.25, 0.75], "seed"))
        assert ax.get_xlabel()
    assert len(figure.axes) == 2


def test_the_table_has_a_row_for_each_system_and_number_of_seen_states():
    table = measure_table(result(seeds=4))
    assert table.row_count == 6
    optimality = list(table.columns[2].cells)
    assert optimality[0] == "1.000"
    values = result(seeds=4).normalized_optimality.sel(system="shift", seen=1).values
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    assert optimality[2] == f"{median:.3f} ({low:.2f}–{high:.2f})"
