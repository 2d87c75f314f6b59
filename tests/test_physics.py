"""The pendulum and the quadcopter obey the physics that they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offspan

QUAD = offspan.Quadcopter()


@pytest.mark.parametrize("problem", [offspan.Pendulum(mass=2.0, length=0.5, gravity=9.0), offspan.Pendulum()])
def test_the_energy_of_a_free_pendulum_drifts_as_explicit_euler_predicts(problem):
    """E = mℓ²ω²/2 − mgℓ cos θ. One Euler step adds Δ² terms only: Δ²/2 (mℓ² α² + mgℓ cos θ ω²) with α = −(g/ℓ) sin θ, up to Δ³."""
    m, length, g, dt = map(float, (problem.mass, problem.length, problem.gravity, problem.time_step))

    def energy(x):
        return m * length**2 * x[1] ** 2 / 2 - m * g * length * jnp.cos(x[0])

    def drift(x):
        acceleration = -g / length * np.sin(x[0])
        return dt**2 / 2 * (m * length**2 * acceleration**2 + m * g * length * np.cos(x[0]) * x[1] ** 2)

    for x in (np.array([0.5, 0.0]), np.array([2.0, 1.0]), np.array([-1.0, 0.7])):
        change = float(energy(problem.step(jnp.asarray(x), jnp.zeros(1))) - energy(x))
        assert change == pytest.approx(drift(x), rel=0.2)
        halved = offspan.Pendulum(mass=m, length=length, gravity=g, time_step=dt / 2)
        assert float(energy(halved.step(jnp.asarray(x), jnp.zeros(1))) - energy(x)) == pytest.approx(change / 4, rel=0.2)


def test_torque_moves_a_heavier_and_longer_pendulum_less():
    heavy = offspan.Pendulum(mass=2.0, length=3.0)
    assert heavy.step(jnp.zeros(2), jnp.array([1.8]))[1] == pytest.approx(0.05 * 1.8 / (2 * 9))


def test_a_target_that_is_reached_costs_nothing_and_weights_count_squared():
    assert float(offspan.Pendulum().stage_cost(jnp.array([jnp.pi, 0.0]), jnp.zeros(1))) == 0
    assert float(offspan.Pendulum(target=[1.0, 0.0], weights=[2.0, 3.0]).stage_cost(jnp.array([2.0, 1.0]), jnp.zeros(1))) == 4 + 9
    off = QUAD.target.at[0].add(2.0).at[11].add(3.0)
    assert float(QUAD.stage_cost(off, jnp.zeros(4))) == pytest.approx(4 + 0.01 * 9)
    assert offspan.Pendulum().cost_scale == 1 / 100
    assert QUAD.cost_scale == 1 / 50


def test_the_quadcopter_hovers_at_hover_speed_and_falls_without():
    hovering = offspan.rollout(QUAD, lambda x: jnp.full(4, QUAD.hover_speed), QUAD.target)
    np.testing.assert_allclose(hovering.states, np.tile(QUAD.target, (51, 1)), atol=1e-12)
    falling = offspan.rollout(QUAD, lambda x: jnp.zeros(4), QUAD.target).states
    np.testing.assert_allclose(falling[:, 8], -9.81 * 0.02 * np.arange(51), rtol=1e-12, atol=1e-12)
    assert QUAD.control_bounds is not None
    assert QUAD.control_bounds[1][0] == pytest.approx(21713.71, abs=0.01)


@pytest.mark.parametrize(("motor", "signs"), [(0, (1, -1, -1)), (1, (1, 1, 1)), (2, (-1, 1, -1)), (3, (-1, -1, 1))])
def test_each_motor_lifts_and_turns(motor, signs):
    """Faster than the others, a motor lifts, rolls, pitches and yaws with its own signs: the torques over the moments of inertia."""
    u = jnp.full(4, QUAD.hover_speed).at[motor].multiply(1.1)
    change = (QUAD.step(QUAD.target, u) - QUAD.target) / QUAD.time_step
    more = float(QUAD.hover_speed) ** 2 * (1.1**2 - 1)
    assert float(change[8]) == pytest.approx(3.16e-10 * more / 0.027, rel=1e-9)
    arm = 3.16e-10 * 0.0397 / np.sqrt(2) * more
    expected = np.array(signs) * np.array([arm / 1.4e-5, arm / 1.4e-5, 7.94e-12 * more / 2.17e-5])
    np.testing.assert_allclose(change[9:], expected, rtol=1e-9)


def rotation(axis: int, angle: float) -> np.ndarray:
    i, j = [(1, 2), (2, 0), (0, 1)][axis]
    R = np.eye(3)
    R[i, i] = R[j, j] = np.cos(angle)
    R[i, j], R[j, i] = -np.sin(angle), np.sin(angle)
    return R


@pytest.mark.parametrize("seed", range(5))
def test_thrust_points_where_the_rotation_says(seed):
    """ "paper" is R_x(ψ) R_y(θ) R_x(φ), "roll-pitch-yaw" R_z(ψ) R_y(θ) R_x(φ); they agree at ψ = 0 and differ otherwise."""
    phi, theta, psi = np.random.default_rng(seed).uniform(-1, 1, 3)
    products = {
        "paper": rotation(0, psi) @ rotation(1, theta) @ rotation(0, phi),
        "roll-pitch-yaw": rotation(2, psi) @ rotation(1, theta) @ rotation(0, phi),
    }
    found = {}
    for name, V in products.items():
        quad = offspan.Quadcopter(rotation=name)
        x = quad.target.at[3:6].set(jnp.array([phi, theta, psi]))
        acceleration = (quad.step(x, jnp.full(4, 15000.0)) - x)[6:9] / quad.time_step
        thrust = 4 * 15000.0**2 * 3.16e-10 / 0.027
        np.testing.assert_allclose(acceleration, V @ [0, 0, thrust] - np.array([0, 0, 9.81]), rtol=1e-9)
        straight = quad.step(x.at[5].set(0.0), jnp.full(4, 15000.0))
        found[name] = acceleration, straight
    assert np.abs(found["paper"][0] - found["roll-pitch-yaw"][0]).max() > 0.1
    np.testing.assert_allclose(found["paper"][1], found["roll-pitch-yaw"][1], atol=1e-12)


@pytest.mark.parametrize("problem", [offspan.Pendulum(), QUAD, offspan.Quadcopter(rotation="roll-pitch-yaw")])
def test_the_derivative_of_one_step_is_that_of_central_differences(problem):
    key_x, key_u, key_d = jax.random.split(jax.random.key(0), 3)
    x, direction = 0.3 * jax.random.normal(key_x, (problem.state_dim,)), jax.random.normal(key_d, (problem.state_dim,))
    u = (15000.0 if problem.state_dim == 12 else 1.0) * (1 + 0.1 * jax.random.normal(key_u, (problem.control_dim,)))
    _, derivative = jax.jvp(problem.step, (x, u), (direction, 0.1 * u))
    h = 1e-6
    differences = (problem.step(x + h * direction, u + h * 0.1 * u) - problem.step(x - h * direction, u - h * 0.1 * u)) / (2 * h)
    np.testing.assert_allclose(derivative, differences, rtol=1e-6, atol=1e-6)


def test_a_free_spin_keeps_its_energy_to_first_order():
    """Without torque, ω × Pω does no work: Σ P ω² changes only by Δ²."""
    spin, inertia = np.array([3.0, -2.0, 1.0]), np.array(QUAD.inertia)
    for dt in (0.02, 0.01):
        quad = offspan.Quadcopter(time_step=dt)
        after = quad.step(jnp.zeros(12).at[9:].set(spin), jnp.zeros(4))[9:]
        assert abs(float(jnp.sum(inertia * after**2) - np.sum(inertia * spin**2))) < 20 * dt**2 * 1e-5


def test_the_adversarial_objective_is_the_cost_towards_other_targets():
    """J(S) + λ/|U| Σ_x J(x, its own target), by plain problems with those targets."""
    problem, network = offspan.Pendulum(horizon=7), offspan.MLP.init(jax.random.key(0), 2, 1, width=5)
    seen, unseen = np.array([[3.0, 0.0]]), np.array([[0.5, 0.0], [5.0, 0.1]])
    targets = np.array([[0.0, 0.0], [2 * np.pi, 0.0]])
    value, J = offspan.adversarial_objective(unseen, targets, coefficient=0.3)(problem, network, jnp.asarray(seen))
    parts = [offspan.cost(offspan.Pendulum(horizon=7, target=t), network, x[None]) for x, t in zip(unseen, targets, strict=True)]
    assert float(J) == pytest.approx(float(offspan.cost(problem, network, seen)), rel=1e-12)
    assert float(value) == pytest.approx(float(J) + 0.3 * float(np.mean(parts)), rel=1e-12)


def test_one_can_map_and_differentiate_over_masses_and_lengths():
    """The velocity gained from rest is Δ u/(mℓ²), so its derivatives by m and ℓ are −Δ u/(m²ℓ²) and −2Δ u/(mℓ³)."""
    x, u = jnp.zeros(2), jnp.array([2.0])
    gained = lambda mass, length: offspan.Pendulum(mass=mass, length=length).step(x, u)[1]  # noqa: E731
    masses, lengths = jnp.array([1.0, 2.0, 4.0]), jnp.array([0.5, 1.0, 3.0])
    np.testing.assert_allclose(jax.vmap(gained)(masses, lengths), 0.05 * 2 / (masses * lengths**2), rtol=1e-12)
    by_mass, by_length = jax.grad(gained, (0, 1))(2.0, 3.0)
    np.testing.assert_allclose([by_mass, by_length], [-0.05 * 2 / (4 * 9), -2 * 0.05 * 2 / (2 * 27)], rtol=1e-12)

    def climb(mass):
        quadcopter = offspan.Quadcopter(mass=mass, largest_speed=30_000.0)
        return quadcopter.step(quadcopter.target, jnp.full(4, 20_000.0))[8]

    lift = 4 * 3.16e-10 * 20_000.0**2
    np.testing.assert_allclose(jax.vmap(climb)(jnp.array([0.02, 0.03])), 0.02 * (lift / np.array([0.02, 0.03]) - 9.81), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(climb)(0.027), -0.02 * lift / 0.027**2, rtol=1e-12)
    assert offspan.Quadcopter(largest_speed=123.0).control_bounds == ((0.0,) * 4, (123.0,) * 4)
