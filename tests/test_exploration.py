"""What training visits, by plain loops, closed forms and equations that share no code with the library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import offspan
from offspan import sizes
from offspan.exploration import coverage, gradient_alignment, gramian, overlap, state_gradients, visited_covariance
from tests.systems import random_gain, random_lqr


@pytest.mark.parametrize("control_cost", [False, True])
def test_the_gramian_is_the_plain_sum(control_cost):
    """1/|S| Σ x_h x_hᵀ over h < H, and over h ≤ H where controls cost something."""
    problem = random_lqr(0, 3, 2, 4, control_cost=control_cost)
    K, x0s = np.asarray(random_gain(0, problem)), np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])
    M, expected = np.asarray(problem.A) + np.asarray(problem.B) @ K, np.zeros((3, 3))
    for x in x0s:
        for _ in range(5 if control_cost else 4):
            expected += np.outer(x, x) / 2
            x = M @ x
    np.testing.assert_allclose(gramian(problem, x0s, K), expected, rtol=1e-12)
    without_control = gramian(problem, x0s)
    assert np.abs(without_control - expected).max() > 1e-3


def test_a_long_gramian_of_a_stable_system_solves_the_lyapunov_equation():
    """G = A G Aᵀ + 1/|S| Σ x_0 x_0ᵀ for H → ∞."""
    A = np.array([[0.5, 0.3, 0.0], [0.0, -0.4, 0.2], [0.1, 0.0, 0.6]])
    x0s = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 1.0]])
    expected = scipy.linalg.solve_discrete_lyapunov(A, x0s.T @ x0s / 2)
    np.testing.assert_allclose(gramian(offspan.LQR(A, horizon=400), x0s), expected, rtol=1e-10)


def test_the_identity_explores_nothing_and_the_shift_everything():
    """From e_1: the identity stays there; the shift with H = D visits each e_d once, with H = 2D twice."""
    np.testing.assert_array_equal(overlap(offspan.identity(4, horizon=9), np.eye(4)[:1], np.eye(4)), [1, 0, 0, 0])
    for times in (1, 2):
        np.testing.assert_allclose(gramian(offspan.shift(4, horizon=4 * times), np.eye(4)[:1]), times * np.eye(4), atol=1e-15)
        np.testing.assert_allclose(overlap(offspan.shift(4, horizon=4 * times), np.eye(4)[:1], 3 * np.eye(4)), [0.25] * 4, rtol=1e-14)


def test_covariance_and_coverage_are_those_of_a_plain_loop():
    problem = offspan.Pendulum(horizon=6)
    x0s, candidates, scale = np.array([[1.0, 0.0], [2.0, 0.5]]), np.array([[1.1, 0.1], [3.0, 0.0], [2.0, 0.5]]), np.array([2.0, 5.0])
    visited = []
    for angle, velocity in x0s:
        for _ in range(7):
            visited.append([angle, velocity])
            angle, velocity = angle + 0.05 * velocity, velocity + 0.05 * (0.3 * angle - 10 * np.sin(angle))
    scaled = np.array(visited) / scale
    still = lambda x: 0.3 * x[:1]  # noqa: E731
    np.testing.assert_allclose(visited_covariance(problem, still, x0s, scale=scale), np.cov(scaled.T, bias=True), rtol=1e-10)
    expected = [min(np.linalg.norm(candidate / scale - state) for state in scaled) for candidate in candidates]
    found = coverage(problem, still, x0s, candidates, scale=scale)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    assert found[2] == 0
    assert found[1] > 0.1


def test_alignment_is_the_slope_of_the_cost_along_a_step_of_training():
    """d/dη J(π − η ∇J(S); x) at η = 0 is −⟨∇J(S), ∇J(x)⟩: by differences of costs along the step."""
    problem, network = offspan.Pendulum(horizon=8), offspan.MLP.init(jax.random.key(3), 2, 1, width=6, depth=2)
    seen, unseen = jnp.array([[2.6, 0.0], [3.6, 0.0]]), jnp.array([[1.5, 0.0], [4.5, 0.2], [0.3, -0.5]])
    gradient = jax.grad(lambda network: offspan.cost(problem, network, seen))(network)
    length = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(gradient)))
    step = 1e-5 / length
    cosines = []
    for x in unseen:
        costs = [
            float(offspan.cost(problem, jax.tree.map(lambda w, g, eta=eta: w - eta * g, network, gradient), x[None]))
            for eta in (step, -step)
        ]
        own = np.linalg.norm(state_gradients(problem, network, x[None])[0])
        cosines.append((costs[1] - costs[0]) / (2 * step) / (length * own))
    np.testing.assert_allclose(gradient_alignment(problem, network, seen, unseen), cosines, rtol=1e-5, atol=1e-7)
    assert np.abs(cosines).max() > 0.1
    np.testing.assert_allclose(gradient_alignment(problem, network, seen[:1], seen[:1]), 1.0, rtol=1e-12)


def test_gradients_of_single_states_average_to_that_of_the_set():
    problem = offspan.gaussian(jax.random.key(0), 3, horizon=4)
    x0s = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    K = np.full((3, 3), 0.1)
    each = state_gradients(problem, offspan.Linear(K), x0s)
    np.testing.assert_allclose(each.mean(axis=0).reshape(3, 3), offspan.lqr_gradient(problem, K, x0s), rtol=1e-12)


def test_a_direction_that_is_not_visited_has_no_alignment():
    """On the identity from e_1, ∇J(·; e_2) is orthogonal to ∇J(·; e_1): nothing is learned about e_2."""
    problem = offspan.identity(3, horizon=4)
    found = gradient_alignment(problem, offspan.Linear(np.zeros((3, 3))), np.eye(3)[:1], np.eye(3))
    np.testing.assert_allclose(found, [1, 0, 0], atol=1e-15)
    quiet = gradient_alignment(problem, offspan.Linear(-np.eye(3)), np.eye(3)[:1], np.eye(3)[1:2])  # of zero gradients
    np.testing.assert_array_equal(quiet, [0.0])


def test_distances_in_blocks_are_the_same_bits(monkeypatch):
    problem, zero, far = offspan.shift(3, horizon=4), offspan.Linear(np.zeros((3, 3))), np.random.default_rng(0).normal(size=(23, 3))
    whole = coverage(problem, zero, np.eye(3)[:2], far)
    monkeypatch.setattr(sizes, "TRAJECTORIES", 5 * 2 * 4 * 3)  # five candidates
    np.testing.assert_array_equal(coverage(problem, zero, np.eye(3)[:2], far), whole)
    assert len(sizes.blocks(23, 2 * 4 * 3)) == 5


NOISY = offspan.Noisy(offspan.identity(2, horizon=2), process=0.1)
STILL = offspan.Linear(np.zeros((2, 2)))
OF_TRAJECTORIES = {
    "visited_states": lambda problem: offspan.visited_states(problem, STILL, HERE),
    "visited_covariance": lambda problem: offspan.visited_covariance(problem, STILL, HERE),
    "coverage": lambda problem: coverage(problem, STILL, HERE, HERE),
    "gradient_alignment": lambda problem: gradient_alignment(problem, STILL, HERE, HERE),
    "state_gradients": lambda problem: state_gradients(problem, STILL, HERE),
}


@pytest.mark.parametrize("name", OF_TRAJECTORIES)
def test_of_a_noisy_problem_the_advice_works(name):
    """It was to pass a `key`, which none of these takes."""
    with pytest.raises(offspan.OffspanError, match=rf"^{name}: the problem is Noisy.*pass `problem\.problem`"):
        OF_TRAJECTORIES[name](NOISY)
    assert np.all(np.isfinite(OF_TRAJECTORIES[name](NOISY.problem)))


HERE = np.ones((1, 2))


def first(x):
    return x[:1]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: overlap(offspan.identity(2, horizon=2), np.eye(2), np.zeros((1, 2))), "overlap: `unseen` has a zero state"),
        (
            lambda: coverage(offspan.Pendulum(), lambda x: x[:1], np.ones((1, 2)), np.ones((1, 2)), scale=0.0),
            "coverage: `scale` is [0.0, 0.0], but must be positive",
        ),
        (
            lambda: coverage(offspan.Pendulum(), lambda x: x[:1], np.ones((1, 2)), np.ones((1, 2)), scale=[1.0]),
            "coverage: `scale` has shape (1,)",
        ),
        (lambda: state_gradients(offspan.Pendulum(), lambda x: x[:1], np.ones((1, 2))), "holds no weights, so there is no gradient"),
    ],
)
def test_a_mistake_about_exploration_gets_its_sentence(call, sentence):
    with pytest.raises(ValueError, match=r"\.$") as caught:
        call()
    assert sentence in str(caught.value)
