"""How well a controller does on unseen states: 0 is perfect; normalised, 1 is no better than the controller that does not extrapolate.

Both LQR measures are quadratic forms in the unseen states, so a sum over an orthonormal basis U of S⊥ equals the sum over the columns
of the projector I − P_S. That does not depend on the basis, and its shape does not depend on the rank, so it works under jit and vmap.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from offspan.baselines import nonextrapolating_controller, underdetermined
from offspan.checks import as_floats, as_states, is_false
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR
from offspan.rollout import Controller, as_gain, cost
from offspan.states import seen_projector


def optimality_measure(
    problem: LQR, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """E_opt(K) = 1/|U| Σ_{x∈U} ‖(A + BK) x‖²_Q, U an orthonormal basis of S⊥  [R24, def:opt_measure, def:opt_measure_general_q].

    Zero iff `K` steers every unseen direction to zero in one step (for Q ≻ 0). Does not depend on the basis. `x0s` are the seen
    states; an explicit set of states `unseen` takes the place of U.
    """
    return _measure("optimality_measure", problem, K, x0s, unseen, steps=1)


def cost_measure(
    problem: LQR, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """E_cost(K) = J(K; U) − J*(U) = 1/|U| Σ_{x∈U} Σ_{h=1}^{H} ‖(A + BK)^h x‖²_Q  [R24, def:cost_measure, def:cost_measure_general_q].

    Summed from h = 1, so that nothing cancels near zero.
    """
    return _measure("cost_measure", problem, K, x0s, unseen, steps=problem.horizon)


def normalized_optimality(
    problem: LQR, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """E_opt(K) / E_opt(K_no-ext)  [R24, sec:prelim:extrapolation]."""
    return _normalized("normalized_optimality", problem, K, x0s, unseen, steps=1)


def normalized_cost(
    problem: LQR, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """E_cost(K) / E_cost(K_no-ext)  [R24, sec:prelim:extrapolation]."""
    return _normalized("normalized_cost", problem, K, x0s, unseen, steps=problem.horizon)


def extrapolation(
    problem: Problem,
    controller: Controller,
    unseen: Float[ArrayLike, "u n"],
    *,
    minimal_cost: Float[ArrayLike, ""],
    baseline_cost: Float[ArrayLike, ""],
) -> Float[Array, ""]:
    """(J(π; U) − J*(U)) / (J(π_no-ext; U) − J*(U)) for any problem and an explicit set U  [R24, app:experiments:details:nn:pend].

    `minimal_cost` is J*(U), or the best estimate of it, `baseline_cost` the cost over U of a controller that does not extrapolate.
    """
    least = as_floats("extrapolation", "minimal_cost", minimal_cost, shape=(), meaning="one number")
    baseline = as_floats("extrapolation", "baseline_cost", baseline_cost, shape=(), meaning="one number")
    if is_false(baseline > least):
        raise ValueError(
            f"extrapolation: `baseline_cost` ({float(baseline):.6g}) must exceed `minimal_cost` ({float(least):.6g}): "
            "a controller that does not extrapolate costs more than the minimum."
        )
    return (cost(problem, controller, unseen) - least) / (baseline - least)


def _measure(where, problem, K, x0s, unseen, steps):
    """1/|U| Σ_{x∈U} Σ_{h=1}^{steps} ‖(A + BK)^h x‖²_Q."""
    x0s = as_states(where, "x0s", x0s, problem.state_dim)
    K = as_gain(where, problem, K)
    defined = underdetermined(where, problem)
    if unseen is None:
        X = jnp.eye(problem.state_dim, dtype=x0s.dtype) - seen_projector(x0s)
        count = jnp.round(jnp.trace(X))
        if is_false(count > 0):
            raise ValueError(
                f"{where}: the {x0s.shape[0]} seen states span the whole space, so no direction is unseen; "
                "pass fewer of them, or a set of states as `unseen`."
            )
        defined &= count > 0
    else:
        X = as_states(where, "unseen", unseen, problem.state_dim)
        count = X.shape[0]
    return jnp.where(defined, _later_costs(problem.A + problem.B @ K, problem.Q, X, steps) / count, jnp.nan)


@partial(jax.jit, static_argnames="steps")
def _later_costs(closed_loop, Q, X, steps):
    """Σ_{x∈X} Σ_{h=1}^{steps} ‖(A + BK)^h x‖²_Q."""

    def step(X, _):
        X = X @ closed_loop.T
        return X, jnp.sum((X @ Q) * X)

    _, costs = jax.lax.scan(step, X.astype(jnp.result_type(X, closed_loop)), length=steps)
    return costs.sum()


def _normalized(where, problem, K, x0s, unseen, steps):
    measure = _measure(where, problem, K, x0s, unseen, steps)
    baseline = _measure(where, problem, nonextrapolating_controller(problem, x0s), x0s, unseen, steps)
    # What rounding leaves of A U = 0: (n ε ‖A‖ ‖Q‖^½)², for states of length 1.
    rounding = (problem.state_dim * jnp.finfo(baseline.dtype).eps) ** 2 * jnp.sum(problem.A**2) * jnp.trace(problem.Q)
    if is_false(baseline > rounding):
        raise ValueError(
            f"{where}: the controller that does not extrapolate has measure 0 here (A x = 0 for every unseen x, up to `Q`), so there is "
            f"nothing to normalise by; use the plain measure, which is {float(measure):.6g}."
        )
    return jnp.where(baseline > rounding, measure / baseline, jnp.nan)
