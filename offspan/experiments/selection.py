"""Methods of choosing initial states, compared: each chooses for every system or start, and all that was chosen is trained to the end."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree

from offspan.baselines import minimal_cost
from offspan.controllers import Linear
from offspan.experiments.lqr import STATUS_MEANING, attributes, status_numbers
from offspan.experiments.network import first_controller
from offspan.experiments.selection_spec import SelectionSpec
from offspan.exploration import visited_count
from offspan.problems import Problem
from offspan.problems.lqr import LQR
from offspan.rollout import Controller, cost, rollout
from offspan.selection import select
from offspan.selection.criteria import CRITERIA, Setting
from offspan.selection.pilots import costs_from, stacked
from offspan.selection.sets import random_sets
from offspan.states import basis
from offspan.training import BatchState, NoImprovement, Status, StoppingRule, train_batch, train_lqr_batch
from offspan.training.loop import CHUNK

POOL_KEY = 20_241  # of the random sets; the same for all seeds, so that methods and random sets are paired


class Choices(NamedTuple):
    """What each method chose for each seed i, as far as it is known: the first `done / iterations` of them."""

    chosen: np.ndarray  # (i, method, k), indices in ascending order
    rollouts: np.ndarray  # (i, method)
    own_cost: np.ndarray  # (i, method, c): J of what the method itself trained on its choice, NaN where it trained nothing
    explores: np.ndarray  # (i,): whether any choice does
    done: int


class Trained(NamedTuple):
    """Every set from every seed, run r = (i, set): looks q during training, and what goes on from the last of them."""

    cost: np.ndarray  # (q, r, c): J from each candidate, NaN where not yet made, ∞ once the run has diverged
    alignment: np.ndarray  # (q, r): cos(∇J(S), ∇J(all candidates))
    coverage: np.ndarray  # (q, r): the largest distance of a candidate to a visited state
    status: np.ndarray  # (r,), of Status
    iterations: np.ndarray  # (r,)
    done: int
    carried: list[np.ndarray]  # K of an LQR, or the leaves that a BatchState carries


def state_type(part: int) -> type:
    return Trained if part else Choices


def train(spec: SelectionSpec, part: int, earlier: list[Any], resume: Any, on_chunk: Callable[[Any], Any]) -> Any:
    """Part 0 chooses, part 1 trains all sets, part 2 trains a network on all candidates, for the least cost there is."""
    if part == 0:
        return _choose(spec, resume, on_chunk)
    sets = all_sets(spec, earlier[0]) if part == 1 else np.arange(len(candidates(spec)))[None]
    return _train(spec, sets, resume, on_chunk)


class Instance(NamedTuple):
    """A seed's problem, and where training begins."""

    problem: Problem
    controller: Controller


def instances(spec: SelectionSpec) -> list[Instance]:
    if not spec.is_lqr():
        problem = spec.make_problem(0)
        return [Instance(problem, first_controller(spec, problem, seed)) for seed in spec.seeds]
    problems = [jax.tree.map(lambda M: M.astype(spec.precision), spec.make_problem(seed)) for seed in spec.seeds]
    return [Instance(problem, Linear(jnp.zeros((problem.control_dim, problem.state_dim), spec.precision))) for problem in problems]


def candidates(spec: SelectionSpec) -> np.ndarray:
    n = spec.make_problem(spec.seeds[0]).state_dim
    given = np.asarray(basis(n) if spec.candidates is None else spec.candidates, spec.precision)
    return np.pad(given, ((0, 0), (0, n - given.shape[1])))


def stopping(spec: SelectionSpec) -> StoppingRule | None:
    """As in the paper: linear controllers are trained to the end, of a network the best look is kept."""
    return None if spec.is_lqr() else NoImprovement(every=spec.look_every, patience=spec.patience, gain=spec.gain)


def _choose(spec: SelectionSpec, resume: Choices | None, on_chunk: Callable[[Choices], Any]) -> Choices:
    pool, seeds, methods = candidates(spec), len(spec.seeds), len(spec.methods)
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
            warnings.simplefilter("ignore", UserWarning)  # what `select` warns of stands in the result
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
        state.explores[i] = not selection.note
        if selection.controllers is not None:
            state.own_cost[i, m] = costs_from(problem, selection.controllers, jnp.asarray(pool))[0]
        on_chunk(state)
    return state


def all_sets(spec: SelectionSpec, choices: Choices) -> np.ndarray:
    """The random sets, and after them what else was chosen: (q, k)."""
    pool = random_sets(jax.random.key(POOL_KEY), len(candidates(spec)), spec.choose, spec.sets)
    every = dict.fromkeys(map(tuple, [*pool.tolist(), *choices.chosen.reshape(-1, spec.choose).tolist()]))
    return np.array(list(every))


class Runs(NamedTuple):
    """Every set from every instance: run r = (i, set)."""

    every: list[Instance]
    seen: np.ndarray  # (r, k, n)
    pool: np.ndarray  # (c, n)

    def instance(self, r: int) -> Instance:
        return self.every[r * len(self.every) // len(self.seen)]


def _train(spec: SelectionSpec, sets: np.ndarray, resume: Trained | None, on_chunk: Callable[[Trained], Any]) -> Trained:
    every, pool = instances(spec), candidates(spec)
    runs = Runs(every, np.tile(pool[sets], (len(every), 1, 1)), pool)
    advance = (_linear_training if spec.is_lqr() else _network_training)(spec, runs)
    state = resume or _beginning(spec, runs)
    stretch = spec.iterations // spec.looks
    while state.done < spec.iterations:
        controllers, status, iterations, carried = advance(state, state.done + stretch)
        cost, alignment, gap = (record.copy() for record in (state.cost, state.alignment, state.coverage))
        state = Trained(cost, alignment, gap, status, iterations, state.done + stretch, carried)
        _look(spec, runs, controllers, state)
        on_chunk(state)
    return state


def _beginning(spec: SelectionSpec, runs: Runs) -> Trained:
    count, looks = len(runs.seen), spec.looks + 1
    cost = np.full((looks, count, len(runs.pool)), np.nan)
    state = Trained(cost, cost[..., 0].copy(), cost[..., 0].copy(), np.full(count, Status.finished), np.zeros(count, int), 0, [])
    _look(spec, runs, [runs.instance(r).controller for r in range(count)], state)
    return state


def _linear_training(spec: SelectionSpec, runs: Runs):
    problems = [runs.instance(r).problem for r in range(len(runs.seen))]

    def advance(state: Trained, upto: int):
        K = state.carried[0].copy() if state.carried else np.zeros((len(problems), problems[0].control_dim, problems[0].state_dim))
        status, iterations = state.status.copy(), state.iterations.copy()
        alive = np.flatnonzero(status == Status.finished)
        if len(alive):
            batch = train_lqr_batch(
                [problems[r] for r in alive],  # pyright: ignore[reportArgumentType]
                list(runs.seen[alive]),
                learning_rate=spec.policy_gradient.learning_rate,
                iterations=upto - state.done,
                K0=K[alive],
                record_every=min(CHUNK, upto - state.done),
            )
            K[alive], status[alive], iterations[alive] = batch.K, batch.status, state.done + batch.iterations
        return [Linear(jnp.asarray(one)) for one in K], status, iterations, [K]

    return advance


def _network_training(spec: SelectionSpec, runs: Runs):
    optimizer, stop = spec.policy_gradient.transformation(), stopping(spec)

    def advance(state: Trained, upto: int):
        latest = BatchState(state.carried[0], state.status, state.iterations, CHUNK, state.done, state.carried[1:]) if state.done else None

        def keep(now: BatchState) -> None:
            nonlocal latest
            latest = now

        batch = train_batch(
            runs.every[0].problem,
            [runs.instance(r).controller for r in range(len(runs.seen))],
            runs.seen,
            optimizer=optimizer,
            iterations=upto,
            stop=stop,
            record_every=CHUNK,
            resume=latest,
            on_chunk=keep,
        )
        assert latest is not None  # a stretch is at least one iteration
        return batch.controllers, batch.status, batch.iterations, [latest.cost, *latest.carried]

    return advance


def _look(spec: SelectionSpec, runs: Runs, controllers: list[Controller], state: Trained) -> None:
    """Fills in the look after `state.done` iterations. Runs that share a problem are looked at together."""
    look = state.done * spec.looks // spec.iterations
    together = len(controllers) // len(runs.every) if spec.is_lqr() else len(controllers)
    for first in range(0, len(controllers), together):
        some = slice(first, first + together)
        weights, structure = stacked(controllers[some])
        seen, pool = jnp.asarray(runs.seen[some]), jnp.asarray(runs.pool)
        problem = runs.instance(first).problem
        records = _watch(problem, weights, structure, seen, pool, jnp.asarray(spec.scale, pool.dtype), visited_count(problem))
        for record, value in zip((state.cost, state.alignment, state.coverage), records, strict=True):
            record[look, some] = np.asarray(value)
    diverged = state.status == Status.diverged
    state.cost[look] = np.where(diverged[:, None] | ~np.isfinite(state.cost[look]), np.inf, state.cost[look])


@eqx.filter_jit
def _watch(problem, weights, structure, seen, pool, scale, visited):
    """Cost from each candidate, alignment of the gradients on S and on all candidates, and the largest gap in what is visited."""

    def of_one(weights, S):
        controller = eqx.combine(weights, structure)
        on_S, on_all = (ravel_pytree(jax.grad(lambda w, X=X: cost(problem, eqx.combine(w, structure), X))(weights))[0] for X in (S, pool))
        lengths = jnp.linalg.norm(on_S) * jnp.linalg.norm(on_all)
        cosine = jnp.where(lengths == 0, 0, on_S @ on_all / lengths)  # NaN where a gradient overflows
        costs = jax.vmap(lambda x: cost(problem, controller, x[None]))(pool)
        states = jax.vmap(lambda x0: rollout(problem, controller, x0).states)(S)[:, :visited].reshape(-1, pool.shape[1])
        apart = jnp.linalg.norm((pool[:, None] - states[None]) / scale, axis=2)
        return costs, cosine, jnp.max(jnp.min(apart, axis=1))

    return jax.vmap(of_one)(weights, seen)


def to_dataset(spec: SelectionSpec, states: list[Any]) -> xr.Dataset:
    """Costs J, one for each candidate, of every set from every seed; what each method chose; and what was known before training."""
    choices, trained, *least = states
    pool, every, sets = candidates(spec), instances(spec), all_sets(spec, choices)
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
        "least_cost": ("seed", _least(every, pool, least), {"long_name": "the least J over all candidates, or the least that was found"}),
    }
    iterations = spec.iterations // spec.looks * np.arange(spec.looks + 1)
    coords = {"seed": spec.seeds, "method": spec.methods, "criterion": list(CRITERIA), "iteration": iterations}
    settings = {key: getattr(spec, key) for key in ("problem", "choose", "pilot_iterations", "pilot_sets")}
    training = f"{spec.policy_gradient.optimizer}, {spec.policy_gradient.learning_rate:g}"
    shapes = {"dim": spec.dim, "horizon": spec.horizon} if spec.is_lqr() else {}
    return xr.Dataset(data, coords=coords, attrs={**attributes(spec), **settings, **shapes, "policy_gradient": training})


def _pool_size(spec: SelectionSpec) -> int:
    return min(spec.sets, math.comb(len(candidates(spec)), spec.choose))


def _scores(spec: SelectionSpec, instance: Instance, pool: np.ndarray, sets: np.ndarray) -> np.ndarray:
    """(set, criterion)"""
    n = instance.problem.state_dim
    setting = Setting(instance.problem, jnp.asarray(pool), [instance.controller], jnp.full(n, spec.scale, pool.dtype))
    return np.stack([criterion(setting).value(sets) for criterion in CRITERIA.values()], axis=1)


def _least(every: list[Instance], pool: np.ndarray, trained_on_all: list[Trained]) -> np.ndarray:
    """For an LQR by its closed form; for networks the lowest cost of the runs that were trained on all candidates."""
    if not trained_on_all:
        return np.array([float(minimal_cost(problem, pool)) for problem, _ in every if isinstance(problem, LQR)])
    found = trained_on_all[0].cost[-1].mean(axis=1)
    return np.full(len(every), found.min())
