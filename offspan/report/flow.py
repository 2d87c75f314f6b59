"""The figures of gradient flow on the shift."""

import math
from itertools import cycle

import pandas as pd
from matplotlib.figure import Figure

from offspan.report.lqr import SCALE
from offspan.report.results import BLUE, GREEN, VERMILLION, legend_below, styled, subplots
from offspan.theory.illustrations import Columns


@styled
def rates_figure(columns: Columns, dim: int) -> tuple[Figure, pd.DataFrame]:
    """Both measures of the shift after training to the end, against the learning rate: from gradient flow to prop:shift's step, and on."""
    data = pd.DataFrame(columns)
    figure, axes = subplots(9.5, 4.0, 1, 2, sharey=True)
    for ax, measure in zip(axes, ("optimality", "cost"), strict=True):
        for (H, line), colour, marker in zip(data.groupby("horizon"), (BLUE, VERMILLION), "os", strict=True):
            first = line.iloc[0]
            ax.axhline(first[f"flow_{measure}"], color=colour, linestyle="--", linewidth=1, label=f"gradient flow, H = {H:g}")
            ax.plot(
                line.share, line[measure], f"{marker}-", color=colour, linewidth=1, markersize=4, label=f"trained to the end, H = {H:g}"
            )
            closed = {"marker": "*", "markersize": 13, "markeredgecolor": "black", "linestyle": "none"}
            ax.plot(1.0, first[f"one_step_{measure}"], color=colour, label=f"prop:shift, H = {H:g}", **closed)
        ax.axvline(1.0, color="0.6", linewidth=0.8, linestyle=":")
        ax.set(title=f"{measure} measure, normalised", xlabel="learning rate over that of prop:shift  η · (H²/D + H)")
        ax.set_xlim(left=0.0)
    axes[0].set(ylabel=SCALE, ylim=(0, 0.7))
    legend_below(axes[0], len(set(data.horizon)), fontsize=8)
    figure.suptitle(f"Shift, D = {dim}, S = {{e₁}}: small steps end where gradient flow does, longer ones extrapolate further")
    return figure, data


@styled
def horizons_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    """The optimality measure of the shift against H/D, at the end of gradient flow and after prop:shift's one step."""
    data = pd.DataFrame(columns)
    figure, ax = subplots(6.4, 4.2)
    finite = data[data.periods < math.inf]
    for (dim, line), colour, marker in zip(finite.groupby("dim"), cycle((BLUE, GREEN, VERMILLION)), cycle("os^")):
        limit = data[(data.dim == dim) & (data.periods == math.inf)].flow.item()
        ax.plot(line.periods, line.flow, f"{marker}-", color=colour, markersize=4, label=f"gradient flow, D = {dim:g}: to {limit:.4f}")
        ax.axhline(limit, color=colour, linewidth=0.8, linestyle=":")
        ax.plot(line.periods, line.one_step, f"{marker}--", color=colour, markersize=4, markerfacecolor="white")
    ax.plot([], [], "--", color="0.3", label="one step of prop:shift: to 0")
    ax.set(title="Shift, S = {e₁}: with small steps, a longer horizon hardly helps", xlabel="horizon over dimension  H / D")
    ax.set(ylabel=f"optimality measure\n{SCALE}", ylim=(0, 0.75))
    legend_below(ax, 2, fontsize=8)
    return figure, data
