"""Extrapolation maps of stored runs."""

import jax
import numpy as np

from offspan.errors import OffspanError
from offspan.experiments.kinds.network import make, shown_controller
from offspan.experiments.specs.network import NetworkSpec
from offspan.experiments.store import RunFolder
from offspan.maps import ExtrapolationMap, extrapolation_map

COORDINATES = {"pendulum": [0, 1], "quadcopter": [0, 2]}


def map_of_run(
    folder: RunFolder, coordinates: list[int] | None, *, points: int, margin: float
) -> tuple[ExtrapolationMap, NetworkSpec, np.ndarray, np.ndarray]:
    """The map of the controller that the run's figures show, about its seen and unseen states; with the spec and these states.

    The other coordinates are those of the seen states in the mean.
    """
    spec = folder.spec()
    if not isinstance(spec, NetworkSpec):
        raise OffspanError(f"{folder.path} is a run of the kind {spec.kind}; maps are drawn of network runs.")
    if points < 2 or points > 1000 or not 0 <= margin < 100:
        raise OffspanError(f"a map of {points} points with a margin of {margin:g} cannot be drawn; take 2 to 1,000 points, and 0 to 100.")
    chosen = list(dict.fromkeys(coordinates or COORDINATES[spec.problem]))
    with jax.enable_x64(spec.precision == "float64"):
        problem, seen, unseen, _ = make(spec)
        if not all(0 <= d < problem.state_dim for d in chosen) or len(chosen) > 2:
            raise OffspanError(
                f"`--coordinate` {chosen} must be one or two of 0..{problem.state_dim - 1}, the numbers of a {spec.problem}'s state."
            )
        axes = {d: _about(np.concatenate([seen, unseen]), d, points, margin) for d in chosen}
        controller = shown_controller(spec, folder.load_result())
        return extrapolation_map(problem, controller, axes, at=seen.mean(axis=0)), spec, seen, unseen


def _about(states: np.ndarray, coordinate: int, points: int, margin: float) -> np.ndarray:
    """A coordinate in which the states do not differ is given the spread of the one in which they differ most."""
    low, high = states[:, coordinate].min(), states[:, coordinate].max()
    spread = high - low or np.ptp(states, axis=0).max() or 1.0
    return np.linspace(low - margin * spread, high + margin * spread, points, dtype=states.dtype)
