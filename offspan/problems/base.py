"""What is controlled: how one state moves under one control, what that costs, and for how long."""

import abc
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from offspan.errors import Bounds, OffspanError, as_bounds, as_count, as_positive


class Problem(eqx.Module):
    """x_{h+1} = step(x_h, u_h), with cost J(π; X) = cost_scale · mean_{x_0∈X} Σ_{h=0}^{H} stage_cost(x_h, u_h)  [R24, eq:general_cost].

    Both methods are written for one state `(n,)` and one control `(m,)`. `control_bounds` is None, or the pair (low, high) that controls
    are meant to stay in: `Bounded(net, *problem.control_bounds)` enforces them, `rollout` does not.

    >>> import math, jax.numpy as jnp, offspan
    >>> problem, no_torque = offspan.Pendulum(horizon=4), offspan.Linear([[0.0, 0.0]])
    >>> J = offspan.cost(problem, no_torque, jnp.zeros((1, 2)))  # hanging, it stays π away from upright at h = 0..4
    >>> round(float(J), 6), round(1 / 4 * 5 * math.pi**2, 6)
    (12.337006, 12.337006)
    """

    state_dim: int = eqx.field(static=True)
    control_dim: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    cost_scale: float = eqx.field(static=True)
    control_bounds: Bounds | None = eqx.field(static=True)

    @abc.abstractmethod
    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        """The next state."""

    @abc.abstractmethod
    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        """What one time step costs."""


class FunctionProblem(Problem):
    """x_{h+1} = step(x_h, u_h) at cost stage_cost(x_h, u_h), two functions of one state and one control: your own dynamics  [beyond R24].

    The functions may be equinox modules (a learned model, say); what they hold is then part of the problem's pytree.

    >>> import jax.numpy as jnp, offspan
    >>> cart = offspan.FunctionProblem(
    ...     step=lambda x, u: x + 0.25 * jnp.array([x[1], u[0]]),
    ...     stage_cost=lambda x, u: x @ x,
    ...     state_dim=2, control_dim=1, horizon=50,
    ... )
    >>> cart.step(jnp.array([0.0, 1.0]), jnp.array([2.0])).tolist()
    [0.25, 1.5]
    """

    step_function: Callable[..., Any]
    cost_function: Callable[..., Any]

    def __init__(
        self,
        step: Callable[..., Any],
        stage_cost: Callable[..., Any],
        *,
        state_dim: int,
        control_dim: int,
        horizon: int,
        cost_scale: float = 1.0,
        control_bounds: tuple[Any, Any] | None = None,
    ):
        where = "FunctionProblem"
        self.state_dim = as_count(where, "state_dim", state_dim, least=1)
        self.control_dim = as_count(where, "control_dim", control_dim, least=1)
        self.horizon = as_count(where, "horizon", horizon, least=1)
        self.cost_scale = as_positive(where, "cost_scale", cost_scale)
        self.control_bounds = None if control_bounds is None else as_bounds(where, control_bounds, self.control_dim)
        for name, function in (("step", step), ("stage_cost", stage_cost)):
            if not callable(function):
                raise OffspanError(f"{where}: `{name}` is {function!r}, but must be a function of one state and one control.")
        self.step_function, self.cost_function = _as_pytree(step), _as_pytree(stage_cost)
        x, u = (jax.ShapeDtypeStruct((size,), jnp.result_type(float)) for size in (self.state_dim, self.control_dim))
        for name, method, expected in (("step", self.step_function, x.shape), ("stage_cost", self.cost_function, ())):
            try:
                returned = jax.eval_shape(method, x, u)
            except TypeError as error:
                reason = str(error).splitlines()[0].rstrip(".")
                raise OffspanError(
                    f"{where}: `{name}` cannot be traced by jax for a state of shape {x.shape} and a control of shape {u.shape}; use "
                    f"jax.numpy in place of numpy, jnp.where in place of `if`, and x[i], u[i] for numbers ({reason})."
                ) from error
            if getattr(returned, "shape", None) != expected:
                raise OffspanError(
                    f"{where}: `{name}` returned {getattr(returned, 'shape', returned)} for a state of shape {x.shape} and a control of "
                    f"shape {u.shape}, but must return shape {expected}."
                )

    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        return self.step_function(x, u)

    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        return self.cost_function(x, u)


def _as_pytree(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function inside a Partial is part of the tree's structure, so that a problem can be an argument of jax.jit."""
    return cast(Callable[..., Any], function) if isinstance(function, eqx.Module) else jax.tree_util.Partial(function)
