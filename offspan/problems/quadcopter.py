"""The quadcopter with four motors  [R24, app:experiments:details:nn:quad]."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from offspan.errors import OffspanError, as_count, as_floats, as_positive, as_positive_array, check_known, is_concrete
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

    `rotation` is "paper" (V = R_x(ψ) R_y(θ) R_x(φ)) or "roll-pitch-yaw" (R_z(ψ) R_y(θ) R_x(φ)). Motors turn at most at `largest_speed`, by
    default the speed at which they lift 2.25 times the weight; `Bounded(net, *problem.control_bounds)` enforces it, `rollout` does not. The
    physical parameters are arrays, so that one can map and differentiate over them.

    >>> import jax.numpy as jnp, offspan
    >>> hover = offspan.Quadcopter()
    >>> u = jnp.full(4, hover.hover_speed)
    >>> bool(jnp.allclose(hover.step(hover.target, u), hover.target, atol=1e-5))
    True
    """

    target: Float[Array, "12"]
    weights: Float[Array, "12"]
    inertia: Float[Array, "3"]
    mass: Float[Array, ""]
    arm: Float[Array, ""]
    gravity: Float[Array, ""]
    thrust_coefficient: Float[Array, ""]
    torque_coefficient: Float[Array, ""]
    time_step: Float[Array, ""]
    rotation: str = eqx.field(static=True)

    def __init__(
        self,
        *,
        mass: Any = 0.027,
        arm: Any = 0.0397,
        gravity: Any = 9.81,
        inertia: Any = (1.4e-5, 1.4e-5, 2.17e-5),
        thrust_coefficient: Any = 3.16e-10,
        torque_coefficient: Any = 7.94e-12,
        time_step: Any = 0.02,
        largest_speed: float | None = None,
        horizon: int = 50,
        target: Any = (0.0, 0.0, 1.0, *(0.0,) * 9),
        weights: Any = ((1.0,) * 3 + (0.1,) * 9),
        rotation: str = "paper",
        cost_scale: float | None = None,
    ):
        where = "Quadcopter"
        check_known(f"{where}: there is no `rotation`", rotation, ROTATIONS)
        self.mass, self.arm = as_positive_array(where, "mass", mass), as_positive_array(where, "arm", arm)
        self.gravity, self.time_step = as_positive_array(where, "gravity", gravity), as_positive_array(where, "time_step", time_step)
        self.thrust_coefficient = as_positive_array(where, "thrust_coefficient", thrust_coefficient)
        self.torque_coefficient = as_positive_array(where, "torque_coefficient", torque_coefficient)
        self.rotation = rotation
        self.inertia = as_positive_array(where, "inertia", inertia, shape=(3,), meaning="shape (3,), about the axes x, y, z")
        self.target = as_floats(where, "target", target, shape=(12,), meaning="shape (12,): position, angles, and their velocities")
        self.weights = as_floats(where, "weights", weights, shape=(12,), meaning="shape (12,): α for each entry of the state")
        self.horizon = as_count(where, "horizon", horizon, least=1)
        self.cost_scale = 1 / self.horizon if cost_scale is None else as_positive(where, "cost_scale", cost_scale)
        self.state_dim, self.control_dim = 12, 4
        if largest_speed is None:
            if not all(map(is_concrete, (mass, gravity, thrust_coefficient))):
                raise OffspanError(f"{where}: `largest_speed` must be given where mass, gravity or thrust are traced by jax.")
            # From the numbers as given: the fields are rounded to jax's precision.
            largest_speed = 1.5 * float(np.sqrt(float(mass) * float(gravity) / (4 * float(thrust_coefficient))))
        self.control_bounds = (0.0,) * 4, (as_positive(where, "largest_speed", largest_speed),) * 4

    @property
    def hover_speed(self) -> Float[Array, ""]:
        """The speed of all four motors at which thrust and weight are equal."""
        return jnp.sqrt(self.mass * self.gravity / (4 * self.thrust_coefficient))

    @property
    def coordinates(self) -> tuple[str, ...]:
        room = [(name, "m") for name in "xyz"] + [(name, "rad") for name in "φθψ"]
        return (*(f"{name} [{unit}]" for name, unit in room), *(f"d{name}/dt [{unit}/s]" for name, unit in room))

    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        _, angles, velocity, spin = jnp.split(x, 4)
        squares, inertia = u**2, self.inertia
        lift = self.thrust_coefficient * jnp.sum(squares) / self.mass
        acceleration = lift * ROTATIONS[self.rotation](*angles) - jnp.array([0.0, 0.0, 1.0], x.dtype) * self.gravity
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
