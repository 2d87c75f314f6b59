"""The report of an experiment with many initial controllers: do they converge to the same controller?"""

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from offspan.report.drawing import GREEN, LOWER, PINK, heading, iteration_axis, label_ends, log_axis, short, styled, subplots
from offspan.report.results import DIVERGED, Report, quick_mark
from offspan.report.tables import Table

PAPER = {"largest_distance": 2.7e-5, "relative_distance": 2e-5}  # [R24, app:determined_R_neq_zero], for the shift with R = I


def report(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data = result[["largest_distance", "relative_distance", "median_norm"]].to_dataframe().reset_index()
    captions = {"distances": f"{finding(result)}. The largest distance between two controllers against iterations."}
    return Report({"table": distance_table(result, data)}, data, captions, lambda: {"distances": (distance_curves(result), data)})


@styled
def distance_curves(result: xr.Dataset) -> Figure:
    """The largest distance between two controllers against iterations, absolute and relative to their median norm."""
    figure, ax = subplots(7.4, 4.3)
    looks = {"largest_distance": ("absolute", GREEN, "-"), "relative_distance": ("over median norm", PINK, "--")}
    for name, (_, colour, style) in looks.items():
        ax.plot(result.iteration, result[name], color=colour, linestyle=style)
        if _is_the_papers(result):
            ax.axhline(PAPER[name], color=colour, linestyle=style, linewidth=0.7, alpha=0.7)
    ax.set_xlim(0, int(result.iteration[-1]))
    log_axis(ax, "y")
    if _is_the_papers(result):
        said = f"the paper: {short(PAPER['largest_distance'])} and {short(PAPER['relative_distance'])}"
        place = (0.02, PAPER["largest_distance"])
        ax.annotate(said, place, (0, 3), ("axes fraction", "data"), "offset points", va="bottom", fontsize=8)
    ended = result.iterations.where(result.status == DIVERGED).min()
    if np.isfinite(ended):
        ax.text(0.5, 0.5, f"{_diverged(result)},\nthe first at iteration {int(ended):,}", transform=ax.transAxes, ha="center", va="center")
    label_ends(ax, [(float(result[name][-1]), label, colour) for name, (label, colour, _) in looks.items()], fontsize=9)
    iteration_axis(ax, 5, "iteration of policy gradient")
    ax.set_ylabel(rf"largest distance  $\max_{{i,j}}\,\|K_i - K_j\|$, {LOWER}")
    heading(figure, f"{quick_mark(result)}{finding(result)}", _settings(result))
    return figure


def finding(result: xr.Dataset) -> str:
    first, last = (short(float(result.largest_distance[place])) for place in (0, -1))
    return f"The largest distance between two of {result.sizes['start']} controllers goes from {first} to {last}"


def distance_table(result: xr.Dataset, data: pd.DataFrame) -> Table:
    """At eleven iterations, evenly spaced, the last one included."""
    shown = data.iloc[sorted({round(i * (len(data) - 1) / 10) for i in range(11)})]
    rows = [
        [f"{row.iteration:,}", f"{row.largest_distance:.3g}", f"{row.relative_distance:.3g}", f"{row.median_norm:.4f}"]
        for row in shown.itertuples()
    ]
    note = f"{_diverged(result)}."
    if _is_the_papers(result):
        absolute, relative = PAPER["largest_distance"], PAPER["relative_distance"]
        note += f" The paper reports {absolute:g}, and {relative:g} of the median norm, without its settings."
    if result.attrs["quick"]:
        note += " A quick look has too few iterations to compare."
    headings = ["iteration", "largest distance", "its share of the median norm", "median norm"]
    return Table(f"{quick_mark(result)}{result.attrs['name']}: {_settings(result)}", headings, rows, note)


def _is_the_papers(result: xr.Dataset) -> bool:
    return (result.attrs["system"], result.attrs["control_cost"]) == ("shift", 1.0)


def _diverged(result: xr.Dataset) -> str:
    return f"{int((result.status == DIVERGED).sum())} of {result.sizes['start']} starts diverged"


def _settings(result: xr.Dataset) -> str:
    a = result.attrs
    R = {0.0: "0", 1.0: "I"}.get(a["control_cost"], f"{a['control_cost']:g} I")
    return (
        f"{a['system']}, D = {a['dim']}, H = {a['horizon']}, R = {R}, "
        f"{result.sizes['start']} starts N(0, {a['start_std']:g}²), η = {a['learning_rate']:g}"
    )
