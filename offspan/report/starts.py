"""The report of an experiment with many starts: do the controllers come together?"""

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from offspan.report.results import DIVERGED
from offspan.report.tables import Sheet

PAPER = {"largest_distance": 2.7e-5, "relative_distance": 2e-5}  # [R24, app:determined_R_neq_zero], for the shift with R = I


def _is_the_papers(result: xr.Dataset) -> bool:
    return (result.attrs["system"], result.attrs["control_cost"]) == ("shift", 1.0)


def distance_data(result: xr.Dataset) -> pd.DataFrame:
    return result[["largest_distance", "relative_distance", "median_norm"]].to_dataframe().reset_index()


def distance_curves(result: xr.Dataset) -> Figure:
    """The largest distance between two controllers against iterations, absolute and relative to their median norm."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    ax = figure.subplots()
    looks = {"largest_distance": ("absolute", "#0072B2", "-"), "relative_distance": ("over the median norm", "#D55E00", "--")}
    for name, (label, colour, style) in looks.items():
        ax.plot(result.iteration, result[name], color=colour, linestyle=style, label=label)
        if _is_the_papers(result):
            ax.axhline(PAPER[name], color=colour, linestyle=style, linewidth=0.7, alpha=0.7)
    if _is_the_papers(result):
        said = f"the paper: {PAPER['largest_distance']:g} and {PAPER['relative_distance']:g}"
        ax.annotate(said, (0.02, PAPER["largest_distance"] * 1.25), xycoords=("axes fraction", "data"), fontsize=8)
    ended = result.iterations.where(result.status == DIVERGED).min()
    if np.isfinite(ended):
        said = (
            f"{int((result.status == DIVERGED).sum())} of {result.sizes['start']} starts diverged,\nthe first at iteration {int(ended):,}"
        )
        ax.text(0.5, 0.5, said, transform=ax.transAxes, ha="center", va="center")
    ax.set_xlim(0, int(result.iteration[-1]))
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.set_xlabel("iteration of policy gradient")
    ax.set_ylabel(r"largest distance  $\max_{i,j}\,\|K_i - K_j\|$")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    figure.suptitle(_settings(result), fontsize=9)
    return figure


def distance_sheet(result: xr.Dataset) -> Sheet:
    """Ten moments of training, the last one included."""
    data = distance_data(result)
    shown = data.iloc[sorted({round(i * (len(data) - 1) / 10) for i in range(11)})]
    rows = [
        [f"{row.iteration:,}", f"{row.largest_distance:.3g}", f"{row.relative_distance:.3g}", f"{row.median_norm:.4f}"]
        for row in shown.itertuples()
    ]
    note = f"{int((result.status == DIVERGED).sum())} of {result.sizes['start']} starts diverged."
    if _is_the_papers(result):
        absolute, relative = PAPER["largest_distance"], PAPER["relative_distance"]
        note += f" The paper reports {absolute:g}, and {relative:g} of the median norm, without its settings."
    if result.attrs["quick"]:
        note += " A quick look has too few iterations to compare."
    return Sheet(
        f"{result.attrs['name']}: {_settings(result)}",
        ["iteration", "largest distance", "its share of the median norm", "median norm"],
        rows,
        note,
    )


def _settings(result: xr.Dataset) -> str:
    a = result.attrs
    quick = "QUICK LOOK: " if a["quick"] else ""
    R = {0.0: "0", 1.0: "I"}.get(a["control_cost"], f"{a['control_cost']:g} I")
    return (
        f"{quick}{a['system']}, D = {a['dim']}, H = {a['horizon']}, R = {R}, "
        f"{result.sizes['start']} starts N(0, {a['start_std']:g}²), η = {a['learning_rate']:g}"
    )
