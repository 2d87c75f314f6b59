"""The figures of the theory page: functions of the columns that `theory.illustrations` computes."""

import matplotlib.patches
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offspan.report.lqr_figures import SCALE
from offspan.theory.illustrations import Columns, Dynamics

SEEN, UNSEEN, OTHER = "#0072B2", "#D55E00", "#009E73"  # of Okabe and Ito's colours


def intuition_figure(panels: list[Dynamics]) -> tuple[Figure, pd.DataFrame]:
    """Where x ↦ (A + BK) x sends the unit circle, the seen and the unseen direction  [R24, fig:intuition]."""
    figure = Figure(figsize=(10.5, 3.9), layout="constrained")
    turn = np.linspace(0, 2 * np.pi, 200)
    circle = np.array([np.cos(turn), np.sin(turn)])
    rows = []
    for ax, panel in zip(figure.subplots(1, len(panels), sharex=True, sharey=True), panels, strict=True):
        ax.plot(*circle, color="0.7", linewidth=1, linestyle="--")
        ax.plot(*(panel.closed_loop @ circle), color="0.25", linewidth=1.2)
        ax.plot(*panel.visited.T, "o", color="black", markersize=3.5, label="visited in training")
        for colour, label, x in ((SEEN, "seen direction", (1.0, 0.0)), (UNSEEN, "unseen direction", (0.0, 1.0))):
            image = panel.closed_loop @ np.array(x)
            ax.plot(*x, "o", color=colour, markersize=6, label=label)
            ax.add_patch(
                matplotlib.patches.FancyArrowPatch(x, tuple(image), arrowstyle="-|>", mutation_scale=12, color=colour, linewidth=1.6)
            )
            rows.append((panel.name, label, *image, np.linalg.norm(image)))
        lengths = [row[4] for row in rows[-2:]]
        ax.set_title(f"{_math(panel.name)}\nseen goes to length {lengths[0]:.2f}, unseen to {lengths[1]:.2f}", fontsize=9)
        ax.set_aspect("equal")
        ax.set_xlabel("seen direction")
        ax.spines[["top", "right"]].set_visible(False)
    axes = figure.get_axes()
    axes[0].set_ylabel("unseen direction")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("One step of x ↦ (A + BK)x: dashed, the unit circle; solid, its image (rotation by 50°, S = {e₁}, H = 8)", fontsize=9)
    return figure, pd.DataFrame(rows, columns=["controller", "direction", "seen_coordinate", "unseen_coordinate", "length"])


def shift_horizon_figure(columns: Columns, dim: int) -> tuple[Figure, pd.DataFrame]:
    data = pd.DataFrame(columns)
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, measure in zip(axes, ("optimality", "cost"), strict=True):
        share = data.horizon / dim
        bounded = data[data.horizon % dim == 0]
        ax.plot(share, data[measure], color=SEEN, label="closed form, any H")
        ax.plot(share, data[f"one_step_{measure}"], "o", color=SEEN, markersize=3.5, label="one step, η of the proposition")
        ax.plot(share, data[f"slow_{measure}"], "D", color=UNSEEN, markersize=4.5, label="trained to the end, η / 10")
        ax.plot(bounded.horizon / dim, bounded.bound, "_", color="black", markersize=11, label="the paper's bound (H divisible by D)")
        _finish(ax, f"{measure} measure, normalised", "horizon over dimension  H / D")
    axes[0].set_ylabel(SCALE)
    axes[0].set_ylim(0, 1.05)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    title = f"Shift, D = {dim}, S = {{e₁}}: a longer horizon extrapolates better, at the learning rate of the proposition above all"
    figure.suptitle(title, fontsize=9)
    return figure, data


def norm_gap_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    data = pd.DataFrame(columns)
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    ax = figure.subplots()
    for (periods, line), colour, marker in zip(data.groupby("periods"), (SEEN, OTHER, UNSEEN), "os^", strict=True):
        ax.plot(line.dim, line.gap, color=colour, linewidth=1)
        ax.plot(line.dim, line.measured, marker, color=colour, markersize=5, label=f"H = {'' if periods == 1 else f'{periods:g} '}D")
    bound = data[data.periods == data.periods.min()]
    ax.plot(bound.dim, bound.lower_bound, color="black", linestyle="--", linewidth=1, label="lower bound (⌈D/2⌉ − 1)/4")
    _finish(ax, "Policy gradient does not find the smallest norm", "dimension D")
    ax.set_ylabel(r"$\|K_{\mathrm{pg}}\|^2 - \min_{K \in \mathcal{K}_S} \|K\|^2$")
    ax.legend(frameon=False, title="markers: one step; lines: closed form", title_fontsize=8, fontsize=8)
    return figure, data


def weight_figure(columns: Columns, dim: int) -> tuple[Figure, pd.DataFrame]:
    data = pd.DataFrame(columns)
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, measure in zip(axes, ("optimality", "cost"), strict=True):
        for (periods, line), colour, marker in zip(data.groupby("periods"), (SEEN, UNSEEN), "os", strict=True):
            ax.plot(line.weight, line[measure], color=colour, linewidth=1)
            label = f"H = {'' if periods == 1 else f'{periods:g} '}D"
            ax.plot(line.weight, line[f"one_step_{measure}"], marker, color=colour, markersize=4, label=label)
        ax.set_xscale("symlog", linthresh=1e-2)
        ax.set_xlim(left=-1e-3)
        ax.axvline(1.0, color="0.6", linewidth=0.8, linestyle=":")
        _finish(ax, f"{measure} measure, normalised", "weight w of the other directions (at w = 1, Q = I)")
    axes[0].set_ylabel(SCALE)
    axes[0].legend(frameon=False, title="markers: one step; lines: closed form", title_fontsize=8, fontsize=8)
    figure.suptitle(f"Shift, D = {dim}, S = {{e₁}}, Q = diag(1, w, …, w): where only e₁ costs, extrapolation is perfect", fontsize=9)
    return figure, data


def _finish(ax: Axes, title: str, x: str) -> None:
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(x)
    ax.set_ylim(bottom=0)
    ax.spines[["top", "right"]].set_visible(False)


def _math(name: str) -> str:
    return name.replace("K(5)", "$K^{(5)}$").replace("K_pg", r"$K_{\mathrm{pg}}$").replace("K_no-ext", r"$K_{\mathrm{no\!-\!ext}}$")
