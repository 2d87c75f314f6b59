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
