import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import offspan
from tests.systems import loop_cost, random_gain, random_lqr, seeds, underdetermined_lqrs


@given(underdetermined_lqrs(), seeds)
def test_measures_are_sums_over_any_orthonormal_basis_of_the_complement(case, seed):
    """The projector's route against the definition, over U and over a rotated U'  [R24, lem:extrapolation_measures_invariant_general_q]."""
    problem, x0s = case
    K = random_gain(seed, problem)
    U = np.asarray(offspan.unseen_directions(x0s))
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(U), len(U))))[0]
    M, Q = np.asarray(problem.A + problem.B @ K), np.asarray(problem.Q)
    for basis in (U, rotation @ U):
        optimality = np.mean([(M @ x) @ Q @ (M @ x) for x in basis])
        np.testing.assert_allclose(offspan.optimality_measure(problem, K, x0s), optimality, rtol=1e-8, atol=1e-10)
        excess = loop_cost(problem, K, basis) - np.mean([x @ Q @ x for x in basis])
        np.testing.assert_allclose(offspan.cost_measure(problem, K, x0s), excess, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(offspan.optimality_measure(problem, K, x0s, unseen=basis), optimality, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(offspan.cost_measure(problem, K, x0s, unseen=basis), excess, rtol=1e-8, atol=1e-9)


@given(underdetermined_lqrs())
def test_the_extrapolating_controller_has_measures_zero_and_the_other_one(case):
    problem, x0s = case
    K_ext, K_no_ext = offspan.extrapolating_controller(problem), offspan.nonextrapolating_controller(problem, x0s)
    rounding = 1e-25 * (1 + float(jnp.linalg.norm(K_ext))) ** 2
    for plain in (offspan.optimality_measure, offspan.cost_measure):
        assert 0 <= plain(problem, K_ext, x0s) < rounding
        assert plain(problem, K_no_ext, x0s) > 0
    for normalized in (offspan.normalized_optimality, offspan.normalized_cost):
        np.testing.assert_allclose(normalized(problem, K_no_ext, x0s), 1.0, rtol=1e-12)


def test_normalised_measures_are_ratios_and_take_explicit_states():
    problem = random_lqr(3, 4, 4, 5, control_cost=False)
    x0s, K = offspan.basis(4, 2), random_gain(3, problem)
    unseen = np.array([[0.0, 0.0, 2.0, 1.0], [1.0, 0.0, 0.0, 1.0], [0.0, 0.5, 0.0, 0.0]])
    K_no_ext = offspan.nonextrapolating_controller(problem, x0s)
    M, N, Q = (np.asarray(a) for a in (problem.A + problem.B @ K, problem.A + problem.B @ K_no_ext, problem.Q))
    ratio = sum(x @ M.T @ Q @ M @ x for x in unseen) / sum(x @ N.T @ Q @ N @ x for x in unseen)
    np.testing.assert_allclose(offspan.normalized_optimality(problem, K, x0s, unseen=unseen), ratio, rtol=1e-12)
    least = np.mean([x @ Q @ x for x in unseen])
    ratio = (loop_cost(problem, K, unseen) - least) / (loop_cost(problem, K_no_ext, unseen) - least)
    np.testing.assert_allclose(offspan.normalized_cost(problem, K, x0s, unseen=unseen), ratio, rtol=1e-12)
    general = offspan.extrapolation(
        problem, offspan.Linear(K), unseen, minimal_cost=least, baseline_cost=loop_cost(problem, K_no_ext, unseen)
    )
    np.testing.assert_allclose(general, ratio, rtol=1e-12)


@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize("horizon", [1, 4])
def test_the_identity_system_without_control(dim, horizon):
    """E_opt = 1 and E_cost = H for K = 0  [R24, prop:no_exploration_no_extrapolation]."""
    problem, K = offspan.identity(dim, horizon=horizon), np.zeros((dim, dim))
    x0s = offspan.sphere(jax.random.key(0), dim - 1, dim)
    np.testing.assert_allclose(offspan.optimality_measure(problem, K, x0s), 1.0, rtol=1e-12)
    np.testing.assert_allclose(offspan.cost_measure(problem, K, x0s), horizon, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e4])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_to_normalise_by_is_found_whatever_the_lengths(seed, scale):
    """A = W P_S has A U = 0 up to rounding: an error. For a generic A the ratio does not depend on the lengths of the unseen states."""
    keys = jax.random.split(jax.random.key(seed), 3)
    x0s, W = jax.random.normal(keys[0], (2, 4)), jax.random.normal(keys[1], (4, 4))
    U = offspan.unseen_directions(x0s)
    blind = offspan.LQR(W @ offspan.seen_projector(x0s), jax.random.normal(keys[2], (4, 4)), horizon=3)
    with pytest.raises(ValueError, match="nothing to normalise by"):
        offspan.normalized_cost(blind, np.ones((4, 4)), x0s, unseen=scale * U)
    generic = offspan.LQR(W, horizon=3)
    ratio = offspan.normalized_cost(generic, np.ones((4, 4)), x0s, unseen=scale * U)
    np.testing.assert_allclose(ratio, offspan.normalized_cost(generic, np.ones((4, 4)), x0s), rtol=1e-10)


def test_zero_rows_in_the_seen_set_change_nothing():
    """A zero state adds no direction: padding a seen set is exact."""
    problem = random_lqr(1, 4, 4, 3, control_cost=False)
    K, x0s = random_gain(1, problem), offspan.basis(4, 2)
    padded = jnp.concatenate([x0s, jnp.zeros((3, 4))])
    for measure in (offspan.optimality_measure, offspan.cost_measure, offspan.normalized_optimality, offspan.normalized_cost):
        np.testing.assert_allclose(measure(problem, K, padded), measure(problem, K, x0s), rtol=1e-13)


def test_jit_vmap_and_grad():
    problem = random_lqr(2, 4, 4, 3, control_cost=False)
    gains = jnp.stack([random_gain(seed, problem) for seed in range(3)])
    x0s = jnp.stack([offspan.sphere(jax.random.key(seed), 2, 4) for seed in range(3)])
    for measure in (offspan.optimality_measure, offspan.cost_measure, offspan.normalized_optimality, offspan.normalized_cost):
        plain = [measure(problem, K, x) for K, x in zip(gains, x0s, strict=True)]
        mapped = jax.jit(jax.vmap(measure, in_axes=(None, 0, 0)))(problem, gains, x0s)
        np.testing.assert_allclose(mapped, plain, rtol=1e-12)
        for argument in (1, 2):
            arguments = [problem, gains[0], x0s[0]]
            gradient = jax.grad(measure, argnums=argument)(*arguments)
            direction = np.random.default_rng(0).normal(size=gradient.shape)
            shifted = lambda t: measure(*(a + t * direction if i == argument else a for i, a in enumerate(arguments)))  # noqa: E731, B023
            np.testing.assert_allclose(jnp.sum(gradient * direction), (shifted(1e-6) - shifted(-1e-6)) / 2e-6, rtol=1e-6, atol=1e-8)


def test_where_a_measure_is_not_defined_a_batch_has_nan():
    """Seen states that span the space, and A U = 0, cannot raise under vmap."""
    problem = offspan.LQR(np.diag([1.0, 0.0]), horizon=2)
    seen = jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    values = jax.vmap(lambda x0s: offspan.normalized_cost(problem, jnp.zeros((2, 2)), x0s))(seen)
    assert np.isnan(values).tolist() == [True, True, False]
    assert values[2] == 1.0


def test_a_baseline_that_overflows_is_no_measure_in_a_batch():
    """10^{2H} for H = 200: a finite measure over ∞ would look like perfect extrapolation."""
    problem, seen = offspan.LQR(10 * np.eye(2), horizon=200), offspan.basis(2, 1)
    K = offspan.extrapolating_controller(problem)
    assert np.isnan(jax.vmap(lambda seen: offspan.normalized_cost(problem, K, seen))(seen[None]))
    batch = offspan.train_lqr_batch([problem], [seen], learning_rate=1e-3, iterations=0, K0=K[None])
    assert np.isnan(batch.normalized_cost).all()
    assert batch.normalized_optimality.tolist() == [[0.0]]


def test_float32_agrees_with_float64():
    problem = random_lqr(4, 4, 4, 3, control_cost=False)
    narrow = jax.tree.map(lambda a: a.astype(np.float32), problem)
    K, x0s = random_gain(4, problem), offspan.basis(4, 2)
    value = offspan.normalized_cost(narrow, K.astype(np.float32), x0s.astype(np.float32))
    assert value.dtype == np.float32
    np.testing.assert_allclose(value, offspan.normalized_cost(problem, K, x0s), rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_generic_states_that_span_the_space_leave_no_direction(seed):
    """|U| = tr(I − P_S) = n − rank S is a whole number: for n generic states it is 0, although rounding leaves ±1e-16 of the trace.

    An ordinary call raises; under vmap the measures are NaN (not 0/0's neighbour ε/0 = ∞).
    """
    problem, x0s = random_lqr(seed, 4, 4, 3, control_cost=False), offspan.sphere(jax.random.key(seed), 4, 4)
    for measure in (offspan.optimality_measure, offspan.cost_measure, offspan.normalized_optimality, offspan.normalized_cost):
        with pytest.raises(ValueError, match="span the whole space"):
            measure(problem, np.zeros((4, 4)), x0s)
        assert np.isnan(jax.vmap(lambda x0s: measure(problem, jnp.zeros((4, 4)), x0s))(x0s[None])).all()  # noqa: B023


@pytest.mark.parametrize(("of_A", "of_Q"), [(1.0, 1e20), (1.0, 1e-40), (1e10, 1.0), (1e-20, 1.0)])
def test_nothing_to_normalise_by_is_found_whatever_the_units(of_A, of_Q):
    """E_opt is quadratic in (A, K) and linear in Q: their units cancel in the ratio, and A U = 0 up to rounding is 0 in any of them."""
    keys = jax.random.split(jax.random.key(0), 2)
    x0s, W = jax.random.normal(keys[0], (2, 4)), jax.random.normal(keys[1], (4, 4))
    blind = offspan.LQR(of_A * W @ offspan.seen_projector(x0s), Q=of_Q * np.eye(4), horizon=3)
    with pytest.raises(ValueError, match="nothing to normalise by"):
        offspan.normalized_optimality(blind, np.ones((4, 4)), x0s)
    generic = offspan.LQR(of_A * W, Q=of_Q * np.eye(4), horizon=3)
    plain = offspan.normalized_optimality(offspan.LQR(W, horizon=3), np.ones((4, 4)), x0s)
    np.testing.assert_allclose(offspan.normalized_optimality(generic, of_A * np.ones((4, 4)), x0s), plain, rtol=1e-10)


def test_unseen_directions_that_A_shrinks_are_not_nothing():
    """A = W P_S + ε W (I − P_S) and K = ε L give (A + K) x = ε (W + L) x and A x = ε W x on S⊥: a ratio without ε, for ε ≫ rounding."""
    W, L = np.random.default_rng(0).normal(size=(2, 4, 4))
    x0s, P = offspan.basis(4, 2), np.diag([1.0, 1.0, 0.0, 0.0])
    small = 1e-9
    problem = offspan.LQR(W @ P + small * W @ (np.eye(4) - P), horizon=3)
    ratio = np.sum((W + L)[:, 2:] ** 2) / np.sum(W[:, 2:] ** 2)
    np.testing.assert_allclose(offspan.normalized_optimality(problem, small * L, x0s), ratio, rtol=1e-6)


def test_states_of_lower_precision_than_the_problem_are_measured_in_the_problems():
    """‖M x‖²_Q for a float32 x is float64 where M is: the number for x as float64."""
    problem = random_lqr(4, 4, 4, 3, control_cost=False)
    K, x0s = random_gain(4, problem), np.eye(4)[:2]
    narrow, unseen = x0s.astype(np.float32), np.eye(4)[2:]
    for measure in (offspan.optimality_measure, offspan.cost_measure, offspan.normalized_optimality, offspan.normalized_cost):
        for value in (measure(problem, K, narrow), measure(problem, K, x0s, unseen=unseen.astype(np.float32))):
            assert value.dtype == np.float64
            np.testing.assert_allclose(value, measure(problem, K, x0s, unseen=unseen), rtol=1e-6)


def test_a_baseline_that_equals_the_minimum_is_refused():
    """(J − J*) / (J_no-ext − J*) has no value for J_no-ext = J*."""
    problem, zero = offspan.identity(2, horizon=1), offspan.Linear(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"`baseline_cost` \(1\) must exceed `minimal_cost` \(1\)"):
        offspan.extrapolation(problem, zero, np.eye(2), minimal_cost=1.0, baseline_cost=1.0)


def test_a_linear_controller_stands_for_its_gain():
    problem, seen = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    K = -0.3 * jnp.eye(3)
    for name in ("optimality_measure", "cost_measure", "normalized_optimality", "normalized_cost"):
        measure = getattr(offspan, name)
        assert float(measure(problem, offspan.Linear(K), seen=seen)) == float(measure(problem, K, seen)) > 0
