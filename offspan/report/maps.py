"""Pictures of extrapolation maps."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from offspan.errors import OffspanError
from offspan.maps import ExtrapolationMap
from offspan.report.results import BLUE, VERMILLION, styled, subplots

SEEN, UNSEEN = {"marker": "o", "facecolor": "white"}, {"marker": "^", "facecolor": "0.75"}


@styled
def map_figure(found: ExtrapolationMap, seen: np.ndarray, *, unseen: np.ndarray | None = None, names: list[str], title: str = "") -> Figure:
    """Cost or success over one or two coordinates, labelled by `names`, with the seen states (s, n), and unseen ones, marked.

    States are marked by these coordinates alone, whatever their others are.
    """
    if len(names) != len(found.axes):
        raise OffspanError(
            f"map_figure: `names` is {names!r}, but the map has the coordinates {found.coordinates}; name these, in their order."
        )
    figure, ax = subplots(6.4, 4.4 if len(found.axes) == 2 else 3.6)
    (_draw_region if len(found.axes) == 2 else _draw_line)(ax, found, names)
    marked = {"seen": (seen, SEEN), **({} if unseen is None else {"unseen": (unseen, UNSEEN)})}
    for label, (states, look) in marked.items():
        places = np.atleast_2d(np.asarray(states))[:, list(found.coordinates)]
        if len(found.axes) == 1:
            places = np.column_stack([places[:, 0], np.full(len(places), 0.03)])
        across = {"transform": ax.get_xaxis_transform()} if len(found.axes) == 1 else {}
        ax.scatter(*places.T, s=46, edgecolor="black", linewidth=1.0, label=label, zorder=3, clip_on=False, **look, **across)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    figure.suptitle(title)
    return figure


def _draw_region(ax: Axes, found: ExtrapolationMap, names: list[str]) -> None:
    values, label = found.values, "success (1) or failure (0)"
    limits: dict[str, Any] = {"vmin": 0, "vmax": 1}
    if not found.of_success:
        finite = values[np.isfinite(values)]
        limits = {"norm": LogNorm(finite.min(), finite.max()) if len(finite) and 0 < finite.min() < finite.max() else None}
        label = "cost J of the initial state" + ("" if len(finite) == values.size else " (red: overflows)")
        values = np.where(np.isfinite(values), values, np.nan)
        ax.set_facecolor(VERMILLION)
    image = ax.pcolormesh(*found.axes, values.T, cmap="cividis", shading="nearest", rasterized=True, **limits)
    ax.figure.colorbar(image, ax=ax, label=label)
    ax.spines[:].set_visible(True)
    ax.set(xlabel=names[0], ylabel=names[1])


def _draw_line(ax: Axes, found: ExtrapolationMap, names: list[str]) -> None:
    ax.plot(found.axes[0], np.where(np.isfinite(found.values), found.values, np.nan), color=BLUE)
    if not found.of_success and np.all(found.values > 0):
        ax.set_yscale("log")
    ax.set_xlabel(names[0])
    ax.set_ylabel("success" if found.of_success else "cost J of the initial state")


def map_data(found: ExtrapolationMap, names: list[str]) -> pd.DataFrame:
    places = np.meshgrid(*found.axes, indexing="ij")
    value = "success" if found.of_success else "cost"
    return pd.DataFrame({**{name: place.ravel() for name, place in zip(names, places, strict=True)}, value: found.values.ravel()})
