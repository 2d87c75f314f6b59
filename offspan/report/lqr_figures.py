"""Figures: functions of a result."""

from collections.abc import Collection
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from offspan.report.lqr import FINALS, MEASURES, Row, summary
from offspan.report.results import DIVERGED, quartiles

# Okabe and Ito's colours, told apart by colour-blind readers; hatches, markers and dashes carry the difference into black and white.
COLOURS = {"identity": "#0072B2", "shift": "#E69F00", "gaussian": "#009E73", "gaussian-abq": "#CC79A7"}
OTHER_COLOURS = ("#56B4E9", "#D55E00", "#F0E442", "#000000")
HATCHES = {"identity": "", "shift": "//", "gaussian": "..", "gaussian-abq": "xx"}
TITLES = {
    "normalized_optimality": r"optimality measure  $E_{\mathrm{opt}}(K)\,/\,E_{\mathrm{opt}}(K_{\mathrm{no\!-\!ext}})$",
    "normalized_cost": r"cost measure  $E_{\mathrm{cost}}(K)\,/\,E_{\mathrm{cost}}(K_{\mathrm{no\!-\!ext}})$",
}
SCALE = "1 = no extrapolation, 0 = perfect"
POINTS = 200  # on a curve against iterations: more cannot be told apart


def figures(result: xr.Dataset, beside: xr.Dataset | None = None) -> dict[str, tuple[Figure, pd.DataFrame]]:
    """Each figure of a result by its name, with the data behind it; `beside` is a result to be compared with.

    Where no measure is defined (R ≠ 0, B not invertible) there is training to show.
    """
    if all(result[measure].isnull().all() for measure in MEASURES):
        return {"training": (training_curves(result), training_data(result))}
    if result.sizes["horizon"] > 2:
        drawn = {"horizons": (horizon_curves(result), as_frame(summary(result)))}
    else:
        rows = summary(result) if beside is None else summary(beside) + summary(result)
        drawn = {"measures": (measure_bars(result, beside), as_frame(rows))}
    if result.sizes["horizon"] == result.sizes["learning_rate"] == result.sizes["dim"] == 1:
        drawn["curves"] = measure_curves(result), curve_data(result)
    return drawn


def measure_bars(result: xr.Dataset, beside: xr.Dataset | None = None) -> Figure:
    """Both normalised measures against the number of seen states: medians over seeds, whiskers at the quartiles.

    The form of [R24, fig:lqr_experiments_main]. A median of +∞ (half of the runs diverged) or that is not defined has no bar, and says so.
    """
    rows = summary(result) if beside is None else summary(beside) + summary(result)
    systems, counts = list(dict.fromkeys(row.system for row in rows)), sorted({row.seen for row in rows})
    bars = sorted(dict.fromkeys(_bar(row) for row in rows), key=lambda bar: systems.index(bar[0]))
    letters = ("D", "H", "η")
    several = [letter for i, letter in enumerate(letters, start=1) if len({bar[i] for bar in bars}) > 1]
    colours = _colours(systems)
    width = 0.8 / len(bars)
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    top = 1.08 * max([1.0, *(q for row in rows for measure in MEASURES for q in getattr(row, measure) if np.isfinite(q))])
    for ax, measure in zip(axes, MEASURES, strict=True):
        for i, bar in enumerate(bars):
            system = bar[0]
            drawn = [row for row in rows if _bar(row) == bar]
            same_system = [other for other in bars if other[0] == system]
            _draw_bars(
                ax,
                np.array([counts.index(row.seen) for row in drawn]) + (i - (len(bars) - 1) / 2) * width,
                np.array([getattr(row, measure) for row in drawn]),
                [f"{row.diverged}/{row.runs} diverged" if row.diverged else "not defined" for row in drawn],
                top,
                width=width * 0.92,
                label=", ".join([system, *(f"{x} = {bar[1 + letters.index(x)]:g}" for x in several)]),
                color=colours[system],
                alpha=(1 + same_system.index(bar)) / len(same_system),
                hatch=HATCHES.get(system, "\\\\"),
            )
        ax.axhline(1.0, color="black", linewidth=0.8, linestyle="--", zorder=0)
        ax.set_ylim(0.0, top)
        ax.set_xlim(-0.5, len(counts) - 0.5)
        ax.set_xticks(range(len(counts)), [str(count) for count in counts])
        ax.set_xlabel("initial states seen in training")
        ax.set_title(TITLES[measure], fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(SCALE)
    figure.suptitle(caption(result, said_elsewhere=several), fontsize=9)
    columns = len(bars) if len(bars) <= 4 else -(-len(bars) // 2)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _bar(row: Row) -> tuple[str, int, int, float]:
    return row.system, row.dim, row.horizon, row.learning_rate


def _draw_bars(ax: Axes, places: np.ndarray, values: np.ndarray, reasons: list[str], top: float, **look: Any) -> None:
    """Bars at the medians with whiskers at the quartiles, up to the top for +∞; where there is no median, the reason."""
    low, median, high = np.where(np.isposinf(values), top, values).T
    drawn = np.isfinite(values[:, 1])
    ax.bar(
        places,
        np.where(drawn, median, 0.0),
        edgecolor="white",
        linewidth=0,
        yerr=np.where(drawn, [median - low, high - median], np.nan),
        error_kw={"capsize": 3, "elinewidth": 1},
        **look,
    )
    for i in np.flatnonzero(~drawn):
        ax.text(places[i], 0.02, reasons[i], rotation=90, ha="center", va="bottom", fontsize=8, color=look["color"])


def measure_curves(result: xr.Dataset) -> Figure:
    """Both normalised measures along training, one column for each number of seen states: median and quartiles over seeds."""
    counts = result.seen.values
    figure = Figure(figsize=(max(2.7 * len(counts) + 0.8, 6.4), 5.4), layout="constrained")
    axes = figure.subplots(2, len(counts), sharex=True, sharey="row", squeeze=False)
    data = curve_data(result)
    colours = _colours(list(result.system.values))
    for row, measure in zip(axes, MEASURES, strict=True):
        for ax, count in zip(row, counts, strict=True):
            for system, style in zip(result.system.values, cycle(("-", "--", "-.", ":")), strict=False):
                line = data[(data.system == system) & (data.seen == count) & (data.measure == measure)]
                ax.plot(line.iteration, line["median"], color=colours[system], linestyle=style, label=system)
                ax.fill_between(line.iteration, line.low, line.high, color=colours[system], alpha=0.2, linewidth=0)
            ax.axhline(1.0, color="black", linewidth=0.8, linestyle="--", zorder=0)
            ax.set_xlim(max(data.iteration.min(), 1), data.iteration.max() + 1)
            ax.set_xscale("log")
            ax.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel(f"{measure.removeprefix('normalized_')} measure")
        finite = data[(data.measure == measure) & np.isfinite(data["median"])]
        row[0].set_ylim(0.0, 1.1 * max([1.0, *finite["median"]]))
    for ax, count in zip(axes[0], counts, strict=True):
        ax.set_title(f"{count} seen", fontsize=10)
    for ax in axes[1]:
        ax.set_xlabel("iteration")
    figure.suptitle(f"{caption(result)}\n{SCALE}", fontsize=9)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def curve_data(result: xr.Dataset) -> pd.DataFrame:
    """Median and quartiles over seeds of both measures, at iterations spread evenly on the logarithm."""
    last = result.sizes["iteration"] - 1
    kept = np.unique(np.geomspace(1, max(last, 1), POINTS).round().astype(int)) if last else np.array([0])
    frames = []
    for measure in MEASURES:
        recorded = result[measure].isel(dim=0, horizon=0, learning_rate=0, iteration=kept)
        # From its divergence on, a run has no records, and counts as +∞.
        diverged = (result.status == DIVERGED).isel(dim=0, horizon=0, learning_rate=0)
        low, median, high = quartiles(recorded.where(~(diverged & recorded.isnull()), np.inf))
        frame = median.drop_vars("quantile").rename("median").to_dataframe().reset_index()[["system", "seen", "iteration", "median"]]
        frame["low"], frame["high"], frame["measure"] = low.values.ravel(), high.values.ravel(), measure
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def training_curves(result: xr.Dataset) -> Figure:
    """J(K; S) along training, a line for every system and setting: medians over seeds."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    ax = figure.subplots()
    swept = [name for name in ("system", "dim", "horizon", "learning_rate", "seen") if result.sizes[name] > 1]
    looks = zip(cycle(("-", "--", "-.", ":")), cycle((*COLOURS.values(), *OTHER_COLOURS)), strict=False)
    data = training_data(result)
    for _, line in data.groupby(swept or ["system"]):
        first = line.iloc[0]
        words = [first.system, *(f"{name.replace('_', ' ')} {first[name]:g}" for name in swept if name != "system")]
        style, colour = next(looks)
        ax.plot(line.iteration, line.cost, linestyle=style, color=colour, label=", ".join(words))
    ax.set_xlabel("iteration")
    ax.set_ylabel("J(K; S), median over seeds")
    if data.cost.max() > 10 * data.cost.min() > 0:
        ax.set_yscale("log")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    figure.suptitle(caption(result).replace("median and quartiles", "medians"), fontsize=9)
    return figure


def training_data(result: xr.Dataset) -> pd.DataFrame:
    return result.cost.median("seed").rename("cost").to_dataframe().reset_index()


def horizon_curves(result: xr.Dataset) -> Figure:
    """Share of diverged runs and both measures against the horizon, for each system and learning rate.

    What the caption of [R24, fig:lqr_experiments_h8] says of training well past H = 8.
    """
    rows = summary(result)
    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    colours = _colours([row.system for row in rows])
    lines = dict.fromkeys((row.system, row.learning_rate, row.dim, row.seen) for row in rows)
    markers = dict(zip(dict.fromkeys(line[1:] for line in lines), cycle("os^DvPX*"), strict=False))
    several = [letter for i, letter in enumerate(("η", "D", "seen"), start=1) if len({line[i] for line in lines}) > 1]
    for line in lines:
        points = [row for row in rows if (row.system, row.learning_rate, row.dim, row.seen) == line]
        horizons = [row.horizon for row in points]
        values: dict[str, float] = dict(zip(("η", "D", "seen"), line[1:], strict=True))
        label = ", ".join([line[0], *(f"{letter} = {values[letter]:g}" for letter in several)])
        look = {"color": colours[line[0]], "marker": markers[line[1:]], "markersize": 4, "label": label}
        axes[0].plot(horizons, [row.diverged / row.runs for row in points], **look)
        for ax, measure in zip(axes[1:], MEASURES, strict=True):
            ax.plot(horizons, [getattr(row, measure).median for row in points], **look)
    for ax, title in zip(axes, ("share of runs that diverged", *(TITLES[measure] for measure in MEASURES)), strict=True):
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("horizon H")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(bottom=-0.03)
        ax.spines[["top", "right"]].set_visible(False)
    axes[1].set_ylabel(f"median; {SCALE}", fontsize=9)
    title = caption(result).replace("median and quartiles", "medians")
    figure.suptitle(f"{title}; a line ends where half of the runs diverge", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def caption(result: xr.Dataset, said_elsewhere: Collection[str] = ()) -> str:
    """The settings that all of a figure shares."""
    fixed = [
        f"{letter} = {result[name].values[0]:g}"
        for letter, name in (("D", "dim"), ("H", "horizon"), ("η", "learning_rate"), ("seen", "seen"))
        if result.sizes[name] == 1 and letter not in said_elsewhere
    ]
    iterations = f"{result.attrs['iterations']:,} iterations"
    quick = "QUICK LOOK: " if result.attrs["quick"] else ""
    seeds = result.sizes["seed"]
    return f"{quick}{', '.join([*fixed, iterations])}; " + ("one seed" if seeds == 1 else f"median and quartiles of {seeds} seeds")


def as_frame(rows: list[Row]) -> pd.DataFrame:
    """Rows as a table with a column for each number."""
    flat = []
    for row in rows:
        values = row._asdict()
        for name in FINALS:
            low, median, high = values.pop(name)
            values |= {name: median, f"{name}_low": low, f"{name}_high": high}
        flat.append(values)
    return pd.DataFrame(flat)


def _colours(systems: list[str]) -> dict[str, str]:
    others = iter(OTHER_COLOURS * len(systems))
    return {system: COLOURS.get(system) or next(others) for system in dict.fromkeys(systems)}
