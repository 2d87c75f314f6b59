"""Pilot runs: many sets of seen states, each trained from every start, and the cost that each leaves over all candidates."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from offspan.problems.base import Problem
from offspan.rollout import Controller, cost
from offspan.selection.criteria import Setting
from offspan.training import Batch, BatchState, Status, StoppingRule, train_batch
from offspan.training.loop import CHUNK


class Training(NamedTuple):
    """How pilots are trained, and for how many iterations the longest of them."""

    optimizer: optax.GradientTransformation
    iterations: int
    stop: StoppingRule | None = None


class Pilots:
    """The runs of `sets` (q, k), from every start. They go on from where they are, all or some, in one program."""

    def __init__(self, setting: Setting, training: Training, sets: np.ndarray):
        self.setting, self.training, self.sets = setting, training, sets
        self.alive = np.arange(len(sets))
        self.rollouts = 0
        self._state: BatchState | None = None
        self._batch: Batch | None = None

    def train(self, keep: np.ndarray, iterations: int) -> None:
        """Goes on with the sets `keep` (in ascending order, of those alive), until each has made `iterations` updates in all."""
        starts, k = len(self.setting.controllers), self.sets.shape[1]
        state = self._state
        if state is not None:
            places = np.searchsorted(self.alive, keep)
            runs = (places[:, None] * starts + np.arange(starts)).ravel()
            state = state._replace(
                cost=state.cost[runs],
                status=state.status[runs],
                iterations=state.iterations[runs],
                carried=[leaf[runs] for leaf in state.carried],
            )
        self.alive = keep
        before = 0 if state is None else int(np.sum(state.iterations))

        def remember(latest: BatchState) -> None:
            self._state = latest

        self._state = state
        self._batch = train_batch(
            self.setting.problem,
            [controller for _ in self.alive for controller in self.setting.controllers],
            jnp.repeat(self.setting.candidates[self.sets[self.alive]], starts, axis=0),
            optimizer=self.training.optimizer,
            iterations=iterations,
            stop=self.training.stop,
            record_every=CHUNK,
            resume=state,
            on_chunk=remember,
        )
        self.rollouts += k * (int(np.sum(self._batch.iterations)) - before)

    def costs(self) -> np.ndarray:
        """For each set that is alive, the cost over all candidates: the median over starts, where a run that diverged counts as ∞."""
        assert self._batch is not None
        of_runs = costs_from(self.setting.problem, self._batch.controllers, self.setting.candidates).mean(axis=1)
        of_runs = np.where(self._batch.status == Status.diverged, np.inf, of_runs)
        self.rollouts += len(of_runs) * len(self.setting.candidates)
        return np.median(of_runs.reshape(len(self.alive), -1), axis=1)

    def controllers(self, place: int = 0) -> list[Any]:
        """What was trained on one of the sets that are alive, from each start; the last finite one of a run that diverged."""
        assert self._batch is not None
        return self._batch.controllers[self._runs_of(place)]

    def diverged(self, place: int = 0) -> np.ndarray:
        """Which of these runs did."""
        assert self._batch is not None
        return self._batch.status[self._runs_of(place)] == Status.diverged

    def _runs_of(self, place: int) -> slice:
        starts = len(self.setting.controllers)
        return slice(place * starts, (place + 1) * starts)


def costs_from(problem: Problem, controllers: Sequence[Controller], x0s: Float[Array, "s n"]) -> np.ndarray:
    """J(π_r; x) of each controller from each state (r, s), ∞ where it overflows; the controllers differ in their weights alone."""
    costs = np.asarray(_costs(problem, *stacked(controllers), x0s), float)
    return np.where(np.isfinite(costs), costs, np.inf)


def stacked(controllers: Sequence[Controller]) -> tuple[PyTree, PyTree]:
    """The weights of controllers that differ in nothing else, with a leading axis of runs; and the rest."""
    parts = [eqx.partition(controller, eqx.is_inexact_array) for controller in controllers]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(weights for weights, _ in parts)), parts[0][1]


@eqx.filter_jit
def _costs(problem, weights, structure, x0s):
    def of_one(weights):
        return jax.vmap(lambda x: cost(problem, eqx.combine(weights, structure), x[None]))(x0s)

    return jax.vmap(of_one)(weights)
