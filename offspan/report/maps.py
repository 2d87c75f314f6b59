"""Pictures of extrapolation maps."""

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from offspan.errors import OffspanError
from offspan.maps import ExtrapolationMap
from offspan.report.drawing import GREEN, INKY, LOWER, SEEN, UNSEEN, heading, log_axis, styled, subplots, verbatim

FAILS, WORKS = "#5A5A5A", "#D6EFE6"  # two colours that also differ in grey
LOOKS: dict[str, dict[str, Any]] = {
    "seen": {"marker": "o", "facecolor": SEEN, "edgecolor": "white"},
    "unseen": {"marker": "^", "facecolor": UNSEEN, "edgecolor": "white"},
}
OVERFLOWS: dict[str, Any] = {"facecolor": "white", "edgecolor": "0.35", "hatch": "xxxx", "linewidth": 0}
LOWEST = 0.05  # the share of the cheapest states that colours do not tell apart: about the target, costs go to 0
RANGE = 1e6  # of costs that colours tell apart
GREYS = matplotlib.colormaps["Greys"].with_extremes(over=INKY)


@styled
def map_figure(
    found: ExtrapolationMap,
    seen: np.ndarray,
    *,
    unseen: np.ndarray | None = None,
    names: list[str],
    title: str = "",
    target: np.ndarray | None = None,
    success: ExtrapolationMap | None = None,
    criterion: str = "succeed",
    unseen_success: np.ndarray | None = None,
) -> Figure:
    """Cost or success over one or two coordinates, labelled by `names`, with the seen states (s, n), the unseen ones and the target marked.

    States are marked by these coordinates alone, whatever their others are. With `success`, a map over the same coordinates, what fails
    is hatched, and unseen states that do, by `unseen_success`, are crossed. `criterion` says what states that succeed do.
    """
    if len(names) != len(found.axes):
        raise OffspanError(
            f"map_figure: `names` is {names!r}, but the map has the coordinates {found.coordinates}; name these, in their order."
        )
    success = found if found.of_success else success
    figure, ax = subplots(6.8, 5.0 if len(found.axes) == 2 else 4.2)
    if len(found.axes) == 2:
        named = draw_region(ax, found, None if success is found else success)
        ax.set(xlabel=verbatim(names[0]), ylabel=verbatim(names[1]))
    else:
        named = _draw_line(ax, found, names)
    marked = {"seen": seen, **({} if unseen is None else {"unseen": unseen})}
    for label, states in marked.items():
        states = np.atleast_2d(np.asarray(states))
        _mark(ax, found, states, s=52, linewidth=1.0, label=_counted(label, states[:, list(found.coordinates)]), **LOOKS[label])
    if target is not None:
        _mark(ax, found, np.atleast_2d(target), s=110, marker="*", facecolor="none", edgecolor="black", linewidth=1.2, label="target")
    if unseen is not None and unseen_success is not None and not np.all(unseen_success):
        crosses = {"s": 170, "marker": "x", "color": "black", "linewidth": 1.8, "zorder": 2.5, "label": "unseen, fails"}
        _mark(ax, found, np.asarray(unseen)[~unseen_success], **crosses, path_effects=[withStroke(linewidth=4, foreground="white")])
    handles, labels = ax.get_legend_handles_labels()
    figure.legend([*handles, *named.values()], [*labels, *named], loc="outside lower center", ncols=3)
    heading(figure, _finding(success, criterion, unseen_success), title)
    return figure


def _finding(success: ExtrapolationMap | None, criterion: str, unseen_success: np.ndarray | None) -> str:
    """How many of the unseen states, and how much of the map, succeed."""
    if success is None:
        return f"The cost of each initial state, {LOWER}"
    parts = [f"{np.mean(success.values):.0%} of the states on the map"]
    if unseen_success is not None and len(unseen_success):
        parts.insert(0, f"{np.sum(unseen_success)} of {len(unseen_success)} unseen states")
    return f"{' and '.join(parts)} {criterion}"


def _counted(label: str, places: np.ndarray) -> str:
    """With their numbers, where several states that differ in other coordinates share a place."""
    distinct = len(np.unique(places.round(6), axis=0))
    return label if distinct == len(places) else f"{label}: {len(places)} states at {distinct} places"


def _mark(ax: Axes, found: ExtrapolationMap, states: np.ndarray, **look: Any) -> None:
    places = states[:, list(found.coordinates)]
    if len(found.axes) == 1:
        places, look = np.column_stack([places[:, 0], np.full(len(places), 0.03)]), {**look, "transform": ax.get_xaxis_transform()}
    ax.scatter(*places.T, **{"zorder": 3, "clip_on": False, **look})


def draw_region(ax: Axes, found: ExtrapolationMap, success: ExtrapolationMap | None = None) -> dict[str, Patch]:
    """A map over two coordinates; the colours that have names, for a legend, where there is no colour bar."""
    ax.spines[:].set_visible(True)
    mesh: dict[str, Any] = {"shading": "nearest", "rasterized": True}
    if found.of_success and set(np.unique(found.values)) <= {0.0, 1.0}:
        ax.pcolormesh(*found.axes, found.values.T, cmap=ListedColormap([FAILS, WORKS]), vmin=0, vmax=1, **mesh)
        return {"succeeds": Patch(facecolor=WORKS, edgecolor="0.5"), "fails": Patch(facecolor=FAILS)}
    if found.of_success:
        image = ax.pcolormesh(*found.axes, found.values.T, cmap="Greys_r", vmin=0, vmax=1, **mesh)
        ax.figure.colorbar(image, ax=ax, label="share that succeeds")
        return {}
    finite = found.values[np.isfinite(found.values)]
    positive = len(finite) > 0 and 0 < finite.min() < finite.max()
    norm, extend = None, "neither"
    if positive:
        reaches_far = success is not None or finite.max() > RANGE * finite.min()
        low = float(np.quantile(finite, LOWEST)) if reaches_far else finite.min()
        high = min(finite.max(), RANGE * low)
        ends = (low > finite.min(), high < finite.max())
        norm, extend = LogNorm(low, high), {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[ends]
    ax.patch.set(**OVERFLOWS)
    image = ax.pcolormesh(*found.axes, np.where(np.isfinite(found.values), found.values, np.nan).T, cmap=GREYS, norm=norm, **mesh)
    bar = ax.figure.colorbar(image, ax=ax, label=f"cost J of the initial state, {LOWER}", extend=extend)
    if positive:
        log_axis(bar.ax, "y")
        bar.ax.yaxis.set_tick_params(which="minor", length=0)
    named = {}
    if success is not None and 0 < success.values.mean() < 1:
        ax.contour(*success.axes, success.values.T, levels=[0.5], colors=[GREEN], linewidths=1.8)
        failing = ax.contourf(*success.axes, success.values.T, levels=[-1.0, 0.5], colors="none", hatches=["///"])
        failing.set(edgecolor=GREEN, linewidth=0)
        named["fails"] = Patch(facecolor="none", edgecolor=GREEN, linewidth=1.8, hatch="///")
    if len(finite) < found.values.size:
        named["the cost overflows"] = Patch(**OVERFLOWS)
    return named


def _draw_line(ax: Axes, found: ExtrapolationMap, names: list[str]) -> dict[str, Patch]:
    ax.plot(found.axes[0], np.where(np.isfinite(found.values), found.values, np.nan), color=GREEN)
    if found.of_success and set(np.unique(found.values)) <= {0.0, 1.0}:
        ax.set_yticks([0, 1], ["fails", "succeeds"])
    elif not found.of_success and np.all(found.values > 0):
        log_axis(ax, "y")
    ax.set_xlabel(verbatim(names[0]))
    ax.set_ylabel("" if found.of_success else f"cost J of the initial state, {LOWER}")
    return {}


def map_data(found: ExtrapolationMap, names: list[str]) -> pd.DataFrame:
    places = np.meshgrid(*found.axes, indexing="ij")
    value = "success" if found.of_success else "cost"
    return pd.DataFrame({**{name: place.ravel() for name, place in zip(names, places, strict=True)}, value: found.values.ravel()})
