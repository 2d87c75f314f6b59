"""The report of controllers trained on a system of one's own."""

import json
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from offspan.report.drawing import (
    CATEGORIES,
    DASHES,
    GREEN,
    LOWER,
    heading,
    iteration_axis,
    legend_below,
    log_axis,
    short,
    styled,
    subplots,
    verbatim,
)
from offspan.report.results import DIVERGED, Report, quick_mark
from offspan.report.tables import Table, number

SHOWN = 6  # coordinates and states that a figure has room for


def report(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data = result[["status", "iterations_made", "training_cost"]].to_dataframe().reset_index()
    captions = {
        "training": "The training cost J(S) against iterations, a line for each seed.",
        "trajectories": "The trajectories from the seen states, each coordinate against the time step, of the seed of the lowest cost.",
    }

    def figures() -> dict[str, tuple[Figure, pd.DataFrame]]:
        return {
            "training": (training_curves(result), _whole(result).cost.to_dataframe().reset_index()),
            "trajectories": (trajectories(result), result.trajectory.to_dataframe().reset_index()),
        }

    return Report({"table": cost_table(result)}, data, captions, figures)


def cost_table(result: xr.Dataset) -> Table:
    """A row for each seed, with the cost of each seen state where there is room."""
    seen = range(result.sizes["seen"] if result.sizes["seen"] <= SHOWN else 0)
    rows = []
    for seed in result.seed.values:
        one = result.sel(seed=seed)
        ended = "diverged" if int(one.status) == DIVERGED else "trained"
        costs = [number(float(one.seen_cost[i]), ".4g") for i in seen]
        rows.append([str(seed), ended, f"{int(one.iterations_made):,}", number(float(one.training_cost), ".4g"), *costs])
    headings = ["seed", "", "iterations", "J(S)", *(f"J(x{i + 1})" for i in seen)]
    coordinates = ", ".join(_coordinates(result))
    note = f"x1, x2, … are the seen states, in the order of the spec. Coordinates: {coordinates}. Seed {int(result.shown_seed)} is shown."
    return Table(
        f"{quick_mark(result)}{result.attrs['name']}: {result.attrs['system']}, H = {result.attrs['horizon']}", headings, rows, note
    )


@styled
def training_curves(result: xr.Dataset) -> Figure:
    """From where the whole horizon counts; costs before are of shorter ones."""
    figure, ax = subplots(6.4, 4.0)
    whole, since = _whole(result), int(result.attrs.get("since", 0))
    for seed in result.seed.values:
        is_shown = seed == int(result.shown_seed)
        ax.plot(
            whole.iteration, whole.cost.sel(seed=seed), color=GREEN if is_shown else "0.7", zorder=2 + is_shown, linewidth=1.0 + is_shown
        )
    ax.set_xlim(since, int(result.iteration[-1]))
    finite = whole.cost.values[np.isfinite(whole.cost.values)]
    if not len(finite):
        ax.text(0.5, 0.5, "all seeds diverged before the whole horizon counted", transform=ax.transAxes, ha="center", va="center")
    elif finite.min() > 0:
        log_axis(ax, "y")
    iteration_axis(ax, 5, "iteration of policy gradient")
    ax.set_ylabel(f"training cost J(S), {LOWER}")
    shown, diverged = int(result.shown_seed), int((result.status == DIVERGED).sum())
    cost = short(float(result.training_cost.sel(seed=shown)))
    others = "" if result.sizes["seed"] == 1 else f"; seed {shown} in green, the others in grey"
    words = f"{result.attrs['name']}: training cost{' once the whole horizon counts' if since else ''}{others}"
    ended = f"; {diverged} of {result.sizes['seed']} seeds diverged" if diverged else ""
    heading(figure, f"{quick_mark(result)}The best seed ends at J(S) = {cost}{ended}", words)
    return figure


@styled
def trajectories(result: xr.Dataset) -> Figure:
    names = _coordinates(result)[:SHOWN]
    figure, axes = subplots(6.4, 1.6 * len(names) + 1.2, len(names), 1, sharex=True, squeeze=False)
    for d, (ax, name) in enumerate(zip(axes[:, 0], names, strict=True)):
        for i in range(min(result.sizes["seen"], len(CATEGORIES))):
            ax.plot(result.trajectory[i, :, d], color=CATEGORIES[i], linestyle=DASHES[i % 4], label=f"from x{i + 1}")
        ax.set_ylabel(verbatim(name))
    axes[-1, 0].set_xlabel("time step h")
    legend_below(axes[0, 0], SHOWN)
    shown = int(result.shown_seed)
    heading(
        figure,
        f"{quick_mark(result)}{result.attrs['name']}: trajectories from the seen states",
        f"seed {shown}, of the lowest training cost",
    )
    return figure


def _whole(result: xr.Dataset) -> xr.Dataset:
    return result.sel(iteration=result.iteration >= int(result.attrs.get("since", 0)))


def _coordinates(result: xr.Dataset) -> list[str]:
    """By their numbers where the names are not as they were written."""
    try:
        names: Any = json.loads(result.attrs["state_names"])
    except (ValueError, RecursionError):
        names = None
    n = result.sizes["state"]
    well = isinstance(names, list) and len(names) == n and all(isinstance(name, str) for name in names)
    return names if well else [f"x_{d + 1}" for d in range(n)]
