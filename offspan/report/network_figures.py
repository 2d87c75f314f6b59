"""Figures of a network experiment: functions of a result."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter

from offspan.report.network import OBJECTIVES, measure_text, paper_number
from offspan.report.results import DIVERGED, quartiles
from offspan.report.scenes import MARKERS, SEEN, UNSEEN, scene

LOOKS = {"policy_gradient": ("#0072B2", "-"), "non_extrapolating": ("#D55E00", "--"), "minimal_cost": ("#009E73", ":")}
GROUPS = {"seen": SEEN, "unseen": UNSEEN}
SHOWN = ("policy_gradient", "non_extrapolating")
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
FRAMES = 50  # of an animation


def states_figure(result: xr.Dataset) -> Figure:
    """Initial states, final states under policy gradient, final states of the non-extrapolating controller.

    The form of [R24, fig:pend_and_quad_experiments_main, fig:quad_experiments_add_unseen_initial_states, fig:quad_experiments_dist].
    """
    figure = Figure(figsize=(10.5, 4.3), layout="constrained")
    panels = [
        ("initial states", "policy_gradient", 0),
        (f"final states, policy gradient\nnormalised cost measure {_shown_measure(result)}", "policy_gradient", -1),
        ("final states, non-extrapolating controller\nnormalised cost measure 1", "non_extrapolating", -1),
    ]
    for place, (title, objective, time) in enumerate(panels, start=1):
        ax = _axes(figure, result, 1, 3, place)
        _draw(ax, result, objective, time)
        ax.set_title(title, fontsize=10)
    _finish(figure, result)
    return figure


def time_figure(result: xr.Dataset) -> Figure:
    """States through time: 0, 20, …, 100 % of the horizon, for both controllers  [R24, fig:pend_experiments_states_through_time]."""
    figure = Figure(figsize=(13.0, 5.2), layout="constrained")
    horizon = int(result.attrs["horizon"])
    for row, objective in enumerate(SHOWN):
        for column, share in enumerate(SHARES):
            ax = _axes(figure, result, len(SHOWN), len(SHARES), row * len(SHARES) + column + 1)
            time = round(share * horizon)
            _draw(ax, result, objective, time)
            ax.set_title(f"{OBJECTIVES[objective]}\n{share:.0%} of the time" if column == 0 else f"{share:.0%}", fontsize=9)
            if result.attrs["problem"] == "quadcopter":
                ax.set(xticklabels=[], yticklabels=[], zticklabels=[], xlabel="", ylabel="", zlabel="")
    _finish(figure, result)
    return figure


def animation(result: xr.Dataset) -> list[Any]:
    """Both controllers side by side through time, as images."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure = Figure(figsize=(7.0, 3.8), dpi=80)
    canvas = FigureCanvasAgg(figure)
    axes = [_axes(figure, result, 1, 2, place) for place in (1, 2)]
    for ax, objective in zip(axes, SHOWN, strict=True):
        ax.set_title(OBJECTIVES[objective], fontsize=10)
    figure.legend(handles=_handles(result), loc="lower center", ncols=4, frameon=False, fontsize=8)
    seconds = figure.text(0.5, 0.95, "", ha="center", fontsize=9)
    horizon = int(result.attrs["horizon"])
    images = []
    for time in np.unique(np.linspace(0, horizon, FRAMES).round().astype(int)).tolist():
        drawn = [artist for ax, objective in zip(axes, SHOWN, strict=True) for artist in _draw(ax, result, objective, time)]
        seconds.set_text(f"{time * result.attrs['time_step']:.2f} s")
        canvas.draw()
        # One palette for all frames, so that colours do not flicker.
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        images.append(image.quantize(palette=images[0]) if images else image.quantize(128))
        for artist in drawn:
            artist.remove()
    return images


def curves_figure(result: xr.Dataset) -> Figure:
    """The cost over the states that were trained on, for each objective and seed."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for ax, (objective, (colour, _)) in zip(axes, LOOKS.items(), strict=True):
        curves = result[f"{objective}_curve"]
        for curve in curves.values:
            ax.plot(result.iteration, curve, color=colour, linewidth=0.8, alpha=max(0.15, 0.8 / len(curves) ** 0.5))
        over = "unseen" if objective == "minimal_cost" else "seen"
        ax.set_title(f"{OBJECTIVES[objective]}: J over the {over} states", fontsize=9)
        ax.set_yscale("log")
        ax.set_xlabel("iteration")
        ax.locator_params(axis="x", nbins=4)
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("cost J; one line a seed")
    figure.suptitle(_caption(result), fontsize=9)
    return figure


def unseen_figure(result: xr.Dataset) -> Figure:
    """The cost from each unseen state: every seed of policy gradient and its median, beside the two controllers compared with."""
    figure = Figure(figsize=(max(8.5, 1.0 + 0.8 * result.sizes["unseen"]), 4.0), layout="constrained")
    ax = figure.subplots()
    places = np.arange(result.sizes["unseen"])
    costs = result.policy_gradient_unseen_cost.where(result.policy_gradient_status != DIVERGED, np.inf)
    jitter = np.linspace(-0.12, 0.12, len(costs))
    for offset, of_seed in zip(jitter, costs.values, strict=True):
        ax.plot(places + offset, of_seed, ".", color=LOOKS["policy_gradient"][0], markersize=4, alpha=0.5)
    median = quartiles(costs).sel(quantile=0.5).values
    ax.plot(
        places,
        median,
        "_",
        color=LOOKS["policy_gradient"][0],
        markersize=24,
        markeredgewidth=2,
        label="policy gradient: median, dots are seeds",
    )
    baseline = result.non_extrapolating_unseen_cost.sel(baseline_seed=int(result.shown_baseline_seed)).values
    ax.plot(places, baseline, "^", color=LOOKS["non_extrapolating"][0], label="non-extrapolating")
    least = result.minimal_cost_unseen_cost.sel(baseline_seed=int(result.least_seed)).values
    ax.plot(places, least, "s", color=LOOKS["minimal_cost"][0], markerfacecolor="none", label="trained on the unseen states")
    ax.set_yscale("log")
    shown = 1 if result.attrs["problem"] == "pendulum" else 3
    ax.set_xticks(
        places, [", ".join(f"{value:g}" for value in np.round(state[:shown], 3)) for state in result.unseen_state.values], fontsize=8
    )
    ax.set_xlabel("unseen initial state: angle θ" if shown == 1 else "unseen initial state: position x, y, z")
    ax.tick_params(axis="x", rotation=0 if shown == 1 or len(places) < 6 else 25)
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.set_ylabel("cost J from that state")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle(_caption(result), fontsize=9)
    return figure


def distribution_figure(result: xr.Dataset) -> Figure:
    """The share of seeds whose normalised cost measure is at most a value, with the quartiles and the paper's number."""
    measures = np.sort(result.normalized_cost.values)
    finite = measures[np.isfinite(measures)]
    # A logarithmic axis has no place for a seed that beats J̃*(U), which is but an estimate: such are drawn at its left end.
    finite = np.maximum(finite, finite[finite > 0].min(initial=1.0) / 2)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    ax = figure.subplots()
    ax.step(finite, np.arange(1, len(finite) + 1) / len(measures), where="post", color=LOOKS["policy_gradient"][0])
    for share, value in zip((0.25, 0.5, 0.75), quartiles(result.normalized_cost).values, strict=True):
        if np.isfinite(value):
            ax.plot(value, share, "o", color=LOOKS["policy_gradient"][0], markersize=5)
            ax.annotate(f"{share:.0%}: {value:.2g}", (value, share), xytext=(6, -10), textcoords="offset points", fontsize=8)
    if (said := paper_number(result)) is not None:
        ax.axvline(said, color="black", linestyle="--", linewidth=0.9)
        share = np.mean(measures <= said)
        ax.text(
            said,
            1.02,
            f"the paper: {said:g}  ({share:.0%} of seeds are at or below)",
            ha="center",
            fontsize=8,
            transform=ax.get_xaxis_transform(),
        )
    ax.axvline(1.0, color="0.6", linestyle=":", linewidth=0.9)
    ax.set_xscale("log")
    ax.set_ylim(0.0, 1.0)
    diverged = int((result.policy_gradient_status == DIVERGED).sum())
    ax.set_xlabel(
        "normalised cost measure of a seed: 1 = no extrapolation, 0 = perfect" + (f"; {diverged} diverged" if diverged else ""), fontsize=9
    )
    ax.set_ylabel("share of seeds at or below")
    ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(_caption(result), fontsize=9)
    return figure


def _axes(figure: Figure, result: xr.Dataset, rows: int, columns: int, place: int) -> Any:
    view = _scene(result)
    ax = figure.add_subplot(rows, columns, place, projection=view.projection)
    view.set_up(ax, result.target.values, np.concatenate([result.seen_state.values, result.unseen_state.values]))
    return ax


def _draw(ax: Any, result: xr.Dataset, objective: str, time: int) -> list[Any]:
    view = _scene(result)
    return [
        artist
        for group, colour in reversed(GROUPS.items())
        for artist in view.draw(ax, result[f"{objective}_{group}_trajectory"].values[:, time], colour)
    ]


def _scene(result: xr.Dataset):
    return scene(result.attrs["problem"], result.attrs.get("rotation", "paper"))


def _handles(result: xr.Dataset) -> list[Line2D]:
    points: dict[str, Any] = {"linestyle": "", "markersize": 8}
    outside = Line2D([], [], color="0.4", marker="^", markerfacecolor="none", label="outside of the box", **points)
    return [
        *(Line2D([], [], color=colour, marker=MARKERS[colour], label=f"{group} in training", **points) for group, colour in GROUPS.items()),
        Line2D([], [], color="black", marker="*", markerfacecolor="none", label="target", **points),
        *([outside] if result.attrs["problem"] == "quadcopter" else []),
    ]


def _finish(figure: Figure, result: xr.Dataset) -> None:
    figure.get_layout_engine().set(rect=(0.0, 0.0, 1.0, 0.95))  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    figure.legend(handles=_handles(result), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{_caption(result)}; shown: seed {int(result.shown_seed)}", fontsize=9)


def _shown_measure(result: xr.Dataset) -> str:
    return f"{float(result.normalized_cost.sel(seed=int(result.shown_seed))):.3g}"


def _caption(result: xr.Dataset) -> str:
    quick = f"QUICK LOOK ({result.attrs['iterations']:,} iterations): " if result.attrs["quick"] else ""
    return f"{quick}{result.attrs['name']}: normalised cost measure {measure_text(result)} over {result.sizes['seed']} seeds"
