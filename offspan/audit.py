"""A controller, its system and the states it was trained from: where it works, where it fails, and which states to add."""

import importlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from offspan.baselines import stationary_controller
from offspan.controllers import Linear
from offspan.errors import OffspanError, as_count, as_floats, as_key, as_states, check_known
from offspan.exploration import coverage
from offspan.host import is_hosted, own_errors
from offspan.maps import ExtrapolationMap, as_region, drawn_from, grid_states, outcomes, strongest_pairs, widths
from offspan.memory import Memory, Parts
from offspan.problems.base import Problem, as_problem
from offspan.problems.lqr import LQR
from offspan.problems.variants import as_noise_key, is_noisy, without_noise
from offspan.rollout import Controller, Trajectory, rollout
from offspan.sizes import check_memory
from offspan.suggestions import CANDIDATES, NEAR, Curve, Suggestion, listed, success_by_distance, suggest
from offspan.training import Batch, Exact, train_batch
from offspan.training.diagnosis import warn_if_stuck
from offspan.training.estimators import check_estimator
from offspan.training.train import as_settings, as_stages, shared_optimizer

WHERE = "audit"
TOLERANCE = 2.0  # without a `success`, a state may cost this many times what the reference costs from there, or the worst seen state
STORED = ("costs", "successes")
MAPPED = 4  # coordinates whose pairs are mapped, those that matter most
OPTIONS = ("optimizer", "iterations", "gradient", "key", "loss", "stop", "horizons", "discounts", "record_every", "devices")  # of `retrain`


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


@dataclass(frozen=True, eq=False)
class Audit:
    """What `audit` found: `outcome` from `states` (q, n), uniform in the region, and `coverage`, success against distance to training.

    That distance is the one of `offspan.coverage`. `print` the audit for a summary, and `save` it as a page  [beyond R24].

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
    system: str = ""  # what was controlled, in words

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
            f"{self.outcome.share:.0%} of the region succeeds ({self.criterion}): {_percent(self.near)} near the trajectories of training, "
            f"{_percent(self.far)} elsewhere.",
            f"Costliest: {listed([one.states[0] for one in self.worst])}.",
            self.suggested.note,
        ]
        if lost := np.sum(~np.isfinite(self.outcome.costs)):
            parts.insert(1, f"From {lost} of {len(self.states):,} states the cost is not a finite number.")
        if self.reference is not None:
            parts.append(_compared(self.outcome.costs, self.reference.costs, f"{self.reference_name[0].lower()}{self.reference_name[1:]}"))
        if self.retrained is not None:
            worse = ", worse than before" if self.retrained.share < self.outcome.share else ""
            parts.append(f"Trained again with the suggested states: {self.retrained.share:.0%}{worse}.")
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
    memory: Memory | None = None,
) -> Audit:
    """Where does a controller that was trained from the states `seen` (s, n) work, over a whole region of initial states?  [beyond R24]

    `region` gives the interval of each coordinate that varies; the others are as in `at`, by default as in the mean of the seen states.
    `reference` is a controller to compare with; for an LQR with R ≻ 0 it is the stationary optimal one. `success` is a function of the last
    state x_H (its docstring, if it has one, says on the page what it asks); without it a state succeeds where it costs at most twice what
    the reference costs from there, or, without a reference, twice what the worst seen state costs. `states` are drawn from the region, and
    the maps have `points` values a coordinate. `add` states are suggested: those whose trajectories come near to most of what fails, among
    those from which the `reference` succeeds, where one is given.
    `retrain`, options of `train_batch` such as {"optimizer": optax.adam(1e-3), "iterations": 1_000}, trains the controller on, from the
    seen and the suggested states.

    `progress` is called with the share done. Finished parts are kept in `memory`, such as a dict, and looked up there, so that the same
    audit with the same memory continues where it was interrupted. Another audit is refused: all arguments are compared, numbers by value
    and functions by their names, code, and what they read from around them: numbers, words, dataclasses and containers, which they must not
    change. What else such a function calls, and objects of other classes (an environment, a simulator, one of your own), are not compared.

    >>> import jax, numpy as np, offspan
    >>> problem, K = offspan.identity(2, horizon=5), offspan.Linear([[-1.0, 0.0], [0.0, 1.0]])  # lost in the second coordinate
    >>> found = offspan.audit(problem, K, [[1.0, 0.0]], {0: (-1, 1), 1: (-1, 1)}, success=lambda x: abs(x[1]) < 1, points=5)
    >>> round(found.outcome.share, 2), bool(abs(found.suggested.states[0, 1]) > 0.03)  # |x₁| 2⁵ < 1
    (0.03, True)
    """
    n = as_problem(WHERE, problem).state_dim
    seen = as_states(WHERE, "seen", seen, n)
    box = as_region(WHERE, region, n)
    centre = np.asarray(seen.mean(axis=0) if at is None else as_floats(WHERE, "at", at, shape=(n,), meaning=f"shape ({n},): one state"))
    key_states, key_noise, key_training = jax.random.split(jax.random.key(0) if key is None else as_key(WHERE, key), 3)
    counts = {"states": states, "points": points, "worst": worst, "add": add, "samples": samples}
    states, points, worst, add, samples = (as_count(WHERE, name, value, least=1) for name, value in counts.items())
    maps = math.comb(min(len(box), MAPPED), 2) or 1
    trajectory, evaluated = (problem.horizon + 1) * (n + problem.control_dim + 1), states + maps * points**2
    what = f"{WHERE}: {evaluated:,} states (`states`, and maps of `points` × `points`) and trajectories of {problem.horizon:,} time steps"
    at_once = trajectory * (3 * (len(seen) + 1) + 2 * CANDIDATES) + n * (6 * evaluated + samples * max(states, points**2))
    check_memory(what, 8 * at_once, "take fewer (also `samples`), or a shorter horizon")
    training = None if retrain is None else _as_training(retrain, key_training, problem, controller, seen)
    drawn, scale = drawn_from(key_states, states, box, centre), widths(box, n)
    baseline, baseline_name = (reference, "The reference") if reference is not None else _stationary(problem)

    kinds = 1 + (baseline is not None) + (retrain is not None)
    parts = Parts(
        {} if memory is None else memory, progress, expected=4 + (baseline is not None) + kinds * (1 + maps) + (retrain is not None)
    )
    parts.belong_to(WHERE, [problem, controller, seen, drawn, centre, points, worst, add, samples, success, reference, retrain])
    judge = _Judge.of(parts, problem, controller, seen, success, baseline, key_noise, samples)

    costs, successes = judge("controller", "states", controller, drawn)
    pairs = strongest_pairs(box, drawn, successes if 0 < successes.mean() < 1 else _ranks(costs), MAPPED)
    initial = _InitialStates(drawn, [{d: np.linspace(*box[d], points) for d in pair} for pair in pairs], centre)
    outcome = judge.outcome("controller", controller, initial)

    noiseless = without_noise(problem)
    (distances,) = parts("distances", lambda: {"distances": np.asarray(coverage(noiseless, controller, seen, drawn, scale=scale))}).values()
    trained = float(judge("controller", "seen", controller, np.asarray(seen))[1].mean())
    ended = _ended(noiseless, drawn)
    possible = ~ended if reference is None else ~ended & (judge("reference", "states", reference, drawn)[1] >= 0.5)
    options: dict[str, Any] = {"scale": scale, "count": add, "trained": trained, "possible": possible}
    kept = parts("suggested", lambda: _as_arrays(suggest(noiseless, controller, drawn, successes, distances, **options)))
    suggested = Suggestion(kept["states"], float(kept["gain"]), str(kept["note"]))

    retrained = None
    if training is not None and len(suggested.states):
        more = jnp.concatenate([seen, jnp.asarray(suggested.states, seen.dtype)])
        retrained = judge.outcome("retrained", _retrained(parts, problem, controller, more, training), initial)
    compared = None if baseline is None else judge.outcome("reference", baseline, initial)
    parts.end()

    failed = (successes < 1) & ~ended if np.any((successes < 1) & ~ended) else successes < 1
    costliest = _spread_out(drawn / scale[None], np.where(failed, costs, -np.inf) if failed.any() else costs, worst)
    controls = f"{problem.control_dim} control{'s' if problem.control_dim > 1 else ''}"
    return Audit(
        coordinates=problem.coordinates,
        region=box,
        seen=np.asarray(seen),
        criterion=_criterion(success, judge.limit, baseline_name),
        states=drawn,
        distances=distances,
        outcome=outcome,
        worst=tuple(_trajectory(problem, controller, x, jax.random.split(key_noise, samples)[0]) for x in drawn[costliest]),
        worst_costs=costs[costliest],
        coverage=success_by_distance(distances, successes),
        suggested=suggested,
        reference=compared,
        reference_name=baseline_name,
        retrained=retrained,
        system=f"{type(problem).__name__}, {n} coordinates, {controls}, H = {problem.horizon}",
    )


class _InitialStates(NamedTuple):
    """Where outcomes are computed: states drawn from the region, and a grid over each pair of coordinates, all others at the centre."""

    drawn: np.ndarray
    axes: list[dict[int, np.ndarray]]
    centre: np.ndarray


class _Judge(NamedTuple):
    """What succeeds: as `success` says, else what costs at most `TOLERANCE` times the reference's cost from there, or at most the limit."""

    parts: Parts
    costs_and_successes: Callable[[Any, Any], tuple[np.ndarray, np.ndarray]]
    is_given: bool  # a `success`
    reference: Any
    limit: float | None

    @classmethod
    def of(cls, parts: Parts, problem: Problem, controller: Any, seen: Array, success: Any, reference: Any, key: Array, samples: int):
        def costs_and_successes(controller: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
            return outcomes(WHERE, problem, controller, jnp.asarray(X, seen.dtype), success, key, samples)

        compared = success is not None or reference is not None
        limit = None if compared else _limit(costs_and_successes(controller, seen)[0].max())
        return cls(parts, costs_and_successes, success is not None, reference, limit)

    def evaluate(self, who: str, at: str, controller: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Costs from the states X and what `success` says, computed once: the part "who-at" keeps them."""
        kept = self.parts(f"{who}-{at}", lambda: dict(zip(STORED, self.costs_and_successes(controller, X), strict=True)))
        return kept["costs"], kept["successes"]

    def __call__(self, who: str, at: str, controller: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Costs and successes."""
        costs, successes = self.evaluate(who, at, controller, X)
        if self.is_given:
            return costs, successes
        allowed = self.limit if self.reference is None else TOLERANCE * self.evaluate("reference", at, self.reference, X)[0]
        if np.any(np.asarray(allowed) < 0):
            raise OffspanError(f"{WHERE}: costs of the reference are negative, so that multiples of them say nothing; pass `success`.")
        return costs, (np.isfinite(costs) & (costs <= allowed)).astype(float)

    def outcome(self, who: str, controller: Any, initial: _InitialStates) -> Outcome:
        maps = []
        for i, axes in enumerate(initial.axes):
            shape, given = tuple(map(len, axes.values())), (tuple(axes), tuple(axes.values()))
            costs, successes = self(who, f"map-{i}", controller, np.asarray(grid_states(axes, initial.centre)))
            maps.append((ExtrapolationMap(*given, costs.reshape(shape), False), ExtrapolationMap(*given, successes.reshape(shape), True)))
        return Outcome(controller, *self(who, "states", controller, initial.drawn), tuple(maps))


def _ended(problem: Problem, states: np.ndarray) -> np.ndarray:
    """(q,): the states from which the trajectory ends at once, whatever the controller does."""
    if problem.done(jnp.asarray(states[0])) is None:
        return np.zeros(len(states), bool)
    with own_errors() as finished:
        return np.asarray(finished(jax.vmap(problem.done)(jnp.asarray(states))))


def _as_training(retrain: Any, key: Array, problem: Problem, controller: Any, seen: Array) -> dict[str, Any]:
    """Options of `train_batch`, checked before the audit begins, which may take hours."""
    if not isinstance(retrain, Mapping) or not {"optimizer", "iterations"} <= set(retrain):
        raise OffspanError(
            f'{WHERE}: `retrain` is {retrain!r}, but must be options of `train_batch` with at least an "optimizer" and "iterations".'
        )
    for name in retrain:
        check_known(f"{WHERE}: `retrain` has no option", name, OPTIONS)
    gradient = Exact() if retrain.get("gradient") is None else retrain["gradient"]
    check_estimator(WHERE, gradient)
    if is_hosted(problem) and isinstance(gradient, Exact):
        raise OffspanError(
            f"{WHERE}: `retrain` needs a gradient without derivatives, as the problem is made of NumPy functions: add "
            '"gradient": TwoPoint(radius=…, directions=…).'
        )
    key = as_key(WHERE, retrain.get("key", key))
    optimizer, _ = shared_optimizer(WHERE, retrain["optimizer"], 1)
    estimator, loss, stop = (retrain.get(name) for name in ("gradient", "loss", "stop"))
    as_settings(WHERE, problem, [controller], seen[None], optimizer, estimator, key, loss, stop)
    iterations = as_count(WHERE, "iterations", retrain["iterations"], least=0)
    as_stages(WHERE, problem, iterations, retrain.get("horizons"), retrain.get("discounts"))
    return {"record_every": 1, **retrain, "key": key, "iterations": iterations}


def _retrained(parts: Parts, problem: Problem, controller: Any, x0s: Array, options: dict[str, Any]) -> Any:
    """The controller, trained on from these states; each chunk of iterations is kept."""
    begun = parts.memory.get("training")

    def on_chunk(batch: Batch) -> None:
        parts.memory["training"] = batch.to_arrays()
        parts.tell(batch.done / max(options["iterations"], 1))

    resume = None if begun is None else Batch.from_arrays(begun, controller)
    batch = train_batch(problem, [controller], x0s, **options, resume=resume, on_chunk=on_chunk)
    parts.finished["training"] = {}  # `on_chunk` has stored it
    estimator = Exact(options.get("loss")) if options.get("gradient") is None else options["gradient"]
    if getattr(estimator, "loss", None) is None:
        noisy = is_noisy(problem)
        exact = isinstance(estimator, Exact) and not noisy
        warn_if_stuck(WHERE, without_noise(problem), batch.run(0), x0s, exact=exact, noisy=noisy)
    return batch.controllers[0]


def _as_arrays(suggestion: Suggestion) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in suggestion._asdict().items()}


def _limit(of_seen: float) -> float:
    limit = TOLERANCE * of_seen
    if not (np.isfinite(limit) and limit > 0):
        raise OffspanError(
            f"{WHERE}: the worst seen state costs {of_seen:.3g}, with which others cannot be compared; pass `success`, a function of the "
            "last state."
        )
    return float(limit)


def _criterion(success: Callable[..., Any] | None, limit: float | None, baseline_name: str) -> str:
    if success is not None:
        return success.__doc__ or "the last state satisfies the success condition"
    if limit is None:
        return f"at most {TOLERANCE:g} times the cost of {baseline_name[0].lower()}{baseline_name[1:]} from the same state"
    return f"J(x) ≤ {limit:.3g}, {TOLERANCE:g} times that of the worst seen state"


def _compared(costs: np.ndarray, others: np.ndarray, name: str) -> str:
    """The median ratio, of the states from which there is one: a cost of the other that is finite and positive, and one of ours."""
    some = np.isfinite(others) & (others > 0) & ~np.isnan(costs)
    if not some.any():
        return f"Its cost is not compared with that of {name}, which is nowhere finite and positive."
    of = "" if some.all() else f" of the {some.sum():,} states from which that is finite and positive"
    return f"In the median{of} it costs {np.median(costs[some] / others[some]):.3g} times what {name} does."


def _spread_out(Z: np.ndarray, costs: np.ndarray, count: int) -> np.ndarray:
    """The indices of the highest costs, each state farther than `NEAR` from those before it."""
    chosen: list[int] = []
    for i in np.argsort(-costs, kind="stable"):
        if len(chosen) < count and costs[i] > -np.inf and all(np.linalg.norm(Z[i] - Z[j]) > NEAR for j in chosen):
            chosen.append(int(i))
    return np.array(chosen, int)


def _trajectory(problem: Problem, controller: Any, x0: np.ndarray, key: Array) -> Trajectory:
    return rollout(problem, controller, jnp.asarray(x0), key=as_noise_key(WHERE, problem, key))


def _stationary(problem: Problem) -> tuple[Linear | None, str]:
    if not isinstance(problem, LQR) or np.linalg.eigvalsh(np.asarray(problem.R, float))[0] <= 0:
        return None, ""
    try:
        return Linear(stationary_controller(problem)), "The stationary optimal controller (dlqr)"
    except OffspanError:
        return None, ""


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{share:.0%}"
