"""Policy gradient for a linear controller in an LQR problem, by the analytic gradient."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from offspan.errors import as_count, as_positive, as_states
from offspan.problems.lqr import LQR, as_lqr
from offspan.rollout import as_gain, lqr_cost_and_gradient
from offspan.training.loop import LoopState, Never, Status, advance, run_chunks


class LQRRun(NamedTuple):
    """A finished training run; `iterations` updates were made, and a diverged run failed at the iteration of that number.

    `cost[i]` = J(K; S) before update i, so at the paper's K^(i+1)  [R24, eq:policy_grad].

    >>> import offspan
    >>> run = offspan.train_lqr(offspan.identity(1, horizon=1), offspan.basis(1), learning_rate=0.25, iterations=2)
    >>> run.cost.tolist(), run.K.tolist()  # 1 + (1 + K)², where 1 + K halves with each update
    ([2.0, 1.25], [[-0.75]])
    """

    K: Float[Array, "m n"]
    cost: np.ndarray
    status: Status
    iterations: int


def train_lqr(
    problem: LQR,
    x0s: Float[ArrayLike, "s n"],
    *,
    learning_rate: float,
    iterations: int,
    K0: Float[ArrayLike, "m n"] | None = None,
    progress: Callable[[int], Any] | None = None,
) -> LQRRun:
    """K ← K − η ∇J(K; S), from K(1) = 0 unless `K0` says otherwise  [R24, eq:policy_grad].

    >>> import offspan
    >>> run = offspan.train_lqr(offspan.identity(2, horizon=2), offspan.basis(2, 1), learning_rate=0.1, iterations=100)
    >>> run.status, run.K.round(2).tolist()
    (<Status.finished: 'finished'>, [[-1.0, 0.0], [0.0, 0.0]])
    """
    where = "train_lqr"
    x0s = as_states(where, "x0s", x0s, as_lqr(where, problem).state_dim)
    K = jnp.zeros((problem.control_dim, problem.state_dim)) if K0 is None else as_gain(where, problem, K0, "K0")
    K = K.astype(jnp.result_type(problem.A, x0s))
    learning_rate = as_positive(where, "learning_rate", learning_rate)
    iterations = as_count(where, "iterations", iterations, least=0)
    state, costs, status = run_chunks(
        lambda state, count: advance_lqr(problem, x0s, learning_rate, state, count),
        LoopState.start(K[None], None, Never()),
        iterations,
        progress,
    )
    return LQRRun(state.controller[0], costs, status, int(state.iteration[0]))


@jax.jit
def advance_lqr(problem, x0s, learning_rate, state, count):
    """Up to `count` ≤ CHUNK updates of one run, as one program."""

    def update(K, _):
        cost, gradient = lqr_cost_and_gradient(problem, K[0], x0s)
        return cost[None], K - learning_rate * gradient[None], None

    return advance(update, Never(), state, count)
