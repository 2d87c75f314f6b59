"""The methods of choosing k states: at random, by a criterion, by approximate gradient flow, by pilot runs, or during training.

Sets of candidates are rows of indices (q, k).
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from offspan.controllers import Linear
from offspan.errors import OffspanError
from offspan.problems.lqr import LQR
from offspan.problems.variants import is_noisy
from offspan.selection.criteria import CRITERIA, Criterion
from offspan.selection.evaluations import Setting
from offspan.selection.pilots import Pilots, Training, flow_costs
from offspan.selection.search import ALL_SETS, as_sets, best_set, with_random_sets, worth


class Task(NamedTuple):
    """What to choose from, how many, with which randomness, and for methods that train, how."""

    setting: Setting
    k: int
    key: Array
    training: Training | None
    sets: int


class Choice(NamedTuple):
    """The k candidates that a method chose, what each candidate is worth to it, and the rollouts and notes of choosing."""

    indices: Any
    scores: np.ndarray
    rollouts: int
    controllers: list[Any] | None = None  # None in place of one that diverged
    note: str = ""


def _random(task: Task) -> Choice:
    count = len(task.setting.candidates)
    return Choice(jax.random.permutation(task.key, count)[: task.k], np.zeros(count), 0)


def _by(name: str) -> Callable[[Task], Choice]:
    """The set that a criterion values most: of all sets where these are few, else by greedy choice and exchanges."""

    def choose(task: Task) -> Choice:
        criterion = CRITERIA[name](task.setting)
        best = best_set(criterion, len(task.setting.candidates), task.k)
        note = "all sets are worth the same by this criterion, and the first was taken." if best.is_tie else ""
        return Choice(best.indices, best.scores, criterion.rollouts, note=note)

    return choose


def _flow(task: Task) -> Choice:
    setting, training = task.setting, _trained(task)
    problem = setting.problem
    gains = [controller.K for controller in setting.controllers if isinstance(controller, Linear)]
    if not isinstance(problem, LQR) or np.any(np.asarray(problem.R)) or len(gains) < len(setting.controllers):
        raise OffspanError("select: 'flow' is for linear controllers of an LQR with R = 0; elsewhere take 'pilot'.")
    if is_noisy(training.problem) or any(given is not None for given in (training.gradient, training.horizons, training.discounts)):
        raise OffspanError("select: 'flow' follows exact gradients without noise, `horizons` or `discounts`; for these take 'pilot'.")
    rate, rollouts = _rate_of_descent(training.optimizer), 0

    def value(sets):
        nonlocal rollouts
        estimates = [flow_costs(problem, setting.candidates, sets, K0, rate, training.iterations) for K0 in gains]
        rollouts += sum(made for _, made in estimates)
        return -np.median([costs for costs, _ in estimates], axis=0)

    best = best_set(Criterion(value, 0), len(setting.candidates), task.k)
    return Choice(best.indices, best.scores, rollouts)


def _rate_of_descent(optimizer: optax.GradientTransformation) -> float:
    """η, if an update is −η g for gradients g of very different sizes and nothing is remembered, as of plain gradient descent alone."""
    weight: Any = jnp.asarray(1.0)
    state, rates = optimizer.init(weight), []
    remembers = bool(jax.tree.leaves(state))  # momentum, the counter of a schedule, or what a line search needs
    for g in () if remembers else (1.0, 2.0, 1e6):
        gradient: Any = jnp.asarray(g)
        update: Any = optimizer.update(gradient, state, weight)[0]
        rates.append(-float(update) / g)
    if remembers or not (rates[0] > 0 and np.allclose(rates, rates[0], rtol=1e-6, atol=0)):
        raise OffspanError(
            "select: 'flow' follows plain gradient descent, without momentum, clipping, schedule, weight decay or `inject_hyperparams`; "
            "pass optax.sgd(…) as `optimizer`, or take 'pilot' for another one."
        )
    return rates[0]


def _pilot(task: Task) -> Choice:
    """Successive halving: all sets are trained for a while, the better half for twice as long, …, the last one for `iterations`.

    Where there are more sets than `task.sets`, it begins with the best by distance and by log det of the Gramian, and with random ones.
    """
    count, k = len(task.setting.candidates), task.k
    rollouts = 0
    if math.comb(count, k) <= task.sets:
        sets = as_sets(itertools.combinations(range(count), k))
    else:
        informed = [CRITERIA[name](task.setting) for name in ("distance", "gramian-logdet")]
        rollouts = sum(criterion.rollouts for criterion in informed)
        sets = with_random_sets([best_set(criterion, count, k).indices for criterion in informed], task.sets, count, k, task.key)
    pilots = Pilots(task.setting, training := _trained(task), sets)
    halvings = math.ceil(math.log2(len(sets)))
    costs = np.empty((0, len(sets)))  # of each round, NaN for sets that had ended before
    alive = np.arange(len(sets))
    for rung in range(halvings + 1):
        pilots.train(alive, max(training.iterations // 2 ** (halvings - rung), 1))
        costs = np.vstack([costs, np.full(len(sets), np.nan)])
        costs[-1, alive] = pilots.costs()
        if rung < halvings:
            alive = np.sort(alive[np.argsort(costs[-1, alive], kind="stable")[: math.ceil(len(alive) / 2)]])
    values = _less_than_the_winner(costs, int(alive[0]))
    return _of_pilots(sets, values, pilots, int(alive[0]), 0, count)._replace(rollouts=rollouts + pilots.rollouts)


def _less_than_the_winner(costs: np.ndarray, winner: int) -> np.ndarray:
    """By how much less the winner cost in the last round that a set took part in, as costs of different rounds do not compare; −∞ for
    a set whose cost was infinite there, and for all where the winner itself diverged."""
    if np.isinf(costs[-1, winner]):
        return np.full(costs.shape[1], -np.inf)
    last = np.sum(~np.isnan(costs), axis=0) - 1
    own = costs[last, np.arange(costs.shape[1])]
    with np.errstate(invalid="ignore"):  # ∞ − ∞, which must not spread to the scores of other sets
        return np.where(np.isinf(own), -np.inf, costs[last, winner] - own)


def _of_pilots(sets: np.ndarray, values: np.ndarray, pilots: Pilots, best: int, position: int, count: int) -> Choice:
    """The set of number `best`, which has this position among those still in training."""
    note = pilots.note() if values[best] > -np.inf else "every run of the chosen states diverged; lower the learning rate."
    return Choice(
        sets[best], worth(sets, values, count), pilots.rollouts, _without(pilots.controllers(position), pilots.diverged(position)), note
    )


def _without(controllers: list[Any], diverged: np.ndarray) -> list[Any]:
    return [None if gone else controller for controller, gone in zip(controllers, diverged, strict=True)]


def _exhaustive(task: Task) -> Choice:
    """Every set is trained to the end: the oracle."""
    count = len(task.setting.candidates)
    if (number := math.comb(count, task.k)) > ALL_SETS:
        raise OffspanError(
            f"select: 'exhaustive' would train {number:,} sets; it stops at {ALL_SETS:,}, so take 'pilot' or a smaller pool."
        )
    sets = as_sets(itertools.combinations(range(count), task.k))
    pilots = Pilots(task.setting, training := _trained(task), sets)
    pilots.train(np.arange(len(sets)), training.iterations)
    values = -pilots.costs()
    best = int(np.argmax(values))
    return _of_pilots(sets, values, pilots, best, best, count)


def _growing(next_state: Callable[[np.ndarray, Array], int]) -> Callable[[Task], Choice]:
    """S grows during training: `next_state` says by the candidates' current costs (−∞ for chosen ones) which comes next.

    After a stage of training that diverges, the next one starts from its last finite controller.
    """

    def choose(task: Task) -> Choice:
        setting, training = task.setting, _trained(task)
        controllers, chosen, rollouts, diverged = list(setting.controllers), [], 0, np.zeros(len(setting.controllers), bool)
        scores, count, idle = np.zeros(len(setting.candidates)), task.k, ""
        for key_of_draw, key_of_training in zip(jax.random.split(task.key, count), jax.random.split(training.key, count), strict=True):
            training = training._replace(key=key_of_training)
            costs, made = training.costs_from(controllers, setting.candidates)
            now, rollouts = np.median(costs, axis=0), rollouts + made
            now[chosen] = -np.inf
            unseen = np.setdiff1d(np.arange(len(now)), chosen)
            scores[unseen] = now[unseen]
            chosen.append(next_state(now, key_of_draw))
            pilots = Pilots(setting._replace(controllers=controllers), training, np.array([chosen]))
            pilots.train(np.array([0]), max(training.iterations // count, 1))
            controllers, rollouts, diverged = pilots.controllers(), rollouts + pilots.rollouts, diverged | pilots.diverged()
            idle = pilots.note(costs) if len(chosen) == count else ""
            training = training._replace(horizons=None, discounts=None)
        note = f"training diverged from {diverged.sum()} of {len(diverged)} starts while S grew." if np.any(diverged) else idle
        return Choice(chosen, scores, rollouts, _without(controllers, diverged), note)

    return choose


def _worst(costs: np.ndarray, key: Array) -> int:
    return int(np.argmax(costs))


def _by_rank(costs: np.ndarray, key: Array) -> int:
    """The r-th worst with a probability proportional to 1/r, as in prioritised level replay (Jiang, Grefenstette and Rocktäschel 2021)."""
    order = np.argsort(-costs, kind="stable")[: int(np.sum(costs > -np.inf))]
    return int(order[jax.random.categorical(key, -jnp.log(1.0 + jnp.arange(len(order))))])


def _trained(task: Task) -> Training:
    assert task.training is not None  # select made one for every method that trains
    return task.training


class Method(NamedTuple):
    """How a method chooses, what its scores mean, and whether it trains (or follows training approximately)."""

    choose: Callable[[Task], Choice]
    meaning: str
    trains: bool = False


_DIFFERENCE = "value of the best set containing the candidate minus the best without it; value: "
_LAST_COST = "cost from it when it was last unseen"
METHODS: dict[str, Method] = {
    "random": Method(_random, "nothing is known of it"),
    "farthest": Method(_by("distance"), _DIFFERENCE + "minus the distance of the farthest candidate"),
    "gramian-trace": Method(_by("gramian-trace"), _DIFFERENCE + "the trace of the Gramian"),
    "gramian-logdet": Method(_by("gramian-logdet"), _DIFFERENCE + "log det(I + G/ε) of what is visited"),
    "alignment": Method(_by("alignment"), _DIFFERENCE + "the cosine of the gradients of S and of all candidates"),
    "tangent": Method(_by("tangent"), _DIFFERENCE + "minus the posterior variance at the candidates, with the tangent kernel"),
    "coverage": Method(_by("coverage"), _DIFFERENCE + "minus the distance of the farthest candidate to what is visited"),
    "covariance": Method(_by("covariance"), _DIFFERENCE + "the trace of the visited states' covariance"),
    "colearnability": Method(_by("colearnability"), _DIFFERENCE + "the mean cosine of a candidate's gradient with the nearest in S"),
    "flow": Method(_flow, _DIFFERENCE + "minus the cost over all candidates after approximate gradient flow", trains=True),
    "pilot": Method(_pilot, _DIFFERENCE + "minus the cost over all candidates in the last round they shared", trains=True),
    "adaptive": Method(_growing(_worst), _LAST_COST, trains=True),
    "replay": Method(_growing(_by_rank), _LAST_COST, trains=True),
    "exhaustive": Method(_exhaustive, _DIFFERENCE + "minus the cost over all candidates after training", trains=True),
}
