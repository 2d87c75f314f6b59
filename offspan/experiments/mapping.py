"""From a finished run to the map of its controller."""

from typing import Any, NamedTuple

import jax
import numpy as np

from offspan.audit import TOLERANCE
from offspan.errors import OffspanError
from offspan.experiments import network, system
from offspan.experiments.registry import SYSTEMS, placed
from offspan.experiments.store import RunFolder, difference
from offspan.maps import ExtrapolationMap, costs, extrapolation_map

POINTS = 121  # values of each coordinate, unless the spec says otherwise


class RunMap(NamedTuple):
    """The map of a run's controller, which one that is, and what is marked on the map."""

    map: ExtrapolationMap
    title: str
    coordinates: tuple[str, ...]
    seen: np.ndarray
    unseen: np.ndarray
    target: np.ndarray | None
    success: ExtrapolationMap  # over the same coordinates
    criterion: str  # what states that succeed do
    unseen_success: np.ndarray


def map_of_run(
    folder: RunFolder, coordinates: list[int] | None, *, points: int | None, margin: float, spec: Any = None, trust_code: bool = False
) -> RunMap:
    """Over the region of the spec, the run's own unless given, else about its states; the other coordinates are as in its `at`, else as in
    the mean of the seen states."""
    spec = placed(folder.spec(), folder.spec_file, trust_code) if spec is None else as_run(folder, spec)
    if not isinstance(spec, network.NetworkSpec | system.SystemSpec):
        raise OffspanError(f"{folder.path} is a run of the kind {spec.kind}; maps are drawn of runs of the kinds network and system.")
    count: int = getattr(spec, "points", POINTS) if points is None else points
    if count < 2 or count > 1000 or not 0 <= margin < 100:
        raise OffspanError(f"a map of {count} points with a margin of {margin:g} cannot be drawn; take 2 to 1,000 points, and 0 to 100.")
    with jax.enable_x64(spec.precision == "float64"):
        region: dict[int, tuple[float, float]] = {}
        if isinstance(spec, network.NetworkSpec):
            problem, seen, unseen, _ = network.make(spec)
            controller, mapped = network.shown_controller(spec, folder.load_result()), list(SYSTEMS[spec.problem].mapped)
            which, at = "policy gradient, the seed of median measure", None
        else:
            problem, _ = spec.system.make()
            seen, region = spec.seen(problem), spec.intervals("region", problem)
            controller, unseen = system.shown_controller(spec, folder.load_result()), seen[:0]
            mapped = [*region, *(d for d in range(problem.state_dim) if d not in region)][:2]
            which, at = "the seed of the lowest training cost", spec.at
        chosen = list(dict.fromkeys(coordinates or mapped))
        if not all(0 <= d < problem.state_dim for d in chosen) or len(chosen) > 2:
            raise OffspanError(f"`--coordinate` {chosen} must be one or two of 0..{problem.state_dim - 1}, the numbers of a state.")
        known = np.concatenate([seen, unseen])
        axes = {d: np.linspace(*region[d], count) if d in region else _about(known, d, count, margin) for d in chosen}
        found = extrapolation_map(problem, controller, axes, at=seen.mean(axis=0) if at is None else at)
        goal: Any = getattr(problem, "target", None)
        if isinstance(spec, network.NetworkSpec):
            criterion, reaches = f"end {network.near_the_target(spec.problem)}", lambda x: network.is_near(spec.problem, goal, x)
            success = extrapolation_map(problem, controller, axes, at=seen.mean(axis=0), success=reaches)
            final = network.trajectories_of(problem, controller, unseen)[0][:, -1]
            works = np.asarray(jax.vmap(reaches)(final))
        else:
            criterion, limit = "cost at most twice the worst seen state", TOLERANCE * costs(problem, controller, seen).max()
            success = found._replace(values=(found.values <= limit).astype(float), of_success=True)
            works = np.zeros(0, bool)
        target = None if goal is None else np.asarray(goal)
        title = f"{'QUICK LOOK: ' if spec.quick else ''}{spec.name}: {which}"
        return RunMap(found, title, problem.coordinates, seen, unseen, target, success, criterion, works)


def as_run(folder: RunFolder, spec: Any) -> Any:
    """The spec, if the finished run in the folder is one of it."""
    if not folder.is_complete():
        raise OffspanError(f"{folder.path} holds no finished run; train one first with `offspan run`.")
    if folder.spec().digest() != spec.digest():
        raise OffspanError(
            f"{folder.path} holds a run of another spec ({difference(folder.spec(), spec)}); run this one under another `name`."
        )
    return spec


def _about(states: np.ndarray, coordinate: int, points: int, margin: float) -> np.ndarray:
    """A coordinate in which the states do not differ is given the spread of the one in which they differ most."""
    low, high = states[:, coordinate].min(), states[:, coordinate].max()
    spread = high - low or np.ptp(states, axis=0).max() or 1.0
    return np.linspace(low - margin * spread, high + margin * spread, points, dtype=states.dtype)
