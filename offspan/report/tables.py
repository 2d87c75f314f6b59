"""Tables: functions of a result."""

import xarray as xr
from rich import box
from rich.table import Table

from offspan.report.summary import quartiles

THEORY = {"identity": "= 1", "shift": "< 1", "gaussian": "< 1"}
SOURCES = (
    "1 = no extrapolation, 0 = perfect. Theory: prop:no_exploration_no_extrapolation; "
    "< 1 is proven for other learning rates, by prop:shift for one seen state and thm:typical_system for the first step in the mean."
)


def measure_table(result: xr.Dataset) -> Table:
    """Both normalised measures for each system and number of seen states, beside what the theory says."""
    table = Table(
        title=f"Measures normalised by K_no-ext: median (quartiles) over {result.sizes['seed']} seeds", caption=SOURCES, box=box.SIMPLE_HEAD
    )
    table.add_column("system", no_wrap=True)
    for heading in ("seen", "optimality", "cost", "theory", "J(S) − J*"):
        table.add_column(heading, justify="right", no_wrap=True)
    for system in result.system.values:
        for seen in result.seen.values:
            row = result.sel(system=system, seen=seen)
            table.add_row(
                str(system),
                str(seen),
                _with_quartiles(row.normalized_optimality),
                _with_quartiles(row.normalized_cost),
                THEORY[str(system)],
                f"{quartiles(row.excess_training_cost).values[1]:.1e}",
            )
        table.add_section()
    return table


def _with_quartiles(values: xr.DataArray) -> str:
    low, median, high = quartiles(values).values
    return f"{median:.3f}" if low == high else f"{median:.3f} ({low:.2f}–{high:.2f})"
