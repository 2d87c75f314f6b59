"""The report of a sweep of linear controllers: the normalised measures at the end of training and along it, over seeds."""

import functools
import math
from collections.abc import Collection, Iterable
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from offspan.report.drawing import (
    CATEGORIES,
    DASHES,
    GREEN,
    GREY,
    LOWER,
    OLIVE,
    PINK,
    heading,
    label_ends,
    legend_below,
    listed,
    log_axis,
    no_extrapolation,
    readable,
    styled,
    subplots,
)
from offspan.report.results import DIVERGED, Report, quartiles, quick_mark
from offspan.report.tables import Table, from_columns, number
from offspan.theory.flow import flow_ratios, shift_flow

MEASURES = ("normalized_optimality", "normalized_cost")
FINALS = (*MEASURES, "excess_training_cost", "cost")  # reported for the end of training
SYSTEM = ("A", "B", "Q", "R")
SWEPT = {"D": "dim", "H": "horizon", "η": "learning_rate", "seen": "seen"}  # as figures call the coordinates of a result
EXPECTED = {"identity": "= 1", "shift": "< 1", "gaussian": "< 1"}
SYSTEM_COLOURS = {"identity": GREY, "shift": OLIVE, "gaussian": GREEN, "gaussian-abq": PINK}
HATCHES = {"identity": "", "shift": "//", "gaussian": "..", "gaussian-abq": "xx"}
TITLES = {
    "normalized_optimality": r"optimality measure  $E_{\mathrm{opt}}(K)\,/\,E_{\mathrm{opt}}(K_{\mathrm{no\!-\!ext}})$",
    "normalized_cost": r"cost measure  $E_{\mathrm{cost}}(K)\,/\,E_{\mathrm{cost}}(K_{\mathrm{no\!-\!ext}})$",
}
FLOW_MARK = {"fmt": "D", "color": "black", "markeredgecolor": "white", "markersize": 5.5, "label": "gradient flow, predicted", "zorder": 4}
POINTS = 200  # on a curve against iterations: more cannot be told apart


def report(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    rows, systems = summary(result), listed(result.system.values)
    said = finding(rows) if beside is None else compared(rows, summary(beside))
    captions = {
        "measures": f"{said}. Bars of both normalised measures against the number of seen states, for {systems}.",
        "horizons": f"{_diverging(rows)}. Share of diverged runs and both normalised measures against the horizon, for {systems}.",
        "curves": f"{finding(rows)}. Both normalised measures along training, for {systems}.",
        "training": f"The cost over the seen states along training, for {systems}.",
    }
    return Report({"table": measure_table(result)}, _with_flow(result), captions, lambda: figures(result, beside))


def summary(result: xr.Dataset) -> pd.DataFrame:
    """A row for each setting, after the last iteration: of each of `FINALS` the median over seeds, and the quartiles `_low` and `_high`.

    A diverged run counts as +∞, never as missing.
    """
    final = result[list(FINALS)].isel(iteration=-1, drop=True).where(result.status != DIVERGED, np.inf)
    columns = {"runs": result.sizes["seed"], "diverged": (result.status == DIVERGED).sum("seed")}
    for name in FINALS:
        low, median, high = quartiles(final[name]).drop_vars("quantile")
        columns |= {name: median, f"{name}_low": low, f"{name}_high": high}
    return xr.Dataset(columns).to_dataframe(dim_order=["system", *SWEPT.values()]).reset_index()


def finding(rows: pd.DataFrame) -> str:
    """Which systems extrapolate, by the medians of both measures: below 1, at 1, or ∞ where half of the runs diverged."""
    systems: dict[str, list[str]] = {"extrapolate": [], "do not": [], "in part": [], "diverge": [], "diverge in part": []}
    for system, some in rows.groupby("system", sort=False):
        medians = some[list(MEASURES)].to_numpy()
        medians = medians[~np.isnan(medians)]
        if np.isinf(medians).any():
            systems["diverge" if np.isinf(medians).all() else "diverge in part"].append(str(system))
        elif len(medians):
            kind = "do not" if np.allclose(medians, 1, atol=1e-6) else "extrapolate" if (medians < 1).all() else "in part"
            systems[kind].append(str(system))
    does = lambda names, one, many: f"{listed(names)} {one if len(names) == 1 else many}"  # noqa: E731
    parts = [
        *([does(systems["extrapolate"], "extrapolates", "extrapolate")] if systems["extrapolate"] else []),
        *([does(systems["do not"], "does not", "do not")] if systems["do not"] and systems["extrapolate"] else []),
        *(
            [does(systems["do not"], "does not extrapolate", "do not extrapolate")]
            if systems["do not"] and not systems["extrapolate"]
            else []
        ),
        *([does(systems["in part"], "is not below 1 throughout", "are not below 1 throughout")] if systems["in part"] else []),
        *([f"at least half of the {listed(systems['diverge'])} runs diverge"] if systems["diverge"] else []),
        *([f"in some settings at least half of the {listed(some)} runs diverge"] if (some := systems["diverge in part"]) else []),
    ]
    said = "; ".join(parts) or "the measures are not defined here"
    return said[0].upper() + said[1:]


def compared(rows: pd.DataFrame, before: pd.DataFrame) -> str:
    """In how many settings the medians of both measures are below those of a sweep of the same systems with another dimension, horizon or
    learning rate; of a sweep of other systems, where they end; else the finding of these rows alone."""
    values = {letter: [set(frame[SWEPT[letter]]) for frame in (before, rows)] for letter in ("D", "H", "η")}
    changed = [letter for letter, (earlier, now) in values.items() if earlier != now]
    both = rows.merge(before, on=["system", "seen"], suffixes=("", "_before"))
    if len(changed) == 1 and len(both) == len(rows) and all(len(one) == 1 for pair in values.values() for one in pair):
        lower = pd.concat([both.assign(lower=both[m] < both[f"{m}_before"] - 1e-6) for m in MEASURES]).groupby("system", sort=False).lower
        counts = lower.agg(["sum", "count"]).sort_values("sum", ascending=False, kind="stable")
        parts = [f"{some['sum'] or 'none'} of {some['count']} of {system}" for system, some in counts.iterrows()]
        said = f"medians: {listed(parts)}" if counts["sum"].any() else "no median"
        earlier, now = (frame[SWEPT[changed[0]]].iloc[0] for frame in (before, rows))
        return f"{changed[0]} = {now:g} in place of {earlier:g} lowers {said}"
    if set(rows.system) & set(before.system):
        return finding(rows)
    every = pd.concat([rows, before])
    most = every.sort_values(MEASURES[0])[lambda frame: frame.seen == frame.seen.max()]
    ends = [f"{number(value, '.2f')} for {system}" for system, value in zip(most.system, most[MEASURES[0]], strict=True)]
    return f"With {every.seen.max():g} seen state{'s' if every.seen.max() > 1 else ''}, the optimality measure ends at {listed(ends)}"


def _lost(rows: pd.DataFrame) -> str:
    """How many runs of a setting diverged, for each system that has such runs."""
    counts = rows.groupby("system", sort=False).agg(low=("diverged", "min"), high=("diverged", "max"), runs=("runs", "first"))
    parts = [
        f"{one.high if one.low == one.high else f'{one.low} to {one.high}'} of {one.runs} {system} systems"
        for system, one in counts[counts.high > 0].iterrows()
    ]
    return f"; {listed(parts)} diverged, counted as ∞" if parts else ""


def _diverging(rows: pd.DataFrame) -> str:
    """The largest share of runs that diverged, system by system."""
    parts, varied = [], _varied(rows, ("H", "η", "D", "seen"))
    for system, some in rows.groupby("system", sort=False):
        worst = some.loc[(some.diverged / some.runs).idxmax()]
        where = ", ".join(f"{letter} = {worst[SWEPT[letter]]:g}" for letter in varied)
        parts.append(
            f"{system}: up to {worst.diverged / worst.runs:.0%} of the runs diverge ({where})"
            if worst.diverged
            else f"{system}: none diverges"
        )
    said = "; ".join(parts)
    return said[0].upper() + said[1:]


def measure_table(result: xr.Dataset) -> Table:
    """Both normalised measures. A setting that is the same in all rows has no column; a sweep over more than the seen states shows
    medians alone."""
    rows, seeds = summary(result), result.sizes["seed"]
    swept = _varied(rows, ("D", "H", "η"))
    columns = {"system": rows.system.tolist()}
    for letter in swept + _varied(rows, ("seen",)) if swept else ["seen"]:
        columns[letter] = [f"{value:g}" for value in rows[SWEPT[letter]]]
    for measure, name in (("optimality", "normalized_optimality"), ("cost", "normalized_cost")):
        quantiles = zip(rows[f"{name}_low"], rows[name], rows[f"{name}_high"], strict=True)
        columns[measure] = [number(median, ".3f") if swept else _with_quartiles(low, median, high) for low, median, high in quantiles]
    if rows.system.isin(EXPECTED).any():
        columns["expect"] = rows.system.map(EXPECTED).where(rows.normalized_cost.notna()).fillna("").tolist()
    columns["J(S) − J*"] = [number(value, ".1e") for value in rows.excess_training_cost]
    if rows.excess_training_cost.isna().any():
        columns["J(S)"] = [number(value, ".4g") for value in rows.cost]
    if rows.diverged.any():
        columns["diverged"] = [f"{diverged}/{seeds}" for diverged in rows.diverged]
    title = f"{result.attrs['name']}: measures normalised by K_no-ext, median (quartiles) over {seeds} seed{'s' if seeds > 1 else ''}"
    return from_columns(title, columns, _note(rows))


def _note(rows: pd.DataFrame) -> str:
    parts = ["1 = no extrapolation, 0 = perfect."]
    if rows.system.isin(EXPECTED).any():
        parts.append(
            "Expect: = 1 by Proposition 1; < 1 is proven for other learning rates, by Proposition 2 for one seen state and by Theorem 1 "
            "for the first step in the mean."
        )
    if rows.normalized_cost.isna().any():
        parts.append("–: not defined, as nothing is unseen, R is not 0 or B is not invertible.")
    return " ".join(parts)


def _with_quartiles(low: float, median: float, high: float) -> str:
    whole = number(median, ".3f")
    return whole if low == high or math.isnan(median) else f"{whole} ({number(low, '.2f')}–{number(high, '.2f')})"


def figures(result: xr.Dataset, beside: xr.Dataset | None = None) -> dict[str, tuple[Figure, pd.DataFrame]]:
    """Each figure by its name, with the data behind it; where no measure is defined (R ≠ 0, B not invertible), the cost of training."""
    if all(result[measure].isnull().all() for measure in MEASURES):
        return {"training": (training_curves(result), training_data(result))}
    if result.sizes["horizon"] > 2:
        drawn = {"horizons": (horizon_curves(result), summary(result))}
    else:
        drawn = {"measures": (measure_bars(result, beside), _with(result, beside))}
    if result.sizes["horizon"] == result.sizes["learning_rate"] == result.sizes["dim"] == 1:
        drawn["curves"] = measure_curves(result), curve_data(result)
    return drawn


@styled
def measure_bars(result: xr.Dataset, beside: xr.Dataset | None = None) -> Figure:
    """Both normalised measures against the number of seen states: medians over seeds, whiskers at the quartiles.

    The form of [R24, fig:lqr_experiments_main]. A median of +∞ (half of the runs diverged) or that is not defined has no bar, but a
    label that says so. On the bars of the shift, where gradient flow is after the same η · iterations, which takes no training.
    """
    rows, letters = _with(result, beside), ("D", "H", "η")
    counts, bars, several = sorted(set(rows.seen)), _groups(rows, letters), _varied(rows, letters)
    colours, width = _colours(rows.system), 0.8 / len(bars)
    figure, axes = subplots(9.5, 3.9, 1, 2, sharey=True)
    quantiles = rows[[f"{measure}{end}" for measure in MEASURES for end in ("", "_low", "_high")]].to_numpy()
    top = 1.1 * quantiles[np.isfinite(quantiles)].max(initial=1.0)
    where = []
    for i, bar in enumerate(bars):
        first = bar.iloc[0]
        of_system = [j for j, other in enumerate(bars) if other.iloc[0].system == first.system]
        places = np.array([counts.index(seen) for seen in bar.seen]) + (i - (len(bars) - 1) / 2) * width
        look = {"label": _label(first, several), "color": colours[first.system], "hatch": HATCHES.get(first.system, "\\\\")}
        look |= {"width": width * 0.92, "alpha": (1 + of_system.index(i)) / len(of_system)}
        for ax, measure in zip(axes, MEASURES, strict=True):
            _draw_bars(ax, places, bar, measure, top, **look)
        where.append(places)
    for ax, measure in zip(axes, MEASURES, strict=True):
        if f"flow_{measure}" in rows:  # as a container, like the bars, so that the legend has it last
            ax.errorbar(np.concatenate(where), np.concatenate([bar[f"flow_{measure}"] for bar in bars]), **FLOW_MARK)
        ax.set_ylim(0.0, top)
        no_extrapolation(ax)
        ax.set_xlim(-0.5, len(counts) - 0.5)
        ax.set_xticks(range(len(counts)), [str(count) for count in counts])
        ax.set_xlabel("initial states seen in training")
        ax.set_title(TITLES[measure])
    axes[0].set_ylabel(f"normalised measure, {LOWER}")
    said = finding(rows) if beside is None else compared(summary(result), summary(beside))
    heading(figure, f"{quick_mark(result)}{said}", _settings(result, said_elsewhere=several) + _lost(summary(result)))
    entries = len(bars) + (f"flow_{MEASURES[0]}" in rows)
    columns = entries if len(bars) <= 4 else -(-entries // 2)
    legend_below(axes[0], columns, handleheight=1.5, handlelength=2.5)  # so that hatches can be told apart
    return figure


def _draw_bars(ax: Axes, places: np.ndarray, rows: pd.DataFrame, measure: str, top: float, **look: Any) -> None:
    """Bars at the medians with whiskers at the quartiles, up to the top for +∞; where there is no median, the reason."""
    low, median, high = rows[[f"{measure}_low", measure, f"{measure}_high"]].replace(np.inf, top).to_numpy().T
    drawn = np.isfinite(rows[measure].to_numpy())
    whiskers = np.where(drawn, [median - low, high - median], np.nan)
    look |= {"edgecolor": "white", "linewidth": 0, "error_kw": {"capsize": 3, "elinewidth": 1}}
    ax.bar(places, np.where(drawn, median, 0.0), yerr=whiskers, **look)
    for place, diverged, runs in zip(places[~drawn], rows.diverged[~drawn], rows.runs[~drawn], strict=True):
        reason = f"{diverged} of {runs} diverged" if diverged else "not defined"
        ax.text(place, 0.02, reason, rotation=90, ha="center", va="bottom", fontsize=8, color=readable(look["color"]))


@styled
def measure_curves(result: xr.Dataset) -> Figure:
    """Both normalised measures along training, one column for each number of seen states: median and quartiles over seeds."""
    counts, systems = result.seen.values, result.system.values
    figure, axes = subplots(max(2.7 * len(counts) + 0.8, 6.4), 5.4, 2, len(counts), sharex=True, sharey="row", squeeze=False)
    data, colours = curve_data(result), _colours(systems)
    diverged = (result.status == DIVERGED).sum("seed").isel(dim=0, horizon=0, learning_rate=0)
    for row, measure in zip(axes, MEASURES, strict=True):
        finite = data[(data.measure == measure) & np.isfinite(data["median"])]
        for ax, count in zip(row, counts, strict=True):
            ends, lost = [], []
            for system, style in zip(systems, cycle(DASHES), strict=False):
                line = data[(data.system == system) & (data.seen == count) & (data.measure == measure)]
                ax.plot(line.iteration, line["median"], color=colours[system], linestyle=style, label=system)
                ax.fill_between(line.iteration, line.low, line.high, color=colours[system], alpha=0.2, linewidth=0)
                if np.isinf(np.asarray(line["median"])[-1]):
                    lost.append((system, int(diverged.sel(system=system, seen=count))))
                ends.append((float(np.asarray(line["median"])[-1]), system, colours[system]))
            ax.set_xlim(max(data.iteration.min(), 1), data.iteration.max() + 1)
            log_axis(ax, "x")
            low, high = min([1.0, *finite["median"]]), max([1.0, *finite["median"]])
            if 0 < low < high / 20:
                log_axis(ax, "y")
                ax.set_ylim(0.8 * max(finite.low.min(), low / 30), 1.3 * high)
            else:
                ax.set_ylim(0.0, max(1.1 * high, 1.05 * finite.high[np.isfinite(finite.high)].max()))
            no_extrapolation(ax, named=ax is row[0], side="left")
            for i, (system, runs) in enumerate(lost):
                said = f"{system}: {runs} of {result.sizes['seed']} runs diverged"
                ax.annotate(said, (0.03, 0.03), (0, 11 * i), "axes fraction", "offset points", color=readable(colours[system]), fontsize=8)
            if ax is row[-1]:
                label_ends(ax, ends, fontsize=9)
        row[0].set_ylabel(f"{measure.removeprefix('normalized_')} measure, {LOWER}")
    for above, below, count in zip(*axes, counts, strict=True):
        above.set_title(f"{count} seen")
        below.set_xlabel("iteration")
    rows = summary(result)
    heading(figure, f"{quick_mark(result)}{finding(rows)}", _settings(result) + _lost(rows))
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


@styled
def training_curves(result: xr.Dataset) -> Figure:
    """J(K; S) along training, a line for every system and setting: medians over seeds."""
    figure, ax = subplots(6.8, 4.2)
    swept = [name for name in ("system", *SWEPT.values()) if result.sizes[name] > 1]
    data = training_data(result)
    for (_, line), style in zip(data.groupby(swept or ["system"]), cycle(DASHES), strict=False):
        first = line.iloc[0]
        words = [first.system, *(f"{name.replace('_', ' ')} {first[name]:g}" for name in swept if name != "system")]
        ax.plot(line.iteration, line.cost, linestyle=style, label=", ".join(words))
    ax.set_xlabel("iteration")
    ax.set_ylabel("J(K; S), median over seeds")
    if data.cost.max() > 10 * data.cost.min() > 0:
        log_axis(ax, "y")
    ax.legend()
    heading(figure, f"{quick_mark(result)}The cost over the seen states along training, {LOWER}", _settings(result, "medians"))
    return figure


def training_data(result: xr.Dataset) -> pd.DataFrame:
    return result.cost.median("seed").rename("cost").to_dataframe().reset_index()


@styled
def horizon_curves(result: xr.Dataset) -> Figure:
    """Share of diverged runs and both measures against the horizon, for each system and learning rate.

    What the caption of [R24, fig:lqr_experiments_h8] says of training well past H = 8.
    """
    rows, letters = summary(result), ("η", "D", "seen")
    systems, several = rows.system.unique(), _varied(rows, letters)
    figure, axes = subplots(11.5, 2.4 * len(systems) + 1.6, len(systems), 3, sharex=True, sharey="col", squeeze=False)
    looks: dict[tuple, int] = {}
    for line in _groups(rows, letters):
        first = line.iloc[0]
        place = looks.setdefault((first.learning_rate, first.dim, first.seen), len(looks))
        look = {"color": CATEGORIES[place % 8], "marker": "os^DvPX*"[place % 8], "linestyle": DASHES[place % 4], "markersize": 4.5}
        row = axes[systems.tolist().index(first.system)]
        for ax, values in zip(row, (100 * line.diverged / line.runs, *(line[measure] for measure in MEASURES)), strict=True):
            ax.plot(line.horizon, values, label=_label(first, several).partition(", ")[2] or first.system, **look)
    for row, system in zip(axes, systems, strict=True):
        row[0].set_ylabel(f"{system}\nruns that diverged [%]")
        row[0].set_ylim(-3, 103)
        for ax in row[1:]:
            ax.set_ylim(-0.03, 1.12)
            no_extrapolation(ax, side="left")
        row[1].set_ylabel(f"median, {LOWER}")
    for ax, title in zip(axes[0], ("diverged runs", *(TITLES[measure] for measure in MEASURES)), strict=True):
        ax.set_title(title, fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("horizon H")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    settings = f"{_settings(result, 'medians')}; a line ends where half of the runs diverge"
    heading(figure, f"{quick_mark(result)}{_diverging(rows)}", settings)
    legend_below(axes[0, 0], min(len(looks), 4))
    return figure


def _settings(result: xr.Dataset, shown: str = "median and quartiles", said_elsewhere: Collection[str] = ()) -> str:
    """The settings that all of a figure shares."""
    fixed = [
        f"{letter} = {result[name].values[0]:g}"
        for letter, name in SWEPT.items()
        if result.sizes[name] == 1 and letter not in said_elsewhere
    ]
    clipped = [f"gradients clipped at norm {result.attrs['clip']:g}"] if "clip" in result.attrs else []
    settings = ", ".join([*fixed, *clipped, f"{result.attrs['iterations']:,} iterations"])
    seeds = result.sizes["seed"]
    return f"{settings}; " + ("one seed" if seeds == 1 else f"{shown} of {seeds} seeds")


def _with(result: xr.Dataset, beside: xr.Dataset | None) -> pd.DataFrame:
    return _with_flow(result) if beside is None else pd.concat([_with_flow(beside), _with_flow(result)], ignore_index=True)


def _with_flow(result: xr.Dataset) -> pd.DataFrame:
    """The summary, and beside the measures of a shift what gradient flow predicts for them."""
    rows, swept = summary(result), ("system", *SWEPT.values())
    if not {*SYSTEM, "seen_states"} <= set(result) or "clip" in result.attrs:  # a clipped gradient follows the flow at another pace
        return rows
    needed = result[[*SYSTEM, "seen_states", "status"]]  # the last has every swept dimension
    places = np.ndindex(*(result.sizes[name] for name in swept))
    predicted = np.array([_flow(needed.isel(dict(zip(swept, place, strict=True)))) for place in places])
    if np.isfinite(predicted).any():
        rows[[f"flow_{measure}" for measure in MEASURES]] = predicted
    return rows


def _flow(run: xr.Dataset) -> tuple[float, float]:
    """Both normalised measures at t = η · iterations of gradient flow; NaN but for a shift that is trained from basis states."""
    dim = int(run.dim)
    (A, B, Q, R), states = (run[name].values[0, :dim, :dim] for name in SYSTEM), run.seen_states.values[: int(run.seen), :dim]
    if A.shape != (dim, dim) or not len(states):
        return np.nan, np.nan
    eye, indices = np.eye(dim), states.argmax(axis=1)
    is_shift = (
        np.array_equal(A, np.roll(eye, 1, axis=0)) and np.allclose(B @ B.T, eye, atol=1e-6) and np.array_equal(Q, eye) and not R.any()
    )
    if not is_shift or not np.array_equal(states, eye[indices]) or len(set(indices)) == dim:
        return np.nan, np.nan
    horizon = int(run.horizon)
    return _ratios(dim, horizon, tuple(indices.tolist()), float(run.learning_rate) * run.attrs["iterations"])


@functools.lru_cache(maxsize=256)
def _ratios(dim: int, horizon: int, seen: tuple[int, ...], time: float) -> tuple[float, float]:
    """Each is asked for by every figure and table."""
    indices = np.array(seen)
    return flow_ratios(shift_flow(dim, horizon, indices, time), horizon, indices)


def _groups(rows: pd.DataFrame, letters: tuple[str, ...]) -> list[pd.DataFrame]:
    """Rows of the same system and settings, system by system."""
    groups = [group for _, group in rows.groupby(["system", *(SWEPT[letter] for letter in letters)], sort=False)]
    systems = rows.system.unique().tolist()
    return sorted(groups, key=lambda group: systems.index(group.iloc[0].system))


def _varied(rows: pd.DataFrame, letters: tuple[str, ...]) -> list[str]:
    return [letter for letter in letters if len(set(rows[SWEPT[letter]])) > 1]


def _label(row: pd.Series, letters: list[str]) -> str:
    return ", ".join([row.system, *(f"{letter} = {row[SWEPT[letter]]:g}" for letter in letters)])


def _colours(systems: Iterable[str]) -> dict[str, str]:
    others = cycle(CATEGORIES[len(SYSTEM_COLOURS) :])
    return {system: SYSTEM_COLOURS.get(system) or next(others) for system in dict.fromkeys(systems)}
