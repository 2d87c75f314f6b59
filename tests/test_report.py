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


MEASURES = ("normalized_optimality", "normalized_cost")


def result(seeds: int) -> xr.Dataset:
    """Made-up measures, different in every entry, but for the identity's."""
    shape = (3, 2, 3, seeds)
    values = np.linspace(0.2, 0.8, int(np.prod(shape))).reshape(shape)
    values[:2, :, 0] = 1.0
    return xr.Dataset(
        {name: (("seen", "system", "seed"), values[i]) for i, name in enumerate((*MEASURES, "excess_training_cost"))},
        coords={"system": ["identity", "shift", "gaussian"], "seen": [1, 3], "seed": range(seeds)},
        attrs={"dim": 5, "horizon": 4, "learning_rate": 1e-3, "iterations": 100},
    )


def test_bars_have_the_height_of_the_medians_and_whiskers_the_quartiles():
    data = result(seeds=4)
    figure = measure_bars(data)
    for ax, measure in zip(figure.axes, MEASURES, strict=True):
        for system, bars in zip(data.system.values, ax.containers[1::2], strict=True):
            np.testing.assert_allclose([bar.get_height() for bar in bars], data[measure].sel(system=system).median("seed"))
        for system, whiskers in zip(data.system.values, ax.containers[0::2], strict=True):
            segments = whiskers.lines[2][0].get_segments()  # pyright: ignore[reportAttributeAccessIssue]
            ends = np.array([segment[:, 1] for segment in segments])
            np.testing.assert_allclose(ends.T, data[measure].sel(system=system).quantile([0.25, 0.75], "seed"))
        assert ax.get_xlabel()


def test_the_table_has_a_row_for_each_system_and_number_of_seen_states():
    data = result(seeds=4)
    table = measure_table(data)
    assert table.row_count == 6
    row = data.sel(system="shift", seen=1)
    for column, measure in zip(table.columns[2:4], MEASURES, strict=True):
        low, median, high = np.quantile(row[measure], [0.25, 0.5, 0.75])
        assert list(column.cells)[2] == f"{median:.3f} ({low:.2f}–{high:.2f})"
        assert next(iter(column.cells)) == "1.000"
    assert list(table.columns[5].cells)[2] == f"{np.median(row.excess_training_cost):.1e}"
