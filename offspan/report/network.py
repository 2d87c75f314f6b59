"""The report of a network experiment: how well do controllers do from states that they were not trained on?"""

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from offspan.experiments.network import is_near, near_the_target
from offspan.report.drawing import (
    BEHIND_WORDS,
    GREEN,
    GREY,
    LEFT,
    LOWER,
    PINK,
    SCALE,
    SEEN,
    UNSEEN,
    angle,
    heading,
    iteration_axis,
    legend_below,
    log_axis,
    no_extrapolation,
    short,
    styled,
    subplots,
)
from offspan.report.results import DIVERGED, Report, quartiles
from offspan.report.scenes import MARKERS, scene_of, system_of
from offspan.report.tables import Table, number

OBJECTIVES = {"policy_gradient": "policy gradient", "non_extrapolating": "non-extrapolating", "minimal_cost": "trained on unseen"}
COLOURS = {"policy_gradient": GREEN, "non_extrapolating": GREY, "minimal_cost": PINK}
SHOWN = ("policy_gradient", "non_extrapolating")  # with trajectories
GROUPS = {"seen": SEEN, "unseen": UNSEEN}
PAPER = {"pendulum": 0.003, "quadcopter-below": 0.032}  # the medians of five seeds that [R24, fig:pend_and_quad_experiments_main] prints
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the horizon
FRAMES = 50  # of an animation
CLEAR = {"facecolor": BEHIND_WORDS, "edgecolor": "none", "pad": 1.0, "alpha": 0.8}  # behind words on lines


def report(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data = seed_data(result)

    def draw() -> dict[str, tuple[Figure, pd.DataFrame]]:
        trajectories = trajectory_data(result)
        drawn = {
            "states": (states_figure(result), trajectories),
            "through-time": (time_figure(result), trajectories),
            "curves": (curves_figure(result), _long(result, "curve").dropna()),
            "unseen": (unseen_figure(result), _long(result, "unseen_cost")),
        }
        if result.sizes["seed"] > 5:
            drawn["distribution"] = distribution_figure(result), data
        return drawn

    ends = f"{finding(result)}. "
    captions = {
        "states": f"{ends}Initial states; final states under policy gradient; final states under the non-extrapolating controller.",
        "through-time": f"{ends}States at six moments, under policy gradient and under the non-extrapolating controller.",
        "curves": f"{_kept(result)}. Costs against iterations, of every seed of the three objectives; dots: the controllers that are kept.",
        "unseen": f"{_beaten(result)}. The cost from each unseen state: policy gradient, the non-extrapolating controller, and one "
        "that was trained there.",
        "distribution": f"{_spread(result)}. The share of seeds at or below each value of the normalised cost measure.",
    }
    tables = {"table": network_table(result), "states": states_table(result)}
    return Report(tables, data, captions, draw, lambda: {"trajectories": animation(result)})


def reached(result: xr.Dataset, objective: str, group: str) -> tuple[int, int]:
    """How many of the trajectories that are shown end near the target (`is_near`), and how many there are."""
    final = result[f"{objective}_{group}_trajectory"].values[:, -1]
    there = [bool(is_near(result.attrs["problem"], result.target.values, state)) for state in final]
    return sum(there), len(there)


def finding(result: xr.Dataset) -> str:
    """How many of the unseen states end near the target, of the runs that are shown."""
    near = near_the_target(result.attrs["problem"])
    (learned, count), (baseline, _) = (reached(result, objective, "unseen") for objective in SHOWN)
    seen, all_seen = reached(result, "policy_gradient", "seen")
    others = _of(baseline, count) if baseline else "none"
    said = f"Policy gradient brings {_of(learned, count)} unseen states to {near}, the non-extrapolating controller {others}"
    return said + (f"; of the seen states policy gradient brings {_of(seen, all_seen)}" if seen < all_seen else "")


def _of(some: int, count: int) -> str:
    return f"all {count}" if some == count else f"{some or 'none'} of {count}"


def paper_number(result: xr.Dataset) -> float | None:
    """What the paper prints, for a result with the paper's settings."""
    return PAPER.get(result.attrs.get("preset", ""))


def seed_data(result: xr.Dataset) -> pd.DataFrame:
    """A row for each run."""
    frames = []
    for objective in OBJECTIVES:
        status, seen, unseen = (result[f"{objective}_{name}"] for name in ("status", "seen_cost", "unseen_cost"))
        seeds = result[status.dims[0]]
        columns = {
            "objective": objective,
            "seed": seeds.values,
            "status": np.array(status.attrs["flag_meanings"].split())[status.values],
            "iterations": result[f"{objective}_iterations"].values,
            "seen_cost": seen.mean("seen").values,
            "unseen_cost": unseen.mean("unseen").values,
            "normalized_cost": result.normalized_cost.values if objective == "policy_gradient" else np.full(len(seeds), np.nan),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _long(result: xr.Dataset, name: str) -> pd.DataFrame:
    """One of the variables that every objective has, a row for each number."""
    frames = []
    for objective in OBJECTIVES:
        frame = result[f"{objective}_{name}"].rename("cost").to_dataframe().reset_index()
        frames.append(frame.rename(columns={"baseline_seed": "seed"}).assign(objective=objective))
    return pd.concat(frames, ignore_index=True)


def trajectory_data(result: xr.Dataset) -> pd.DataFrame:
    """The trajectories that are shown, a row for each state and time."""
    frames = []
    for objective in SHOWN:
        for group in GROUPS:
            states = result[f"{objective}_{group}_trajectory"].values
            place, time = np.indices(states.shape[:2]).reshape(2, -1)
            frame = pd.DataFrame(states.reshape(-1, states.shape[2]), columns=system_of(result).names)
            frames.append(frame.assign(objective=objective, group=group, place=place, time=time))
    return pd.concat(frames, ignore_index=True)


def measure_text(result: xr.Dataset) -> str:
    """Median and quartiles of the normalised cost measure."""
    low, median, high = (
        number(value, form) for value, form in zip(quartiles(result.normalized_cost).values, (".2g", ".3g", ".2g"), strict=True)
    )
    return median if low == high else f"{median} ({low}–{high})"


def network_table(result: xr.Dataset) -> Table:
    rows = []
    shown = {"policy_gradient": result.shown_seed, "non_extrapolating": result.shown_baseline_seed, "minimal_cost": result.least_seed}
    measures = {"policy_gradient": measure_text(result)}
    if _is_defined(result):
        measures |= {"non_extrapolating": "1", "minimal_cost": "0"}
    for objective, label in OBJECTIVES.items():
        status, seed = result[f"{objective}_status"], int(shown[objective])
        one = result.sel({status.dims[0]: seed})
        costs = [f"{float(one[f'{objective}_{group}_cost'].mean()):.3g}" for group in GROUPS]
        rows.append([label, f"{int((status == DIVERGED).sum())}/{status.size}", str(seed), *costs, measures.get(objective, "–")])
    title = f"{result.attrs['name']}: normalised cost measure, median (quartiles)"
    return Table(title, ["controller", "diverged", "seed", "J(S)", "J(U)", "measure"], rows, _note(result))


def _note(result: xr.Dataset) -> str:
    parts = [
        "0 = perfect, 1 = no extrapolation, more = worse than that; a run that diverged counts as the worst.",
        "Costs are of the seed named: of median measure, of lowest J(S), of lowest J(U).",
        *_doubts(result),
    ]
    if not _is_defined(result):
        parts.append("The measure is not defined: non-extrapolating runs diverged, or cost no more than those trained on unseen states.")
    if (said := paper_number(result)) is not None:
        parts.append(f"The paper prints {said:g} for its median of five seeds.")
    if result.attrs["quick"]:
        parts.append(f"A QUICK LOOK: {result.attrs['iterations']:,} iterations are too few to compare.")
    if diagnoses := result.attrs["diagnoses"]:
        first, *others = diagnoses.split("\n\n")
        happened, _, advice = first.split("\n")
        parts.append(f"{happened} {advice}" + (f" {len(others)} more did not train: see `diagnoses` in result.nc." if others else ""))
    return " ".join(parts)


def _doubts(result: xr.Dataset) -> list[str]:
    """A controller to compare with should be as good on the seen states, and no seed much better than the estimate of the least cost."""
    doubts = []
    learned = float(result.policy_gradient_training_cost.sel(seed=int(result.shown_seed)))
    baseline = float(result.non_extrapolating_training_cost.sel(baseline_seed=int(result.shown_baseline_seed)))
    if baseline > 1.5 * learned:
        ratio = f"{baseline / learned:.1f}"
        doubts.append(f"On the seen states the non-extrapolating run costs {ratio} times the other, so the measure says little.")
    if (result.normalized_cost < -0.01).any():
        doubts.append("A seed below 0 beats the runs that were trained on the unseen states, so these were not trained to their end.")
    return doubts


def _is_defined(result: xr.Dataset) -> bool:
    return not bool(np.isnan(result.normalized_cost).any())


def states_table(result: xr.Dataset) -> Table:
    """Target, initial and final states of the two runs that are shown, as in [R24, table:pend_experiments_states] and its like."""
    numbers = lambda state: [f"{value + 0.0:.2f}".replace("-0.00", "0.00") for value in state]  # noqa: E731
    rows = [["target", "", *numbers(result.target.values)]]
    for group in GROUPS:
        rows += [[group, "initial", *numbers(state)] for state in result[f"{group}_state"].values]
        for objective in SHOWN:
            final = result[f"{objective}_{group}_trajectory"].values[:, -1]
            rows += [[group, f"final, {OBJECTIVES[objective]}", *numbers(state)] for state in final]
    title = f"{result.attrs['name']}: states, policy gradient with seed {int(result.shown_seed)}"
    note = f"Final states are those at time step {result.attrs['horizon']}."
    return Table(title, ["states", "", *system_of(result).names], rows, note)


@styled
def states_figure(result: xr.Dataset) -> Figure:
    """Initial states, final states under policy gradient, final states of the non-extrapolating controller.

    The form of [R24, fig:pend_and_quad_experiments_main, fig:quad_experiments_add_unseen_initial_states, fig:quad_experiments_dist].
    """
    figure = Figure(figsize=(10.5, 4.6))
    measure = float(result.normalized_cost.sel(seed=int(result.shown_seed)))
    ends = (f" (measure {measure:.3g})", " (measure 1)") if _is_defined(result) else ("", "")
    near = near_the_target(result.attrs["problem"])
    learned, baseline = (f"{_of(*reached(result, objective, 'unseen'))} unseen {near}" for objective in SHOWN)
    panels = [
        ("at the start", "policy_gradient", 0),
        (f"at the end, policy gradient{ends[0]}:\n{learned}", "policy_gradient", -1),
        (f"at the end, non-extrapolating{ends[1]}:\n{baseline}", "non_extrapolating", -1),
    ]
    for place, (title, objective, time) in enumerate(panels, start=1):
        ax = _axes(figure, result, 1, 3, place)
        _draw(ax, result, objective, time)
        ax.set_title(title, fontsize=9)
    _finish(figure, result)
    return figure


@styled
def time_figure(result: xr.Dataset) -> Figure:
    """States through time: 0, 20, …, 100 % of the horizon, for both controllers  [R24, fig:pend_experiments_states_through_time]."""
    figure = Figure(figsize=(10.5, 4.6))
    for row, objective in enumerate(SHOWN):
        for column, share in enumerate(SHARES):
            ax = _axes(figure, result, len(SHOWN), len(SHARES), row * len(SHARES) + column + 1)
            _draw(ax, result, objective, round(share * int(result.attrs["horizon"])))
            ax.set_title(f"{OBJECTIVES[objective]}\n{_moment(result, share)}" if column == 0 else _moment(result, share), fontsize=9)
            scene_of(result).compact(ax, column == 0 and row == len(SHOWN) - 1)  # one says what the axes are
    _finish(figure, result)
    return figure


def _moment(result: xr.Dataset, share: float) -> str:
    """In seconds, for a system that has a time step."""
    time, step = round(share * int(result.attrs["horizon"])), result.attrs.get("time_step")
    return f"step {time}" if step is None else f"{time * step:.2g} s"


@styled
def animation(result: xr.Dataset) -> list[Any]:
    """Both controllers side by side through time, as images."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure = Figure(figsize=(7.0, 3.8), dpi=80, layout="none")  # pyright: ignore[reportArgumentType]
    canvas = FigureCanvasAgg(figure)
    axes = {objective: _axes(figure, result, 1, 2, place) for place, objective in enumerate(SHOWN, start=1)}
    for objective, ax in axes.items():
        ends = f"{_of(*reached(result, objective, 'unseen'))} unseen end\n{near_the_target(result.attrs['problem'])}"
        ax.set_title(f"{OBJECTIVES[objective]}\n{ends}", fontsize=8)
    figure.legend(handles=_handles(result, scene_of(result).has_walls), loc="lower center", ncols=4, fontsize=8)
    seconds = figure.text(0.5, 0.95, "", ha="center", fontsize=10)
    images = []
    for time in np.unique(np.linspace(0, int(result.attrs["horizon"]), FRAMES).round().astype(int)).tolist():
        drawn = [artist for objective, ax in axes.items() for artist in _draw(ax, result, objective, time)]
        step = result.attrs.get("time_step")
        seconds.set_text(f"time step {time}" if step is None else f"{time * step:.2f} s")
        canvas.draw()
        images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
        for artist in drawn:
            artist.remove()
    # One palette of the first and the last frame for all, without dithering, so that what stands still stays the same pixels.
    both = Image.new("RGB", (images[0].width, 2 * images[0].height))
    both.paste(images[0], (0, 0))
    both.paste(images[-1], (0, images[0].height))
    palette = both.quantize(96, dither=Image.Dither.NONE)
    return [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]


@styled
def curves_figure(result: xr.Dataset) -> Figure:
    """The cost over the states that were trained on, for each objective and seed, with the controllers that are kept."""
    figure, axes = subplots(10.5, 3.8, 1, 3, sharey=True)
    first = [result[f"{objective}_curve"].values[:, 0] for objective in COLOURS]
    lost = [result[f"{objective}_status"].values == DIVERGED for objective in COLOURS]
    begun = np.concatenate([costs[~ends] if not ends.all() else costs for costs, ends in zip(first, lost, strict=True)])
    top = 3 * np.nanmax(begun)  # spikes of single updates go beyond, and what diverges
    beyond = 0
    for ax, (objective, colour) in zip(axes, COLOURS.items(), strict=True):
        curves, kept = result[f"{objective}_curve"].values, result[f"{objective}_training_cost"].values
        shade = float(np.clip(1.4 / len(curves) ** 0.5, 0.2, 1.0))
        ax.plot(result.iteration, np.minimum(curves, 2 * top).T, color=colour, linewidth=0.9, alpha=shade)
        places = _kept_at(curves, kept)
        ax.plot(result.iteration.values[places], kept, "o", color=colour, markeredgecolor="black", markersize=5, zorder=3)
        over = "unseen" if objective == "minimal_cost" else "seen"
        ax.set_title(f"{OBJECTIVES[objective]}: J over the {over} states", fontsize=9)
        last = int(result.iteration.values[np.isfinite(curves).any(axis=0)].max())
        ax.set_xlim(-0.02 * last, 1.02 * last)
        iteration_axis(ax, 4)
        runs, places = np.nonzero(curves > top)
        beyond += len(runs)
        at, peaks = result.iteration.values[places], curves[runs, places]
        order = np.argsort(at)
        for some in np.split(order, np.flatnonzero(np.diff(at[order]) > 0.25 * last) + 1) if len(runs) else ():
            said = f"▲ {short(float(peaks[some].max()))}" + (f", largest of {len(some)}" if len(some) > 1 else "")
            middle = np.clip(at[some].mean(), 0.2 * last, 0.8 * last)
            place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "top", "fontsize": 8, "bbox": CLEAR}
            ax.annotate(said, (float(middle), 0.995), **place)
    log_axis(axes[0], "y")
    axes[0].set_ylim(top=top)
    axes[0].set_ylabel(f"cost J, {LOWER}; one line a seed")
    marks = "dots: the controllers that are kept, the best of each run" + ("; ▲: peaks beyond the axis" if beyond else "")
    heading(figure, f"{_quick(result)}{_kept(result)}", f"{result.attrs['name']}, {marks}")
    return figure


def _kept(result: xr.Dataset) -> str:
    """What the kept controllers of policy gradient cost where they were trained."""
    costs = result.policy_gradient_training_cost.where(result.policy_gradient_status != DIVERGED).dropna("seed").values
    diverged = result.sizes["seed"] - len(costs)
    ends = f"; {diverged} of {result.sizes['seed']} runs diverged" if diverged else ""
    if not len(costs):
        return f"All {diverged} runs of policy gradient diverged"
    low, high = short(float(costs.min())), short(float(costs.max()))
    return f"Policy gradient's best controllers cost {low if low == high else f'{low} to {high}'} over the seen states{ends}"


def _kept_at(curves: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Where along each curve the cost of the controller that is kept was recorded, as near as can be."""
    apart = np.abs(curves - kept[:, None])
    return np.where(np.isfinite(apart), apart, np.inf).argmin(axis=1)


@styled
def unseen_figure(result: xr.Dataset) -> Figure:
    """The cost from each unseen state: every seed of policy gradient and its median, beside the two controllers compared with."""
    figure, ax = subplots(max(8.5, 1.0 + 0.8 * result.sizes["unseen"]), 4.4)
    places = np.arange(result.sizes["unseen"])
    costs = _unseen_costs(result)
    for offset, of_seed in zip(np.linspace(-0.12, 0.12, len(costs)), costs.values, strict=True):
        ax.plot(places + offset, of_seed, ".", color=COLOURS["policy_gradient"], markersize=4, alpha=0.5)
    dash = {"color": COLOURS["policy_gradient"], "markersize": 24, "markeredgewidth": 2.5}
    ax.plot(places, quartiles(costs).sel(quantile=0.5), "_", label="policy gradient: median, dots are seeds", **dash)
    baseline = result.non_extrapolating_unseen_cost.sel(baseline_seed=int(result.shown_baseline_seed))
    ax.plot(places, baseline, "^", color=COLOURS["non_extrapolating"], label="non-extrapolating")
    least = result.minimal_cost_unseen_cost.sel(baseline_seed=int(result.least_seed))
    ax.plot(
        places, least, "s", color=COLOURS["minimal_cost"], markerfacecolor="none", markeredgewidth=1.6, label="trained on the unseen states"
    )
    log_axis(ax, "y")
    position = [system_of(result).coordinates[d] for d in system_of(result).position]
    texts = [
        "\n".join(
            angle(float(value)) if "[rad]" in one.label else f"{round(float(value), 3):g}".replace("-", "−")
            for value, one in zip(state, position, strict=True)
        )
        for state in result.unseen_state.values[:, list(system_of(result).position)]
    ]
    ax.set_xticks(places, texts, fontsize=8)
    ax.set_xlabel("unseen initial state: " + ", ".join(one.label for one in position))
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.set_ylabel(f"cost J from that state, {LOWER}")
    legend_below(ax, 3)
    heading(figure, f"{_quick(result)}{_beaten(result)}", _settings(result))
    return figure


def _unseen_costs(result: xr.Dataset) -> xr.DataArray:
    return result.policy_gradient_unseen_cost.where(result.policy_gradient_status != DIVERGED, np.inf)


def _beaten(result: xr.Dataset) -> str:
    """From how many unseen states policy gradient costs less than the non-extrapolating controller, in the median over seeds."""
    median = quartiles(_unseen_costs(result)).sel(quantile=0.5).values
    baseline = result.non_extrapolating_unseen_cost.sel(baseline_seed=int(result.shown_baseline_seed)).values
    lower = _of(int((median < baseline).sum()), len(median))
    return f"From {lower} unseen states the median cost of policy gradient is below that of the non-extrapolating controller"


@styled
def distribution_figure(result: xr.Dataset) -> Figure:
    """The share of seeds whose normalised cost measure is at most a value, with the quartiles and the paper's number."""
    measures = np.sort(result.normalized_cost.values)
    finite = measures[np.isfinite(measures)]
    # A logarithmic axis has no place for a seed that beats J̃*(U), which is but an estimate: such are drawn at its left end.
    finite = np.maximum(finite, finite[finite > 0].min(initial=1.0) / 2)
    figure, ax = subplots(7.2, 4.3)
    colour = COLOURS["policy_gradient"]
    ax.step(finite, np.arange(1, len(finite) + 1) / len(measures), where="post", color=colour)
    for share, value in zip((0.25, 0.5, 0.75), quartiles(result.normalized_cost).values, strict=True):
        if np.isfinite(value):
            ax.plot(value, share, "o", color=colour, markersize=5)
            place = {"textcoords": "offset points", "ha": "left", "va": "top", "fontsize": 8, "bbox": CLEAR}
            ax.annotate(f"{share:.0%} of seeds: {value:.2g}", (value, share), (8, -3), **place)
    if (said := paper_number(result)) is not None:
        ax.axvline(said, color="black", linestyle=":", linewidth=1.2)
        text = f"the paper: {said:g}\n({np.mean(measures <= said):.0%} of seeds are at or below)"
        ax.annotate(text, (said, 0.97), (-4, 0), textcoords="offset points", ha="right", va="top", fontsize=8, bbox=CLEAR)
    log_axis(ax, "x")
    ax.set_ylim(0.0, 1.0)
    if said is not None:
        ax.set_xlim(left=min(ax.get_xlim()[0], said / 20))  # room for its words
    ax.set_xlim(right=max(ax.get_xlim()[1], 1.3))
    no_extrapolation(ax, "x")
    diverged = int((result.policy_gradient_status == DIVERGED).sum())
    ax.set_xlabel(f"normalised cost measure of a seed, {LEFT}" + (f"; {diverged} of {len(measures)} seeds diverged" if diverged else ""))
    ax.set_ylabel("share of seeds at or below")
    heading(figure, f"{_quick(result)}{_spread(result)}", f"{result.attrs['name']}; {SCALE}")
    return figure


def _spread(result: xr.Dataset) -> str:
    """The normalised cost measure over seeds."""
    seeds, (_, median, high) = result.sizes["seed"], quartiles(result.normalized_cost).values
    if seeds > 1 and np.isfinite(high):
        return f"Half of {seeds} seeds have a normalised cost measure of at most {median:.2g}, three quarters of at most {high:.2g}"
    return f"Normalised cost measure {measure_text(result)}, " + ("of one seed" if seeds == 1 else f"median (quartiles) of {seeds} seeds")


def _axes(figure: Figure, result: xr.Dataset, rows: int, columns: int, place: int) -> Any:
    scene = scene_of(result)
    ax = figure.add_subplot(rows, columns, place, projection=scene.projection)
    scene.set_up(ax, result)
    return ax


def _draw(ax: Any, result: xr.Dataset, objective: str, time: int) -> list[Any]:
    states = {colour: result[f"{objective}_{group}_trajectory"].values[:, time] for group, colour in reversed(GROUPS.items())}
    return [artist for colour, some in states.items() for artist in scene_of(result).draw(ax, result, some, colour)]


def _handles(result: xr.Dataset, some_outside: bool) -> list[Line2D]:
    points: dict[str, Any] = {"linestyle": "", "markersize": 8}
    outside = Line2D([], [], color="0.4", marker="^", markerfacecolor="none", label="outside of the box", **points)
    return [
        *(Line2D([], [], color=colour, marker=MARKERS[colour], label=f"{group} in training", **points) for group, colour in GROUPS.items()),
        Line2D([], [], color="black", marker="*", markerfacecolor="none", label="target", **points),
        *([outside] if some_outside else []),
    ]


def _finish(figure: Figure, result: xr.Dataset) -> None:
    if scene_of(result).projection == "3d":  # whose labels the layout does not know of
        figure.get_layout_engine().set(rect=(0.0, 0.05, 0.96, 0.95))  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    drawn = [line for ax in figure.get_axes() for line in ax.lines]
    some_outside = any(line.get_markerfacecolor() == "none" and line.get_marker() in MARKERS.values() for line in drawn)
    figure.legend(handles=_handles(result, some_outside), loc="outside lower center", ncols=4)
    heading(figure, f"{_quick(result)}{finding(result)}", f"{_settings(result)}; shown: seed {int(result.shown_seed)}, the median one")


def _quick(result: xr.Dataset) -> str:
    return f"QUICK LOOK ({result.attrs['iterations']:,} iterations): " if result.attrs["quick"] else ""


def _settings(result: xr.Dataset) -> str:
    diverged = int((result.policy_gradient_status == DIVERGED).sum())
    lost = f" ({diverged} diverged, counted as the worst)" if diverged else ""
    return f"{result.attrs['name']}: normalised cost measure {measure_text(result)} over {result.sizes['seed']} seeds{lost}, {SCALE}"
