"""The report of ways of training networks that are compared: who trained, and how far each reaches."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from offspan.report.drawing import (
    BLACK,
    CATEGORIES,
    DASHES,
    LOWER,
    MARKERS,
    heading,
    label_ends,
    legend_below,
    log_axis,
    readable,
    styled,
    subplots,
)
from offspan.report.results import DIVERGED, Report, quick_mark
from offspan.report.tables import Table, from_columns, number
from offspan.report.ways import most_trained, with_whiskers

TRAINED = 2.0  # a run has trained where J(S) is at most this many times the lowest of all runs with the same horizon
OVERFLOW = 1e100  # a cost beyond it counts as ∞; between numbers below it, one can interpolate
CAPTION = "Share of runs that trained, and what these cost on the unseen states, relative to training there, against the {by}."


def report(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data, by = summary(result), str(result.attrs["compare_by"])
    caption = f"{most_trained(data)}. {CAPTION.format(by=by)}"
    return Report({"table": way_table(result, data)}, data, {by: caption}, lambda: {by: (figure(result, data), data)})


def trained(result: xr.Dataset) -> xr.DataArray:
    return (result.status != DIVERGED) & (result.cost <= TRAINED * result.cost.min(("way", "seed")))


def summary(result: xr.Dataset) -> pd.DataFrame:
    """A row for each way and horizon; medians and the quartiles `_low` and `_high` are over the runs that trained."""
    done = trained(result)
    columns: dict[str, Any] = {
        "runs": result.sizes["seed"],
        "trained": done.sum("seed"),
        "diverged": (result.status == DIVERGED).sum("seed"),
    }
    columns["median_cost"] = result.cost.where(np.isfinite(result.cost), np.inf).median("seed")
    result = result.assign(relative_cost=result.unseen_cost / result.least_cost)
    for name in ("cost", "unseen_cost", "normalized_cost", "relative_cost"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice")  # where no run has trained
            of_trained = result[name].clip(max=OVERFLOW).where(done).quantile([0.25, 0.5, 0.75, 1.0], "seed").drop_vars("quantile")
        of_trained = of_trained.where(~(of_trained > OVERFLOW / 10), np.inf)
        columns |= {f"{name}{suffix}": of_trained[i] for i, suffix in enumerate(("_low", "", "_high", "_worst"))}
    rows = xr.Dataset(columns).to_dataframe(dim_order=["way", "horizon"]).reset_index()
    return rows.merge(result[["noise", "learning_rate", "iterations_made"]].to_dataframe().reset_index(), on="way", sort=False)


def way_table(result: xr.Dataset, rows: pd.DataFrame) -> Table:
    measure = "normalized_cost"
    columns = {
        "way": rows.way.tolist(),
        "H": [str(horizon) for horizon in rows.horizon],
        "trained": [f"{one} of {runs}" for one, runs in zip(rows.trained, rows.runs, strict=True)],
        "diverged": [str(one) for one in rows.diverged],
        "J(S)": [number(value, ".3g") for value in rows.cost],
        "J(U)": [number(value, ".3g") for value in rows.unseen_cost],
        "measure": [
            f"{number(mid, '.3g')} ({number(low, '.2g')}–{number(high, '.2g')})" if not np.isnan(mid) else "–"
            for low, mid, high in zip(rows[f"{measure}_low"], rows[measure], rows[f"{measure}_high"], strict=True)
        ],
        "worst": [number(value, ".3g") for value in rows[f"{measure}_worst"]],
    }
    references = "; ".join(
        f"H = {H}: {least:.3g} and {baseline:.3g}"
        for H, least, baseline in zip(result.horizon.values, result.least_cost.values, result.baseline_cost.values, strict=True)
    )
    note = (
        f"Costs are without noise; medians (quartiles) of the runs that trained, which is J(S) at most {TRAINED:g} times "
        "the lowest of all runs of that horizon; worst: the highest measure of these. Measure: normalised cost, 0 = as if trained on U, "
        f"1 = no extrapolation. J*(U) and J(no-ext; U) for {references}."
    )
    return from_columns(f"{quick_mark(result)}{result.attrs['name']}: {result.attrs['title']}", columns, note)


@styled
def figure(result: xr.Dataset, rows: pd.DataFrame) -> Figure:
    """By horizon, a line for each way; by noise, a line for each horizon."""
    drawn, (left, right) = subplots(9.8, 4.6, 1, 2, sharex=True)  # also where the right one has no line
    by_noise = result.attrs["compare_by"] == "noise"
    lines = result.horizon.values if by_noise else result.way.values
    places = np.arange(result.sizes["way"] if by_noise else result.sizes["horizon"])
    for i, line in enumerate(lines):
        some: Any = rows[(rows.horizon if by_noise else rows.way) == line]
        x, label = places + 0.06 * (i - (len(lines) - 1) / 2), f"H = {line}" if by_noise else line
        left.plot(
            x,
            100 * some.trained / some.runs,
            color=CATEGORIES[i % 8],
            marker=MARKERS[i % 8],
            markersize=5,
            linestyle=DASHES[i % 4],
            label=label,
        )
        with_whiskers(right, x, some, "relative_cost", CATEGORIES[i % 8], i, label)
        one = np.array(some.trained == 1)
        right.plot(
            x[one], some.relative_cost[one], MARKERS[i % 8], color=CATEGORIES[i % 8], markerfacecolor="white", markersize=5, zorder=3
        )
        worst = some.relative_cost_worst
        right.scatter(x, np.where(np.isfinite(worst), worst, np.nan), color=CATEGORIES[i % 8], marker="_", s=60)
        infinite = x[np.isinf(worst)]
        for place in infinite:
            look = {"color": readable(CATEGORIES[i % 8]), "ha": "center", "va": "top", "fontsize": 8}
            right.annotate("▲ ∞", (place, 0.995), xycoords=("data", "axes fraction"), **look)
    left.set(title="runs that trained", ylabel="share [%], better ↑", ylim=(-3, 103))
    right.set(title="the cost of these on U: median, quartiles, worst", ylabel=f"J(U) over that of training on U, {LOWER}")
    right.title.set_fontsize(9)
    if rows.relative_cost_worst.max() > 10:  # NaN where no run has trained
        log_axis(right, "y")
    right.axhline(1.0, color="0.35", linewidth=0.9, linestyle="--", zorder=0)
    label_ends(right, [(1.0, "as if trained\non U", BLACK)])
    for ax in (left, right):
        ax.set_xticks(places, [f"{value:g}" for value in (result.noise.values if by_noise else result.horizon.values)])
        ax.set_xlabel("standard deviation of the noise in each step" if by_noise else "horizon H")
    legend_below(left, 2 if by_noise else 3)
    settings = f"{result.attrs['problem']}, {result.sizes['seed']} seeds, trained on the seen states S and tested on the unseen ones U"
    settings += "; hollow: of one run" if (rows.trained == 1).any() else ""
    settings += "; ▲ ∞: the worst overflows" if np.isinf(rows.relative_cost_worst).any() else ""
    heading(drawn, f"{quick_mark(result)}{most_trained(rows)}", settings)
    return drawn
