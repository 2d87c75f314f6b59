import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offspan
from tests.systems import lqrs, seeds


@given(lqrs, seeds)
def test_lqr_step_and_stage_cost_are_the_equations(problem, seed):
    """x' = A x + B u and c = xᵀQx + uᵀRu, entry by entry."""
    x, u = (np.asarray(jax.random.normal(jax.random.key(seed), (k,))) for k in (problem.state_dim, problem.control_dim))
    A, B, Q, R = (np.asarray(M) for M in (problem.A, problem.B, problem.Q, problem.R))
    n, m = B.shape
    expected = [sum(A[i, j] * x[j] for j in range(n)) + sum(B[i, k] * u[k] for k in range(m)) for i in range(n)]
    np.testing.assert_allclose(problem.step(jnp.asarray(x), jnp.asarray(u)), expected, atol=1e-12)
    cost = sum(Q[i, j] * x[i] * x[j] for i in range(n) for j in range(n)) + sum(R[i, j] * u[i] * u[j] for i in range(m) for j in range(m))
    np.testing.assert_allclose(problem.stage_cost(jnp.asarray(x), jnp.asarray(u)), cost, rtol=1e-10, atol=1e-12)


def test_lqr_defaults():
    problem = offspan.LQR(np.diag([1.0, 2.0, 3.0]), np.ones((3, 2)), horizon=4)
    assert (problem.state_dim, problem.control_dim, problem.horizon) == (3, 2, 4)
    assert (problem.cost_scale, problem.control_bounds) == (1.0, None)
    np.testing.assert_array_equal(problem.Q, np.eye(3))
    np.testing.assert_array_equal(problem.R, np.zeros((2, 2)))
    np.testing.assert_array_equal(offspan.LQR(np.ones((3, 3)), horizon=1).B, np.eye(3))


def test_a_cost_matrix_made_in_float32_is_taken_as_symmetric():
    """Z Zᵀ in float32 is symmetric up to 1e-7 only; (Q + Qᵀ)/2 gives the same cost, and is what the gradient needs."""
    Z = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    Q = (Z @ Z.T).astype(float)
    Q[0, 1] *= 1 + 1e-7
    stored = np.asarray(offspan.LQR(np.eye(6), Q=Q, horizon=1).Q)
    assert (Q != Q.T).any()
    np.testing.assert_array_equal(stored, stored.T)
    np.testing.assert_allclose(stored, Q, rtol=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_shift_sends_each_basis_vector_to_the_next(dim):
    """A e_d = e_{d%D+1}  [R24, prop:shift]."""
    A = np.asarray(offspan.shift(dim, horizon=1).A)
    for d in range(1, dim + 1):
        np.testing.assert_array_equal(A[:, d - 1], np.eye(dim)[d % dim])


def test_gaussian_entries_have_variance_one_over_the_dimension():
    """Mean 0 and variance 1/D for A, B and Z; E[Q] = E[Z Zᵀ] = I. Within five standard errors of 400 systems."""
    D, count = 4, 400
    keys = jax.random.split(jax.random.key(0), count)
    systems = jax.vmap(lambda key: offspan.gaussian_abq(key, D, horizon=1))(keys)
    plain = jax.vmap(lambda key: offspan.gaussian(key, D, horizon=1))(keys)
    for entries in (systems.A, systems.B, plain.A):
        assert abs(entries.mean()) < 5 * (1 / D / (count * D * D)) ** 0.5
        assert abs(entries.var() - 1 / D) < 5 * (2 / D**2 / (count * D * D)) ** 0.5
    assert jnp.abs(systems.Q.mean(axis=0) - jnp.eye(D)).max() < 5 * (2 / D / count) ** 0.5
    assert jnp.linalg.eigvalsh(systems.Q).min() > -1e-12
    assert jnp.abs(jnp.corrcoef(systems.A.ravel(), systems.B.ravel())[0, 1]) < 5 / (count * D * D) ** 0.5
    np.testing.assert_array_equal(plain.B[0], np.eye(D))


def test_function_problem_matches_the_lqr_that_it_spells_out():
    lqr = offspan.LQR([[0.5, 1.0], [0.0, 0.5]], [[0.0], [1.0]], R=[[0.1]], horizon=7)
    problem = offspan.FunctionProblem(lqr.step, lqr.stage_cost, state_dim=2, control_dim=1, horizon=7)
    controller, x0s = offspan.Linear([[-0.1, -0.2]]), np.array([[1.0, 0.0], [2.0, -1.0]])
    np.testing.assert_allclose(offspan.cost(problem, controller, x0s), offspan.cost(lqr, controller, x0s), rtol=1e-14)


def test_function_problem_scales_the_cost_and_keeps_bounds():
    make = lambda **options: offspan.FunctionProblem(  # noqa: E731
        lambda x, u: x + u, lambda x, u: x @ x, state_dim=2, control_dim=2, horizon=3, **options
    )
    controller, x0s = offspan.Linear(-0.5 * np.eye(2)), np.array([[1.0, 2.0]])
    scaled = make(cost_scale=0.25, control_bounds=(0.0, [1.0, 2.0]))
    np.testing.assert_allclose(offspan.cost(scaled, controller, x0s), 0.25 * offspan.cost(make(), controller, x0s))
    assert scaled.control_bounds == ((0.0, 0.0), (1.0, 2.0))


def test_function_problem_is_an_argument_of_jit_and_may_hold_a_learned_model():
    class Drift(eqx.Module):
        rate: jax.Array

        def __call__(self, x, u):
            return self.rate * x + u

    def total(rate):
        problem = offspan.FunctionProblem(Drift(rate), lambda x, u: x @ x, state_dim=1, control_dim=1, horizon=2)
        return jax.jit(offspan.cost)(problem, offspan.Linear([[0.0]]), np.ones((1, 1)))

    np.testing.assert_allclose(total(jnp.asarray(2.0)), 1 + 4 + 16)
    np.testing.assert_allclose(jax.grad(total)(2.0), 2 * 2 + 4 * 2**3)


@given(st.integers(1, 6), seeds)
def test_the_problem_follows_the_precision_of_its_matrices(n, seed):
    A = np.random.default_rng(seed).normal(size=(n, n))
    assert offspan.LQR(A.astype(np.float32), horizon=1).R.dtype == np.float32
    assert offspan.LQR(A, Q=np.eye(n, dtype=np.float32), horizon=1).Q.dtype == np.float64
    assert offspan.LQR(np.eye(n, dtype=int), horizon=1).A.dtype == np.float64


def test_a_problem_of_ones_own_is_checked_where_it_is_made_also_under_jit_and_vmap():
    class Mass(offspan.Problem):
        mass: jax.Array

        def __init__(self, mass):
            self.mass, self.state_dim, self.control_dim, self.horizon = jnp.asarray(mass), 1, 1, 2
            self.cost_scale, self.control_bounds = 1.0, None

        def step(self, x, u):
            return x + u / self.mass

        def stage_cost(self, x, u):
            return x @ x

    costs = jax.jit(jax.vmap(lambda mass: offspan.cost(Mass(mass), offspan.Linear([[-1.0]]), jnp.ones((1, 1)))))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(costs, [1.0, 1 + 1 / 4 + 1 / 16])


@pytest.mark.parametrize("kind", [offspan.FunctionProblem, offspan.BlackBox])
def test_the_arguments_of_problems_made_of_functions_are_written_out(kind):
    """Where `help` and the error of a mistyped one look."""
    assert {"state_dim", "control_dim", "horizon", "done_cost", "coordinates"} <= set(inspect.signature(kind).parameters)
    with pytest.raises(TypeError, match="unexpected keyword argument 'horizn'"):
        kind(lambda x, u: x, lambda x, u: x @ x, state_dim=1, control_dim=1, horizon=3, horizn=3)
