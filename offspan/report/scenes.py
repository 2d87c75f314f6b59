"""Pictures of states: a pendulum on its pivot, a quadcopter in its room. Each scene knows how to set up its axes and how to draw states."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from offspan.problems.quadcopter import ROTATIONS

SEEN, UNSEEN = "#0072B2", "#D55E00"  # Okabe and Ito's blue and vermillion; the markers carry the difference into black and white
MARKERS = {SEEN: "o", UNSEEN: "^"}


class Scene(NamedTuple):
    """`set_up(axes, target, states)` fixes the view, `draw(axes, states, colour)` adds states (k, n) and returns what it drew."""

    projection: str | None
    set_up: Callable[[Any, np.ndarray, np.ndarray], None]
    draw: Callable[[Any, np.ndarray, str], list[Any]]


def scene(problem: str, rotation: str = "paper") -> Scene:
    if problem == "pendulum":
        return Scene(None, _pendulum_axes, _draw_pendulums)
    return Scene("3d", _room, lambda ax, states, colour: _draw_quadcopters(ax, states, colour, rotation))


def _pendulum_axes(ax: Axes, target: np.ndarray, states: np.ndarray) -> None:
    ax.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.add_patch(Circle((0, 0), 1.0, fill=False, color="0.85", linewidth=0.8))
    ax.plot(0, 0, "o", color="black", markersize=4)
    ax.plot(np.sin(target[0]), -np.cos(target[0]), "*", color="black", markersize=15, markerfacecolor="none", zorder=5)


def _draw_pendulums(ax: Axes, states: np.ndarray, colour: str) -> list[Any]:
    """Rods at their angles, 0 hanging down; a state that is not finite is not drawn."""
    drawn = []
    for angle in states[np.isfinite(states).all(axis=1), 0]:
        x, y = np.sin(angle), -np.cos(angle)
        drawn += ax.plot([0, x], [0, y], color=colour, linewidth=1.5, alpha=0.6)
        drawn += ax.plot(x, y, MARKERS[colour], color=colour, markersize=8, alpha=0.8)
    return drawn


def _room(ax: Any, target: np.ndarray, states: np.ndarray) -> None:
    """The box around the target and the initial states, down to the ground, with some space, and no narrower than a metre."""
    positions = np.vstack([states[:, :3], target[None, :3]])
    low, high = positions.min(axis=0) - 0.25, positions.max(axis=0) + 0.25
    low, high = np.minimum(low, [-0.5, -0.5, -0.1]), np.maximum(high, [0.5, 0.5, 0.5])
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    ax.set_box_aspect(high - low)
    ax.set_xlabel("x", labelpad=-8)
    ax.set_ylabel("y", labelpad=-8)
    ax.set_zlabel("z", labelpad=-8)
    ax.tick_params(labelsize=6, pad=-3)
    ax.locator_params(nbins=4)
    ax.view_init(elev=18, azim=-60)
    ax.plot(*target[:3], "*", color="black", markersize=14, markerfacecolor="none", zorder=10)


def _draw_quadcopters(ax: Any, states: np.ndarray, colour: str, rotation: str) -> list[Any]:
    """Two crossed arms that tilt with the thrust; a quadcopter outside of the box is a hollow marker at its wall."""
    low, high = np.array([ax.get_xlim(), ax.get_ylim(), ax.get_zlim()]).T
    drawn = []
    for state in states[np.isfinite(states).all(axis=1)]:
        position = np.clip(state[:3], low, high)
        inside = np.array_equal(position, state[:3])
        up = np.asarray(ROTATIONS[rotation](*state[3:6]))
        first = np.cross(up, [0.0, 1.0, 0.0])
        first /= max(np.linalg.norm(first), 1e-9)
        for arm in (first, np.cross(up, first)) if inside else ():
            ends = np.stack([position - 0.08 * arm, position + 0.08 * arm])
            drawn += ax.plot(*ends.T, color=colour, linewidth=1.2, alpha=0.8)
        drawn += ax.plot(*position, MARKERS[colour], color=colour, markersize=5, alpha=0.8, markerfacecolor=colour if inside else "none")
    return drawn
