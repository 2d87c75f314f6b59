"""Training to choose by: pilot runs of many sets of seen states, and approximate gradient flow (regression on the visited states)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from offspan.controllers import Linear, stack_weights
from offspan.exploration import visited_count
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR
from offspan.problems.variants import is_noisy
from offspan.rollout import Controller, cost, rollout
from offspan.selection.evaluations import Setting
from offspan.sizes import blocks
from offspan.training import Batch, Estimator, Exact, Status, StoppingRule, train_batch

STAGES = 20  # of approximate gradient flow, each with the covariance of what is visited at its start
SAMPLES = 16  # trajectories from each state that the cost of a noisy problem is the mean of


class Training(NamedTuple):
    """How pilots are trained, and for how many iterations the longest of them."""

    problem: Problem  # with its noise, if it has any
    key: PRNGKeyArray  # that noise and sampled gradients are drawn from
    optimizer: optax.GradientTransformation
    iterations: int
    stop: StoppingRule | None = None
    gradient: Estimator | None = None
    horizons: Sequence[int] | None = None  # of the first stretch of training; later ones have the whole horizon
    discounts: Sequence[float] | None = None  # likewise

    def rollouts_of_update(self, controller: Controller, x0s: Float[Array, "k n"]) -> int:
        estimator, made = self.gradient or Exact(), []
        eqx.filter_eval_shape(lambda x0s: made.append(estimator(self.key, self.problem, controller, x0s).rollouts), x0s)
        return made[0]

    def costs_from(self, controllers: Sequence[Controller], x0s: Float[Array, "s n"]) -> tuple[np.ndarray, int]:
        """`costs_from` with the noise of the problem, the same for all controllers; and the rollouts that it took."""
        samples = SAMPLES if is_noisy(self.problem) else 1
        return costs_from(self.problem, controllers, x0s, self.key, samples), samples * len(controllers) * len(x0s)


class Pilots:
    """The runs of `sets` (q, k), from every start; all or some of them continue in one program."""

    def __init__(self, setting: Setting, training: Training, sets: np.ndarray):
        self.setting, self.training, self.sets = setting, training, sets
        self.alive = np.arange(len(sets))
        self.rollouts = 0
        self._rollouts_of_update = training.rollouts_of_update(setting.controllers[0], setting.candidates[sets[0]])
        self._batch: Batch | None = None
        self._costs: np.ndarray | None = None

    @property
    def batch(self) -> Batch:
        assert self._batch is not None  # `train` comes first
        return self._batch

    def train(self, keep: np.ndarray, iterations: int) -> None:
        """Continues the sets `keep` (in ascending order, of those alive), until each has made `iterations` updates in all."""
        starts, resume, before = len(self.setting.controllers), None, 0
        if self._batch is not None:
            positions = np.searchsorted(self.alive, keep)
            resume = _some_runs(self._batch, (positions[:, None] * starts + np.arange(starts)).ravel())
            before = int(np.sum(resume.iterations))
        self.alive, self._costs, training = keep, None, self.training
        self._batch = train_batch(
            training.problem,
            [controller for _ in self.alive for controller in self.setting.controllers],
            jnp.repeat(self.setting.candidates[self.sets[self.alive]], starts, axis=0),
            optimizer=training.optimizer,
            iterations=iterations,
            gradient=training.gradient,
            key=training.key,
            stop=training.stop,
            horizons=training.horizons if resume is None else None,
            discounts=training.discounts if resume is None else None,
            record_every=training.iterations,
            resume=resume,
        )
        self.rollouts += self._rollouts_of_update * (int(np.sum(self._batch.iterations)) - before)

    def costs(self) -> np.ndarray:
        """For each set that is alive, the cost over all candidates: the median over starts, where a run that diverged counts as ∞."""
        of_runs = np.where(self.batch.codes == Status.diverged, np.inf, self._costs_of_runs().mean(axis=1))
        return np.median(of_runs.reshape(len(self.alive), -1), axis=1)

    def _costs_of_runs(self) -> np.ndarray:
        """(r, c): of each run, from every candidate."""
        if self._costs is None:
            self._costs, made = self.training.costs_from(self.batch.controllers, self.setting.candidates)
            self.rollouts += made
        return self._costs

    def controllers(self, position: int = 0) -> list[Any]:
        """What was trained on one of the sets that are alive, from each start; the last finite one of a run that diverged."""
        return self.batch.controllers[self._runs_of(position)]

    def diverged(self, position: int = 0) -> np.ndarray:
        """Which of these runs did."""
        return self.batch.codes[self._runs_of(position)] == Status.diverged

    def note(self, before: np.ndarray | None = None) -> str:
        """What to say where most of the runs that are alive did not train; `before`: the costs (starts, c) from the starts, where known.

        A check, not a part of choosing: its rollouts are not counted.
        """
        own = np.repeat(self.sets[self.alive], len(self.setting.controllers), axis=0)
        before = self.training.costs_from(self.setting.controllers, self.setting.candidates)[0] if before is None else before
        first, last = (
            np.take_along_axis(costs, own, axis=1).mean(axis=1) for costs in (np.tile(before, (len(self.alive), 1)), self._costs_of_runs())
        )
        idle = (self.batch.codes == Status.diverged) | ((self.batch.codes == Status.finished) & ~(last < first))
        if idle.mean() <= 0.5:
            return ""
        return (
            f"{idle.sum()} of {len(idle)} pilot runs did not train (they diverged, or their own cost did not fall), so the choice "
            "rests on little; clip the gradient's norm, change the learning rate, or give them more iterations."
        )

    def _runs_of(self, position: int) -> slice:
        starts = len(self.setting.controllers)
        return slice(position * starts, (position + 1) * starts)


def _some_runs(batch: Batch, runs: np.ndarray) -> Batch:
    some = lambda values: values[runs]  # noqa: E731
    return replace(
        batch,
        weights=jax.tree.map(some, batch.weights),
        codes=batch.codes[runs],
        iterations=batch.iterations[runs],
        cost=batch.cost[runs],
        since=0,  # a curriculum is behind them
        carried=tuple(map(some, batch.carried)),
    )


def costs_from(
    problem: Problem, controllers: Sequence[Controller], x0s: Float[Array, "s n"], key: PRNGKeyArray | None = None, samples: int = 1
) -> np.ndarray:
    """J(π_r; x) of each controller from each state (r, s), ∞ where it overflows; the controllers differ in their weights alone."""
    weights, structure = stack_weights(controllers)
    some = blocks(len(x0s), len(controllers) * samples * _numbers(problem))
    costs = np.concatenate([np.asarray(_costs(problem, weights, structure, x0s[one], key, samples), float) for one in some], axis=1)
    return np.where(np.isfinite(costs), costs, np.inf)


def _numbers(problem: Problem) -> int:
    """Numbers in one trajectory."""
    return (problem.horizon + 1) * (problem.state_dim + problem.control_dim)


@eqx.filter_jit
def _costs(problem, weights, structure, x0s, key, samples):
    def of_one(weights):
        return jax.vmap(lambda x: cost(problem, eqx.combine(weights, structure), x[None], key=key, samples=samples))(x0s)

    return jax.vmap(of_one)(weights)


def flow_costs(
    problem: LQR, candidates: Float[Array, "c n"], sets: np.ndarray, K0: Float[Array, "m n"], rate: float, iterations: int
) -> tuple[np.ndarray, int]:
    """J(K; all candidates) for K at the end of training from K0 on each of the sets (q, k), estimated; and the rollouts that it took.

    Take G, the mean of x xᵀ over what is visited from S, summed over time, for constant, and count in every step only the cost of the next
    state. Then policy gradient is regression, dK/dt = −2 BᵀQ(A + BK)G, and its flow has a closed form (`flow`). With G brought up to date
    at times that grow geometrically from 1 to N iterations, a few dozen rollouts stand for the N·k of training.
    """
    times = rate * np.unique(np.geomspace(1, max(iterations, 1), STAGES).round())
    spans = jnp.asarray(np.diff(times, prepend=0.0), candidates.dtype)
    given = K0.astype(candidates.dtype), spans, visited_count(problem)
    some = [sets[one] for one in blocks(len(sets), len(candidates) * _numbers(problem))]
    costs = np.concatenate([np.asarray(_costs_after(problem, candidates, candidates[few], *given), float) for few in some])
    return costs, len(sets) * (len(times) * sets.shape[1] + len(candidates))


@partial(jax.jit, static_argnums=5)
def _costs_after(problem, candidates, sets, K0, spans, visited):
    def of_one(S):
        def stage(K, span):
            X = jax.vmap(lambda x0: rollout(problem, Linear(K), x0).states)(S)[:, :visited]
            return flow(problem, K, jnp.einsum("shi,shj->ij", X, X) / len(S), span), None

        K, _ = jax.lax.scan(stage, K0, spans)
        return cost(problem, Linear(K), candidates)

    return jax.vmap(of_one)(sets)


def flow(problem: LQR, K: Float[Array, "m n"], G: Float[Array, "n n"], time: Float[Array, ""]) -> Float[Array, "m n"]:
    """The solution at `time` of dK/dt = −2 BᵀQ(A + BK)G.

    With Q^½B = U Σ Vᵀ and G = W Γ Wᵀ, the entries of VᵀKW decay on their own, each at the rate 2σ_i²γ_j, towards −(Uᵀ Q^½ A W)_ij / σ_i.
    """
    values, vectors = jnp.linalg.eigh(problem.Q)
    root = (vectors * jnp.sqrt(jnp.maximum(values, 0))[None]) @ vectors.T
    U, sigma, Vt = jnp.linalg.svd(root @ problem.B, full_matrices=False)
    gamma, W = jnp.linalg.eigh(G)
    moves = sigma[:, None] > 1e-12 * jnp.max(sigma)
    aim = -(U.T @ root @ problem.A @ W) / jnp.where(moves, sigma[:, None], 1)
    share = -jnp.expm1(-2 * time * sigma[:, None] ** 2 * jnp.maximum(gamma, 0)[None])
    return K + Vt.T @ jnp.where(moves, (aim - Vt @ K @ W) * share, 0) @ W.T
