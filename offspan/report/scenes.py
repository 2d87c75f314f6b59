"""Pictures of states: a pendulum on its pivot, a quadcopter in its room, and for any other system markers in a plane."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from offspan.experiments.registry import SYSTEMS, System
from offspan.problems import LQR
from offspan.problems.quadcopter import ROTATIONS
from offspan.report.drawing import SEEN, UNSEEN

MARKERS = {SEEN: "o", UNSEEN: "^"}


class Scene(NamedTuple):
    """`set_up(ax, result)` fixes the view; `draw(ax, result, states, colour)` adds states (k, n) and returns what it drew;
    `compact(ax, labelled)` drops what small axes have no room for, all words and numbers unless they are labelled. With walls, a state
    outside of the view is a hollow marker at its border."""

    projection: str | None
    set_up: Callable[[Any, xr.Dataset], None]
    draw: Callable[[Any, xr.Dataset, np.ndarray, str], list[Any]]
    compact: Callable[[Any, bool], Any]
    has_walls: bool


def system_of(result: xr.Dataset) -> System:
    """The registered system of a result; any other has the coordinates x_1, x_2, … and is shown in the plane of the first two."""
    n = result.sizes["state"]
    names = [f"x_{d + 1}" for d in range(n)]
    other = System(lambda: LQR(np.eye(n), horizon=1, coordinates=names), position=tuple(range(min(n, 2))))
    return SYSTEMS.get(result.attrs["problem"], other)


def scene_of(result: xr.Dataset) -> Scene:
    return SCENES[system_of(result).scene]


def initial_states(result: xr.Dataset) -> np.ndarray:
    return np.concatenate([result.seen_state.values, result.unseen_state.values])


def _pivot(ax: Axes, result: xr.Dataset) -> None:
    ax.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.add_patch(Circle((0, 0), 1.0, fill=False, color="0.85", linewidth=0.8))
    ax.plot(0, 0, "o", color="black", markersize=4)
    target = result.target.values
    ax.plot(np.sin(target[0]), -np.cos(target[0]), "*", color="black", markersize=15, markerfacecolor="none", zorder=5)


def _draw_pendulums(ax: Axes, result: xr.Dataset, states: np.ndarray, colour: str) -> list[Any]:
    """Rods at their angles, 0 hanging down; a state that is not finite is not drawn."""
    drawn = []
    for angle in states[np.isfinite(states).all(axis=1), 0]:
        x, y = np.sin(angle), -np.cos(angle)
        drawn += ax.plot([0, x], [0, y], color=colour, linewidth=1.5, alpha=0.6)
        drawn += ax.plot(x, y, MARKERS[colour], color=colour, markersize=8, alpha=0.8)
    return drawn


def _room(ax: Any, result: xr.Dataset) -> None:
    """The box around the target and the initial states, down to the ground, with some space, and no narrower than a metre."""
    target = result.target.values
    positions = np.vstack([initial_states(result)[:, :3], target[None, :3]])
    low, high = positions.min(axis=0) - 0.25, positions.max(axis=0) + 0.25
    low, high = np.minimum(low, [-0.5, -0.5, -0.1]), np.maximum(high, [0.5, 0.5, 0.5])
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    ax.set_box_aspect(high - low)
    for axis, coordinate in zip((ax.xaxis, ax.yaxis, ax.zaxis), system_of(result).coordinates, strict=False):
        axis.set_label_text(coordinate.label, fontsize=8)
        axis.labelpad = -2
    ax.tick_params(labelsize=8, pad=-2)
    ax.tick_params(axis="z", pad=1)
    for axis, below, above in zip((ax.xaxis, ax.yaxis, ax.zaxis), low, high, strict=True):
        ticks, space = MaxNLocator(4).tick_values(below, above), 0.12 * (above - below)
        axis.set_ticks([tick for tick in ticks if below + space < tick < above - space])  # at the corners, those of two axes would collide
        axis.set_major_formatter("{x:g}")
    ax.view_init(elev=18, azim=-60)
    ax.patch.set_visible(False)  # which would hide the label of the axes at its left
    ax.plot(*target[:3], "*", color="black", markersize=14, markerfacecolor="none", zorder=10)


def _draw_quadcopters(ax: Any, result: xr.Dataset, states: np.ndarray, colour: str) -> list[Any]:
    """Two crossed arms that tilt with the thrust."""
    low, high = np.array([ax.get_xlim(), ax.get_ylim(), ax.get_zlim()]).T
    drawn = []
    for state in states[np.isfinite(states).all(axis=1)]:
        position = np.clip(state[:3], low, high)
        inside = np.array_equal(position, state[:3])
        up = np.asarray(ROTATIONS[result.attrs.get("rotation", "paper")](*state[3:6]))
        first = np.cross(up, [0.0, 1.0, 0.0])
        first /= max(np.linalg.norm(first), 1e-9)
        for arm in (first, np.cross(up, first)) if inside else ():
            ends = np.stack([position - 0.08 * arm, position + 0.08 * arm])
            drawn += ax.plot(*ends.T, color=colour, linewidth=1.2, alpha=0.8)
        drawn += ax.plot(*position, MARKERS[colour], color=colour, markersize=5, alpha=0.8, markerfacecolor=colour if inside else "none")
    return drawn


def _plane(ax: Axes, result: xr.Dataset) -> None:
    """The box around the target and the initial states, with some space; a system of one coordinate is shown on a line."""
    system, target = system_of(result), _in_plane(result, result.target.values[None])
    points = np.vstack([_in_plane(result, initial_states(result)), target])
    low, high = points.min(axis=0), points.max(axis=0)
    space = np.where(high > low, 0.2 * (high - low), 1.0)
    ax.set(xlim=(low[0] - space[0], high[0] + space[0]), ylim=(low[1] - space[1], high[1] + space[1]))
    labels = [system.coordinates[d].label for d in system.position]
    ax.set(xlabel=labels[0], **({"ylabel": labels[1]} if len(labels) > 1 else {"yticks": []}))
    ax.plot(*target[0], "*", color="black", markersize=14, markerfacecolor="none", zorder=5)


def _in_plane(result: xr.Dataset, states: np.ndarray) -> np.ndarray:
    shown = states[:, list(system_of(result).position[:2])]
    return shown if shown.shape[1] == 2 else np.pad(shown, ((0, 0), (0, 1)))


def _draw_markers(ax: Axes, result: xr.Dataset, states: np.ndarray, colour: str) -> list[Any]:
    low, high = np.array([ax.get_xlim(), ax.get_ylim()]).T
    drawn = []
    for state in _in_plane(result, states[np.isfinite(states).all(axis=1)]):
        position = np.clip(state, low, high)
        face = colour if np.array_equal(position, state) else "none"
        drawn += ax.plot(*position, MARKERS[colour], color=colour, markersize=7, alpha=0.8, markerfacecolor=face, clip_on=False)
    return drawn


def _with_fewer_labels(ax: Any, labelled: bool) -> None:
    ax.tick_params(labelsize=7)
    for axis in (ax.xaxis, ax.yaxis, *([ax.zaxis] if hasattr(ax, "zaxis") else [])):
        if labelled:
            ticks = axis.get_ticklocs()
            axis.set_ticks(ticks[-1:] if ax.name == "3d" and axis is not ax.zaxis else ticks[[0, -1]])  # depth is seen from the side
        else:
            axis.set_ticklabels([])
            axis.set_label_text("")


SCENES: dict[str, Scene] = {
    "pendulum": Scene(None, _pivot, _draw_pendulums, lambda ax, labelled: None, has_walls=False),
    "room": Scene("3d", _room, _draw_quadcopters, _with_fewer_labels, has_walls=True),
    "plane": Scene(None, _plane, _draw_markers, _with_fewer_labels, has_walls=True),
}
