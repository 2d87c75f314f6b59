"""The report of a network experiment: how well do controllers do from states that they were not trained on?"""

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from offspan.report.results import BLUE, DIVERGED, GREEN, VERMILLION, Report, iteration_axis, legend_below, quartiles, styled, subplots
from offspan.report.scenes import MARKERS, SEEN, UNSEEN, scene_of, system_of
from offspan.report.tables import Table, number

OBJECTIVES = {"policy_gradient": "policy gradient", "non_extrapolating": "non-extrapolating", "minimal_cost": "trained on unseen"}
COLOURS = {"policy_gradient": BLUE, "non_extrapolating": VERMILLION, "minimal_cost": GREEN}
SHOWN = ("policy_gradient", "non_extrapolating")  # with trajectories
GROUPS = {"seen": SEEN, "unseen": UNSEEN}
PAPER = {"pendulum": 0.003, "quadcopter-below": 0.032}  # the medians of five seeds that [R24, fig:pend_and_quad_experiments_main] prints
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the horizon
FRAMES = 50  # of an animation


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

    captions = {
        "states": "Initial states; final states under policy gradient; final states under the non-extrapolating controller.",
        "through-time": "States at six moments, under policy gradient and under the non-extrapolating controller.",
        "curves": "Costs against iterations, of every seed of the three objectives.",
        "unseen": "The cost from each unseen state: policy gradient, the non-extrapolating controller, and one that was trained there.",
        "distribution": "The share of seeds at or below each value of the normalised cost measure.",
    }
    tables = {"table": network_table(result), "states": states_table(result)}
    return Report(tables, data, captions, draw, lambda: {"trajectories": animation(result)})


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
    figure = Figure(figsize=(10.5, 4.3))
    measure = f"{float(result.normalized_cost.sel(seed=int(result.shown_seed))):.3g}"
    panels = [
        ("initial states", "policy_gradient", 0),
        (f"final states, policy gradient\nnormalised cost measure {measure}", "policy_gradient", -1),
        ("final states, non-extrapolating controller\nnormalised cost measure 1", "non_extrapolating", -1),
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
    figure = Figure(figsize=(13.0, 5.2))
    for row, objective in enumerate(SHOWN):
        for column, share in enumerate(SHARES):
            ax = _axes(figure, result, len(SHOWN), len(SHARES), row * len(SHARES) + column + 1)
            _draw(ax, result, objective, round(share * int(result.attrs["horizon"])))
            ax.set_title(f"{OBJECTIVES[objective]}\n{share:.0%} of the time" if column == 0 else f"{share:.0%}", fontsize=9)
            scene_of(result).compact(ax)
    _finish(figure, result)
    return figure


@styled
def animation(result: xr.Dataset) -> list[Any]:
    """Both controllers side by side through time, as images."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure = Figure(figsize=(7.0, 3.8), dpi=80, layout="none")  # pyright: ignore[reportArgumentType]
    canvas = FigureCanvasAgg(figure)
    axes = {objective: _axes(figure, result, 1, 2, place) for place, objective in enumerate(SHOWN, start=1)}
    for objective, ax in axes.items():
        ax.set_title(OBJECTIVES[objective])
    figure.legend(handles=_handles(result), loc="lower center", ncols=4, fontsize=8)
    seconds = figure.text(0.5, 0.95, "", ha="center", fontsize=9)
    images = []
    for time in np.unique(np.linspace(0, int(result.attrs["horizon"]), FRAMES).round().astype(int)).tolist():
        drawn = [artist for objective, ax in axes.items() for artist in _draw(ax, result, objective, time)]
        step = result.attrs.get("time_step")
        seconds.set_text(f"time step {time}" if step is None else f"{time * step:.2f} s")
        canvas.draw()
        # One palette for all frames, so that colours do not flicker.
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        images.append(image.quantize(palette=images[0]) if images else image.quantize(128))
        for artist in drawn:
            artist.remove()
    return images


@styled
def curves_figure(result: xr.Dataset) -> Figure:
    """The cost over the states that were trained on, for each objective and seed."""
    figure, axes = subplots(10.5, 3.4, 1, 3, sharey=True)
    for ax, (objective, colour) in zip(axes, COLOURS.items(), strict=True):
        curves = result[f"{objective}_curve"].values
        ax.plot(result.iteration, curves.T, color=colour, linewidth=0.8, alpha=max(0.15, 0.8 / len(curves) ** 0.5))
        over = "unseen" if objective == "minimal_cost" else "seen"
        ax.set_title(f"{OBJECTIVES[objective]}: J over the {over} states", fontsize=9)
        ax.set_yscale("log")
        iteration_axis(ax, 4)
    axes[0].set_ylabel("cost J; one line a seed")
    figure.suptitle(_heading(result))
    return figure


@styled
def unseen_figure(result: xr.Dataset) -> Figure:
    """The cost from each unseen state: every seed of policy gradient and its median, beside the two controllers compared with."""
    figure, ax = subplots(max(8.5, 1.0 + 0.8 * result.sizes["unseen"]), 4.0)
    places = np.arange(result.sizes["unseen"])
    costs = result.policy_gradient_unseen_cost.where(result.policy_gradient_status != DIVERGED, np.inf)
    for offset, of_seed in zip(np.linspace(-0.12, 0.12, len(costs)), costs.values, strict=True):
        ax.plot(places + offset, of_seed, ".", color=COLOURS["policy_gradient"], markersize=4, alpha=0.5)
    dash = {"color": COLOURS["policy_gradient"], "markersize": 24, "markeredgewidth": 2}
    ax.plot(places, quartiles(costs).sel(quantile=0.5), "_", label="policy gradient: median, dots are seeds", **dash)
    baseline = result.non_extrapolating_unseen_cost.sel(baseline_seed=int(result.shown_baseline_seed))
    ax.plot(places, baseline, "^", color=COLOURS["non_extrapolating"], label="non-extrapolating")
    least = result.minimal_cost_unseen_cost.sel(baseline_seed=int(result.least_seed))
    ax.plot(places, least, "s", color=COLOURS["minimal_cost"], markerfacecolor="none", label="trained on the unseen states")
    ax.set_yscale("log")
    system = system_of(result)
    states = np.round(result.unseen_state.values[:, list(system.position)], 3)
    ax.set_xticks(places, [", ".join(f"{value:g}" for value in state) for state in states], fontsize=8)
    ax.set_xlabel("unseen initial state: " + ", ".join(system.coordinates[d].label for d in system.position))
    ax.tick_params(axis="x", rotation=0 if len(system.position) == 1 or len(places) < 6 else 25)
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.set_ylabel("cost J from that state")
    legend_below(ax, 3)
    figure.suptitle(_heading(result))
    return figure


@styled
def distribution_figure(result: xr.Dataset) -> Figure:
    """The share of seeds whose normalised cost measure is at most a value, with the quartiles and the paper's number."""
    measures = np.sort(result.normalized_cost.values)
    finite = measures[np.isfinite(measures)]
    # A logarithmic axis has no place for a seed that beats J̃*(U), which is but an estimate: such are drawn at its left end.
    finite = np.maximum(finite, finite[finite > 0].min(initial=1.0) / 2)
    figure, ax = subplots(6.4, 4.0)
    ax.step(finite, np.arange(1, len(finite) + 1) / len(measures), where="post", color=BLUE)
    for share, value in zip((0.25, 0.5, 0.75), quartiles(result.normalized_cost).values, strict=True):
        if np.isfinite(value):
            ax.plot(value, share, "o", color=BLUE, markersize=5)
            ax.annotate(f"{share:.0%}: {value:.2g}", (value, share), xytext=(6, -10), textcoords="offset points", fontsize=8)
    if (said := paper_number(result)) is not None:
        ax.axvline(said, color="black", linestyle="--", linewidth=0.9)
        text = f"the paper: {said:g}  ({np.mean(measures <= said):.0%} of seeds are at or below)"
        ax.text(said, 1.02, text, ha="center", fontsize=8, transform=ax.get_xaxis_transform())
    ax.axvline(1.0, color="0.6", linestyle=":", linewidth=0.9)
    ax.set_xscale("log")
    ax.set_ylim(0.0, 1.0)
    diverged = int((result.policy_gradient_status == DIVERGED).sum())
    label = "normalised cost measure of a seed: 1 = no extrapolation, 0 = perfect"
    ax.set_xlabel(label + (f"; {diverged} diverged" if diverged else ""), fontsize=9)
    ax.set_ylabel("share of seeds at or below")
    figure.suptitle(_heading(result))
    return figure


def _axes(figure: Figure, result: xr.Dataset, rows: int, columns: int, place: int) -> Any:
    scene = scene_of(result)
    ax = figure.add_subplot(rows, columns, place, projection=scene.projection)
    scene.set_up(ax, result)
    return ax


def _draw(ax: Any, result: xr.Dataset, objective: str, time: int) -> list[Any]:
    states = {colour: result[f"{objective}_{group}_trajectory"].values[:, time] for group, colour in reversed(GROUPS.items())}
    return [artist for colour, some in states.items() for artist in scene_of(result).draw(ax, result, some, colour)]


def _handles(result: xr.Dataset) -> list[Line2D]:
    points: dict[str, Any] = {"linestyle": "", "markersize": 8}
    outside = Line2D([], [], color="0.4", marker="^", markerfacecolor="none", label="outside of the box", **points)
    return [
        *(Line2D([], [], color=colour, marker=MARKERS[colour], label=f"{group} in training", **points) for group, colour in GROUPS.items()),
        Line2D([], [], color="black", marker="*", markerfacecolor="none", label="target", **points),
        *([outside] if scene_of(result).has_walls else []),
    ]


def _finish(figure: Figure, result: xr.Dataset) -> None:
    figure.get_layout_engine().set(rect=(0.0, 0.0, 1.0, 0.95))  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    figure.legend(handles=_handles(result), loc="outside lower center", ncols=4)
    figure.suptitle(f"{_heading(result)}; shown: seed {int(result.shown_seed)}")


def _heading(result: xr.Dataset) -> str:
    quick = f"QUICK LOOK ({result.attrs['iterations']:,} iterations): " if result.attrs["quick"] else ""
    return f"{quick}{result.attrs['name']}: normalised cost measure {measure_text(result)} over {result.sizes['seed']} seeds"
