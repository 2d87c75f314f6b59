"""Figures of a comparison of methods that choose initial states."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from offspan.report.selection import Correlation, is_lqr, measure, measure_name, outcomes, settings, typical

COLOURS = {"random": "#555555", "best": "#000000"}
METHOD, EARLY, BEFORE = "#0072B2", "#D55E00", "#0072B2"


def methods_figure(result: xr.Dataset) -> Figure:
    """The outcome of each method, a dot for each run, with its median; behind them the middle half of the runs of random sets."""
    every = outcomes(result)
    figure = Figure(figsize=(7.0, 1.2 + 0.38 * len(every)), layout="constrained")
    ax = figure.subplots()
    of_random = measure(result, every[0])
    finite = np.concatenate([measure(result, outcome).ravel() for outcome in every])
    finite = finite[np.isfinite(finite) & (finite > 0)]
    least, most = (finite.min(), np.quantile(finite, 0.98)) if len(finite) else (0.1, 1.0)  # where all diverged, or all are optimal
    low, high = (min(one, 2 * most) for one in np.quantile(of_random, [0.25, 0.75], method="closest_observation"))
    ax.axvspan(low, high, color="0.92", zorder=0, label="random sets, the middle half of the runs")
    ax.axvline(typical(of_random), color="0.6", linewidth=1, zorder=1, label="their median, over seeds and then sets")
    rng = np.random.default_rng(0)
    for place, outcome in enumerate(reversed(every)):
        values = measure(result, outcome).ravel()
        shown = values[(values >= least) & (values <= 1.5 * most)]
        colour = COLOURS.get(outcome.name.split()[0], METHOD)
        ax.scatter(shown, place + rng.uniform(-0.22, 0.22, len(shown)), s=7, color=colour, alpha=max(0.06, 0.5 / (1 + len(values) / 200)))
        middle = typical(measure(result, outcome))
        if least <= middle <= 1.5 * most:
            ax.plot([middle, middle], [place - 0.34, place + 0.34], color=colour, linewidth=2.5)
        if beyond := int(np.sum(values > 1.5 * most)):
            ax.annotate(f"{beyond} beyond →", (0.995, place), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=7)
    ax.set_yticks(range(len(every)), [outcome.name for outcome in reversed(every)])
    ax.set_xscale("log")
    ax.set_xlim(0.9 * least, 1.6 * most)
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    kind = "excess cost over all candidates" if is_lqr(result) else "cost over all candidates"
    ax.set_xlabel(f"{kind} after training, {measure_name(result)}")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    figure.suptitle(settings(result), fontsize=9)
    return figure


def correlations_figure(result: xr.Dataset, found: list[Correlation]) -> Figure:
    """How well each number that is known before or early in training ranks the random sets."""
    rows = [row for row in found if not np.isnan(row.within.value)]
    figure = Figure(figsize=(6.4, 1.2 + 0.3 * len(rows)), layout="constrained")
    ax = figure.subplots()
    for place, row in enumerate(reversed(rows)):
        value, low, high = row.within
        early = "after" in row.name
        ax.plot([low, high], [place, place], color=EARLY if early else BEFORE, linewidth=1.5)
        ax.plot(value, place, "s" if early else "o", color=EARLY if early else BEFORE, markersize=5)
        if not is_lqr(result):
            ax.plot(row.of_medians, place, "x", color="0.3", markersize=5)
    ax.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    ax.axvline(0, color="0.7", linewidth=0.8)
    ax.set_xlim(-1, 1)
    ax.set_xlabel("rank correlation with the outcome, 95 % interval")
    crosses = "" if is_lqr(result) else ", crosses: of medians over seeds"
    ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{settings(result)}\ncircles: before training, squares: early in training{crosses}", fontsize=9)
    return figure


def training_figure(result: xr.Dataset) -> Figure:
    """Cost, alignment and coverage during training: of random sets (quartiles), and of what two methods chose."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    shown = [name for name in ("gramian-logdet" if is_lqr(result) else "farthest", "pilot") if name in result.method.values]
    panels = {
        "cost_curve": "cost over all candidates",
        "alignment_curve": "cosine of the gradients\non S and on all candidates",
        "coverage_curve": "largest distance of a\ncandidate to what is visited",
    }
    for ax, (name, label) in zip(axes, panels.items(), strict=True):
        _training_panel(ax, result, name, shown)
        ax.set_ylabel(label)
    if np.any(np.isfinite(result.cost_curve)):
        axes[0].set_yscale("log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{settings(result)}: medians over seeds", fontsize=9)
    return figure


def _training_panel(ax: Axes, result: xr.Dataset, name: str, shown: list[str]) -> None:
    iteration, curves = result.iteration.values, result[name].values
    if name != "cost_curve":
        curves = np.where(np.isfinite(result.cost_curve.values), curves, np.nan)  # a run that has diverged has none
    some = curves[:, result.is_random.values].reshape(-1, len(iteration))
    left = ~np.all(np.isnan(some), axis=0)  # looks at which any run was left
    if not left.any():
        return
    iteration, some, curves = iteration[left], some[:, left], curves[..., left]
    low, middle, high = np.nanquantile(some, [0.25, 0.5, 0.75], axis=0, method="closest_observation")
    top = 10 * np.nanmax(middle[np.isfinite(middle)], initial=1e-12)
    ax.fill_between(iteration, low, np.minimum(high, top), color="0.88", label="random sets, quartiles")
    ax.plot(iteration, middle, color="0.4", linestyle=":", label="random sets, median")
    for method, colour, style in zip(shown, ("#0072B2", "#D55E00"), ("-", "--"), strict=False):
        choice = result.choice.values[:, result.method.values.tolist().index(method)]
        chosen = curves[np.arange(len(choice)), choice]
        left = ~np.all(np.isnan(chosen), axis=0)
        ax.plot(iteration[left], np.nanmedian(chosen[:, left], axis=0), color=colour, linestyle=style, label=method)
    ax.set_xlabel("iteration")
    ax.set_xlim(0, int(iteration[-1]))
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.spines[["top", "right"]].set_visible(False)
