"""What a learned controller is compared with: the least cost, the controller that extrapolates perfectly, the one that does not at all.

The closed forms belong to underdetermined LQR problems [R24, sec:prelim:underdetermined]: R = 0 and B invertible. Outside these an
ordinary call raises; under jit and vmap, where nothing can be raised, the numbers are NaN. For other problems, a controller that does not
extrapolate is one that was trained not to: `adversarial_objective`.
"""

from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from offspan.errors import OffspanError, as_floats, as_states, check_size, is_concrete, is_false
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR, as_lqr
from offspan.problems.variants import without_noise
from offspan.rollout import Controller, cost
from offspan.states import seen_projector

OTHER_PLANTS = "for any B and R there are `riccati_cost`, `stationary_controller` and the measure `lqr_extrapolation`"


def minimal_cost(problem: LQR, x0s: Float[ArrayLike, "s n"]) -> Float[Array, ""]:
    """J*(X) = 1/|X| Σ_{x_0∈X} ‖x_0‖²_Q: the first state is given, all later ones can be zero  [R24, lem:cost_min_underdetermined].

    >>> import jax.numpy as jnp, offspan
    >>> float(offspan.minimal_cost(offspan.shift(2, horizon=9), jnp.array([[3.0, 4.0], [0.0, 1.0]])))  # (25 + 1)/2
    13.0
    """
    defined = underdetermined("minimal_cost", problem)
    x0s = as_states("minimal_cost", "x0s", x0s, problem.state_dim)
    check_size("minimal_cost", "x0s", x0s, power=2)
    return jnp.where(defined, jnp.mean(jnp.sum((x0s @ problem.Q) * x0s, axis=1)), jnp.nan)


def extrapolating_controller(problem: LQR) -> Float[Array, "m n"]:
    """K_ext = −B⁻¹A: every state goes to zero in one step  [R24, eq:unseen_controls_opt].

    >>> import offspan
    >>> offspan.extrapolating_controller(offspan.LQR([[3.0, 1.0], [1.0, 3.0]], [[2.0, 0.0], [0.0, 1.0]], horizon=2)).tolist()
    [[-1.5, -0.5], [-1.0, -3.0]]
    """
    defined = underdetermined("extrapolating_controller", problem)
    return jnp.where(defined, -jnp.linalg.solve(problem.B, problem.A), jnp.nan)


def nonextrapolating_controller(problem: LQR, x0s: Float[ArrayLike, "s n"]) -> Float[Array, "m n"]:
    """K_no-ext = −B⁻¹A P_S: seen states go to zero in one step, unseen directions get no control  [R24, eq:unseen_controls_zero].

    For Q ≻ 0 it has the least norm of all minimisers of J(·; S)  [R24, lem:min_norm].

    >>> import jax.numpy as jnp, offspan
    >>> offspan.nonextrapolating_controller(offspan.identity(2, horizon=2), jnp.array([[1.0, 1.0]])).round(9).tolist()
    [[-0.5, -0.5], [-0.5, -0.5]]
    """
    defined = underdetermined("nonextrapolating_controller", problem)
    x0s = as_states("nonextrapolating_controller", "x0s", x0s, problem.state_dim)
    check_size("nonextrapolating_controller", "x0s", x0s)
    return jnp.where(defined, -jnp.linalg.solve(problem.B, problem.A) @ seen_projector(x0s), jnp.nan)


def riccati_cost(problem: LQR, x0s: Float[ArrayLike, "s n"]) -> Float[Array, ""]:
    """1/|X| Σ_{x∈X} xᵀP_0x, the least cost that any controls have, for any B, Q and R: P_{H+1} = 0, and backwards in time
    P_h = Q + Aᵀ(P − P B (R + BᵀPB)⁺ BᵀP)A with P = P_{h+1}  [beyond R24; for R = 0 and B invertible it is `minimal_cost`].

    It is a bound: a controller that does not change with time costs more in general.

    >>> import jax.numpy as jnp, offspan
    >>> problem = offspan.LQR([[1.0]], [[1.0]], R=[[1.0]], horizon=1)  # the last control is 0, the first −x/2
    >>> float(offspan.riccati_cost(problem, jnp.array([[2.0]])))  # x² (1 + 1/4 + 1/4)
    6.0
    """
    lqr = as_lqr("riccati_cost", problem)
    x0s = as_states("riccati_cost", "x0s", x0s, lqr.state_dim)
    A, B, Q, R = lqr.A, lqr.B, lqr.Q, lqr.R

    def backwards(P, _):
        curvature = R + B.T @ P @ B
        # In units in which each control has a curvature of one: a weak control is no missing one.
        unit = jnp.sqrt(jnp.where(jnp.diag(curvature) > 0, jnp.diag(curvature), 1.0))
        scaled = jnp.linalg.pinv(curvature / (unit[:, None] * unit[None]), hermitian=True) / (unit[:, None] * unit[None])
        gain = scaled @ (B.T @ P @ A)
        return Q + A.T @ P @ (A - B @ gain), None

    P, _ = jax.lax.scan(backwards, jnp.zeros_like(Q), length=lqr.horizon + 1)
    return jnp.mean(jnp.sum((x0s @ P) * x0s, axis=1))


def stationary_controller(problem: LQR) -> Float[Array, "m n"]:
    """K = −(R + BᵀPB)⁻¹BᵀPA with P of the discrete algebraic Riccati equation: the best for H → ∞ (python-control's −dlqr)  [beyond R24].

    >>> import offspan
    >>> offspan.stationary_controller(offspan.LQR([[2.0]], [[1.0]], R=[[1.0]], horizon=9)).round(3).tolist()  # P² = 4P + 1
    [[-1.618]]
    """
    from scipy.linalg import solve_discrete_are  # which `import offspan` must not load

    lqr = as_lqr("stationary_controller", problem)
    if not all(map(is_concrete, (lqr.A, lqr.B, lqr.Q, lqr.R))):
        raise OffspanError(
            "stationary_controller: the Riccati equation is solved outside of jax, from values of `problem` that jit, vmap and grad do not "
            "show; call it outside."
        )
    A, B, Q, R = (np.asarray(M, float) for M in (lqr.A, lqr.B, lqr.Q, lqr.R))
    try:
        P = solve_discrete_are(A, B, Q, R)
        K = -np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise OffspanError(
            f"stationary_controller: the Riccati equation has no stabilising solution ({str(error).rstrip('.')}); it needs (A, B) "
            "stabilisable, and R ≻ 0 or B of full rank."
        ) from None
    return jnp.asarray(K, lqr.A.dtype)


def adversarial_objective(
    unseen: Any, targets: Any, *, coefficient: float = 0.1
) -> Callable[[Problem, Controller, Array], tuple[Array, Array]]:
    """(J(π; S) + λ J_adv(π; U), J(π; S)), a `loss` for `train`: J_adv is the cost over U, with a target of its own for each x ∈ U.

    [R24, app:experiments:details:nn:pend]. For problems with a field `target`, such as Pendulum and Quadcopter.

    >>> import jax.numpy as jnp, offspan
    >>> loss = offspan.adversarial_objective([[0.0, 0.0]], [[0.0, 0.0]])  # leave a hanging pendulum where it is
    >>> value, J = loss(offspan.Pendulum(horizon=1), lambda x: jnp.array([40.0]), jnp.array([[jnp.pi, 0.0]]))
    >>> round(float(value), 9), round(float(J), 9)  # that torque adds Δ·40 = 2 to the velocity of either: 4 + 0.1·4
    (4.4, 4.0)
    """
    unseen = as_states("adversarial_objective", "unseen", unseen, None)
    meaning = f"shape {unseen.shape}, a target for each unseen state"
    targets = as_floats("adversarial_objective", "targets", targets, shape=unseen.shape, meaning=meaning)
    factor = float(as_floats("adversarial_objective", "coefficient", coefficient, shape=(), meaning="one number"))

    def loss(problem: Any, controller: Controller, x0s: Array) -> tuple[Array, Array]:
        target_of = lambda problem: cast(Any, without_noise(problem)).target  # noqa: E731  (a curriculum wraps the problem)
        if not hasattr(plain := without_noise(problem), "target"):
            raise OffspanError(f"adversarial_objective: a {type(plain).__name__} has no field `target` that could be replaced.")
        as_states("adversarial_objective", "unseen", unseen, plain.state_dim)  # the problem is not known before

        def towards(x0, target):
            return cost(eqx.tree_at(target_of, problem, target), controller, x0[None])

        # Seen and unseen states in one rollout, which takes little more time than either.
        own_target = jnp.broadcast_to(target_of(problem), x0s.shape)
        costs = jax.vmap(towards)(jnp.concatenate([x0s, unseen]), jnp.concatenate([own_target, targets]))
        J, J_adversarial = costs[: len(x0s)].mean(), costs[len(x0s) :].mean()
        return J + factor * J_adversarial, J

    return loss


def underdetermined(where: str, problem: LQR) -> Bool[Array, ""]:
    """Whether R = 0 and B is invertible; raises where this is known not to hold."""
    n, m = as_lqr(where, problem).state_dim, problem.control_dim
    if m != n:
        raise OffspanError(
            f"{where}: `B` is {n}×{m}, but must be square and invertible here, to steer any state to zero in one step; {OTHER_PLANTS}."
        )
    no_control_cost = jnp.all(problem.R == 0)
    if is_false(no_control_cost):
        raise OffspanError(
            f"{where}: needs `R` = 0 (controls free of charge), but `R` has entries up to {float(jnp.abs(problem.R).max()):.3g}; "
            f"with R ≠ 0 steering to zero in one step is not optimal; {OTHER_PLANTS}."
        )
    gains = jnp.linalg.svd(problem.B, compute_uv=False)
    invertible = gains[-1] > n * jnp.finfo(gains.dtype).eps * gains[0]
    if is_false(invertible):
        raise OffspanError(
            f"{where}: `B` is not invertible (singular values from {float(gains[0]):.3g} down to {float(gains[-1]):.3g}), "
            f"so no control steers every state to zero in one step; {OTHER_PLANTS}."
        )
    return no_control_cost & invertible
