"""How well a controller does on unseen states: 0 is perfect; normalised, 1 is no better than the controller that does not extrapolate.

Both LQR measures are quadratic forms in the unseen states, so a sum over an orthonormal basis U of S⊥ equals the sum over the columns
of the projector I − P_S. That does not depend on the basis, and its shape does not depend on the rank, so it works under jit and vmap.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from offspan.baselines import riccati_cost, stationary_controller, underdetermined
from offspan.controllers import Linear
from offspan.errors import OffspanError, as_floats, as_states, check_size, is_false
from offspan.problems.base import Problem, as_problem
from offspan.problems.lqr import LQR, as_lqr
from offspan.rollout import Controller, as_gain, cost
from offspan.states import seen_projector, unseen_directions

Gain = Float[ArrayLike, "m n"] | Linear


def optimality_measure(
    problem: LQR, K: Gain, seen: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """E_opt(K) = 1/|U| Σ_{x∈U} ‖(A + BK) x‖²_Q, U an orthonormal basis of S⊥  [R24, def:opt_measure, def:opt_measure_general_q].

    Zero iff `K` steers every unseen direction to zero in one step (for Q ≻ 0). Does not depend on the basis. An explicit
    set of states `unseen` takes the place of U. `K` may be a `Linear`, here and below.

    >>> import jax.numpy as jnp, offspan
    >>> float(offspan.optimality_measure(offspan.identity(2, horizon=2), -0.5 * jnp.eye(2), offspan.basis(2, 1)))  # ‖e_2/2‖²
    0.25
    """
    return _measure("optimality_measure", problem, K, seen, unseen, steps=1)


def cost_measure(
    problem: LQR, K: Gain, seen: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """E_cost(K) = J(K; U) − J*(U) = 1/|U| Σ_{x∈U} Σ_{h=1}^{H} ‖(A + BK)^h x‖²_Q  [R24, def:cost_measure, def:cost_measure_general_q].

    Summed from h = 1, so that nothing cancels near zero.

    >>> import jax.numpy as jnp, offspan
    >>> float(offspan.cost_measure(offspan.identity(2, horizon=2), -0.5 * jnp.eye(2), offspan.basis(2, 1)))  # ‖e_2/2‖² + ‖e_2/4‖²
    0.3125
    """
    return _measure("cost_measure", problem, K, seen, unseen, steps=as_lqr("cost_measure", problem).horizon)


def normalized_optimality(
    problem: LQR, K: Gain, seen: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """E_opt(K) / E_opt(K_no-ext): 0 for K = K_ext, 1 for K = K_no-ext  [R24, sec:prelim:extrapolation].

    >>> import jax.numpy as jnp, offspan
    >>> problem, seen = offspan.LQR([[2.0, 0.0], [0.0, 2.0]], horizon=2), offspan.basis(2, 1)
    >>> float(offspan.normalized_optimality(problem, -1.0 * jnp.eye(2), seen))  # ‖e_2‖² / ‖2 e_2‖²
    0.25
    """
    return _normalized("normalized_optimality", problem, K, seen, unseen, steps=1)


def normalized_cost(
    problem: LQR, K: Gain, seen: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """E_cost(K) / E_cost(K_no-ext): 0 for K = K_ext, 1 for K = K_no-ext  [R24, sec:prelim:extrapolation].

    >>> import jax.numpy as jnp, offspan
    >>> problem, seen = offspan.LQR([[2.0, 0.0], [0.0, 2.0]], horizon=2), offspan.basis(2, 1)
    >>> float(offspan.normalized_cost(problem, -1.0 * jnp.eye(2), seen))  # (1 + 1) / (4 + 16)
    0.1
    """
    return _normalized("normalized_cost", problem, K, seen, unseen, steps=as_lqr("normalized_cost", problem).horizon)


def extrapolation(
    problem: Problem,
    controller: Controller,
    unseen: Float[ArrayLike, "u n"],
    *,
    minimal_cost: Float[ArrayLike, ""],
    baseline_cost: Float[ArrayLike, ""],
    key: Any = None,
    samples: int = 1,
) -> Float[Array, ""]:
    """E(π) = (J(π; U) − J*(U)) / (J(π_no-ext; U) − J*(U)) for any problem and an explicit set U  [R24, app:experiments:details:nn:pend].

    `minimal_cost` is J*(U), or the best estimate of it, `baseline_cost` the cost over U of a controller that does not extrapolate. Of a
    `Noisy` problem J is the mean over `samples` trajectories from each state, with noise from `key`.

    >>> import jax.numpy as jnp, offspan
    >>> problem, half, one = offspan.identity(1, horizon=2), offspan.Linear([[-0.5]]), jnp.array([[1.0]])  # J = 1 + 1/4 + 1/16
    >>> float(offspan.extrapolation(problem, half, one, minimal_cost=1.0, baseline_cost=3.0))
    0.15625
    """
    unseen = as_states("extrapolation", "unseen", unseen, as_problem("extrapolation", problem).state_dim)
    least = as_floats("extrapolation", "minimal_cost", minimal_cost, shape=(), meaning="one number")
    baseline = as_floats("extrapolation", "baseline_cost", baseline_cost, shape=(), meaning="one number")
    if is_false(baseline > least):
        raise OffspanError(
            f"extrapolation: `baseline_cost` ({float(baseline):.6g}) must exceed `minimal_cost` ({float(least):.6g}): "
            "a controller that does not extrapolate costs more than the minimum."
        )
    return (cost(problem, controller, unseen, key=key, samples=samples) - least) / (baseline - least)


def lqr_extrapolation(
    problem: LQR, K: Gain, seen: Float[ArrayLike, "s n"], *, unseen: Float[ArrayLike, "u n"] | None = None
) -> Float[Array, ""]:
    """(J(K; U) − J_R(U)) / (J(K_∞P_S; U) − J_R(U)) for any B and R, U an orthonormal basis of S⊥ or given  [beyond R24].

    J_R is the least cost of any controls (`riccati_cost`), K_∞ the `stationary_controller`: 1 costs as much as a controller that is optimal
    on the span of the seen states and does nothing off it, 0 as cheap as can be. For R = 0 and B invertible it is `normalized_cost`.

    >>> import jax.numpy as jnp, offspan
    >>> cart = offspan.LQR([[1.0, 0.1], [0.0, 1.0]], [[0.0], [0.1]], R=[[0.1]], horizon=50)
    >>> seen = jnp.array([[1.0, 0.0]])
    >>> bool(offspan.lqr_extrapolation(cart, offspan.stationary_controller(cart), seen) < 0.01)
    True
    """
    where = "lqr_extrapolation"
    lqr = as_lqr(where, problem)
    seen = as_states(where, "seen", seen, lqr.state_dim)
    check_size(where, "seen", seen)
    U = unseen_directions(seen) if unseen is None else as_states(where, "unseen", unseen, lqr.state_dim)
    if not len(U):
        raise OffspanError(f"{where}: the seen states span the whole space; pass fewer of them, or a set of states as `unseen`.")
    off = stationary_controller(lqr) @ seen_projector(seen)
    baseline, least = cost(lqr, Linear(off), U), riccati_cost(lqr, U)
    _check_overflow(where, baseline)
    if is_false(baseline - least > 1e3 * jnp.finfo(baseline.dtype).eps * baseline):
        raise OffspanError(
            f"{where}: doing nothing off the span of the seen states costs no more than the best controls, {float(least):.6g}, so that "
            "there is nothing to normalise by; pass other states as `unseen`."
        )
    return extrapolation(lqr, Linear(as_gain(where, lqr, K)), U, minimal_cost=least, baseline_cost=baseline)


def _measure(where, problem, K, seen, unseen, steps):
    X, count, defined = _unseen_states(where, problem, seen, unseen)
    closed_loop = problem.A + problem.B @ as_gain(where, problem, K)
    return jnp.where(defined, later_costs(closed_loop, problem.Q, X, steps).sum() / count, jnp.nan)


def _normalized(where, problem, K, seen, unseen, steps):
    X, count, defined = _unseen_states(where, problem, seen, unseen)
    measure = later_costs(problem.A + problem.B @ as_gain(where, problem, K), problem.Q, X, steps).sum()
    baseline, rounding = _baseline_costs(problem, seen, X, steps)
    baseline = baseline.sum()
    _check_overflow(where, baseline)
    if is_false(baseline > rounding):
        raise OffspanError(
            f"{where}: the controller that does not extrapolate has measure 0 here (A x = 0 for every unseen x, up to `Q`), so there is "
            f"nothing to normalise by; use the plain measure, which is {float(measure / count):.6g}."
        )
    return jnp.where(defined & (baseline > rounding) & jnp.isfinite(baseline), measure / baseline, jnp.nan)


def _check_overflow(where: str, baseline: Float[Array, ""]) -> None:
    if is_false(jnp.isfinite(baseline)):
        raise OffspanError(
            f"{where}: the cost of the controller that does not extrapolate overflows, so there is nothing to normalise by; take a shorter "
            "horizon."
        )


def normalization(problem: LQR, seen: Float[Array, "s n"]) -> tuple[Float[Array, "n n"], Float[Array, ""], Float[Array, ""]]:
    """What both normalised measures share for every K: states X that stand for U, and |U|·E_opt(K_no-ext) and |U|·E_cost(K_no-ext).

    With M = A + BK, `later_costs(M, Q, X, H)` over these is both measures at once. For use under vmap: NaN where a measure is not defined.
    """
    X, _, defined = _unseen_states("normalization", problem, seen, None)
    costs, rounding = _baseline_costs(problem, seen, X, problem.horizon)
    positive = lambda value: (value > rounding) & jnp.isfinite(value)  # noqa: E731
    optimality, total = (jnp.where(defined & positive(value), value, jnp.nan) for value in (costs[0], costs.sum()))
    return X, optimality, total


def _baseline_costs(problem, seen, X, steps):
    """`later_costs` of K_no-ext, and what rounding leaves of their sum where A x = 0."""
    A, Q, n = problem.A, problem.Q, problem.state_dim
    # A + B K_no-ext = A (I − P_S): without the detour through B⁻¹.
    costs = later_costs(A @ (jnp.eye(n, dtype=A.dtype) - seen_projector(seen)), Q, X, steps)
    return costs, (10 * n * jnp.finfo(costs.dtype).eps) ** 2 * jnp.sum(A**2) * jnp.trace(Q) * jnp.sum(X**2)


def _unseen_states(where, problem, seen, unseen):
    """States whose sum of a quadratic form is that over U, their number |U|, and whether the measures are defined."""
    seen = as_states(where, "seen", seen, as_lqr(where, problem).state_dim)
    defined = underdetermined(where, problem)
    check_size(where, "seen", seen)
    if unseen is not None:
        X = as_states(where, "unseen", unseen, problem.state_dim)
        check_size(where, "unseen", X, power=2)
        return X, X.shape[0], defined
    X = jnp.eye(problem.state_dim, dtype=seen.dtype) - seen_projector(seen)
    count = jnp.round(jnp.trace(X))
    if is_false(count > 0):
        raise OffspanError(
            f"{where}: the {seen.shape[0]} seen states span the whole space, so no direction is unseen; "
            "pass fewer of them, or a set of states as `unseen`."
        )
    return X, count, defined & (count > 0)


@partial(jax.jit, static_argnames="steps")
def later_costs(closed_loop: Float[Array, "n n"], Q: Float[Array, "n n"], X: Float[Array, "k n"], steps: int) -> Float[Array, "steps"]:
    """Σ_{x∈X} ‖M^h x‖²_Q for h = 1..steps, M = A + BK being the closed loop."""

    def step(X, _):
        X = X @ closed_loop.T
        return X, jnp.sum((X @ Q) * X)

    return jax.lax.scan(step, X.astype(jnp.result_type(X, closed_loop)), length=steps)[1]
