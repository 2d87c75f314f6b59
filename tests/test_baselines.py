import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import offspan
from tests.systems import loop_cost, random_lqr, underdetermined_lqrs


@given(underdetermined_lqrs())
def test_minimal_cost_is_attained_by_both_controllers_and_not_beaten(case):
    """J(K_ext; S) = J(K_no-ext; S) = J*(S)  [R24, lem:cost_min_underdetermined]."""
    problem, x0s = case
    least = float(offspan.minimal_cost(problem, x0s))
    np.testing.assert_allclose(least, np.mean([x @ np.asarray(problem.Q) @ x for x in np.asarray(x0s)]), rtol=1e-12)
    K_ext, K_no_ext = offspan.extrapolating_controller(problem), offspan.nonextrapolating_controller(problem, x0s)
    for K in (K_ext, K_no_ext):
        # A nearly singular B makes K large and the cancellation in A + BK inexact.
        rounding = 1e-13 * (1 + float(jnp.linalg.norm(K))) ** 2
        np.testing.assert_allclose(loop_cost(problem, K, x0s), least, rtol=rounding)
    for seed in range(5):
        K = K_ext + 0.1 * jax.random.normal(jax.random.key(seed), K_ext.shape)
        assert loop_cost(problem, K, x0s) > least


@given(underdetermined_lqrs())
def test_the_nonextrapolating_controller_gives_unseen_directions_no_control(case):
    problem, x0s = case
    K = offspan.nonextrapolating_controller(problem, x0s)
    np.testing.assert_allclose(K @ offspan.unseen_directions(x0s).T, 0.0, atol=1e-11 * (1 + float(jnp.linalg.norm(K))))


@pytest.mark.parametrize("seed", range(3))
def test_the_nonextrapolating_controller_has_the_least_norm(seed):
    """‖K_no-ext‖ < ‖K‖ for every other minimiser K of J(·; S), Q ≻ 0  [R24, lem:min_norm], over 1,000 random ones."""
    problem = random_lqr(seed, 5, 5, 4, control_cost=False)
    assert jnp.linalg.eigvalsh(problem.Q)[0] > 0
    x0s = offspan.sphere(jax.random.key(seed), 2, 5)
    U = offspan.unseen_directions(x0s)
    K_no_ext = offspan.nonextrapolating_controller(problem, x0s)
    least = offspan.minimal_cost(problem, x0s)
    # From tiny to large departures: a tiny one would find any component along U that could be taken away.
    sizes = 10.0 ** jnp.linspace(-4, 1, 1000)
    others = jax.vmap(lambda size, W: K_no_ext + size * W @ U)(sizes, jax.random.normal(jax.random.key(seed), (1000, 5, len(U))))
    costs = jax.vmap(lambda K: offspan.cost(problem, offspan.Linear(K), x0s))(others)
    np.testing.assert_allclose(costs, least, rtol=1e-7)
    assert jnp.all(jnp.linalg.norm(others, axis=(1, 2)) > jnp.linalg.norm(K_no_ext))


def test_outside_their_setting_the_batched_numbers_are_nan():
    """R ≠ 0, or B singular, in one problem of a batch: NaN there, the usual number elsewhere."""
    with_control_cost = offspan.LQR(np.eye(2), R=np.eye(2), horizon=2)
    singular = offspan.LQR(np.eye(2), np.diag([1.0, 0.0]), horizon=2)
    fine = offspan.identity(2, horizon=2)
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), with_control_cost, singular, fine)
    x0s = offspan.basis(2, 1)
    measures = offspan.optimality_measure, offspan.cost_measure, offspan.normalized_optimality, offspan.normalized_cost
    for function in (
        offspan.minimal_cost,
        offspan.nonextrapolating_controller,
        *(lambda p, x, measure=measure: measure(p, jnp.zeros((2, 2)), x) for measure in measures),
    ):
        values = jax.vmap(function, in_axes=(0, None))(batch, x0s)
        assert np.all(np.isnan(values[:2]))
        np.testing.assert_array_equal(values[2], function(fine, x0s))


@pytest.mark.parametrize("R", [0.0, 0.3])
def test_riccati_is_the_least_squares_over_all_controls(R):
    """Stacked: x_h = A^h x + Σ_k A^{h−1−k} B u_k, so that J is a sum of squares in (u_0, …, u_H), with fewer inputs than states."""
    rng = np.random.default_rng(1)
    A, B, H, n, m = rng.normal(size=(3, 3)), rng.normal(size=(3, 2)), 4, 3, 2
    Q = np.diag([1.0, 2.0, 0.5])
    problem = offspan.LQR(A, B, Q, R * np.eye(m), horizon=H)
    X = rng.normal(size=(2, n))
    powers = [np.linalg.matrix_power(A, h) for h in range(H + 1)]
    to_states = np.zeros(((H + 1) * n, (H + 1) * m))
    for h in range(H + 1):
        for k in range(h):
            to_states[h * n : (h + 1) * n, k * m : (k + 1) * m] = powers[h - 1 - k] @ B
    root = np.kron(np.eye(H + 1), np.sqrt(Q))
    matrix = np.vstack([root @ to_states, np.sqrt(R) * np.eye((H + 1) * m)])
    costs = []
    for x in X:
        target = np.concatenate([root @ np.concatenate([power @ x for power in powers]), np.zeros((H + 1) * m)])
        u = np.linalg.lstsq(matrix, -target, rcond=None)[0]
        costs.append(np.sum((matrix @ u + target) ** 2))
    np.testing.assert_allclose(offspan.riccati_cost(problem, X), np.mean(costs), rtol=1e-9)


@given(underdetermined_lqrs())
def test_for_the_papers_systems_the_general_measures_are_the_papers(case):
    problem, x0s = case
    np.testing.assert_allclose(offspan.riccati_cost(problem, x0s), offspan.minimal_cost(problem, x0s), rtol=1e-6)


def test_the_measure_of_any_plant():
    """The paper's where that is defined; elsewhere 1 for the optimal controller on the span alone, and below for what acts off it, too."""
    square = offspan.gaussian(jax.random.key(2), 4, horizon=5)
    seen = offspan.basis(4, 2)
    K = 0.3 * jax.random.normal(jax.random.key(3), (4, 4))
    expected = float(offspan.normalized_cost(square, K, seen))
    assert float(offspan.lqr_extrapolation(square, K, seen)) == pytest.approx(expected, rel=1e-6)

    A, B = jnp.array([[1.0, 0.1, 0.0], [0.0, 1.0, 0.2], [0.0, 0.0, 1.1]]), jnp.array([[0.0], [0.0], [1.0]])
    plant = offspan.LQR(A, B, R=[[0.5]], horizon=30)
    best = offspan.stationary_controller(plant)
    seen = jnp.array([[0.0, 0.0, 1.0]])
    assert float(offspan.lqr_extrapolation(plant, best @ offspan.seen_projector(seen), seen)) == pytest.approx(1.0)
    assert 0 <= float(offspan.lqr_extrapolation(plant, best, seen)) < 0.05
    for call in (offspan.minimal_cost, lambda problem, S: offspan.normalized_cost(problem, best, S)):
        with pytest.raises(offspan.OffspanError, match=r"for any B and R there are `riccati_cost`"):
            call(plant, seen)
    weak = offspan.LQR(jnp.array([[0.5, 1.0], [0.2, 0.7]]), jnp.diag(jnp.array([1.0, 1e-8])), horizon=5)
    np.testing.assert_allclose(offspan.riccati_cost(weak, jnp.eye(2)), offspan.minimal_cost(weak, jnp.eye(2)), rtol=1e-6)
    alone = offspan.LQR(jnp.diag(jnp.array([0.5, 0.9])), jnp.array([[0.0], [1.0]]), R=[[1.0]], horizon=5)
    with pytest.raises(offspan.OffspanError, match="nothing to normalise by"):
        offspan.lqr_extrapolation(alone, jnp.zeros((1, 2)), jnp.array([[0.0, 1.0]]))
    with pytest.raises(offspan.OffspanError, match="stabilising solution"):
        offspan.stationary_controller(offspan.LQR([[2.0, 0.0], [0.0, 1.0]], [[0.0], [1.0]], R=[[1.0]], horizon=3))


def test_a_cart_pole_of_python_control_from_plant_to_audit(tmp_path):
    """Fewer inputs than states, R ≻ 0: trained with clipped gradients, measured, audited."""
    control = pytest.importorskip("control")
    from offspan.systems.control import from_control

    A = np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 11.0, 0.0]])
    cart = control.ss(A, [[0.0], [1.0], [0.0], [-1.0]], np.eye(4), 0, states=["position", "speed", "angle", "rate"])
    plant = from_control(cart, Q=np.diag([1.0, 0.1, 10.0, 0.1]), R=[[0.01]], horizon=100, dt=0.05)
    np.testing.assert_allclose(
        offspan.stationary_controller(plant), -control.dlqr(*(np.asarray(M) for M in (plant.A, plant.B, plant.Q, plant.R)))[0], rtol=1e-6
    )
    seen = jnp.eye(4)[2:3] * 0.1
    run = offspan.train_lqr(plant, seen, learning_rate=1e-2, iterations=20_000, clip=1.0)
    assert run.cost[-1] < 2 * float(offspan.riccati_cost(plant, seen))
    measure = float(offspan.lqr_extrapolation(plant, run.K, seen, unseen=0.1 * offspan.unseen_directions(seen)))
    assert 0 <= measure < 1
    found = offspan.audit(plant, run.controller, seen, {0: (-0.5, 0.5), 2: (-0.2, 0.2)}, points=5, states=100)
    found.save(tmp_path / "cart.html")
    assert "angle" in (tmp_path / "cart.html").read_text()
    assert found.reference is not None
