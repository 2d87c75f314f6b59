"""The report of a sweep of linear controllers: medians and quartiles over seeds of the measures at the end of training."""

import math
from typing import NamedTuple

import numpy as np
import xarray as xr

from offspan.report.results import DIVERGED, quartiles
from offspan.report.tables import Sheet, number

MEASURES = ("normalized_optimality", "normalized_cost")
FINALS = (*MEASURES, "excess_training_cost", "cost")  # what is told of the end of training
EXPECTED = {"identity": "= 1", "shift": "< 1", "gaussian": "< 1"}


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
    cost: Quartiles


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
                        measures = [Quartiles(*quartiles(one[name]).values) for name in FINALS]
                        diverged = int((result.status.sel(where) == DIVERGED).sum())
                        rows.append(
                            Row(str(system), int(dim), int(horizon), float(rate), int(seen), one.sizes["seed"], diverged, *measures)
                        )
    return rows


def finals(result: xr.Dataset) -> xr.Dataset:
    """The measures after the last iteration; a diverged run counts as +∞, never as missing."""
    final = result[list(FINALS)].isel(iteration=-1)
    return final.where(result.status != DIVERGED, np.inf)


def measure_sheet(result: xr.Dataset) -> Sheet:
    """Both normalised measures of a sweep of linear controllers."""
    rows = summary(result)
    columns, seeds = _columns(rows), result.sizes["seed"]
    title = f"{result.attrs['name']}: measures normalised by K_no-ext, median (quartiles) over {seeds} seed{'s' if seeds > 1 else ''}"
    return Sheet(title, [heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows], note(rows))


def note(rows: list[Row]) -> str:
    """What a reader of the table must know."""
    parts = ["1 = no extrapolation, 0 = perfect."]
    if any(row.system in EXPECTED for row in rows):
        parts.append(
            "Expect: = 1 by prop:no_exploration_no_extrapolation; < 1 is proven for other learning rates, by prop:shift for one seen "
            "state and by thm:typical_system for the first step in the mean."
        )
    if any(math.isnan(row.normalized_cost.median) for row in rows):
        parts.append("–: not defined, as nothing is unseen, R is not 0 or B is not invertible.")
    return " ".join(parts)


def _columns(rows: list[Row]):
    """(heading, cell of a row). What is the same in all rows has no column; a sweep over more than the seen states shows medians alone."""
    swept = [
        (heading, lambda row, name=name: f"{getattr(row, name):g}")
        for heading, name in (("D", "dim"), ("H", "horizon"), ("η", "learning_rate"))
        if len({getattr(row, name) for row in rows}) > 1
    ]
    seen = [("seen", lambda row: str(row.seen))] if len({row.seen for row in rows}) > 1 or not swept else []
    value = (lambda values: number(values.median, ".3f")) if swept else _with_quartiles
    diverged = [("diverged", lambda row: f"{row.diverged}/{row.runs}")] if any(row.diverged for row in rows) else []
    without_least = any(math.isnan(row.excess_training_cost.median) for row in rows)
    expected = [("expect", _expected)] if any(row.system in EXPECTED for row in rows) else []
    return [
        ("system", lambda row: row.system),
        *swept,
        *seen,
        ("optimality", lambda row: value(row.normalized_optimality)),
        ("cost", lambda row: value(row.normalized_cost)),
        *expected,
        ("J(S) − J*", lambda row: number(row.excess_training_cost.median, ".1e")),
        *([("J(S)", lambda row: number(row.cost.median, ".4g"))] if without_least else []),
        *diverged,
    ]


def _expected(row: Row) -> str:
    return "" if math.isnan(row.normalized_cost.median) else EXPECTED.get(row.system, "")


def _with_quartiles(values: Quartiles) -> str:
    low, median, high = values
    whole = number(median, ".3f")
    return whole if low == high or math.isnan(median) else f"{whole} ({number(low, '.2f')}–{number(high, '.2f')})"
