"""The page of an audit: where a controller works, where it fails, and which states to add."""

import datetime
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import offspan
from offspan.audit import Audit, Outcome
from offspan.files import atomic_write_text
from offspan.maps import ExtrapolationMap
from offspan.report.drawing import (
    CATEGORIES,
    DASHES,
    GREEN,
    INKY,
    LOWER,
    OLIVE,
    heading,
    legend_below,
    log_axis,
    styled,
    subplots,
    verbatim,
)
from offspan.report.maps import LOOKS, draw_region
from offspan.report.page import TEMPLATES, Picture, check_target, picture
from offspan.report.tables import Table, number
from offspan.suggestions import NEAR

FAR = 30.0  # times as far as most of them go: beyond that, trajectories leave the picture
MARKS: dict[str, dict[str, Any]] = {
    "seen": LOOKS["seen"],
    "worst": {"marker": "X", "facecolor": INKY, "edgecolor": "white"},
    "to add": {"marker": "D", "facecolor": OLIVE, "edgecolor": "black"},
}


def write_page(audit: Audit, path: str | os.PathLike, title: str = "Audit of a controller", policy: str = "", system: str = "") -> None:
    """`policy` and `system` are words for what was audited, such as the file and the environment that a spec names."""
    target = Path(path)
    check_target(target)
    atomic_write_text(target, page(audit, title, policy, system))


def page(audit: Audit, title: str, policy: str = "", system: str = "") -> str:
    others = {
        f"Beside it: {audit.reference_name[0].lower()}{audit.reference_name[1:]}" if audit.reference else "": audit.reference,
        "Trained again, with these states": audit.retrained,
    }
    suggested = audit.suggested
    return TEMPLATES.get_template("audit.html.jinja").render(
        title=title,
        version=offspan.__version__,
        subject={
            "policy": "; ".join(filter(None, [policy, _policy(audit.outcome.controller)])),
            "system": "; ".join(filter(None, [system, audit.system])),
            "date": datetime.date.today().isoformat(),
        },
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


def _policy(controller: Any) -> str:
    """What it is, by its class and its numbers."""
    count = sum(leaf.size for leaf in jax.tree.leaves(controller) if hasattr(leaf, "size"))
    return f"{type(controller).__name__}, {count:,} parameters" if count else getattr(controller, "__name__", type(controller).__name__)


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
    return Table("Share that succeeds, and what it costs", ["", "all", "near", "far", "median J", "90% of J ≤"], rows, note)


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
    for which, (cost, _) in enumerate(outcome.maps):
        names = " and ".join(audit.coordinates[d] for d in cost.coordinates)
        others = "" if len(cost.coordinates) == len(audit.coordinates) else "; the other coordinates are held"
        found.append(picture(map_figure(audit, outcome, which), f"Success, and cost J, over {names}{others}."))
    return found


@styled
def map_figure(audit: Audit, outcome: Outcome, which: int = 0) -> Figure:
    """One of the outcome's maps: success at the left, cost at the right, with the states that matter marked."""
    cost, success = outcome.maps[which]
    figure, axes = subplots(10.0, 4.9 if len(cost.coordinates) == 2 else 4.0, 1, 2, sharex=True)
    named = {}
    if len(cost.coordinates) == 2:
        for ax, found in zip(axes, (success, cost), strict=True):
            named |= draw_region(ax, found)
    else:
        _lines(axes, cost, success)
    for ax, name in zip(axes, ("success", "cost J of the initial state"), strict=True):
        ax.set(xlabel=verbatim(audit.coordinates[cost.coordinates[0]]), title=name)
        if len(cost.coordinates) == 2:
            ax.set_ylabel(verbatim(audit.coordinates[cost.coordinates[1]]))
            _mark(ax, audit, cost.coordinates)
    if len(cost.coordinates) == 2:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend([*handles, *named.values()], [*labels, *named], loc="outside lower center", ncols=6)
    said = f"{outcome.share:.0%} of {len(audit.states):,} random states of the region succeed, {success.values.mean():.0%} of this grid"
    heading(figure, said, f"Success: {audit.criterion}")
    return figure


def _lines(axes: Any, cost: ExtrapolationMap, success: ExtrapolationMap) -> None:
    for ax, values in zip(axes, (success.values, cost.values), strict=True):
        ax.plot(cost.axes[0], np.where(np.isfinite(values), values, np.nan), color=GREEN)
    if set(np.unique(success.values)) <= {0.0, 1.0}:
        axes[0].set_yticks([0, 1], ["fails", "succeeds"])
    finite = cost.values[np.isfinite(cost.values)]
    if len(finite) and 0 < finite.min() < finite.max() / 10:
        log_axis(axes[1], "y")
    axes[1].set_ylabel(LOWER)


def _mark(ax: Axes, audit: Audit, coordinates: tuple[int, ...]) -> None:
    groups = {
        "seen": audit.seen,
        "worst": np.stack([np.asarray(one.states[0]) for one in audit.worst]),
        "to add": audit.suggested.states,
    }
    for name, states in groups.items():
        if len(states):
            ax.scatter(*states[:, list(coordinates)].T, s=56, linewidth=0.9, label=name, zorder=3, clip_on=False, **MARKS[name])


@styled
def curve_figure(audit: Audit) -> Figure:
    figure, ax = subplots(6.4, 3.8)
    ax.plot(audit.coverage.distance, 100 * audit.coverage.success, color=GREEN, marker="o")
    ax.axvline(NEAR, color="0.6", linewidth=0.8, zorder=0)
    ax.annotate("near →| far", (NEAR, 0.01), (0, 2), ("data", "axes fraction"), "offset points", ha="center", fontsize=8, alpha=0.75)
    ax.set(
        xlabel="distance to what training visits [widths of the region]", ylabel="succeeds [%], better ↑", ylim=(-3, 103), xlim=(0, None)
    )
    near, far = (f"{share:.0%}" if share == share else "–" for share in (audit.near, audit.far))
    heading(figure, f"{near} of what is near to what training visits succeeds, {far} of the rest")
    return figure


@styled
def trajectory_figure(audit: Audit) -> Figure:
    """At most six coordinates, those of the region first."""
    shown = list(dict.fromkeys([*audit.region, *range(len(audit.coordinates))]))[:6]
    figure, axes = subplots(10.0, 2.2 * len(shown) + 1.0, len(shown), 1, sharex=True, squeeze=False)
    within = np.ones((len(audit.worst), len(audit.worst[0].states)), bool)  # until a trajectory leaves the picture
    leaving = np.zeros(len(within), bool)
    for ax, d in zip(axes[:, 0], shown, strict=True):
        values = np.stack([np.asarray(one.states)[:, d] for one in audit.worst])
        low, high = _window(values, within, audit.region.get(d))
        inside = np.logical_and.accumulate((values >= low) & (values <= high), axis=1)
        drawn = np.clip(values, 2 * low - high, 2 * high - low)
        for i, (line, steps) in enumerate(zip(drawn, inside.sum(axis=1), strict=True)):
            ax.plot(line[: steps + 1], color=CATEGORIES[i % 8], linestyle=DASHES[i % 4], label=f"{i + 1}")
        ax.set_ylabel(verbatim(audit.coordinates[d]))
        if not inside.all():
            ax.set_ylim(low, high)
        leaving |= ~inside[:, -1]
        within &= inside
    axes[-1, 0].set_xlabel("time step h")
    legend_below(axes[0, 0], len(audit.worst), title="worst state")
    ends = f": {leaving.sum()} of {len(leaving)} grow far beyond the region" if leaving.any() else ""
    heading(figure, f"Trajectories from the worst states{ends}", "lines that end at an edge go on beyond it" if leaving.any() else "")
    return figure


def _window(values: np.ndarray, within: np.ndarray, interval: tuple[float, float] | None) -> tuple[float, float]:
    """What an axis shows of trajectories (k, t): all, or where some grow beyond all bounds, their starts, the interval of the region, and
    on both sides twice as far as most go `within` the axes above, but no more than ten times the width of the interval."""
    ends = [*values[:, 0], *(interval or ())]
    low, high = float(min(ends)), float(max(ends))
    away = np.abs(np.asarray(values, float) - values[:, :1])
    far = np.median(away[within & np.isfinite(away)])
    reach = max(high - low, min(far, 10 * (high - low) if interval else np.inf), 1e-9)
    if np.all(away <= FAR * reach):
        return float(values.min()), float(values.max())
    return low - 2 * reach, high + 2 * reach
