"""Training for a comparison of choices: every set from every system or start, evaluated as it goes on."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from offspan.controllers import Linear, stack_weights
from offspan.experiments.spec import Arrays, OnChunk
from offspan.exploration import cosine, visited_count
from offspan.problems import Problem
from offspan.rollout import Controller, cost, rollout
from offspan.training import Batch, Status, StoppingRule, train_batch, train_lqr_batch

if TYPE_CHECKING:
    from offspan.experiments.selection import SelectionSpec


class Instance(NamedTuple):
    """A seed's problem, and where training begins."""

    problem: Problem
    controller: Controller


def instance(spec: "SelectionSpec", seed: int) -> Instance:
    problem = spec.make_problem(seed)
    if not spec.is_lqr():
        return Instance(problem, spec.first_controller(problem, seed))
    problem = jax.tree.map(lambda M: M.astype(spec.precision), problem)
    return Instance(problem, Linear(jnp.zeros((problem.control_dim, problem.state_dim), spec.precision)))


def stopping(spec: "SelectionSpec") -> StoppingRule | None:
    """As in the paper: linear controllers are trained to the end, of a network the best evaluation is kept."""
    return None if spec.is_lqr() else spec.stopping_rule()


class Runs(NamedTuple):
    """Every set from every instance: run r = (i, set)."""

    every: list[Instance]
    seen: np.ndarray  # (r, k, n)
    pool: np.ndarray  # (c, n)

    @classmethod
    def of(cls, spec: "SelectionSpec", sets: np.ndarray) -> "Runs":
        every, pool = [instance(spec, seed) for seed in spec.seeds], spec.pool()
        return cls(every, np.tile(pool[sets], (len(every), 1, 1)), pool)

    def instance(self, r: int) -> Instance:
        return self.every[r * len(self.every) // len(self.seen)]

    def starts(self) -> list[Controller]:
        return [self.instance(r).controller for r in range(len(self.seen))]


def train_sets(spec: "SelectionSpec", sets: np.ndarray, resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """Every set from every seed, evaluated q times during training.

    `cost` (q, r, c): J from each candidate, NaN where not yet made, ∞ once the run has diverged; `alignment` (q, r): cos(∇J(S), ∇J(all
    candidates)); `coverage` (q, r): the largest distance of a candidate to a visited state; `codes` and `iterations` (r,); and the batch
    that training continues from, under "batch.".
    """
    runs, interval = Runs.of(spec, sets), spec.iterations // spec.evaluations
    starts, count = runs.starts(), len(runs.seen)
    advance = _advance_linear if spec.is_lqr() else _advance_networks
    if resume is None:
        cost = np.full((spec.evaluations + 1, count, len(runs.pool)), np.nan)
        records = {"cost": cost, "alignment": cost[..., 0], "coverage": cost[..., 0]}
        batch, records = None, _evaluated(spec, runs, starts, np.zeros(count), 0, records)
    else:
        batch = Batch.from_arrays({name.removeprefix("batch."): value for name, value in resume.items() if "batch." in name}, starts[0])
        records = {name: resume[name] for name in ("cost", "alignment", "coverage")}

    def state(batch: Batch) -> Arrays:
        carried = {f"batch.{name}": value for name, value in batch.to_arrays().items()}
        return {**records, "codes": batch.codes, "iterations": batch.iterations, **carried}

    def keep(batch: Batch) -> None:
        if batch.done % interval:  # at the end of an interval, the evaluation comes first
            on_chunk(batch.done / spec.iterations, state(batch))

    for place in range(1, spec.evaluations + 1):
        if batch is None or np.isnan(records["cost"][place]).all():
            batch = advance(spec, runs, place * interval, batch, keep)
            records = _evaluated(spec, runs, batch.controllers, batch.codes, place, records)
            on_chunk(batch.done / spec.iterations, state(batch))
    assert batch is not None  # a spec has at least one evaluation
    return state(batch)


def _advance_linear(spec: "SelectionSpec", runs: Runs, upto: int, resume: Batch | None, on_chunk: Callable[[Batch], Any]) -> Batch:
    problems: list[Any] = [runs.instance(r).problem for r in range(len(runs.seen))]
    rate, every = spec.policy_gradient.learning_rate, spec.iterations // spec.evaluations
    options: dict[str, Any] = {"iterations": upto, "record_every": every, "resume": resume, "on_chunk": on_chunk}
    return train_lqr_batch(problems, list(runs.seen), learning_rate=rate, **options)


def _advance_networks(spec: "SelectionSpec", runs: Runs, upto: int, resume: Batch | None, on_chunk: Callable[[Batch], Any]) -> Batch:
    return train_batch(
        runs.every[0].problem,
        runs.starts(),
        runs.seen,
        optimizer=spec.policy_gradient.transformation(),
        iterations=upto,
        stop=stopping(spec),
        record_every=spec.iterations,
        resume=resume,
        on_chunk=on_chunk,
    )


def _evaluated(
    spec: "SelectionSpec", runs: Runs, controllers: list[Controller], codes: np.ndarray, place: int, records: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The records with the evaluation of these controllers. Runs that share a problem are evaluated together."""
    records = {name: record.copy() for name, record in records.items()}
    together = len(controllers) // len(runs.every) if spec.is_lqr() else len(controllers)
    for first in range(0, len(controllers), together):
        some = slice(first, first + together)
        seen, pool = jnp.asarray(runs.seen[some]), jnp.asarray(runs.pool)
        problem, scale = runs.instance(first).problem, jnp.asarray(spec.scale, pool.dtype)
        found = _evaluate(problem, *stack_weights(controllers[some]), seen, pool, scale, visited_count(problem))
        for record, value in zip(records.values(), found, strict=True):
            record[place, some] = np.asarray(value)
    cost, diverged = records["cost"][place], codes == Status.diverged
    records["cost"][place] = np.where(diverged[:, None] | ~np.isfinite(cost), np.inf, cost)
    return records


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
