"""The figures about random systems: functions of the columns that `theory.random_illustrations` computes."""

import matplotlib.patches
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offspan.report.theory_figures import OTHER, SEEN, UNSEEN
from offspan.theory.illustrations import Columns
from offspan.theory.random_illustrations import Surfaces

SURFACES = {(2, True): "sphere", (1, False): "projective plane", (0, False): "Klein bottle", (0, True): "torus"}


def bounds_figure(columns: Columns, dim: int) -> tuple[Figure, pd.DataFrame]:
    """Exact values against the theorem's bounds over H."""
    data = pd.DataFrame(columns)
    figure = Figure(figsize=(11.0, 3.6), layout="constrained")
    panels = (
        ("rate", "learning rate", "best", "the theorem's largest"),
        ("norm", r"$\mathbb{E}\,\|\nabla J(K^{(1)})\|^2$", "exact", "upper bound"),
        ("gain", "reduction of the ratio, 1 − ratio", "at the best η", "promised at the theorem's η"),
    )
    for ax, (name, label, exact, bound) in zip(figure.subplots(1, 3), panels, strict=True):
        ax.plot(data.horizon, data[name], "o-", color=SEEN, label=exact)
        ax.plot(data.horizon, data[f"{name}_bound"], "s--", color=UNSEEN, label=bound)
        ax.set_yscale("log")
        ax.set_xticks(data.horizon)
        _finish(ax, label, "horizon H")
        ax.legend(frameon=False, fontsize=8)
    figure.suptitle(f"The first step on random systems, D = {dim}, one seen state: exact, and by the bounds of the theorem", fontsize=9)
    return figure, data


def rates_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    """The best learning rate, and what it gains, over D for each H and |S|."""
    data = pd.DataFrame(columns)
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    axes = figure.subplots(1, 2)
    colours, styles = dict(zip(sorted(set(data.horizon)), (SEEN, OTHER, UNSEEN), strict=False)), {1: "-", 2: "--", 4: ":"}
    for H, seen in sorted(set(zip(data.horizon, data.seen, strict=True))):
        line = data[(data.horizon == H) & (data.seen == seen)]
        look = {"color": colours[H], "linestyle": styles.get(seen, "-.")}
        axes[0].plot(line.dim, line.rate, label=f"H = {H:g}, |S| = {seen:g}", **look)
        axes[0].plot(line.dim.max() * 1.12, line.rate_limit.iloc[0], "<", color=colours[H], markersize=5)
        axes[1].plot(line.dim, line.gain, **look)
    for ax in axes:
        ax.set_xscale("log")
        ax.set_yscale("log")
    _finish(axes[0], "best learning rate η* = a / 2b", "dimension D")
    _finish(axes[1], "reduction at η*: 1 − ratio = a² / 4b", "dimension D")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle("Exact law of the first step; triangles: the limit 3|S| / (H(H+1)) for large D", fontsize=9)
    return figure, data


def systems_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    """How single systems scatter about the law: the share of systems at or below each ratio."""
    data = pd.DataFrame(columns)
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    ax = figure.subplots()
    for dim, colour, style in zip(sorted(set(data.dim)), (SEEN, OTHER, UNSEEN), ("-", "--", "-."), strict=False):
        ratio = np.sort(data.ratio[data.dim == dim])
        label = f"D = {dim:g}: {np.mean(ratio > 1):.1%} of systems above 1"
        ax.plot(ratio, np.arange(1, len(ratio) + 1) / len(ratio), color=colour, linestyle=style, linewidth=1.5, label=label)
    ax.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    ax.set_xlim(max(0.3, data.ratio.quantile(0.002)), min(1.5, data.ratio.quantile(0.998)) + 0.02)
    _finish(ax, "Single systems after one step at the best η", "optimality measure over that of K_no-ext")
    ax.set_ylabel("share of systems at or below")
    ax.legend(frameon=False, fontsize=8)
    return figure, data


def end_figure(columns: Columns, dim: int, horizon: int) -> tuple[Figure, pd.DataFrame]:
    """How far the law of the first step predicts the end of training."""
    data = pd.DataFrame(columns)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    ax = figure.subplots()
    dense = np.linspace(0, data.eta.max(), 200)
    ax.plot(dense, np.polyval(np.polyfit(data.eta, data.exact, 2), dense), color=SEEN, label="mean after one step: the exact law")
    simulated = "mean after one step, simulated (± 4 standard errors)"
    ax.errorbar(data.eta, data["mean"], yerr=4 * data.standard_error, fmt="o", color=SEEN, markersize=4, label=simulated)
    ax.plot(data.eta, data["median"], "--", color=OTHER, label="median after one step")
    trained = data.trained_median.where(np.isfinite(data.trained_median))
    ax.plot(data.eta, trained, "D-.", color=UNSEEN, markersize=4, label="median after training to the end")
    ax.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    _finish(ax, f"Random systems, D = {dim}, H = {horizon}, one seen state", "learning rate η")
    ax.set_ylabel("optimality measure over that of K_no-ext")
    ax.legend(frameon=False, fontsize=8)
    return figure, data


def surfaces_figure(surfaces: Surfaces) -> tuple[Figure, pd.DataFrame]:
    """Polygons with their edges glued in pairs: edges of one colour are one edge of the surface, arrows head to head."""
    figure = Figure(figsize=(10.0, 6.6), layout="constrained")
    words = list(dict.fromkeys(letters for letters, _ in surfaces))
    axes = figure.subplots(len(words), len(surfaces) // len(words))
    rows = []
    for ax, (letters, gluing) in zip(axes.flat, surfaces, strict=True):
        name = SURFACES[gluing.euler_characteristic, gluing.orientable]
        _draw_polygon(ax, letters, gluing.pairs)
        shown = "".join(letter if letter == "A" else "Aᵀ" for letter in letters)
        ax.set_title(f"Tr({shown}): {name}, χ = {gluing.euler_characteristic}\nadds {gluing.term}", fontsize=10)
        rows.append((letters, gluing.pairs, gluing.euler_characteristic, gluing.orientable, str(gluing.term)))
    figure.suptitle("All gluings of two words of four letters; their terms add up to the expectation", fontsize=9)
    return figure, pd.DataFrame(rows, columns=["word", "pairs", "euler_characteristic", "orientable", "term"])


def _draw_polygon(ax: Axes, letters: str, pairs: tuple[tuple[int, int], ...]) -> None:
    corners = np.array([(np.cos(t), np.sin(t)) for t in np.pi * (0.75 - 2 * np.arange(len(letters)) / len(letters))])
    colours, labels = {}, {}
    for (first, second), colour, label in zip(pairs, (SEEN, UNSEEN, OTHER, "#CC79A7"), "abcd", strict=False):
        colours |= {first: colour, second: colour}
        labels |= {first: label, second: label}
    for k, letter in enumerate(letters, start=1):
        start, end = corners[k - 1], corners[k % len(letters)]
        tail, head = (start, end) if letter == "A" else (end, start)
        arrow = {"arrowstyle": "-|>", "mutation_scale": 16, "color": colours[k], "linewidth": 2.2, "shrinkA": 3, "shrinkB": 3}
        ax.add_patch(matplotlib.patches.FancyArrowPatch(tuple(tail), tuple(head), **arrow))
        middle = (start + end) / 2 * 1.28
        ax.text(
            middle[0], middle[1], f"{'A' if letter == 'A' else 'Aᵀ'} ({labels[k]})", ha="center", va="center", color=colours[k], fontsize=10
        )
    ax.plot(*corners.T, "o", color="0.3", markersize=4)
    ax.set_xlim(-1.25, 1.25)
    ax.set_ylim(-1.1, 1.1)
    ax.set_aspect("equal")
    ax.axis("off")


def _finish(ax: Axes, title: str, x: str) -> None:
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(x)
    ax.spines[["top", "right"]].set_visible(False)
