"""The report of ways of training that are compared: who trained, and how far each reaches."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offspan.report.drawing import (
    CATEGORIES,
    DASHES,
    GREY,
    LOWER,
    MARKERS,
    SCALE,
    heading,
    legend_below,
    listed,
    log_axis,
    no_extrapolation,
    styled,
    subplots,
)
from offspan.report.lqr import MEASURES, SYSTEM_COLOURS, TITLES
from offspan.report.results import DIVERGED, Report, quartiles, quick_mark
from offspan.report.tables import Table, from_columns, number
from offspan.theory.noise import identity_measure

NOISES = CATEGORIES[4:]  # the others are systems, in the same figure
TRAINED = 0.01  # a run has trained where J(S) is within this share of the least cost


def report(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data = summary(result)
    captions = {
        "horizon": "Share of runs that trained, and both normalised measures, against the horizon, for each way of training.",
        "rollouts": "Both normalised measures against the rollouts of an update, for each estimator of the gradient.",
        "noise": "The optimality measure of the identity along training against ς²ηt, and of each system at the end against the noise ς.",
    }
    findings = {"horizon": most_trained, "rollouts": _sampled, "noise": _noise}
    drawings = {"horizon": by_horizon, "rollouts": by_rollouts, "noise": by_noise}
    by = str(result.attrs["compare_by"])
    caption = f"{findings[by](data)}. {captions[by]}"
    return Report({"table": way_table(result, data)}, data, {by: caption}, lambda: {by: (drawings[by](result), data)})


def most_trained(rows: Any) -> str:
    """The ways that train the largest and the smallest share of runs at the longest horizon."""
    rows = rows[rows.horizon == rows.horizon.max()]
    shares = rows.assign(share=rows.trained / rows.get("runs", 1)).groupby("way", sort=False).share.mean()
    named = lambda names: listed(f"“{name}”" for name in names)  # noqa: E731
    most, fewest = (named(shares.index[shares == share]) for share in (shares.max(), shares.min()))
    at = f"At H = {rows.horizon.max()}"
    if shares.max() == shares.min():
        return f"{at} every way trains {shares.max():.0%} of the runs"
    return f"{at}, {shares.max():.0%} of the runs train with {most}, {shares.min():.0%} with {fewest}"


def _sampled(rows: Any) -> str:
    """In how many systems and measures all sampled gradients end below the exact one."""
    medians = rows.groupby(["horizon", "system", rows.gradient == "exact"])[list(MEASURES)].max().unstack()
    if len(set(rows.gradient == "exact")) < 2:
        return "Measures at the end of training"
    lower = np.stack([medians[measure, False] < medians[measure, True] for measure in MEASURES])
    where = "" if lower.all() else f" in {lower.sum() or 'none'} of {lower.size} comparisons (system and measure)"
    return f"Sampled gradients extrapolate further than exact ones{where}"


def _noise(rows: Any) -> str:
    """The median optimality measure of the system where it is largest, with the least noise and with the most."""
    least, most = (rows[rows.noise == noise].normalized_optimality.max() for noise in (rows.noise.min(), rows.noise.max()))
    goes = "falls" if most < least else "goes"
    ends = f"from {number(least, '.2f')} (ς = {rows.noise.min():g}) to {number(most, '.2f')} (ς = {rows.noise.max():g})"
    return f"With noise, the largest median optimality measure of a system {goes} {ends}"


def trained(result: xr.Dataset) -> xr.DataArray:
    return (result.status != DIVERGED) & (result.cost <= (1 + TRAINED) * result.least_cost)


def summary(result: xr.Dataset) -> pd.DataFrame:
    """A row for each way, horizon and system: medians over seeds and the quartiles `_low` and `_high`; a diverged run counts as +∞."""
    columns: dict[str, Any] = {"trained": trained(result).mean("seed"), "diverged": (result.status == DIVERGED).mean("seed")}
    for name in (*MEASURES, "cost"):
        low, median, high = quartiles(result[name].where(result.status != DIVERGED, np.inf)).drop_vars("quantile")
        columns |= {name: median, f"{name}_low": low, f"{name}_high": high}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice")  # where no run has trained
            among = result[name].where(trained(result)).quantile([0.25, 0.5, 0.75], "seed").drop_vars("quantile")
        columns |= {f"{name}_of_trained{suffix}": among[i] for i, suffix in enumerate(("_low", "", "_high"))}
    rows = xr.Dataset(columns).to_dataframe(dim_order=["way", "horizon", "system"]).reset_index()
    settings = result[["gradient", "rollouts_an_update", "noise", "learning_rate", "iterations_made"]].to_dataframe().reset_index()
    return rows.merge(settings, on="way", sort=False)


def way_table(result: xr.Dataset, rows: pd.DataFrame) -> Table:
    columns = {"way": rows.way.tolist()}
    if result.sizes["system"] > 1:
        columns["system"] = rows.system.tolist()
    if result.sizes["horizon"] > 1:
        columns["H"] = [str(horizon) for horizon in rows.horizon]
    columns["trained"] = [f"{share:.0%}" for share in rows.trained]
    if rows.diverged.any():
        columns["diverged"] = [f"{share:.0%}" for share in rows.diverged]
    for column, name in (("optimality", MEASURES[0]), ("cost", MEASURES[1])):
        quantiles = zip(rows[f"{name}_low"], rows[name], rows[f"{name}_high"], strict=True)
        columns[column] = [f"{number(mid, '.3f')} ({number(low, '.2f')}–{number(high, '.2f')})" for low, mid, high in quantiles]
    if result.attrs["compare_by"] == "horizon":
        columns["optimality of the trained"] = [number(value, ".3f") for value in rows[f"{MEASURES[0]}_of_trained"]]
    seeds = result.sizes["seed"]
    note = "Measures normalised by K_no-ext (1 = no extrapolation, 0 = perfect): "
    note += f"median (quartiles) over {seeds} seeds, diverged runs as ∞. Trained: J(S) within {TRAINED:.0%} of its least value."
    return from_columns(f"{quick_mark(result)}{result.attrs['name']}: {result.attrs['title']}", columns, note)


@styled
def by_horizon(result: xr.Dataset) -> Figure:
    """One line a way; measures over the runs that trained, whose share the first panel shows: medians, with whiskers at the quartiles."""
    figure, axes = subplots(11.0, 4.3, 1, 3, sharex=True)  # also where a panel has no line
    rows: Any = summary(result)
    for w, way in enumerate(result.way.values):
        of_way = rows[rows.way == way]
        x = of_way.horizon * 1.04 ** (w - (result.sizes["way"] - 1) / 2)
        axes[0].plot(
            x, 100 * of_way.trained, color=CATEGORIES[w % 8], marker=MARKERS[w % 8], markersize=5, linestyle=DASHES[w % 4], label=way
        )
        for ax, measure in zip(axes[1:], MEASURES, strict=True):
            with_whiskers(ax, x, of_way, f"{measure}_of_trained", CATEGORIES[w % 8], w, way)
    axes[0].set(ylabel="runs that trained [%], better ↑", ylim=(-3, 103))
    for ax, measure in zip(axes[1:], MEASURES, strict=True):
        ax.set(title=TITLES[measure], ylim=(-0.03, 1.08))
        no_extrapolation(ax)
    axes[1].set_ylabel(f"of the runs that trained, {LOWER}")
    for ax in axes:
        ax.set_xscale("log")
        ax.set_xticks(result.horizon.values, [str(horizon) for horizon in result.horizon.values])
        ax.minorticks_off()
        ax.set_xlabel("horizon H")
    legend_below(axes[0], 4)
    systems = f"{result.sizes['seed']} random systems, D = {result.attrs['dim']}, |S| = {result.attrs['seen']}"
    heading(figure, f"{quick_mark(result)}{most_trained(rows)}", f"{systems}; median and quartiles; {SCALE}")
    return figure


@styled
def by_rollouts(result: xr.Dataset) -> Figure:
    """Medians with quartiles against rollouts, and the exact gradient's as a band; at the first horizon."""
    figure, axes = subplots(9.5, 6.6, 2, result.sizes["system"], sharex=True, sharey=True, squeeze=False)
    rows: Any = summary(result.isel(horizon=[0]))
    names = {"two-point": "two points", "reinforce": "REINFORCE"}
    quantiles = rows[[f"{measure}{end}" for measure in MEASURES for end in ("", "_low", "_high")]].to_numpy()
    top = 1.05 * quantiles[np.isfinite(quantiles)].max(initial=1.0)  # where a band ends that goes to +∞, as so many runs diverged
    for column, system in enumerate(result.system.values):
        for ax, measure in zip(axes[:, column], MEASURES, strict=True):
            of_system = rows[rows.system == system]
            exact = of_system[of_system.gradient == "exact"].iloc[0]
            low, high = np.minimum([exact[f"{measure}_low"], exact[f"{measure}_high"]], top)
            ax.axhspan(low, high, color="black", alpha=0.15, linewidth=0, zorder=0)
            middle = exact[measure] if np.isfinite(exact[measure]) else np.nan
            ax.axhline(middle, color="0.4", linewidth=1.0, label="exact gradient (band: quartiles)")
            for i, (gradient, label) in enumerate(names.items()):
                some = of_system[of_system.gradient == gradient].sort_values("rollouts_an_update")
                with_whiskers(ax, some.rollouts_an_update * 1.06 ** (i - 0.5), some, measure, CATEGORIES[i], i, label)
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
            ax.set_ylim(-0.02, top)
            no_extrapolation(ax, named=bool(exact[measure] < 0.95))
        axes[0, column].set_title(system)
        axes[1, column].set_xlabel("rollouts an update")
    for ax, label in zip(axes[:, 0], ("optimality measure", "cost measure"), strict=True):
        ax.set_ylabel(f"{label}, {LOWER}")
    legend_below(axes[0, 0], 3)
    a = result.attrs
    settings = (
        f"D = {a['dim']}, H = {int(result.horizon[0])}, |S| = {a['seen']}, {result.sizes['seed']} seeds, {a['iterations']:,} iterations"
    )
    heading(figure, f"{quick_mark(result)}{_sampled(rows)}", f"Normalised measures at the end of training; {SCALE}; {settings}")
    return figure


def with_whiskers(ax: Axes, x: Any, rows: Any, measure: str, colour: str, place: int, label: str) -> None:
    """Medians with whiskers at the quartiles, marked and dashed as the line of that place."""
    look: dict[str, Any] = {"color": colour, "marker": MARKERS[place % 8], "linestyle": DASHES[place % 4], "markersize": 5}
    middle, low, high = (np.where(np.isfinite(rows[name]), rows[name], np.nan) for name in (measure, f"{measure}_low", f"{measure}_high"))
    ax.errorbar(x, middle, yerr=np.abs([middle - low, high - middle]), capsize=2.5, label=label, **look)


@styled
def by_noise(result: xr.Dataset) -> Figure:
    """Left: the identity's optimality measure along training against ς²ηt, one line a noise. Right: all systems at the end."""
    figure, (left, right) = subplots(9.8, 4.3, 1, 2)
    rows = summary(result.isel(horizon=[0]))
    noisy = [(way, float(noise)) for way, noise in zip(result.way.values, result.noise.values, strict=True) if noise > 0]
    for i, (way, noise) in enumerate(noisy):
        curve = result.normalized_optimality_curve.sel(way=way, system="identity").isel(horizon=0, seed=0)
        scaled = noise**2 * float(result.learning_rate.sel(way=way)) * result.iteration
        places = np.unique(np.geomspace(1, len(scaled) - 1, 12).round().astype(int))
        look = {"marker": MARKERS[i % 8], "markersize": 5.5, "alpha": 0.85, "linestyle": "none", "color": NOISES[i % len(NOISES)]}
        look |= {"markeredgecolor": "black", "markeredgewidth": 0.4}  # which pages in dark mode turn white
        left.plot(scaled[places], curve[places], label=f"ς = {noise:g}", **look)
    first = float(min(noise for _, noise in noisy) ** 2 * result.learning_rate.min() * result.iteration[1])
    longest = float(max(noise for _, noise in noisy) ** 2 * result.learning_rate.max() * result.iteration[-1])
    times = np.geomspace(first / 2, longest, 400)
    predicted = np.array([identity_measure(int(result.horizon[0]), time) for time in times])
    left.plot(times, predicted, color=GREY, linewidth=1.2, label="differential equation", zorder=0)
    left.set_xlim(first / 2, 2 * times[predicted > 1e-6].max())
    left.set(ylim=(1e-6, 1.6), xlabel="ς²ηt", ylabel=f"optimality measure, {LOWER}", title="identity, along training")
    log_axis(left, "x")
    log_axis(left, "y")
    left.legend(loc="lower left")
    places = np.arange(result.sizes["way"])
    for i, system in enumerate(result.system.values):
        some = rows[rows.system == system]
        x = places + 0.08 * (i - (result.sizes["system"] - 1) / 2)
        with_whiskers(right, x, some, "normalized_optimality", SYSTEM_COLOURS.get(system, CATEGORIES[i % 8]), i, system)
    right.set_xticks(places, [f"{noise:g}" for noise in result.noise.values])
    right.set(xlabel="noise ς of each step", title="at the end of training: median and quartiles", ylim=(-0.03, 1.1))
    right.set_ylabel(f"optimality measure, {LOWER}")
    no_extrapolation(right)
    right.legend()
    a = result.attrs
    mark = f"D = {a['dim']}, H = {int(result.horizon[0])}, |S| = {a['seen']}, {a['iterations']:,} iterations"
    heading(figure, f"{quick_mark(result)}{_noise(rows)}", f"{mark}; normalised measures, {SCALE}")
    return figure
