"""Training for a comparison of choices: every set from every system or start, evaluated as it goes on. `spec` is a SelectionSpec."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from offspan.controllers import Linear, stack_weights
from offspan.experiments.lqr import continue_runs
from offspan.experiments.spec import Arrays, OnChunk
from offspan.exploration import cosine, visited_count
from offspan.problems import Problem
from offspan.rollout import Controller, cost, rollout
from offspan.training import Batch, Status, StoppingRule, train_batch


class Instance(NamedTuple):
    """A seed's problem, and where training begins."""

    problem: Problem
    controller: Controller


def instance(spec: Any, seed: int) -> Instance:
    problem = spec.make_problem(seed)
    if not spec.is_lqr():
        return Instance(problem, spec.first_controller(problem, seed))
    problem = jax.tree.map(lambda M: M.astype(spec.precision), problem)
    return Instance(problem, Linear(jnp.zeros((problem.control_dim, problem.state_dim), spec.precision)))


def stopping(spec: Any) -> StoppingRule | None:
    """As in the paper: linear controllers are trained to the end, of a network the best evaluation is kept."""
    return None if spec.is_lqr() else spec.stopping_rule()


class Runs(NamedTuple):
    """Every set from every instance: run r = (i, set)."""

    every: list[Instance]
    seen: np.ndarray  # (r, k, n)
    pool: np.ndarray  # (c, n)

    @classmethod
    def of(cls, spec: Any, sets: np.ndarray) -> "Runs":
        every, pool = [instance(spec, seed) for seed in spec.seeds], spec.pool()
        return cls(every, np.tile(pool[sets], (len(every), 1, 1)), pool)

    def instance(self, r: int) -> Instance:
        return self.every[r * len(self.every) // len(self.seen)]

    def starts(self) -> list[Controller]:
        return [self.instance(r).controller for r in range(len(self.seen))]


def train_sets(spec: Any, sets: np.ndarray, resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """Every set from every seed, evaluated q times during training.

    `cost` (q, r, c): J from each candidate, NaN where not yet made, ∞ once the run has diverged; `alignment` (q, r): cos(∇J(S), ∇J(all
    candidates)); `coverage` (q, r): the largest distance of a candidate to a visited state; `codes` and `iterations` (r,); and what
    training continues from.
    """
    runs = Runs.of(spec, sets)
    advance = _advance_linear if spec.is_lqr() else _advance_networks
    state = dict(resume) if resume else _beginning(spec, runs)
    while (done := int(state["done"])) < spec.iterations:
        controllers, state = advance(spec, runs, state, done + spec.iterations // spec.evaluations)
        state = _evaluated(spec, runs, controllers, state)
        on_chunk(int(state["done"]) / spec.iterations, state)
    return state


def _beginning(spec: Any, runs: Runs) -> dict[str, np.ndarray]:
    count = len(runs.seen)
    cost = np.full((spec.evaluations + 1, count, len(runs.pool)), np.nan)
    state = {"cost": cost, "alignment": cost[..., 0], "coverage": cost[..., 0]}
    state |= {"codes": np.zeros(count, np.int8), "iterations": np.zeros(count, int), "done": np.array(0)}
    return _evaluated(spec, runs, runs.starts(), state)


def _advance_linear(spec: Any, runs: Runs, state: dict[str, np.ndarray], upto: int):
    """The controllers after `upto` updates, and the state with them."""
    problems: list[Any] = [runs.instance(r).problem for r in range(len(runs.seen))]
    K = state.get("K", np.zeros((len(problems), problems[0].control_dim, problems[0].state_dim)))
    state = state | continue_runs(problems, list(runs.seen), state, K, rate=spec.policy_gradient.learning_rate, upto=upto)
    return [Linear(jnp.asarray(one)) for one in state["K"]], state


def _advance_networks(spec: Any, runs: Runs, state: dict[str, np.ndarray], upto: int):
    starts, prefix = runs.starts(), "batch."
    earlier = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    batch = train_batch(
        runs.every[0].problem,
        starts,
        runs.seen,
        optimizer=spec.policy_gradient.transformation(),
        iterations=upto,
        stop=stopping(spec),
        record_every=spec.iterations,
        resume=Batch.from_arrays(earlier, starts[0]) if earlier else None,
    )
    carried = {f"{prefix}{name}": value for name, value in batch.to_arrays().items()}
    return batch.controllers, state | carried | {"codes": batch.codes, "iterations": batch.iterations, "done": np.array(upto)}


def _evaluated(spec: Any, runs: Runs, controllers: list[Controller], state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state with its evaluation after `done` iterations. Runs that share a problem are evaluated together."""
    records = {name: state[name].copy() for name in ("cost", "alignment", "coverage")}
    place = int(state["done"]) * spec.evaluations // spec.iterations
    together = len(controllers) // len(runs.every) if spec.is_lqr() else len(controllers)
    for first in range(0, len(controllers), together):
        some = slice(first, first + together)
        seen, pool = jnp.asarray(runs.seen[some]), jnp.asarray(runs.pool)
        problem, scale = runs.instance(first).problem, jnp.asarray(spec.scale, pool.dtype)
        found = _evaluate(problem, *stack_weights(controllers[some]), seen, pool, scale, visited_count(problem))
        for record, value in zip(records.values(), found, strict=True):
            record[place, some] = np.asarray(value)
    cost, diverged = records["cost"][place], state["codes"] == Status.diverged
    records["cost"][place] = np.where(diverged[:, None] | ~np.isfinite(cost), np.inf, cost)
    return state | records


@eqx.filter_jit
def _evaluate(problem, weights, structure, seen, pool, scale, visited):
    """Cost from each candidate, alignment of the gradients on S and on all candidates, and the largest gap in what is visited."""

    def of_one(weights, S):
        controller = eqx.combine(weights, structure)
        on_S, on_all = (ravel_pytree(jax.grad(lambda w, X=X: cost(problem, eqx.combine(w, structure), X))(weights))[0] for X in (S, pool))
        costs = jax.vmap(lambda x: cost(problem, controller, x[None]))(pool)
        states = jax.vmap(lambda x0: rollout(problem, controller, x0).states)(S)[:, :visited].reshape(-1, pool.shape[1])
        apart = jnp.linalg.norm((pool[:, None] - states[None]) / scale, axis=2)
        return costs, cosine(on_S, on_all), jnp.max(jnp.min(apart, axis=1))

    return jax.vmap(of_one)(weights, seen)
