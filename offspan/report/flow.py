"""The figures of gradient flow on the shift."""

import math
from itertools import cycle

import pandas as pd
from matplotlib.figure import Figure

from offspan.report.drawing import GREEN, LOWER, OLIVE, PINK, SCALE, heading, label_ends, legend_below, listed, styled, subplots
from offspan.theory.illustrations import Columns


@styled
def rates_figure(columns: Columns, dim: int) -> tuple[Figure, pd.DataFrame]:
    """Both measures of the shift trained to the end, against the learning rate: from gradient flow to Proposition 2's step, and on."""
    data = pd.DataFrame(columns)
    figure, axes = subplots(9.5, 4.7, 1, 2, sharey=True)
    for ax, measure in zip(axes, ("optimality", "cost"), strict=True):
        for (H, line), colour, marker in zip(data.groupby("horizon"), (GREEN, PINK), "os", strict=True):
            first = line.iloc[0]
            ax.axhline(first[f"flow_{measure}"], color=colour, linestyle="--", linewidth=1, label=f"gradient flow, H = {H:g}")
            ax.plot(
                line.share, line[measure], f"{marker}-", color=colour, linewidth=1, markersize=4, label=f"trained to the end, H = {H:g}"
            )
            closed = {"marker": "*", "markersize": 13, "markeredgecolor": "black", "linestyle": "none"}
            ax.plot(1.0, first[f"one_step_{measure}"], color=colour, label=f"Proposition 2, H = {H:g}", **closed)
        ax.axvline(1.0, color="0.6", linewidth=0.8, linestyle=":")
        ax.set(title=f"{measure} measure, normalised", xlabel="learning rate over that of Proposition 2  η · (H²/D + H)")
        ax.set_xlim(left=0.0)
    axes[0].set(ylabel=f"normalised measure, {LOWER}", ylim=(-0.02, 0.7))
    legend_below(axes[0], len(set(data.horizon)), fontsize=8)
    longest = data[data.horizon == data.horizon.max()]
    lowest = longest.loc[longest.optimality.idxmin()]
    finding = (
        "Small steps end where gradient flow does; longer ones extrapolate further, "
        f"with H = {lowest.horizon:g} up to {lowest.share:g} times the step of Proposition 2"
    )
    heading(figure, finding, f"Shift, D = {dim}, S = {{e₁}}; {SCALE}")
    return figure, data


@styled
def horizons_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    """The optimality measure of the shift against H/D, at the end of gradient flow and after Proposition 2's one step."""
    data = pd.DataFrame(columns)
    figure, ax = subplots(7.4, 4.4)
    finite = data[data.periods < math.inf]
    ends = []
    for (dim, line), colour, marker in zip(finite.groupby("dim"), cycle((GREEN, OLIVE, PINK)), cycle("os^")):
        limit = data[(data.dim == dim) & (data.periods == math.inf)].flow.item()
        ax.plot(line.periods, line.flow, f"{marker}-", color=colour, markersize=4)
        ends += [(limit, f"flow, D = {dim:g}: to {limit:.4f}", colour), (line.one_step.iloc[-1], f"one step, D = {dim:g}: to 0", colour)]
        ax.axhline(limit, color=colour, linewidth=0.8, linestyle=":")
        ax.plot(line.periods, line.one_step, f"{marker}--", color=colour, markersize=4, markerfacecolor="white")
    ax.set(xlabel="horizon over dimension  H / D", ylabel=f"optimality measure, normalised, {LOWER}", ylim=(-0.02, 0.75))
    ax.set_title("solid: gradient flow; dashed: one step of Proposition 2", fontsize=9)
    label_ends(ax, ends)
    limits = data.sort_values("dim")[lambda rows: rows.periods == math.inf]
    finding = f"For H → ∞ gradient flow ends at {listed(f'{value:.2f}' for value in limits.flow)}, Proposition 2's step at 0"
    heading(figure, finding, f"Shift, D = {listed(f'{dim:g}' for dim in limits.dim)}, S = {{e₁}}; {SCALE}")
    return figure, data
