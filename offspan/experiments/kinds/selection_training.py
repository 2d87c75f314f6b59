"""Training for a comparison of choices: every set from every system or start, looked at as it goes on."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from offspan.controllers import Linear
from offspan.experiments.kinds.results import stretch
from offspan.experiments.specs.selection import SelectionSpec
from offspan.exploration import cosine, visited_count
from offspan.problems import Problem
from offspan.rollout import Controller, cost, rollout
from offspan.selection.pilots import stacked
from offspan.training import BatchState, Status, StoppingRule, train_batch
from offspan.training.loop import CHUNK


class Trained(NamedTuple):
    """Every set from every seed, run r = (i, set): looks q during training, and what goes on from the last of them."""

    cost: np.ndarray  # (q, r, c): J from each candidate, NaN where not yet made, ∞ once the run has diverged
    alignment: np.ndarray  # (q, r): cos(∇J(S), ∇J(all candidates))
    coverage: np.ndarray  # (q, r): the largest distance of a candidate to a visited state
    status: np.ndarray  # (r,), of Status
    iterations: np.ndarray  # (r,)
    done: int
    carried: list[np.ndarray]  # K of an LQR, or the leaves that a BatchState carries


class Instance(NamedTuple):
    """A seed's problem, and where training begins."""

    problem: Problem
    controller: Controller


def instances(spec: SelectionSpec) -> list[Instance]:
    if not spec.is_lqr():
        problem = spec.make_problem(0)
        return [Instance(problem, spec.first_controller(problem, seed)) for seed in spec.seeds]
    problems = [jax.tree.map(lambda M: M.astype(spec.precision), spec.make_problem(seed)) for seed in spec.seeds]
    return [Instance(problem, Linear(jnp.zeros((problem.control_dim, problem.state_dim), spec.precision))) for problem in problems]


def stopping(spec: SelectionSpec) -> StoppingRule | None:
    """As in the paper: linear controllers are trained to the end, of a network the best look is kept."""
    return None if spec.is_lqr() else spec.stopping_rule()


class Runs(NamedTuple):
    """Every set from every instance: run r = (i, set)."""

    every: list[Instance]
    seen: np.ndarray  # (r, k, n)
    pool: np.ndarray  # (c, n)

    def instance(self, r: int) -> Instance:
        return self.every[r * len(self.every) // len(self.seen)]


def train_sets(spec: SelectionSpec, sets: np.ndarray, resume: Trained | None, on_chunk: Callable[[Trained], Any]) -> Trained:
    every, pool = instances(spec), spec.pool()
    runs = Runs(every, np.tile(pool[sets], (len(every), 1, 1)), pool)
    advance = (_linear_training if spec.is_lqr() else _network_training)(spec, runs)
    state = resume or _beginning(spec, runs)
    while state.done < spec.iterations:
        upto = state.done + spec.iterations // spec.looks
        controllers, status, iterations, carried = advance(state, upto)
        cost, alignment, gap = (record.copy() for record in (state.cost, state.alignment, state.coverage))
        state = Trained(cost, alignment, gap, status, iterations, upto, carried)
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
        K = state.carried[0] if state.carried else np.zeros((len(problems), problems[0].control_dim, problems[0].state_dim))
        rate = spec.policy_gradient.learning_rate
        K, status, iterations = stretch(
            problems,  # pyright: ignore[reportArgumentType]
            list(runs.seen),
            K,
            state.status,
            state.iterations,
            rate=rate,
            done=state.done,
            upto=upto,
        )
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
        costs = jax.vmap(lambda x: cost(problem, controller, x[None]))(pool)
        states = jax.vmap(lambda x0: rollout(problem, controller, x0).states)(S)[:, :visited].reshape(-1, pool.shape[1])
        apart = jnp.linalg.norm((pool[:, None] - states[None]) / scale, axis=2)
        return costs, cosine(on_S, on_all), jnp.max(jnp.min(apart, axis=1))

    return jax.vmap(of_one)(weights, seen)
