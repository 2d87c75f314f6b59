"""The page of an audit: where a controller works, where it fails, and which states to add."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import offspan
from offspan.audit import Audit, Outcome
from offspan.files import atomic_write_text
from offspan.maps import ExtrapolationMap
from offspan.report.page import TEMPLATES, Picture, check_target, picture
from offspan.report.results import BLUE, COLOURS, VERMILLION, legend_below, styled, subplots
from offspan.report.tables import Table, number
from offspan.report.ways import DASHES
from offspan.suggestions import NEAR

MARKS: dict[str, dict[str, Any]] = {
    "trained from": {"marker": "o", "facecolor": "white"},
    "worst": {"marker": "X", "facecolor": VERMILLION},
    "to add": {"marker": "^", "facecolor": "#F0E442"},
}


def write_page(audit: Audit, path: str | os.PathLike, title: str = "Audit of a controller") -> None:
    target = Path(path)
    check_target(target)
    atomic_write_text(target, page(audit, title))


def page(audit: Audit, title: str) -> str:
    others = {
        f"Beside it: {audit.reference_name[0].lower()}{audit.reference_name[1:]}" if audit.reference else "": audit.reference,
        "Trained again, with these states": audit.retrained,
    }
    suggested = audit.suggested
    return TEMPLATES.get_template("audit.html.jinja").render(
        title=title,
        version=offspan.__version__,
        headline=str(audit),
        summary=summary_table(audit),
        maps=map_pictures(audit, audit.outcome),
        curve=picture(
            curve_figure(audit),
            "Share that succeeds against the distance to the states that training visits, in widths of the region; Spearman's rank "
            f"correlation between distance and failure is {number(audit.coverage.correlation, '.2f')}.",
        ),
        worst=worst_table(audit),
        trajectories=picture(trajectory_figure(audit), "The trajectories from the worst states, each coordinate against the time step."),
        suggested={"note": suggested.note, "rows": len(suggested.states), "table": _states_table("States to add", audit, suggested.states)},
        others={heading: map_pictures(audit, outcome) for heading, outcome in others.items() if outcome is not None},
    )


def summary_table(audit: Audit) -> Table:
    """A row for each controller."""
    near = audit.distances <= NEAR
    controllers = {"this controller": audit.outcome, audit.reference_name: audit.reference, "trained again": audit.retrained}
    rows = []
    for name, outcome in controllers.items():
        if outcome is not None:
            shares = [outcome.successes, outcome.successes[near], outcome.successes[~near]]
            quantiles = np.quantile(np.where(np.isfinite(outcome.costs), outcome.costs, np.finfo(float).max), [0.5, 0.9])
            costs = [number(value if value < 1e300 else np.inf, ".3g") for value in quantiles]
            rows.append([name, *(f"{one.mean():.1%}" if len(one) else "–" for one in shares), *costs])
    region = ", ".join(f"{audit.coordinates[d]} in [{low:.4g}, {high:.4g}]" for d, (low, high) in audit.region.items())
    note = (
        f"{len(audit.states):,} states drawn uniformly from {region}. Success: {audit.criterion}. Near: within {NEAR:.0%} of its width "
        "of a state that the controller visits from the states it was trained on."
    )
    return Table("Share that succeeds, and what it costs", ["", "all", "near", "far", "median J", "90 % quantile of J"], rows, note)


def worst_table(audit: Audit) -> Table:
    states = np.stack([np.asarray(one.states[0]) for one in audit.worst])
    table = _states_table("The worst initial states", audit, states)
    costs = [number(value, ".4g") for value in audit.worst_costs]
    return table._replace(headings=[*table.headings, "J"], rows=[[*row, cost] for row, cost in zip(table.rows, costs, strict=True)])


def _states_table(title: str, audit: Audit, states: np.ndarray) -> Table:
    rows = [[str(i + 1), *(f"{value:.4g}" for value in state)] for i, state in enumerate(states)]
    return Table(title, ["", *audit.coordinates], rows)


def map_pictures(audit: Audit, outcome: Outcome) -> list[Picture]:
    found = []
    for cost, success in outcome.maps:
        names = " and ".join(audit.coordinates[d] for d in cost.coordinates)
        others = "" if len(cost.coordinates) == len(audit.coordinates) else "; the other coordinates are held"
        found.append(picture(map_figure(audit, cost, success), f"Success, and cost J, over {names}{others}."))
    return found


@styled
def map_figure(audit: Audit, cost: ExtrapolationMap, success: ExtrapolationMap) -> Figure:
    """Success at the left, cost at the right, with the states that matter marked."""
    figure, axes = subplots(10.0, 4.2, 1, 2, sharex=True)
    (_regions if len(cost.coordinates) == 2 else _lines)(axes, cost, success)
    for ax, name in zip(axes, ("success", "cost J of the initial state"), strict=True):
        ax.set(xlabel=audit.coordinates[cost.coordinates[0]], title=name)
        if len(cost.coordinates) == 2:
            ax.set_ylabel(audit.coordinates[cost.coordinates[1]])
            _mark(ax, audit, cost.coordinates)
    if len(cost.coordinates) == 2:
        legend_below(axes[0], 3)
    return figure


def _regions(axes: Any, cost: ExtrapolationMap, success: ExtrapolationMap) -> None:
    finite = cost.values[np.isfinite(cost.values)]
    logarithmic = len(finite) > 0 and 0 < finite.min() < finite.max() / 10
    norm = LogNorm(finite.min(), finite.max()) if logarithmic else None
    axes[1].set_facecolor(VERMILLION)  # shows where the cost overflows
    for ax, values, look in (
        (axes[0], success.values, {"cmap": "cividis", "vmin": 0, "vmax": 1}),
        (axes[1], np.where(np.isfinite(cost.values), cost.values, np.nan), {"cmap": "cividis", "norm": norm}),
    ):
        image = ax.pcolormesh(*cost.axes, values.T, shading="nearest", rasterized=True, **look)
        ax.figure.colorbar(image, ax=ax)
        ax.spines[:].set_visible(True)


def _lines(axes: Any, cost: ExtrapolationMap, success: ExtrapolationMap) -> None:
    for ax, values in zip(axes, (success.values, cost.values), strict=True):
        ax.plot(cost.axes[0], np.where(np.isfinite(values), values, np.nan), color=BLUE)


def _mark(ax: Axes, audit: Audit, coordinates: tuple[int, ...]) -> None:
    groups = {
        "trained from": audit.seen,
        "worst": np.stack([np.asarray(one.states[0]) for one in audit.worst]),
        "to add": audit.suggested.states,
    }
    for name, states in groups.items():
        if len(states):
            ax.scatter(
                *states[:, list(coordinates)].T, s=52, edgecolor="black", linewidth=0.9, label=name, zorder=3, clip_on=False, **MARKS[name]
            )


@styled
def curve_figure(audit: Audit) -> Figure:
    figure, ax = subplots(6.0, 3.4)
    ax.plot(audit.coverage.distance, 100 * audit.coverage.success, color=BLUE, marker="o")
    ax.axvline(NEAR, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xlabel="distance to what training visits [widths of the region]", ylabel="succeeds [%]", ylim=(-3, 103), xlim=(0, None))
    return figure


@styled
def trajectory_figure(audit: Audit) -> Figure:
    """At most six coordinates, those of the region first."""
    shown = list(dict.fromkeys([*audit.region, *range(len(audit.coordinates))]))[:6]
    figure, axes = subplots(10.0, 2.2 * len(shown) + 0.6, len(shown), 1, sharex=True, squeeze=False)
    for ax, d in zip(axes[:, 0], shown, strict=True):
        for i, one in enumerate(audit.worst):
            ax.plot(np.asarray(one.states)[:, d], color=COLOURS[i % 8], linestyle=DASHES[i % 4], label=f"{i + 1}")
        ax.set_ylabel(audit.coordinates[d])
    axes[-1, 0].set_xlabel("time step h")
    legend_below(axes[0, 0], len(audit.worst), title="worst state")
    return figure
