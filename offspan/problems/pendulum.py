"""The pendulum that a torque swings up  [R24, app:experiments:details:nn:pend]."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from offspan.errors import as_count, as_floats, as_positive, as_positive_array
from offspan.problems.base import Problem


class Pendulum(Problem):
    """θ' = θ + Δ ω and ω' = ω + Δ (u/(mℓ²) − (g/ℓ) sin θ), at cost Σ_d α_d² (x_d − x*_d)²  [R24, eq:pend_state_dynamics, eq:pend_cost].

    θ = 0 hangs down, the target x* = (π, 0) stands upright. J is divided by H, as in the text; the official code divides by H + 1. The
    physical parameters are arrays, so that one can map and differentiate over them.

    >>> import jax, jax.numpy as jnp, offspan
    >>> offspan.Pendulum().step(jnp.array([0.0, 1.0]), jnp.array([2.0])).round(3).tolist()
    [0.05, 1.1]
    >>> x, u = jnp.array([0.0, 0.0]), jnp.array([2.0])
    >>> jax.grad(lambda mass: offspan.Pendulum(mass=mass).step(x, u)[1])(1.0).round(3).item()  # of Δ u/(mℓ²)
    -0.1
    """

    target: Float[Array, "2"]
    weights: Float[Array, "2"]
    mass: Float[Array, ""]
    length: Float[Array, ""]
    gravity: Float[Array, ""]
    time_step: Float[Array, ""]

    def __init__(
        self,
        *,
        mass: Any = 1.0,
        length: Any = 1.0,
        gravity: Any = 10.0,
        time_step: Any = 0.05,
        horizon: int = 100,
        target: Any = (np.pi, 0.0),
        weights: Any = (1.0, 1.0),
        cost_scale: float | None = None,
    ):
        where = "Pendulum"
        self.mass, self.length = as_positive_array(where, "mass", mass), as_positive_array(where, "length", length)
        self.gravity, self.time_step = as_positive_array(where, "gravity", gravity), as_positive_array(where, "time_step", time_step)
        self.target = as_floats(where, "target", target, shape=(2,), meaning="shape (2,): angle and angular velocity")
        self.weights = as_floats(where, "weights", weights, shape=(2,), meaning="shape (2,): α for angle and angular velocity")
        self.horizon = as_count(where, "horizon", horizon, least=1)
        self.cost_scale = 1 / self.horizon if cost_scale is None else as_positive(where, "cost_scale", cost_scale)
        self.state_dim, self.control_dim, self.control_bounds = 2, 1, None

    @property
    def coordinates(self) -> tuple[str, ...]:
        return "θ [rad]", "dθ/dt [rad/s]"

    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        angle, velocity = x
        acceleration = u[0] / (self.mass * self.length**2) - self.gravity / self.length * jnp.sin(angle)
        return jnp.stack([angle + self.time_step * velocity, velocity + self.time_step * acceleration])

    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        return jnp.sum((self.weights * (x - self.target)) ** 2)
