"""The quadcopter with four motors  [R24, app:experiments:details:nn:quad]."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from offspan.errors import Bounds, OffspanError, as_count, as_floats, as_positive, nearest
from offspan.problems.base import Problem


def thrust_direction_as_in_the_paper(phi, theta, psi):
    """V e_3 for V = R_x(ψ) R_y(θ) R_x(φ), which the paper's figures are made with: its "yaw" ψ turns about x."""
    return jnp.stack(
        [
            jnp.sin(theta) * jnp.cos(phi),
            -jnp.cos(theta) * jnp.cos(phi) * jnp.sin(psi) - jnp.sin(phi) * jnp.cos(psi),
            jnp.cos(theta) * jnp.cos(phi) * jnp.cos(psi) - jnp.sin(phi) * jnp.sin(psi),
        ]
    )


def thrust_direction_by_roll_pitch_yaw(phi, theta, psi):
    """V e_3 for V = R_z(ψ) R_y(θ) R_x(φ), the usual convention; the same as the paper's at ψ = 0."""
    return jnp.stack(
        [
            jnp.cos(psi) * jnp.sin(theta) * jnp.cos(phi) + jnp.sin(psi) * jnp.sin(phi),
            jnp.sin(psi) * jnp.sin(theta) * jnp.cos(phi) - jnp.cos(psi) * jnp.sin(phi),
            jnp.cos(theta) * jnp.cos(phi),
        ]
    )


ROTATIONS = {"paper": thrust_direction_as_in_the_paper, "roll-pitch-yaw": thrust_direction_by_roll_pitch_yaw}


class Quadcopter(Problem):
    """Position, angles (φ, θ, ψ) and their velocities under four motors at u revolutions a minute, by explicit Euler steps of length Δ:

    acceleration V (0, 0, k_F ‖u‖²)/m − (0, 0, g), angular acceleration P⁻¹(torque(u) − ω × Pω)  [R24, eq:quad_state_dynamics_1 to _4; the
    paper prints (V(…) − (0, 0, g))/m], at cost Σ_d α_d² (x_d − x*_d)²  [R24, eq:quad_cost]. The target x* hovers at height 1.

    `rotation` is "paper" (V = R_x(ψ) R_y(θ) R_x(φ)) or "roll-pitch-yaw" (R_z(ψ) R_y(θ) R_x(φ)). `Bounded(net, *problem.control_bounds)`
    keeps the controls between 0 and the largest speed, at which the motors lift 2.25 times the weight.

    >>> import jax.numpy as jnp, offspan
    >>> hover = offspan.Quadcopter()
    >>> u = jnp.full(4, hover.hover_speed)
    >>> bool(jnp.allclose(hover.step(hover.target, u), hover.target, atol=1e-5))
    True
    """

    target: Float[Array, "12"]
    weights: Float[Array, "12"]
    inertia: tuple[float, float, float] = eqx.field(static=True)
    mass: float = eqx.field(static=True)
    arm: float = eqx.field(static=True)
    gravity: float = eqx.field(static=True)
    thrust_coefficient: float = eqx.field(static=True)
    torque_coefficient: float = eqx.field(static=True)
    time_step: float = eqx.field(static=True)
    rotation: str = eqx.field(static=True)
    state_dim: int = eqx.field(static=True)
    control_dim: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    cost_scale: float = eqx.field(static=True)
    control_bounds: Bounds | None = eqx.field(static=True)

    def __init__(
        self,
        *,
        mass: float = 0.027,
        arm: float = 0.0397,
        gravity: float = 9.81,
        inertia: tuple[float, float, float] = (1.4e-5, 1.4e-5, 2.17e-5),
        thrust_coefficient: float = 3.16e-10,
        torque_coefficient: float = 7.94e-12,
        time_step: float = 0.02,
        horizon: int = 50,
        target: Any = (0.0, 0.0, 1.0, *(0.0,) * 9),
        weights: Any = ((1.0,) * 3 + (0.1,) * 9),
        rotation: str = "paper",
        cost_scale: float | None = None,
    ):
        where = "Quadcopter"
        if rotation not in ROTATIONS:
            raise OffspanError(
                f"{where}: `rotation` is {rotation!r}{nearest(str(rotation), list(ROTATIONS))}; there are {', '.join(ROTATIONS)}."
            )
        self.mass, self.arm, self.gravity = (
            as_positive(where, "mass", mass),
            as_positive(where, "arm", arm),
            as_positive(where, "gravity", gravity),
        )
        self.thrust_coefficient = as_positive(where, "thrust_coefficient", thrust_coefficient)
        self.torque_coefficient = as_positive(where, "torque_coefficient", torque_coefficient)
        self.time_step, self.rotation = as_positive(where, "time_step", time_step), rotation
        moments = np.asarray(as_floats(where, "inertia", inertia, shape=(3,), meaning="shape (3,), about the axes x, y, z"), float)
        self.inertia = tuple(as_positive(where, f"inertia[{i}]", moment) for i, moment in enumerate(moments))  # pyright: ignore
        self.target = as_floats(where, "target", target, shape=(12,), meaning="shape (12,): position, angles, and their velocities")
        self.weights = as_floats(where, "weights", weights, shape=(12,), meaning="shape (12,): α for each entry of the state")
        self.horizon = as_count(where, "horizon", horizon, least=1)
        self.cost_scale = 1 / self.horizon if cost_scale is None else as_positive(where, "cost_scale", cost_scale)
        self.state_dim, self.control_dim = 12, 4
        largest = float(np.sqrt(2.25) * self.hover_speed)
        self.control_bounds = (0.0,) * 4, (largest,) * 4

    @property
    def hover_speed(self) -> float:
        """The speed of all four motors at which thrust and weight are equal."""
        return float(np.sqrt(self.mass * self.gravity / (4 * self.thrust_coefficient)))

    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        _, angles, velocity, spin = jnp.split(x, 4)
        squares, inertia = u**2, jnp.asarray(self.inertia, x.dtype)
        lift = self.thrust_coefficient * jnp.sum(squares) / self.mass
        acceleration = lift * ROTATIONS[self.rotation](*angles) - jnp.array([0.0, 0.0, self.gravity], x.dtype)
        leverage = self.thrust_coefficient * self.arm / 2**0.5
        torque = jnp.stack(
            [
                leverage * (squares[0] + squares[1] - squares[2] - squares[3]),
                leverage * (-squares[0] + squares[1] + squares[2] - squares[3]),
                self.torque_coefficient * (-squares[0] + squares[1] - squares[2] + squares[3]),
            ]
        )
        spin_change = (torque - jnp.cross(spin, inertia * spin)) / inertia
        return x + self.time_step * jnp.concatenate([velocity, spin, acceleration, spin_change])

    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        return jnp.sum((self.weights * (x - self.target)) ** 2)
