"""Trajectories, their cost J(π; X), and the cost's analytic gradient for a linear controller in an LQR problem.

Each function checks what it was given and calls a compiled one; called again with the same shapes, it does not compile again. The cost of
any problem and controller is differentiated through its costates, which keeps the sums over time out of the time loop
(`benchmarks/neural.py` says what that saves).
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Jaxpr
from jaxtyping import Array, ArrayLike, Float, Int

from offspan.controllers import Linear
from offspan.errors import OffspanError, as_count, as_floats, as_states, check_not_frozen
from offspan.host import own_errors
from offspan.problems.base import Problem, as_floating, as_problem
from offspan.problems.lqr import LQR, as_lqr
from offspan.problems.variants import Truncated, as_noise_key, is_noisy, layers, without_noise

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


def rollout(problem: Problem, controller: Controller, x0: Float[ArrayLike, "n"], *, key: Any = None) -> Trajectory:
    """x_{h+1} = step(x_h, π(x_h)) for h = 0..H−1  [R24, eq:state_evol]. Of a `Noisy` problem, with noise drawn from `key`.

    >>> import jax.numpy as jnp, offspan
    >>> offspan.rollout(offspan.identity(1, horizon=3), offspan.Linear([[-0.5]]), jnp.array([8.0])).states.tolist()
    [[8.0], [4.0], [2.0], [1.0]]
    """
    n = as_problem("rollout", problem).state_dim
    x0 = as_floats("rollout", "x0", x0, shape=(n,), meaning=f"shape ({n},), one state (`cost` takes sets of states)")
    key, dtype = as_noise_key("rollout", problem, key), _state_dtype(problem, controller, x0)
    with own_errors() as finished:
        return finished(_rollout(problem, controller, x0.astype(dtype), key))


def _state_dtype(problem: Problem, controller: Controller, x0: Array) -> jnp.dtype:
    """A float32 state in a float64 problem becomes float64 after one step; the loop needs one type from the start."""
    following = jax.eval_shape(problem.step, x0, _control_shape(controller, x0, problem.control_dim))
    return following.dtype if jnp.issubdtype(following.dtype, jnp.floating) else x0.dtype


def _control_shape(controller: Controller, x0: Array, m: int) -> jax.ShapeDtypeStruct:
    """What the controller returns for one state, which must be one number for each control."""
    n = x0.shape[0]
    if not callable(controller):
        raise OffspanError("rollout: the controller is not a function of the state; for a matrix K pass `Linear(K)`.")
    made_by = {base.__module__.split(".")[0] for base in inspect.getmro(type(controller))} & {
        "torch",
        "stable_baselines3",
        "tensorflow",
        "keras",
    }
    how = "wrap a function of NumPy arrays as `HostController(function, control_dim=…)`"
    if made_by:
        raise OffspanError(
            f"rollout: the controller is a model of {made_by.pop()}, not a function of jax arrays; export it to ONNX and read it with "
            f"`offspan.policies.load_policy(path)`, or {how}."
        )
    for part in jax.tree.leaves(controller):
        check_not_frozen("rollout", "the controller", part)
    try:
        u0 = jax.eval_shape(controller, x0)
    except (
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
        jax.errors.NonConcreteBooleanIndexError,
        jax.errors.ConcretizationTypeError,
    ) as error:
        made = "a NumPy array" if isinstance(error, jax.errors.TracerArrayConversionError) else "Python numbers or truth values"
        raise OffspanError(f"rollout: the controller turns its state into {made}; use jax.numpy in it, or {how}.") from error
    except OffspanError:
        raise
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise OffspanError(f"rollout: the controller does not take a state of shape ({n},), as this problem has it ({reason}).") from error
    if getattr(u0, "shape", None) != (m,):
        returned = f"shape {u0.shape}" if hasattr(u0, "shape") else f"a {type(u0).__name__}"
        raise OffspanError(f"rollout: the controller returned {returned} for a state of shape ({n},), but the problem has {m} control(s).")
    return u0


@eqx.filter_jit
def _rollout(problem, controller, x0, key):
    plain, times = _times(problem, key, x0[None])
    noise = None if times.control is None else times.control[0]
    of_step = None if times.process is None else times.process[0]

    def at(x, noise, weight):
        u = controller(x) if noise is None else controller(x) + noise
        c = as_floating(plain.stage_cost(x, u), x.dtype)
        return u, c if weight is None else weight * c

    def step(x, now):
        h, noise, of_step, weight = now
        u, c = at(x, noise, weight)

        def following(x):
            return _moved(plain, x, u, of_step)

        return (following(x) if times.last is None else jax.lax.cond(h < times.last, following, lambda x: x, x)), (x, u, c)

    before = lambda values: None if values is None else values[:-1]  # noqa: E731
    # H steps: x_{H+1} is no part of the problem.
    x_H, before_H = jax.lax.scan(step, x0, (times.clock(), before(noise), of_step, before(times.weights)), length=problem.horizon)
    last = x_H, *at(x_H, *(None if values is None else values[-1] for values in (noise, times.weights)))
    return Trajectory(*(jnp.concatenate([values, end[None]]) for values, end in zip(before_H, last, strict=True)))


def _moved(plain: Problem, x: Float[Array, "n"], u: Float[Array, "m"], perturbation: Float[Array, "n"] | None) -> Float[Array, "n"]:
    """The next state, plus the perturbation unless the trajectory has ended."""
    following = as_floating(plain.step(x, u), x.dtype)
    if perturbation is None:
        return following
    ended = plain.done(x)
    return following + perturbation if ended is None else jnp.where(ended, x, following + perturbation)


class _Times(NamedTuple):
    """What differs between time steps; None where nothing does. Steps from `last` on are left out: the state stays constant."""

    control: Float[Array, "s t m"] | None = None  # noise
    process: Float[Array, "s h n"] | None = None
    weights: Float[Array, "t"] | None = None  # of the stage costs
    last: Int[Array, ""] | None = None

    def clock(self) -> Int[Array, "h"] | None:
        """h = 0..H−1, where it matters."""
        return None if self.weights is None else jnp.arange(len(self.weights) - 1)


def _times(problem: Problem, key, x0s: Float[Array, "s n"]) -> tuple[Problem, _Times]:
    """The plain problem, and what a variant adds to it, in the precision of the states."""
    plain, noisy, truncated = layers(problem)
    noise = (None, None) if key is None or noisy is None else noisy.draw(key, x0s.shape[0])
    weights = None if truncated is None else truncated.weights()
    control, process, weights = jax.tree.map(lambda values: values.astype(x0s.dtype), (*noise, weights))
    return plain, _Times(control, process, weights, None if truncated is None else truncated.last)


def cost(problem: Problem, controller: Controller, x0s: Float[ArrayLike, "s n"], *, key: Any = None, samples: int = 1) -> Float[Array, ""]:
    """J(π; X) = cost_scale · 1/|X| Σ_{x_0∈X} Σ_{h=0}^{H} stage_cost(x_h, u_h)  [R24, eq:general_cost].

    Of a `Noisy` problem it is the mean over `samples` trajectories from each state, with noise drawn from `key`: an unbiased estimate of
    the expected cost, differentiated with the noise held fixed. The same key is the same noise, whatever the controller.

    A controller may be any function of one state. What a plain function captures (globals, variables around it) is a constant of the
    program that its first call compiles; parameters that will change belong into an `equinox.Module`, such as `Linear` or `MLP`.

    >>> import jax.numpy as jnp, offspan
    >>> float(offspan.cost(offspan.identity(1, horizon=2), offspan.Linear([[-0.5]]), jnp.array([[1.0]])))  # 1 + 1/4 + 1/16
    1.3125
    """
    x0s = as_states("cost", "x0s", x0s, as_problem("cost", problem).state_dim)
    key = as_noise_key("cost", problem, key)
    if as_count("cost", "samples", samples, least=1) > 1 and key is not None:
        x0s = jnp.repeat(x0s, samples, axis=0)
    with own_errors() as finished:
        return finished(_cost(problem, controller, x0s, key))


@eqx.filter_jit
def _cost(problem, controller, x0s, key):
    x0s = x0s.astype(_state_dtype(problem, controller, x0s[0]))
    plain, times = _times(problem, key, x0s)

    def at(x, *noise):
        u = controller(x) + noise[0] if noise else controller(x)
        return u, as_floating(plain.stage_cost(x, u), x.dtype)

    # All that a step depends on (weights, matrices, what functions close over) becomes an argument, so that it can be differentiated.
    # jax.closure_convert leaves whole numbers in the closure, where a custom derivative must not have traced values.
    one = (x0s[0],) if times.control is None else (x0s[0], times.control[0, 0])
    control = jax.make_jaxpr(at)(*one)
    move = jax.make_jaxpr(partial(_moved, plain))(x0s[0], jax.eval_shape(at, *one)[0], x0s[0])
    step = _Step(control.jaxpr, move.jaxpr, len(control.consts))
    return problem.cost_scale * _mean_cost(step, problem.horizon, x0s, times, [*control.consts, *move.consts])


class _Step(NamedTuple):
    """One time step as two programs; their parameters come in one list, those of `control` first."""

    control: Jaxpr
    move: Jaxpr
    split: int

    def at(self, parameters, x, noise=None):
        """u_h and c(x_h)."""
        u, c = eval_jaxpr(self.control, parameters[: self.split], x, *([] if noise is None else [noise]))
        return u, c

    def following(self, parameters, x, u, perturbation):
        """x_{h+1}."""
        (following,) = eval_jaxpr(self.move, parameters[self.split :], x, u, perturbation)
        return following


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _mean_cost(step, horizon, x0s, times, parameters):
    """1/|X| Σ_{x_0∈X} Σ_{h=0}^{H} c(x_h)."""
    return _perturbed_cost(step, parameters, times, x0s, _process_noise(horizon, x0s, times))[0]


def _process_noise(horizon, x0s, times):
    """P w_h of every step; zero where there is none."""
    return jnp.zeros((x0s.shape[0], horizon, x0s.shape[1]), x0s.dtype) if times.process is None else times.process


def _perturbed_cost(step, parameters, times, x0s, perturbations):
    """The mean cost where states are perturbed after each step, and the states x_0..x_H."""

    def perturbed_step(x, now):
        h, perturbation, noise, weight = now

        def advance(x):
            u, c = step.at(parameters, x, noise)
            return step.following(parameters, x, u, perturbation), c if weight is None else weight * c

        if times.last is None:
            following, c = advance(x)
        else:
            nothing = jnp.zeros((), jax.eval_shape(advance, x)[1].dtype)
            following, c = jax.lax.cond(h < times.last, advance, lambda x: (x, nothing), x)
        return following, (x, c)

    def of_one(x0, perturbations, noise):
        before = lambda values: None if values is None else values[:-1]  # noqa: E731
        x_H, (X, C) = jax.lax.scan(perturbed_step, x0, (times.clock(), perturbations, before(noise), before(times.weights)))
        c_H = step.at(parameters, x_H, None if noise is None else noise[-1])[1]
        return C.sum() + (c_H if times.weights is None else times.weights[-1] * c_H), jnp.concatenate([X, x_H[None]])

    totals, X = jax.vmap(of_one)(x0s, perturbations, times.control)
    return totals.mean(), X


@partial(_mean_cost.defjvp, symbolic_zeros=True)
def _mean_cost_jvp(step, horizon, primals, tangents):
    """d(Σ_h c(x_h)) = λ_0ᵀ dx_0 + Σ_{h≤H} dc(x_h) + Σ_{h<H} λ_{h+1}ᵀ df(x_h), where dc and df are changes by the parameters alone.
    The costate λ_h is the derivative of the cost with respect to x_h: a small perturbation δ after step h changes the cost by λ_{h+1}ᵀδ.

    The sums over h have no order, so their terms are computed together: large matrix products in place of many small ones. Forward mode
    uses the costates, too, and so stores whole trajectories, as reverse mode always does.
    """
    x0s, times, parameters = primals
    dx0s, dtimes, dparameters = tangents
    by_states = jax.value_and_grad(partial(_perturbed_cost, step, parameters, times), argnums=(0, 1), has_aux=True)
    (value, X), (first_costates, costates) = by_states(x0s, _process_noise(horizon, x0s, times))

    # What is not differentiated has no tangent, rather than a zero one: 0 · ∞ would be NaN.
    together, changes = [times.control, times.weights, *parameters], [dtimes.control, dtimes.weights, *dparameters]
    moving = {i: tangent for i, tangent in enumerate(changes) if not _is_zero(tangent)}

    def at_fixed_states(moved):
        noise, weights, *constants = [moved.get(i, one) for i, one in enumerate(together)]
        if noise is None:
            U, C = jax.vmap(jax.vmap(partial(step.at, constants)))(X)
        else:
            U, C = jax.vmap(jax.vmap(partial(step.at, constants)))(X, noise)
        following = jax.vmap(jax.vmap(partial(step.following, constants)))(X[:, :-1], U[:, :-1], jnp.zeros_like(X[:, :-1]))
        return jnp.sum(costates * following) + (C if weights is None else weights[None] * C).sum(axis=1).mean()

    change = jnp.zeros_like(value)
    if moving:
        change += jax.jvp(at_fixed_states, ({i: together[i] for i in moving},), (moving,))[1]
    if not _is_zero(dx0s):
        change += jnp.sum(first_costates * dx0s)
    if not _is_zero(dtimes.process):
        change += jnp.sum(costates * dtimes.process)
    return value, change.astype(value.dtype)


def _is_zero(tangent) -> bool:
    return tangent is None or isinstance(tangent, SymbolicZero) or getattr(tangent, "dtype", None) == jax.dtypes.float0


def expected_cost(problem: Problem, K: Float[ArrayLike, "m n"] | Linear, x0s: Float[ArrayLike, "s n"]) -> Float[Array, ""]:
    """E J(K; X) = Σ_{h=0}^{H} tr((Q + KᵀRK) Σ_h) + (H+1) tr(R C Cᵀ) of an LQR, with or without noise, exactly  [beyond R24].

    Σ_0 = 1/|X| Σ_{x∈X} x xᵀ and Σ_{h+1} = M Σ_h Mᵀ + W, with M = A + BK and W = B C CᵀBᵀ + P Pᵀ (`Noisy` has C and P).

    >>> import jax.numpy as jnp, offspan
    >>> noisy = offspan.Noisy(offspan.identity(1, horizon=2), control=0.5)
    >>> float(offspan.expected_cost(noisy, jnp.array([[0.0]]), jnp.array([[1.0]])))  # 1 + (1 + 1/4) + (1 + 2/4)
    3.75
    """
    return _moments("expected_cost", problem, K, x0s)[0]


def lqr_gradient(problem: Problem, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"]) -> Float[Array, "m n"]:
    """∇J(K; X) = 1/|X| Σ_{x_0∈X} Σ_h p_h x_hᵀ, by the recursion of `lqr_cost_and_gradient`; for R = 0 it is [R24, lem:lqr_gradient].

    Of a `Noisy` LQR it is the gradient of the expected cost.

    >>> import jax.numpy as jnp, offspan
    >>> K, one = jnp.array([[-0.5]]), jnp.array([[1.0]])  # J(K) = 1 + (1 + K)² + (1 + K)⁴
    >>> offspan.lqr_gradient(offspan.identity(1, horizon=2), K, one).tolist()  # 2(1 + K) + 4(1 + K)³
    [[1.5]]
    """
    return lqr_cost_and_gradient(problem, K, x0s)[1]


def lqr_cost_and_gradient(
    problem: Problem, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"]
) -> tuple[Float[Array, ""], Float[Array, "m n"]]:
    """J(K; X) and ∇J(K; X) = 1/|X| Σ_{x_0∈X} Σ_{h=0}^{H} p_h x_hᵀ, for u = K x.

    With λ_{H+1} = 0 and, backwards from h = H:  p_h = Bᵀλ_{h+1} + 2R u_h  and  λ_h = 2Q x_h + Aᵀλ_{h+1} + Kᵀp_h.
    λ_h is the derivative of the cost-to-go with respect to x_h, and p_h with respect to u_h.
    """
    if is_noisy(problem) or isinstance(problem, Truncated):
        return _moments("lqr_gradient", problem, K, x0s)
    problem = as_lqr("lqr_gradient", without_noise(problem))
    x0s = as_states("lqr_gradient", "x0s", x0s, problem.state_dim)
    return _lqr_cost_and_gradient(problem, as_gain("lqr_gradient", problem, K), x0s)


def _moments(where: str, problem: Problem, K: Any, x0s: Any) -> tuple[Float[Array, ""], Float[Array, "m n"]]:
    lqr, W, of_control = noise_covariances(problem, where)
    return _expected_cost_and_gradient(lqr, W, of_control, as_gain(where, lqr, K), as_states(where, "x0s", x0s, lqr.state_dim))


def noise_covariances(problem: Problem, where: str = "noise_covariances") -> tuple[LQR, Float[Array, "n n"], Float[Array, "m m"]]:
    """The LQR without noise, W = B C CᵀBᵀ + P Pᵀ of each step, and C Cᵀ of the controls."""
    plain, noisy, truncated = layers(problem)
    if truncated is not None:
        raise OffspanError(f"{where}: a shortened or discounted problem has no closed form here; `gradient=Exact()` takes it.")
    lqr = as_lqr(where, plain)
    W, of_control = jnp.zeros_like(lqr.A), jnp.zeros_like(lqr.R)
    if noisy is not None and noisy.control is not None:
        of_control = (noisy.control @ noisy.control.T).astype(lqr.A.dtype)
        W += lqr.B @ of_control @ lqr.B.T
    if noisy is not None and noisy.process is not None:
        W += (noisy.process @ noisy.process.T).astype(W.dtype)
    return lqr, W, of_control


@jax.jit
def _expected_cost_and_gradient(problem, W, of_control, K, x0s):
    """With Λ_{H+1} = 0 and Λ_h = Q + KᵀRK + MᵀΛ_{h+1}M, backwards: ∇ = 2 Σ_{h=0}^{H} (BᵀΛ_{h+1}M + RK) Σ_h."""
    A, B, Q, R, H = problem.A, problem.B, problem.Q, problem.R, problem.horizon
    M, weight = A + B @ K, Q + K.T @ R @ K
    dtype = jnp.result_type(M, x0s)
    first, W = (x0s.T @ x0s / len(x0s)).astype(dtype), W.astype(dtype)
    _, moments = jax.lax.scan(lambda S, _: (M @ S @ M.T + W, S), first, length=H + 1)
    _, costates = jax.lax.scan(lambda L, _: (weight + M.T @ L @ M, L), jnp.zeros_like(M, dtype), length=H + 1)  # Λ_{H+1}, …, Λ_1
    gradient = 2 * jnp.einsum("hij,hjk->ik", B.T @ costates[::-1] @ M + (R @ K)[None], moments)
    return jnp.sum(weight * moments.sum(axis=0)) + (H + 1) * jnp.sum(R * of_control), gradient


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
