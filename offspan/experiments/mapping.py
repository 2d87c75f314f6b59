"""From a finished run to the map of its controller."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offspan.audit import TOLERANCE
from offspan.errors import OffspanError
from offspan.experiments import network, system
from offspan.experiments.registry import SYSTEMS, placed
from offspan.experiments.store import RunFolder, difference
from offspan.maps import ExtrapolationMap, costs, grid_states, outcomes

POINTS = 121  # values of each coordinate, unless the spec says otherwise


class RunMap(NamedTuple):
    """The map of a run's controller, which one that is, and what is marked on the map."""

    map: ExtrapolationMap
    title: str
    coordinates: tuple[str, ...]
    seen: np.ndarray
    unseen: np.ndarray
    target: np.ndarray | None
    success: ExtrapolationMap | None  # over the same coordinates; None where nothing says what it is
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
            which, at, goal = "policy gradient, the seed of median measure", None, getattr(problem, "target", None)
            reaches, criterion = (lambda x: network.is_near(spec.problem, goal, x)), f"end {network.near_the_target(spec.problem)}"
        else:
            problem, _ = spec.system.make()
            seen, region = spec.seen(problem), spec.intervals("region", problem)
            controller, unseen = system.shown_controller(spec, folder.load_result()), seen[:0]
            mapped = [*region, *(d for d in range(problem.state_dim) if d not in region)][:2]
            which, at, goal = "the seed of the lowest training cost", spec.at, getattr(problem, "target", None)
            reaches = spec.succeeds(problem)
            criterion = "cost at most twice the worst seen state" if reaches is None else f"succeed ({reaches.__doc__})"
        chosen = list(dict.fromkeys(coordinates or mapped))
        if not all(0 <= d < problem.state_dim for d in chosen) or len(chosen) > 2:
            raise OffspanError(f"`--coordinate` {chosen} must be one or two of 0..{problem.state_dim - 1}, the numbers of a state.")
        known = np.concatenate([seen, unseen])
        axes = {d: np.linspace(*region[d], count) if d in region else _about(known, d, count, margin) for d in chosen}
        x0s, shape = grid_states(axes, seen.mean(axis=0) if at is None else at), tuple(map(len, axes.values()))
        values, works = (one.reshape(shape) for one in outcomes("map", problem, controller, x0s, reaches, None, 1))
        found = ExtrapolationMap(tuple(axes), tuple(axes.values()), values, False)
        if reaches is None:
            limit = TOLERANCE * costs(problem, controller, seen).max()
            # Of rewards, or where a seen state fails, a multiple says nothing.
            success = found._replace(values=(values <= limit).astype(float), of_success=True) if 0 < limit < np.inf else None
        else:
            success = found._replace(values=works, of_success=True)
        unseen_success = outcomes("map", problem, controller, jnp.asarray(unseen), reaches, None, 1)[1] if len(unseen) else np.zeros(0)
        target = None if goal is None else np.asarray(goal)
        title = f"{'QUICK LOOK: ' if spec.quick else ''}{spec.name}: {which}"
        return RunMap(found, title, problem.coordinates, seen, unseen, target, success, criterion, unseen_success == 1)


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
