"""The figures about the first step in large dimensions, from any seen states, and on sub-critical systems."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from offspan.report.drawing import BLACK, BROWN, GREEN, GREY, OLIVE, PINK, TEAL, heading, label_ends, log_axis, styled, subplots
from offspan.theory.illustrations import Columns

SETS = ("in a cone about one direction", "orthogonal, of unequal lengths", "in a plane")


@styled
def leading_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    """E‖∇J‖² over H with its limit and the theorem's bound; and how soon all quantities come to their leading order."""
    data = pd.DataFrame(columns)
    figure, (left, right) = subplots(10.0, 4.2, 1, 2)
    for D, colour, marker in ((data.dim.min(), OLIVE, "s"), (data.dim.max(), GREEN, "o")):
        line = data[data.dim == D]
        left.plot(line.horizon, line.exact_norm, marker, color=colour, markersize=5, label=f"exact, D = {D:g}")
    left.plot(line.horizon, line.norm_limit, color="black", label="H(H+1)²(H+2)/3, the limit for large D")
    left.plot(line.horizon, line.norm_bound, "--", color=GREY, label="the theorem's bound")
    log_axis(left, "y")
    left.set(xticks=line.horizon, xlabel="horizon H", title="Squared length of the first gradient, one seen state")
    left.set_ylabel(r"$\mathbb{E}\,\|\nabla J(K^{(1)})\|^2$")
    left.legend(fontsize=8)
    longest = data[data.horizon == data.horizon.max()]
    looks = {
        "alignment": ("a", GREEN, "o-"),
        "cost": (r"$\mathrm{E}\langle\nabla E_{\mathrm{cost}}, \nabla J\rangle$", OLIVE, "D-."),
        "curvature": ("b", PINK, "s--"),
    }
    ends = []
    for name, (label, colour, style) in {**looks, "norm": ("E‖∇J‖²", BROWN, "^:")}.items():
        right.plot(longest.dim, longest[name] - 1, style, color=colour, markersize=4)
        ends.append((np.asarray(longest[name])[-1] - 1, label, colour))
    log_axis(right, "x")
    log_axis(right, "y")
    right.set(xlabel="dimension D", title=f"What the leading order leaves out, H = {longest.horizon.iloc[0]:g}")
    right.set_ylabel("exact value over leading order, minus 1")
    label_ends(right, ends)
    heading(figure, "For fixed H and large D the first step follows polynomials in H, not the double factorials of the bound")
    return figure, data


@styled
def state_sets_figure(columns: Columns, dim: int, horizon: int) -> tuple[Figure, pd.DataFrame]:
    """The reduction at the best η against the participation ratio of the seen states."""
    data = pd.DataFrame(columns)
    figure, ax = subplots(6.8, 4.4)
    line = data.sort_values("participation")
    ax.plot(line.participation, line.gain, color="black", linewidth=1.2, label="the exact law, through tr Σ and tr Σ²")
    for (kind, group), colour, marker in zip(data.groupby("kind"), (GREEN, OLIVE, PINK), "osD", strict=False):
        error, label = 4 * group.standard_error, f"simulated: states {SETS[int(kind)]}"  # pyright: ignore[reportArgumentType]
        ax.errorbar(group.participation, group.simulated, yerr=error, fmt=marker, color=colour, markersize=5, capsize=2, label=label)
    ax.axhline(data.gain_by_number.iloc[0], color=GREY, linestyle="--", linewidth=1.2)
    ax.annotate(
        "the law by |S| = 4 alone", (0.01, data.gain_by_number.iloc[0]), (0, 5), ("axes fraction", "data"), "offset points", fontsize=8
    )
    ax.set_ylim(0, 1.1 * max(data.gain.max(), data.gain_by_number.iloc[0]))
    heading(figure, "Four seen states are worth their participation ratio, not four", f"D = {dim}, H = {horizon}")
    ax.set_title("one step of policy gradient on random systems", fontsize=9)
    ax.set(xlabel="participation ratio (tr Σ)² / tr Σ² of the four seen states", ylabel="reduction 1 − ratio in the first step")
    ax.legend(loc="lower right", fontsize=8)
    return figure, data


@styled
def subcritical_figure(limits: Columns, simulated: Columns) -> tuple[Figure, pd.DataFrame]:
    """The best reduction against q, the variance of the entries of A times D, for several horizons."""
    curves, points = pd.DataFrame(limits), pd.DataFrame(simulated)
    figure, ax = subplots(7.4, 4.6)
    looks = dict(
        zip(sorted(set(curves.horizon)), ((TEAL, ":"), (GREEN, "-."), (BROWN, "--"), (PINK, (0, (5, 1))), (BLACK, "-")), strict=False)
    )
    ends = []
    for H, (colour, style) in looks.items():
        line = curves[curves.horizon == H]
        ax.plot(line.q, line.gain, color=colour, linestyle=style)
        ends.append((line.gain.iloc[-1], "H → ∞: (1+q)²" if np.isinf(H) else f"H = {H:g}", colour))
    for (D, group), colour, marker, aside in zip(points.groupby("dim"), (OLIVE, GREY), "so", (-0.006, 0.006), strict=False):
        reach, label = [group.gain - group.low, group.high - group.gain], f"single systems, D = {D:g}, H = 60: median, quartiles"
        ax.errorbar(group.q + aside, group.gain, yerr=reach, fmt=marker, color=colour, markersize=4, capsize=2, label=label)
    ax.plot(1, 4, "o", markerfacecolor="white", color="black")
    ax.plot(1, 3, "o", color="black")
    ax.annotate("4: H → ∞, then q → 1", (1, 4), (-12, 0), textcoords="offset points", ha="right", va="center", fontsize=8)
    arrow = {"arrowstyle": "-", "linewidth": 0.6, "shrinkB": 4}
    ax.annotate("3: q = 1, then H → ∞", (1, 3), (1, 2.1), ha="right", va="center", fontsize=8, arrowprops=arrow)
    ax.set(xlabel="q, entries of A being N(0, q/D)", xlim=(0, 1.03), ylim=(0, 4.3))
    label_ends(ax, ends)
    ax.set_title("how much one step reduces the ratio, at the best η", fontsize=9)
    heading(figure, "Sub-critical systems: H → ∞ and then q → 1 gives 4, the other way round 3")
    ax.set_ylabel("D/|S| · (1 − ratio) at the best η, D → ∞")
    ax.legend(loc="upper left", fontsize=8)
    return figure, pd.concat([curves.assign(source="limit"), points.assign(source="simulated", horizon=60)], ignore_index=True)
