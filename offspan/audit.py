"""A controller, its system and the states it was trained from: where it works, where it fails, and which states to add."""

import importlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from offspan.baselines import stationary_controller
from offspan.controllers import Linear
from offspan.errors import OffspanError, as_count, as_floats, as_key, as_states
from offspan.exploration import coverage
from offspan.host import own_errors
from offspan.maps import ExtrapolationMap, grid_states, outcomes
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR
from offspan.problems.variants import as_noise_key, without_noise
from offspan.rollout import Controller, Trajectory, rollout
from offspan.training import train

TOLERANCE = 2.0  # without a `success`, a state may cost this many times what the worst seen one costs
NEAR = 0.1  # of the region's width in each coordinate: this close to what training visits is near
MATTERS = 0.02  # a share of the region below which nothing is worth adding a state for
MAPPED = 4  # coordinates whose pairs are mapped, those that matter most
BINS = 8  # of the curve over distance


class Outcome(NamedTuple):
    """What a controller does from the sampled states, and over each map: costs, and the share of trajectories that succeed."""

    controller: Any
    costs: np.ndarray  # (q,); ∞ where it overflows
    successes: np.ndarray  # (q,)
    maps: tuple[tuple[ExtrapolationMap, ExtrapolationMap], ...]  # of cost and of success

    @property
    def share(self) -> float:
        """Of the region that succeeds."""
        return float(self.successes.mean())


class Curve(NamedTuple):
    """Success against the distance to what training visits, in widths of the region: bins of equally many states."""

    distance: np.ndarray  # (b,): the middle of each bin
    success: np.ndarray  # (b,)
    correlation: float  # Spearman's, between distance and failure; NaN where all succeed or all fail


class Suggestion(NamedTuple):
    """States to add to those that are trained on, and the share of the region that fails now and lies near a trajectory from one of
    them."""

    states: np.ndarray  # (k, n)
    covered: float
    note: str


@dataclass(frozen=True, eq=False)
class Audit:
    """What `audit` found. `states` (q, n) are drawn uniformly from the region, and `outcome` is what the controller does from them.

    `print` it for a summary, and `save` it as a page  [beyond R24].

    >>> import offspan
    >>> problem, none = offspan.identity(1, horizon=2), offspan.Linear([[0.0]])  # J(x) = 3x², at most twice that of the seen 1
    >>> found = offspan.audit(problem, none, [[1.0]], {0: (0.0, 2.0)}, points=5)
    >>> found.map.values.tolist(), found.criterion
    ([1.0, 1.0, 1.0, 0.0, 0.0], 'J(x) ≤ 6, 2 times that of the worst seen state')
    """

    coordinates: tuple[str, ...]
    region: dict[int, tuple[float, float]]
    seen: np.ndarray
    criterion: str  # what counts as success, in words
    states: np.ndarray
    distances: np.ndarray  # (q,): from each to what training visits
    outcome: Outcome
    worst: tuple[Trajectory, ...]
    worst_costs: np.ndarray
    coverage: Curve
    suggested: Suggestion
    reference: Outcome | None
    reference_name: str
    retrained: Outcome | None

    @property
    def map(self) -> ExtrapolationMap:
        """Of success, over the two coordinates that matter most."""
        return self.outcome.maps[0][1]

    @property
    def near(self) -> float:
        """The share that succeeds among states near to what training visits; NaN where there are none."""
        return _mean(self.outcome.successes[self.distances <= NEAR])

    @property
    def far(self) -> float:
        """Likewise, among all others."""
        return _mean(self.outcome.successes[self.distances > NEAR])

    def save(self, path: str | os.PathLike) -> None:
        """One page of HTML that needs nothing else."""
        importlib.import_module("offspan.report.audit").write_page(self, path)

    def __str__(self) -> str:
        parts = [
            f"{self.outcome.share:.0%} of the region succeeds ({self.criterion}): {_percent(self.near)} of what is near to what training "
            f"visits, {_percent(self.far)} of the rest.",
            f"Worst: {', '.join(np.array2string(np.asarray(one.states[0]), precision=3) for one in self.worst)}.",
            self.suggested.note,
        ]
        if self.reference is not None:
            parts.append(f"{self.reference_name}: {self.reference.share:.0%}.")
        if self.retrained is not None:
            parts.append(f"Trained again with the suggested states: {self.retrained.share:.0%}.")
        return " ".join(parts)


def audit(
    problem: Problem,
    controller: Controller,
    seen: Any,
    region: Any,
    *,
    success: Callable[..., Any] | None = None,
    at: Any = None,
    states: int = 1_000,
    points: int = 41,
    worst: int = 5,
    add: int = 2,
    reference: Controller | None = None,
    retrain: Mapping[str, Any] | None = None,
    key: Any = None,
    samples: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> Audit:
    """Where does a controller that was trained from the states `seen` (s, n) work, over a whole region of initial states?  [beyond R24]

    `region` gives the interval of each coordinate that varies; the others are as in `at`, by default as in the mean of the seen states.
    `success` is a function of the last state x_H; without it a state succeeds where it costs at most twice what the worst seen one does.
    `states` are drawn from the region, and the maps have `points` values a coordinate. `add` states are suggested: those whose trajectories
    come near to most of what fails. `reference` is a controller to compare with; for an LQR with R ≻ 0 it is the stationary optimal one.
    `retrain`, options of `train` such as {"optimizer": optax.adam(1e-3), "iterations": 1_000}, trains the controller on, from the seen and
    the suggested states. `progress` is called with the share done.

    >>> import jax, numpy as np, offspan
    >>> problem, K = offspan.identity(2, horizon=5), offspan.Linear([[-1.0, 0.0], [0.0, 1.0]])  # lost in the second coordinate
    >>> found = offspan.audit(problem, K, [[1.0, 0.0]], {0: (-1, 1), 1: (-1, 1)}, success=lambda x: abs(x[1]) < 1, points=5)
    >>> round(found.outcome.share, 2), bool(abs(found.suggested.states[0, 1]) > 0.03)  # |x₁| 2⁵ < 1
    (0.03, True)
    """
    where, n = "audit", problem.state_dim
    seen = as_states(where, "seen", seen, n)
    box = _as_region(where, region, n)
    centre = np.asarray(seen.mean(axis=0) if at is None else as_floats(where, "at", at, shape=(n,), meaning=f"shape ({n},): one state"))
    key_states, key_noise, key_training = jax.random.split(jax.random.key(0) if key is None else as_key(where, key), 3)
    counts = {"states": states, "points": points, "worst": worst, "add": add}
    states, points, worst, add = (as_count(where, name, value, least=1) for name, value in counts.items())
    drawn = _drawn(key_states, states, box, centre)
    scale = _scale(box, n)
    report = _Progress(progress, 4)

    judged, criterion = _criterion(where, problem, controller, seen, success, key_noise, samples)
    costs, successes = judged(controller, drawn)
    pairs = _pairs(box, drawn, successes if 0 < successes.mean() < 1 else _ranks(costs))
    axes = [{d: np.linspace(*box[d], points) for d in pair} for pair in pairs]
    grids = [np.asarray(grid_states(one, centre)) for one in axes]

    def outcome_of(controller: Any, of_states: tuple[np.ndarray, np.ndarray] | None = None) -> Outcome:
        maps = []
        for one, X in zip(axes, grids, strict=True):
            shape, given = tuple(map(len, one.values())), (tuple(one), tuple(one.values()))
            both = judged(controller, X)
            maps.append(tuple(ExtrapolationMap(*given, values.reshape(shape), i == 1) for i, values in enumerate(both)))
        report()
        return Outcome(controller, *(of_states or judged(controller, drawn)), tuple(maps))

    outcome = outcome_of(controller, (costs, successes))
    distances = np.asarray(coverage(without_noise(problem), controller, seen, drawn, scale=scale))
    worst_states = _spread_out(drawn / scale[None], np.where(successes < 1, costs, -np.inf) if np.any(successes < 1) else costs, worst)
    suggested = _suggest(problem, controller, drawn, successes, scale, add)
    report()
    best, name = (reference, "The reference") if reference is not None else _stationary(problem)
    retrained = None
    if retrain is not None and len(suggested.states):
        more = jnp.concatenate([seen, jnp.asarray(suggested.states, seen.dtype)])
        trained = train(problem, controller, more, **{"key": key_training, **retrain})
        retrained = outcome_of(trained.controller)
    beside = None if best is None else outcome_of(best)
    report.end()
    return Audit(
        coordinates=problem.coordinates,
        region=box,
        seen=np.asarray(seen),
        criterion=criterion,
        states=drawn,
        distances=distances,
        outcome=outcome,
        worst=tuple(_trajectory(problem, controller, x, jax.random.split(key_noise, samples)[0]) for x in drawn[worst_states]),
        worst_costs=costs[worst_states],
        coverage=_curve(distances, successes),
        suggested=suggested,
        reference=beside,
        reference_name=name,
        retrained=retrained,
    )


class _Progress:
    def __init__(self, function: Callable[[float], Any] | None, parts: int):
        self.function, self.parts, self.done = function, parts, 0

    def __call__(self) -> None:
        self.done += 1
        if self.function is not None:
            self.function(min(self.done / self.parts, 1.0))

    def end(self) -> None:
        self.done = self.parts - 1
        self()


def _as_region(where: str, region: Any, n: int) -> dict[int, tuple[float, float]]:
    try:
        box = {int(d): (float(low), float(high)) for d, (low, high) in region.items()}
    except (TypeError, ValueError, AttributeError):
        box = {}
    if not box or not all(0 <= d < n and np.isfinite([low, high]).all() and low < high for d, (low, high) in box.items()):
        raise OffspanError(
            f"{where}: `region` is {region!r}, but must give intervals for some of the coordinates 0..{n - 1}: {{0: (-1.0, 1.0)}}."
        )
    return dict(sorted(box.items()))


def _drawn(key: Array, count: int, box: dict[int, tuple[float, float]], centre: np.ndarray) -> np.ndarray:
    states = np.tile(centre, (count, 1))
    low, high = np.array(list(box.values())).T
    states[:, list(box)] = low + (high - low) * np.asarray(jax.random.uniform(key, (count, len(box))))
    return states


def _scale(box: dict[int, tuple[float, float]], n: int) -> np.ndarray:
    """Widths of the region; a coordinate that does not vary counts as the widest that does."""
    widths = {d: high - low for d, (low, high) in box.items()}
    return np.array([widths.get(d, max(widths.values())) for d in range(n)])


Judged = Callable[[Any, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _criterion(where, problem, controller, seen, success, key, samples) -> tuple[Judged, str]:
    """Costs and successes of a controller from states, and what success is."""

    def costs_and_successes(controller, states):
        return outcomes(where, problem, controller, jnp.asarray(states, seen.dtype), success, key, samples)

    if success is not None:
        return costs_and_successes, "the last state is as asked"
    of_seen = costs_and_successes(controller, seen)[0].max()
    limit = TOLERANCE * of_seen
    if not (np.isfinite(limit) and limit > 0):
        raise OffspanError(
            f"{where}: the worst seen state costs {of_seen:.3g}, with which others cannot be compared; pass `success`, a function of the "
            "last state."
        )

    def by_cost(controller, states):
        costs = costs_and_successes(controller, states)[0]
        return costs, (costs <= limit).astype(float)

    return by_cost, f"J(x) ≤ {limit:.3g}, {TOLERANCE:g} times that of the worst seen state"


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def _pairs(box: dict[int, tuple[float, float]], states: np.ndarray, values: np.ndarray) -> list[tuple[int, ...]]:
    """All pairs of the coordinates that explain most of the values, by the variance between bins of each; the strongest pair first."""
    if len(box) == 1:
        return [tuple(box)]

    def explained(d: int) -> float:
        bins = np.array_split(values[np.argsort(states[:, d])], min(10, len(values)))
        return float(np.var([part.mean() for part in bins]))

    strongest = sorted(box, key=explained, reverse=True)[:MAPPED]
    return [tuple(sorted(pair)) for pair in itertools.combinations(strongest, 2)]


def _spread_out(Z: np.ndarray, costs: np.ndarray, count: int) -> np.ndarray:
    """The places of the highest costs, each farther than `NEAR` from those before it."""
    found: list[int] = []
    for place in np.argsort(-costs, kind="stable"):
        if len(found) < count and costs[place] > -np.inf and all(np.linalg.norm(Z[place] - Z[other]) > NEAR for other in found):
            found.append(int(place))
    return np.array(found, int)


def _curve(distances: np.ndarray, successes: np.ndarray) -> Curve:
    from scipy.stats import spearmanr  # which `import offspan` must not load

    bins = np.array_split(np.argsort(distances, kind="stable"), min(BINS, len(distances)))
    varied = len(np.unique(distances)) > 1 and len(np.unique(successes)) > 1
    correlation = float(spearmanr(distances, 1 - successes).statistic) if varied else float("nan")  # pyright: ignore[reportAttributeAccessIssue]
    middle, success = (np.array([values[one].mean() for one in bins]) for values in (distances, successes))
    return Curve(middle, success, correlation)


def _suggest(problem: Problem, controller: Any, states: np.ndarray, successes: np.ndarray, scale: np.ndarray, count: int) -> Suggestion:
    """Greedily, the failing states whose trajectories come near to most of the failing states that are not near to one already."""
    failing = states[successes < 0.5]
    share = len(failing) / len(states)
    if share < MATTERS:
        said = f"It hardly matters here: {1 - share:.1%} of the region succeeds already, so that no state is worth adding."
        return Suggestion(np.empty((0, states.shape[1])), 0.0, said)
    some = failing[np.linspace(0, len(failing) - 1, min(len(failing), 400)).astype(int)]
    covers = np.asarray(_reached(without_noise(problem), controller, some, failing, scale))
    chosen, left = [], np.ones(len(failing), bool)
    while len(chosen) < count and left.any():
        best = int(np.argmax((covers & left[None]).sum(axis=1)))
        if not np.any(covers[best] & left):
            break
        chosen.append(best)
        left &= ~covers[best]
    covered = float((~left).mean() * share)
    these = "this state" if len(chosen) == 1 else f"these {len(chosen)} states"
    said = f"Add {these} to those it is trained on: {covered:.0%} of the region fails now and lies near to trajectories from there."
    if covered < MATTERS:
        said = f"It hardly matters which states are added: what fails ({share:.0%} of the region) is spread out. {said}"
    return Suggestion(some[chosen], covered, said)


def _reached(problem: Problem, controller: Any, some: np.ndarray, failing: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """(c, f): whether the trajectory from a candidate comes near to a failing state."""
    with own_errors(problem, controller) as finished:
        X = np.asarray(finished(_states(problem, controller, jnp.asarray(some)))) / scale
    Z = failing / scale
    with np.errstate(over="ignore", invalid="ignore"):  # of trajectories that grow beyond all bounds
        return np.stack([np.any(np.linalg.norm(Z[:, None] - one[None], axis=2) <= NEAR, axis=1) for one in X])


@eqx.filter_jit
def _states(problem, controller, x0s):
    return jax.vmap(lambda x0: rollout(problem, controller, x0).states)(x0s)


def _trajectory(problem: Problem, controller: Any, x0: np.ndarray, key: Array) -> Trajectory:
    return rollout(problem, controller, jnp.asarray(x0), key=as_noise_key("audit", problem, key))


def _stationary(problem: Problem) -> tuple[Linear | None, str]:
    if not isinstance(problem, LQR) or np.linalg.eigvalsh(np.asarray(problem.R, float))[0] <= 0:
        return None, ""
    try:
        return Linear(stationary_controller(problem)), "The stationary optimal controller (dlqr)"
    except OffspanError:
        return None, ""


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{share:.0%}"
