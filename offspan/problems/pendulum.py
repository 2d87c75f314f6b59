"""The pendulum that a torque swings up  [R24, app:experiments:details:nn:pend]."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from offspan.errors import Bounds, as_count, as_floats, as_positive
from offspan.problems.base import Problem


class Pendulum(Problem):
    """θ' = θ + Δ ω and ω' = ω + Δ (u/(mℓ²) − (g/ℓ) sin θ), at cost Σ_d α_d² (x_d − x*_d)²  [R24, eq:pend_state_dynamics, eq:pend_cost].

    θ = 0 hangs down, the target x* = (π, 0) stands upright. J is divided by H, as in the text; the official code divides by H + 1.

    >>> import jax.numpy as jnp, offspan
    >>> offspan.Pendulum().step(jnp.array([0.0, 1.0]), jnp.array([2.0])).round(3).tolist()
    [0.05, 1.1]
    """

    target: Float[Array, "2"]
    weights: Float[Array, "2"]
    mass: float = eqx.field(static=True)
    length: float = eqx.field(static=True)
    gravity: float = eqx.field(static=True)
    time_step: float = eqx.field(static=True)
    state_dim: int = eqx.field(static=True)
    control_dim: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    cost_scale: float = eqx.field(static=True)
    control_bounds: Bounds | None = eqx.field(static=True)

    def __init__(
        self,
        *,
        mass: float = 1.0,
        length: float = 1.0,
        gravity: float = 10.0,
        time_step: float = 0.05,
        horizon: int = 100,
        target: Any = (np.pi, 0.0),
        weights: Any = (1.0, 1.0),
        cost_scale: float | None = None,
    ):
        self.mass, self.length = as_positive("Pendulum", "mass", mass), as_positive("Pendulum", "length", length)
        self.gravity, self.time_step = as_positive("Pendulum", "gravity", gravity), as_positive("Pendulum", "time_step", time_step)
        self.target = as_floats("Pendulum", "target", target, shape=(2,), meaning="shape (2,): angle and angular velocity")
        self.weights = as_floats("Pendulum", "weights", weights, shape=(2,), meaning="shape (2,): α for angle and angular velocity")
        self.horizon = as_count("Pendulum", "horizon", horizon, least=1)
        self.cost_scale = 1 / self.horizon if cost_scale is None else as_positive("Pendulum", "cost_scale", cost_scale)
        self.state_dim, self.control_dim, self.control_bounds = 2, 1, None

    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        angle, velocity = x
        acceleration = u[0] / (self.mass * self.length**2) - self.gravity / self.length * jnp.sin(angle)
        return jnp.stack([angle + self.time_step * velocity, velocity + self.time_step * acceleration])

    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        return jnp.sum((self.weights * (x - self.target)) ** 2)
