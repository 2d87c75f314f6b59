"""The loop that all training shares: compiled chunks of updates, and between them, on the host, progress and the end of the run.

N iterations are N updates, and `cost[i]` is the cost before update i. A run ends as
  finished   all updates were made;
  converged  a stopping rule was given, and fired;
  diverged   a cost or an update was not finite: the run keeps its last finite controller.
"""

import abc
import enum
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from offspan.errors import as_count

CHUNK = 1_000  # iterations in one compiled call: long enough to hide the call, short enough for smooth progress


class Status(enum.StrEnum):
    """How a run ended: finished ⟺ all updates were made, converged ⟺ a stopping rule fired, diverged ⟺ a cost or an update was not finite.

    [beyond R24]; `Status.diverged == "diverged"`, so that files can hold the word.

    >>> import offspan
    >>> offspan.train_lqr(offspan.identity(1, horizon=2), offspan.basis(1), learning_rate=10.0, iterations=100).status
    <Status.diverged: 'diverged'>
    """

    finished = enum.auto()
    converged = enum.auto()
    diverged = enum.auto()


RUNNING, CONVERGED, DIVERGED = 0, 1, 2  # inside compiled code, where a run that is still running at the end has finished
STATUS = {RUNNING: Status.finished, CONVERGED: Status.converged, DIVERGED: Status.diverged}


class StoppingRule(eqx.Module):
    """Decides when a run stops, and which controller it returns.

    It sees (iteration, J(π; S), controller) before each update, inside the compiled loop, and keeps a memory of its own:
    (memory, stop) ← update(memory, iteration, J(π; S), π)  [beyond R24].

    >>> import offspan
    >>> rule = offspan.CostBelow(1.1)
    >>> [rule.update(rule.init(None), i, J, None) for i, J in enumerate([2.0, 1.25, 1.0625])]  # it needs no memory
    [((), False), ((), False), ((), True)]
    """

    @abc.abstractmethod
    def init(self, controller: PyTree) -> PyTree:
        """The memory before the first iteration."""

    @abc.abstractmethod
    def update(
        self, memory: PyTree, iteration: Int[Array, ""], cost: Float[Array, ""], controller: PyTree
    ) -> tuple[PyTree, Bool[Array, ""]]:
        """The new memory, and whether to stop before this update."""

    @abc.abstractmethod
    def result(self, memory: PyTree, cost: Float[Array, ""], controller: PyTree) -> PyTree:
        """The controller that a run which did not diverge returns, given its last one; compiled, as `update` is."""


class Never(StoppingRule):
    """Makes every update, returns the last controller."""

    def init(self, controller):
        return ()

    def update(self, memory, iteration, cost, controller):
        return memory, jnp.asarray(False)

    def result(self, memory, cost, controller):
        return controller


class CostBelow(StoppingRule):
    """Stops at the first controller with J(π; S) ≤ `threshold`  [beyond R24].

    >>> import optax, offspan
    >>> problem, zero, stop = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), offspan.CostBelow(1.1)
    >>> run = offspan.train(problem, zero, offspan.basis(1), optimizer=optax.sgd(0.25), iterations=100, stop=stop)
    >>> run.cost.tolist()  # 1 + (1 + K)², where 1 + K halves with each update
    [2.0, 1.25, 1.0625]
    """

    threshold: float

    def init(self, controller):
        return ()

    def update(self, memory, iteration, cost, controller):
        return memory, cost <= self.threshold

    def result(self, memory, cost, controller):
        return controller


class NoImprovement(StoppingRule):
    """Looks every `every` iterations; stops after more than `patience` looks without a gain of `gain`, returns the best look's controller.

    A look is a gain where J(π; S) < J_best − `gain`, and J_best ← J(π; S) then.

    The defaults are the rule of the paper's network experiments: 1e-5 over 5,000 iterations  [R24, app:experiments:details:nn:pend].

    >>> import optax, offspan
    >>> problem, zero, stop = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), offspan.NoImprovement(every=1, patience=0, gain=0.2)
    >>> run = offspan.train(problem, zero, offspan.basis(1), optimizer=optax.sgd(0.25), iterations=100, stop=stop)
    >>> run.cost.tolist(), run.controller.K.tolist()  # 1.0625 is no gain of 0.2, so the look before it is the best
    ([2.0, 1.25, 1.0625], [[-0.5]])
    """

    every: int = 100
    patience: int = 50
    gain: float = 1e-5

    def __check_init__(self):
        as_count("NoImprovement", "every", self.every, least=1)
        as_count("NoImprovement", "patience", self.patience, least=0)

    def init(self, controller):
        return jnp.asarray(jnp.inf), controller, jnp.asarray(0)

    def update(self, memory, iteration, cost, controller):
        best_cost, best, stale = memory
        look = iteration % self.every == 0
        better = look & (cost < best_cost - self.gain)
        stale = jnp.where(better, 0, stale + look)
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), controller, best)
        return (jnp.where(better, cost, best_cost), best, stale), stale > self.patience

    def result(self, memory, cost, controller):
        best_cost, best, _ = memory
        better = cost < best_cost - self.gain  # the end is a look, too
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), controller, best)


class LoopState(eqx.Module):
    """Everything that runs carry from one update to the next; every array has a leading axis of runs."""

    controller: PyTree
    optimizer_state: PyTree
    memory: PyTree
    iteration: Int[Array, "r"]
    status: Int[Array, "r"]

    @classmethod
    def start(cls, controllers: PyTree, optimizer_states: PyTree, stop: StoppingRule) -> "LoopState":
        runs = jax.tree.leaves(controllers)[0].shape[0]
        return cls(controllers, optimizer_states, jax.vmap(stop.init)(controllers), jnp.zeros(runs, int), jnp.full(runs, RUNNING))


Update = Callable[[PyTree, PyTree], tuple[Float[Array, "r"], PyTree, PyTree]]


def advance(update: Update, stop: StoppingRule, state: LoopState, count: Int[Array, ""]) -> tuple[LoopState, Float[Array, "r chunk"]]:
    """Up to `count` ≤ CHUNK updates of each run as one program, whatever `count` is; `update(controllers, optimizer_states)` gives (J, both
    anew).

    The iteration that ends a run makes no update, and its cost is recorded; then the run stands still until all have ended.
    """

    def unfinished(carry):
        done, state, _ = carry
        return (done < count) & jnp.any(state.status == RUNNING)

    def body(carry):
        done, state, costs = carry
        running = state.status == RUNNING
        cost, *updated = update(state.controller, state.optimizer_state)
        memory, fired = jax.vmap(stop.update)(state.memory, state.iteration, cost, state.controller)
        current = [state.controller, state.optimizer_state]
        status = jnp.where(jax.vmap(_stays_finite)(updated, current), RUNNING, DIVERGED)
        status = jnp.where(jnp.isfinite(cost), jnp.where(fired, CONVERGED, status), DIVERGED)
        status = jnp.where(running, status, state.status)
        goes_on = status == RUNNING
        controller, optimizer_state = jax.tree.map(partial(_where, goes_on), updated, current)
        memory = jax.tree.map(partial(_where, running), memory, state.memory)
        state = LoopState(controller, optimizer_state, memory, state.iteration + goes_on, status.astype(state.status.dtype))
        return done + 1, state, costs.at[done].set(jnp.where(running, cost, jnp.nan))

    cost_shape = jax.eval_shape(update, state.controller, state.optimizer_state)[0]
    costs = jnp.full((CHUNK, *cost_shape.shape), jnp.nan, cost_shape.dtype)
    _, state, costs = jax.lax.while_loop(unfinished, body, (0, state, costs))
    return state, costs.T


def _where(runs: Bool[Array, "r"], new: Array, old: Array) -> Array:
    return jnp.where(runs.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def run_chunks(
    advance_by: Callable[[LoopState, int], tuple[LoopState, Float[Array, "1 chunk"]]],
    state: LoopState,
    iterations: int,
    progress: Callable[[int], Any] | None,
) -> tuple[LoopState, np.ndarray, Status]:
    """Calls the compiled `advance_by` until the updates of one run are made or it ends; `progress` hears the iterations made so far."""
    chunks, done = [], 0
    while done < iterations and int(state.status[0]) == RUNNING:
        count = min(CHUNK, iterations - done)
        state, costs = advance_by(state, count)
        recorded = count if int(state.status[0]) == RUNNING else int(state.iteration[0]) - done + 1
        chunks.append(np.asarray(costs)[0, :recorded])
        done += count
        if progress is not None:
            progress(int(state.iteration[0]))
    return state, np.concatenate(chunks) if chunks else np.empty(0), STATUS[int(state.status[0])]


def _stays_finite(new: PyTree, old: PyTree) -> Bool[Array, ""]:
    """Whether no number stopped being finite. The optimiser's count too: an infinite second moment would freeze Adam for good, silently."""
    floats = [(a, b) for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a) | ~jnp.isfinite(b)) for a, b in floats]))
