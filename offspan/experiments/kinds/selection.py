"""Methods of choosing initial states, compared: each chooses for every system or start, and all that was chosen is trained to the end."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from offspan.baselines import minimal_cost
from offspan.experiments.kinds.results import STATUS_MEANING, attributes, status_numbers
from offspan.experiments.kinds.selection_training import Instance, Trained, instances, stopping, train_sets
from offspan.experiments.specs.selection import SelectionSpec
from offspan.problems.lqr import LQR
from offspan.selection import select
from offspan.selection.criteria import CRITERIA, Setting
from offspan.selection.pilots import costs_from
from offspan.selection.sets import random_sets

POOL_KEY = 20_241  # of the random sets; the same for all seeds, so that methods and random sets are paired


class Choices(NamedTuple):
    """What each method chose for each seed i, as far as it is known: the first `done / iterations` of them."""

    chosen: np.ndarray  # (i, method, k), indices in ascending order
    rollouts: np.ndarray  # (i, method)
    own_cost: np.ndarray  # (i, method, c): J of what the method itself trained on its choice, NaN where it trained nothing
    explores: np.ndarray  # (i,): whether any choice does
    done: int


def state_type(part: int) -> type:
    return Trained if part else Choices


def train(spec: SelectionSpec, part: int, earlier: list[Any], resume: Any, on_chunk: Callable[[Any], Any]) -> Any:
    """Part 0 chooses, part 1 trains all sets, part 2 trains a network on all candidates, for the least cost there is."""
    if part == 0:
        return _choose(spec, resume, on_chunk)
    sets = all_sets(spec, earlier[0]) if part == 1 else np.arange(len(spec.pool()))[None]
    return train_sets(spec, sets, resume, on_chunk)


def _choose(spec: SelectionSpec, resume: Choices | None, on_chunk: Callable[[Choices], Any]) -> Choices:
    pool, seeds, methods = spec.pool(), len(spec.seeds), len(spec.methods)
    state = resume or Choices(
        np.zeros((seeds, methods, spec.choose), int),
        np.zeros((seeds, methods), int),
        np.full((seeds, methods, len(pool)), np.nan),
        np.ones(seeds, bool),
        0,
    )
    options: dict[str, Any] = {"optimizer": spec.policy_gradient.transformation(), "stop": stopping(spec), "sets": spec.pilot_sets}
    every = instances(spec)
    first = round(state.done * seeds * methods / spec.iterations)
    for place in range(first, seeds * methods):
        i, m = divmod(place, methods)
        method, (problem, controller) = spec.methods[m], every[i]
        key = jax.random.fold_in(jax.random.key(spec.seeds[i]), m)
        # In closed form, a training of full length costs no more than a short one.
        iterations = spec.iterations if method == "flow" else spec.pilot_iterations
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "select: ")  # what it warns of stands in the result
            selection = select(
                problem,
                pool,
                spec.choose,
                method=method,
                key=key,
                controllers=controller,
                scale=spec.scale,
                iterations=iterations,
                **options,
            )
        done = spec.iterations * (place + 1) // (seeds * methods)
        state = Choices(state.chosen.copy(), state.rollouts.copy(), state.own_cost.copy(), state.explores.copy(), done)
        state.chosen[i, m] = np.sort(selection.indices)
        state.rollouts[i, m] = selection.rollouts
        state.explores[i] = "no choice explores" not in selection.note
        if selection.controllers is not None:
            (own,) = selection.controllers
            state.own_cost[i, m] = np.inf if own is None else costs_from(problem, [own], jnp.asarray(pool))[0]
        on_chunk(state)
    return state


def all_sets(spec: SelectionSpec, choices: Choices) -> np.ndarray:
    """The random sets, and after them what else was chosen: (q, k)."""
    pool = random_sets(jax.random.key(POOL_KEY), len(spec.pool()), spec.choose, spec.sets)
    every = dict.fromkeys(map(tuple, [*pool.tolist(), *choices.chosen.reshape(-1, spec.choose).tolist()]))
    return np.array(list(every))


def to_dataset(spec: SelectionSpec, states: list[Any]) -> xr.Dataset:
    """Costs J, one for each candidate, of every set from every seed; what each method chose; and what was known before training."""
    choices, trained, *least = states
    pool, every, sets = spec.pool(), instances(spec), all_sets(spec, choices)
    shape = len(every), len(sets)

    def laid_out(record: np.ndarray) -> np.ndarray:
        """(q, r, …) as (seed, set, …, iteration)."""
        return np.moveaxis(record.reshape(len(record), *shape, *record.shape[2:]), 0, -1)

    def curve(record: np.ndarray) -> np.ndarray:
        """In single precision, which is what a picture shows, and half of the file."""
        return laid_out(record).astype(np.float32)

    place = {tuple(one): i for i, one in enumerate(sets.tolist())}
    choice = np.array([[place[tuple(one)] for one in of_seed] for of_seed in choices.chosen.tolist()])
    costs = laid_out(trained.cost)
    scores = [_scores(spec, instance, pool, sets) for instance in every]
    least_cost = _least(every, pool, [trained, *least], choices.own_cost)
    run, method = ("seed", "set"), ("seed", "method")
    data: dict[str, tuple] = {
        "candidates": (("candidate", "state"), pool, {"long_name": "the states to choose from"}),
        "sets": (("set", "seen"), sets, {"long_name": "indices of the candidates in each set"}),
        "is_random": ("set", np.arange(len(sets)) < _pool_size(spec), {"long_name": "drawn at random, not only chosen by a method"}),
        "cost": ((*run, "candidate"), costs[..., -1], {"long_name": "J from each candidate after training"}),
        "cost_curve": ((*run, "iteration"), curve(trained.cost.mean(axis=2)), {"long_name": "J over all candidates during training"}),
        "alignment_curve": ((*run, "iteration"), curve(trained.alignment), {"long_name": "cos(∇J(S), ∇J(all candidates))"}),
        "coverage_curve": ((*run, "iteration"), curve(trained.coverage), {"long_name": "largest distance to a visited state"}),
        "status": (run, status_numbers(trained.status).reshape(shape), STATUS_MEANING),
        "iterations": (run, trained.iterations.reshape(shape), {"long_name": "updates made"}),
        "score": ((*run, "criterion"), np.stack(scores), {"long_name": "what is said of the set before training"}),
        "choice": (method, choice, {"long_name": "the set that the method chose"}),
        "rollouts": (method, choices.rollouts, {"long_name": "rollouts that the method made"}),
        "own_cost": ((*method, "candidate"), choices.own_cost, {"long_name": "J from each candidate of what the method itself trained"}),
        "explores": ("seed", choices.explores, {"long_name": "whether any choice explores"}),
        "least_cost": ("seed", least_cost, {"long_name": "the least J over all candidates, or the least that was found"}),
    }
    iterations = spec.iterations // spec.looks * np.arange(spec.looks + 1)
    coords = {"seed": spec.seeds, "method": spec.methods, "criterion": list(CRITERIA), "iteration": iterations}
    settings = {key: getattr(spec, key) for key in ("problem", "choose", "pilot_iterations", "pilot_sets")}
    training = f"{spec.policy_gradient.optimizer}, {spec.policy_gradient.learning_rate:g}"
    shapes = {"dim": spec.dim, "horizon": spec.horizon} if spec.is_lqr() else {}
    return xr.Dataset(data, coords=coords, attrs={**attributes(spec), **settings, **shapes, "policy_gradient": training})


def _pool_size(spec: SelectionSpec) -> int:
    return min(spec.sets, math.comb(len(spec.pool()), spec.choose))


def _scores(spec: SelectionSpec, instance: Instance, pool: np.ndarray, sets: np.ndarray) -> np.ndarray:
    """(set, criterion)"""
    n = instance.problem.state_dim
    setting = Setting(instance.problem, jnp.asarray(pool), [instance.controller], jnp.full(n, spec.scale, pool.dtype))
    return np.stack([criterion(setting).value(sets) for criterion in CRITERIA.values()], axis=1)


def _least(every: list[Instance], pool: np.ndarray, trained: list[Trained], own_cost: np.ndarray) -> np.ndarray:
    """For an LQR by its closed form; for networks the lowest cost of all runs, among them those that were trained on all candidates."""
    if len(trained) == 1:
        return np.array([float(minimal_cost(problem, pool)) for problem, _ in every if isinstance(problem, LQR)])
    found = [part.cost[-1].mean(axis=1).min() for part in trained]
    return np.full(len(every), np.nanmin([*found, *own_cost.mean(axis=2).ravel()]))
