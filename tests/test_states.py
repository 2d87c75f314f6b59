import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offspan
from tests.systems import seeds


@given(seeds, st.integers(1, 6), st.integers(1, 8), st.integers(0, 3))
def test_unseen_directions_are_an_orthonormal_basis_of_the_complement(seed, n, count, repeats):
    """U Uᵀ = I, U S = 0 and |U| + rank S = n, also with repeated, scaled and zero states in S."""
    random = np.random.default_rng(seed)
    x0s = random.normal(size=(count, n))
    x0s = np.concatenate([x0s, 1e3 * x0s[:repeats], np.zeros((repeats, n))])
    U = np.asarray(offspan.unseen_directions(x0s))
    assert len(U) == n - min(n, count)
    np.testing.assert_allclose(U @ U.T, np.eye(len(U)), atol=1e-12)
    np.testing.assert_allclose(U @ x0s.T, 0.0, atol=1e-9)
    projector = offspan.seen_projector(x0s)
    np.testing.assert_allclose(projector, np.eye(n) - U.T @ U, atol=1e-9)
    np.testing.assert_allclose(x0s @ projector, x0s, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_short_state_beside_a_long_one_is_seen(dtype):
    """The span does not depend on the lengths of the states."""
    x0s = np.array([[1e30, 0.0, 0.0], [0.0, 1e-30, 1e-30]], dtype)
    np.testing.assert_allclose(offspan.seen_projector(x0s), [[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]], atol=1e-6)
    np.testing.assert_allclose(np.abs(offspan.unseen_directions(x0s)), [[0, 0.5**0.5, 0.5**0.5]], atol=1e-6)


def test_all_zero_states_leave_everything_unseen():
    assert offspan.unseen_directions(np.zeros((2, 3))).shape == (3, 3)
    np.testing.assert_array_equal(offspan.seen_projector(np.zeros((2, 3))), np.zeros((3, 3)))


def test_the_projector_can_be_differentiated_where_singular_values_repeat():
    """For P = x xᵀ/‖x‖² the derivative along a perpendicular v is (v xᵀ + x vᵀ)/‖x‖²."""
    x, v = jnp.array([2.0, 0.0, 0.0]), jnp.array([0.0, 1.0, 0.0])
    _, slope = jax.jvp(lambda x: offspan.seen_projector(x[None, :]), (x,), (v,))
    np.testing.assert_allclose(slope, (jnp.outer(v, x) + jnp.outer(x, v)) / 4, atol=1e-14)
    x0s, direction = jnp.eye(4)[:2], np.random.default_rng(0).normal(size=(2, 4))
    _, slope = jax.jvp(offspan.seen_projector, (x0s,), (jnp.asarray(direction),))
    difference = (offspan.seen_projector(x0s + 1e-6 * direction) - offspan.seen_projector(x0s - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(slope, difference, atol=1e-9)
    assert np.all(np.isfinite(jax.jacobian(offspan.seen_projector)(jnp.zeros((2, 3)).at[0, 0].set(1.0))))


def test_basis_sphere_and_grid():
    np.testing.assert_array_equal(offspan.basis(3, 2), [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(offspan.basis(2), np.eye(2))
    points = offspan.sphere(jax.random.key(0), 2_000, 3, radius=2.0)
    np.testing.assert_allclose(jnp.linalg.norm(points, axis=1), 2.0)
    assert jnp.abs(points.mean(axis=0)).max() < 5 * 2 / (3 * 2_000) ** 0.5
    np.testing.assert_array_equal(offspan.grid([1.0, 2.0], [0.0], [5.0, 6.0]), [[1, 0, 5], [1, 0, 6], [2, 0, 5], [2, 0, 6]])
