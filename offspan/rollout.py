"""The heart: trajectories, their cost J(π; X), and the cost's analytic gradient for a linear controller in an LQR problem.

Each function checks what it was given and calls a compiled one; called again with the same shapes, it does not compile again. The cost of
any problem and controller is differentiated through its costates, which keeps the sums over time out of the time loop
(`benchmarks/neural.py` says what that saves).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Jaxpr
from jaxtyping import Array, ArrayLike, Float

from offspan.controllers import Linear
from offspan.errors import OffspanError, as_floats, as_states
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR, as_lqr

Controller = Callable[[Array], Array]


class Trajectory(eqx.Module):
    """x_0..x_H, u_0..u_H and what each time step costs, c_h = stage_cost(x_h, u_h) (not scaled)  [R24, eq:state_evol].

    >>> import jax.numpy as jnp, offspan
    >>> free = offspan.rollout(offspan.shift(2, horizon=2), offspan.Linear(jnp.zeros((2, 2))), jnp.array([3.0, 4.0]))
    >>> free.states.tolist(), free.costs.tolist()
    ([[3.0, 4.0], [4.0, 3.0], [3.0, 4.0]], [25.0, 25.0, 25.0])
    """

    states: Float[Array, "t n"]
    controls: Float[Array, "t m"]
    costs: Float[Array, "t"]


def rollout(problem: Problem, controller: Controller, x0: Float[ArrayLike, "n"]) -> Trajectory:
    """x_{h+1} = step(x_h, π(x_h)) for h = 0..H−1  [R24, eq:state_evol].

    >>> import jax.numpy as jnp, offspan
    >>> offspan.rollout(offspan.identity(1, horizon=3), offspan.Linear([[-0.5]]), jnp.array([8.0])).states.tolist()
    [[8.0], [4.0], [2.0], [1.0]]
    """
    n = problem.state_dim
    x0 = as_floats("rollout", "x0", x0, shape=(n,), meaning=f"shape ({n},), one state (`cost` takes sets of states)")
    return _rollout(problem, controller, x0.astype(_state_dtype(problem, controller, x0)))


def _state_dtype(problem: Problem, controller: Controller, x0: Array) -> jnp.dtype:
    """A float32 state in a float64 problem becomes float64 after one step; the loop wants it so from the start."""
    return jax.eval_shape(problem.step, x0, _control_shape(controller, x0, problem.control_dim)).dtype


def _control_shape(controller: Controller, x0: Array, m: int) -> jax.ShapeDtypeStruct:
    """What the controller returns for one state, which must be one number for each control."""
    n = x0.shape[0]
    if not callable(controller):
        raise OffspanError("rollout: the controller is not a function of the state; for a matrix K pass `Linear(K)`.")
    try:
        u0 = jax.eval_shape(controller, x0)
    except TypeError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise OffspanError(f"rollout: the controller does not take a state of shape ({n},), as this problem has it ({reason}).") from error
    if getattr(u0, "shape", None) != (m,):
        returned = f"shape {u0.shape}" if hasattr(u0, "shape") else f"a {type(u0).__name__}"
        raise OffspanError(f"rollout: the controller returned {returned} for a state of shape ({n},), but the problem has {m} control(s).")
    return u0


@eqx.filter_jit
def _rollout(problem, controller, x0):
    def at(x):
        u = controller(x)
        return u, problem.stage_cost(x, u)

    def step(x, _):
        u, c = at(x)
        return problem.step(x, u), (x, u, c)

    x_H, before = jax.lax.scan(step, x0, length=problem.horizon)  # H steps: x_{H+1} is no part of the problem
    return Trajectory(*(jnp.concatenate([values, last[None]]) for values, last in zip(before, (x_H, *at(x_H)), strict=True)))


def cost(problem: Problem, controller: Controller, x0s: Float[ArrayLike, "s n"]) -> Float[Array, ""]:
    """J(π; X) = cost_scale · 1/|X| Σ_{x_0∈X} Σ_{h=0}^{H} stage_cost(x_h, u_h)  [R24, eq:general_cost].

    >>> import jax.numpy as jnp, offspan
    >>> float(offspan.cost(offspan.identity(1, horizon=2), offspan.Linear([[-0.5]]), jnp.array([[1.0]])))  # 1 + 1/4 + 1/16
    1.3125
    """
    return _cost(problem, controller, as_states("cost", "x0s", x0s, problem.state_dim))


@eqx.filter_jit
def _cost(problem, controller, x0s):
    def at(x):
        u = controller(x)
        return u, problem.stage_cost(x, u)

    x0s = x0s.astype(_state_dtype(problem, controller, x0s[0]))
    # All that a step depends on (weights, matrices, what functions close over) becomes an argument that can be differentiated by.
    # jax.closure_convert leaves whole numbers in the closure, where a custom derivative must not have traced values.
    control = jax.make_jaxpr(at)(x0s[0])
    move = jax.make_jaxpr(problem.step)(x0s[0], jax.eval_shape(at, x0s[0])[0])
    step = _Step(control.jaxpr, move.jaxpr, len(control.consts))
    return problem.cost_scale * _mean_cost(step, problem.horizon, x0s, [*control.consts, *move.consts])


class _Step(NamedTuple):
    """One time step as two programs; their parameters come in one list, those of `control` first."""

    control: Jaxpr
    move: Jaxpr
    split: int

    def at(self, parameters, x):
        """u_h and c(x_h)."""
        u, c = eval_jaxpr(self.control, parameters[: self.split], x)
        return u, c

    def following(self, parameters, x, u):
        """x_{h+1}."""
        (following,) = eval_jaxpr(self.move, parameters[self.split :], x, u)
        return following


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _mean_cost(step, horizon, x0s, parameters):
    """1/|X| Σ_{x_0∈X} Σ_{h=0}^{H} c(x_h)."""
    return _nudged_cost(step, parameters, x0s, jnp.zeros((x0s.shape[0], horizon, x0s.shape[1]), x0s.dtype))[0]


def _nudged_cost(step, parameters, x0s, nudges):
    """The mean cost where states are nudged after each step, and the states x_0..x_H."""

    def nudged_step(x, nudge):
        u, c = step.at(parameters, x)
        return step.following(parameters, x, u) + nudge, (x, c)

    def of_one(x0, nudges):
        x_H, (X, C) = jax.lax.scan(nudged_step, x0, nudges)
        return C.sum() + step.at(parameters, x_H)[1], jnp.concatenate([X, x_H[None]])

    totals, X = jax.vmap(of_one)(x0s, nudges)
    return totals.mean(), X


@partial(_mean_cost.defjvp, symbolic_zeros=True)
def _mean_cost_jvp(step, horizon, primals, tangents):
    """d(Σ_h c(x_h)) = λ_0ᵀ dx_0 + Σ_{h≤H} dc(x_h) + Σ_{h<H} λ_{h+1}ᵀ df(x_h), where dc and df are by the parameters alone, and the costate
    λ_h is the derivative of the cost by x_h: nudged after step h, the cost changes by λ_{h+1}.

    The sums over h have no order, so their terms are computed together: large matrix products in place of many small ones. Forward mode
    goes through the costates, too, and so keeps whole trajectories, as reverse mode always does.
    """
    x0s, parameters = primals
    dx0s, dparameters = tangents
    nudges = jnp.zeros((x0s.shape[0], horizon, x0s.shape[1]), x0s.dtype)
    by_states = jax.value_and_grad(partial(_nudged_cost, step, parameters), argnums=(0, 1), has_aux=True)
    (value, X), (first_costates, costates) = by_states(x0s, nudges)

    # What is not differentiated by has no tangent, rather than a zero one: 0 · ∞ would be NaN.
    moving = {i: tangent for i, tangent in enumerate(dparameters) if not _is_zero(tangent)}

    def at_fixed_states(moved):
        together = [moved.get(i, parameter) for i, parameter in enumerate(parameters)]
        U, C = jax.vmap(jax.vmap(partial(step.at, together)))(X)
        following = jax.vmap(jax.vmap(partial(step.following, together)))(X[:, :-1], U[:, :-1])
        return jnp.sum(costates * following) + C.sum(axis=1).mean()

    change = jnp.zeros_like(value)
    if moving:
        change += jax.jvp(at_fixed_states, ({i: parameters[i] for i in moving},), (moving,))[1]
    if not _is_zero(dx0s):
        change += jnp.sum(first_costates * dx0s)
    return value, change


def _is_zero(tangent) -> bool:
    return isinstance(tangent, SymbolicZero) or getattr(tangent, "dtype", None) == jax.dtypes.float0


def lqr_gradient(problem: LQR, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"]) -> Float[Array, "m n"]:
    """∇J(K; X) = 1/|X| Σ_{x_0∈X} Σ_h p_h x_hᵀ, by the recursion of `lqr_cost_and_gradient`; for R = 0 it is [R24, lem:lqr_gradient].

    >>> import jax.numpy as jnp, offspan
    >>> K, one = jnp.array([[-0.5]]), jnp.array([[1.0]])  # J(K) = 1 + (1 + K)² + (1 + K)⁴
    >>> offspan.lqr_gradient(offspan.identity(1, horizon=2), K, one).tolist()  # 2(1 + K) + 4(1 + K)³
    [[1.5]]
    """
    return lqr_cost_and_gradient(problem, K, x0s)[1]


def lqr_cost_and_gradient(
    problem: LQR, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"]
) -> tuple[Float[Array, ""], Float[Array, "m n"]]:
    """J(K; X) and ∇J(K; X) = 1/|X| Σ_{x_0∈X} Σ_{h=0}^{H} p_h x_hᵀ, for u = K x.

    With λ_{H+1} = 0 and, backwards from h = H:  p_h = Bᵀλ_{h+1} + 2R u_h  and  λ_h = 2Q x_h + Aᵀλ_{h+1} + Kᵀp_h.
    λ_h is the derivative of the cost-to-go by x_h, and p_h the one by u_h.
    """
    x0s = as_states("lqr_gradient", "x0s", x0s, as_lqr("lqr_gradient", problem).state_dim)
    return _lqr_cost_and_gradient(problem, as_gain("lqr_gradient", problem, K), x0s)


@jax.jit
def _lqr_cost_and_gradient(problem, K, x0s):
    A, B, Q, R = problem.A, problem.B, problem.Q, problem.R

    def of_one(x0):
        trajectory = rollout(problem, Linear(K), x0)

        def backwards(costate, at_h):
            x, u = at_h
            p = B.T @ costate + 2 * R @ u
            return 2 * Q @ x + A.T @ costate + K.T @ p, p

        x, u = trajectory.states, trajectory.controls
        _, p = jax.lax.scan(backwards, jnp.zeros_like(x[0]), (x, u), reverse=True)
        return trajectory.costs.sum(), p.T @ x

    costs, gradients = jax.vmap(of_one)(x0s)
    return costs.mean(), gradients.mean(axis=0)


def as_gain(where: str, problem: LQR, K: ArrayLike | Linear, name: str = "K") -> Float[Array, "m n"]:
    """`K`, or that of a linear controller, as an array that fits the problem: u = +K x."""
    K = K.K if isinstance(K, Linear) else K
    m, n = problem.control_dim, problem.state_dim
    return as_floats(where, name, K, shape=(m, n), meaning=f"shape ({m}, {n}): one row a control, one column a state (u = +K x)")
