import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offspan
from tests.systems import loop_cost, lqrs, random_gain, random_lqr, seeds


@given(lqrs, seeds)
def test_rollout_is_the_plain_loop(problem, seed):
    K = random_gain(seed, problem)
    x = np.asarray(jax.random.normal(jax.random.key(seed), (problem.state_dim,)))
    trajectory = offspan.rollout(problem, offspan.Linear(K), x)
    A, B, Q, R, K = (np.asarray(M) for M in (problem.A, problem.B, problem.Q, problem.R, K))
    assert trajectory.states.shape == (problem.horizon + 1, problem.state_dim)
    assert trajectory.controls.shape == (problem.horizon + 1, problem.control_dim)
    for h in range(problem.horizon + 1):
        u = K @ x
        np.testing.assert_allclose(trajectory.states[h], x, atol=1e-9)
        np.testing.assert_allclose(trajectory.controls[h], u, atol=1e-9)
        np.testing.assert_allclose(trajectory.costs[h], x @ Q @ x + u @ R @ u, rtol=1e-9, atol=1e-9)
        x = A @ x + B @ u


def test_rollout_of_a_nonlinear_problem_and_a_plain_function():
    problem = offspan.FunctionProblem(lambda x, u: jnp.sin(x) + u**2, lambda x, u: jnp.sum(x * u), state_dim=2, control_dim=2, horizon=3)
    trajectory = offspan.rollout(problem, jnp.cos, np.array([0.1, 0.2]))
    x = np.array([0.1, 0.2])
    for h in range(4):
        np.testing.assert_allclose(trajectory.states[h], x, rtol=1e-14)
        np.testing.assert_allclose(trajectory.costs[h], np.sum(x * np.cos(x)), rtol=1e-14)
        x = np.sin(x) + np.cos(x) ** 2


@given(lqrs, seeds, st.integers(1, 4))
def test_cost_is_the_mean_over_states_of_the_sum_over_times(problem, seed, count):
    K = random_gain(seed, problem)
    x0s = jax.random.normal(jax.random.key(seed), (count, problem.state_dim))
    np.testing.assert_allclose(offspan.cost(problem, offspan.Linear(K), x0s), loop_cost(problem, K, x0s), rtol=1e-9)


@given(lqrs, seeds, st.integers(1, 4))
def test_lqr_gradient_is_the_derivative_of_the_cost(problem, seed, count):
    """The adjoint recursion against autodiff through the rollout, and against central differences of a plain loop."""
    K = random_gain(seed, problem)
    x0s = jax.random.normal(jax.random.key(seed), (count, problem.state_dim))
    gradient = offspan.lqr_gradient(problem, K, x0s)
    size = float(jnp.linalg.norm(gradient)) + 1e-3
    autodiff = jax.grad(lambda K: offspan.cost(problem, offspan.Linear(K), x0s))(K)
    np.testing.assert_allclose(gradient, autodiff, rtol=0, atol=1e-11 * size)
    direction = np.random.default_rng(seed).normal(size=K.shape)
    step = 1e-5
    difference = loop_cost(problem, K + step * direction, x0s) - loop_cost(problem, K - step * direction, x0s)
    # The error of a central difference is step² times a third derivative, here of order H³ in the cost.
    np.testing.assert_allclose(jnp.sum(gradient * direction), difference / (2 * step), rtol=0, atol=1e-4 * size)


@pytest.mark.parametrize("seed", range(3))
def test_lqr_gradient_is_the_papers_formula(seed):
    """∇J = 2Bᵀ Σ_{h<H} (Σ_{s=1}^{H−h} (Mˢ⁻¹)ᵀ Q Mˢ) Σ_h with M = A + BK and Σ_h = mean x_h x_hᵀ  [R24, lem:lqr_gradient]."""
    problem = random_lqr(seed, 4, 4, 5, control_cost=False)
    K, x0s = random_gain(seed, problem), offspan.sphere(jax.random.key(seed), 3, 4)
    M, H = np.asarray(problem.A + problem.B @ K), problem.horizon
    power = np.linalg.matrix_power
    total = np.zeros((4, 4))
    for h in range(H):
        sigma = np.mean([np.outer(power(M, h) @ x, power(M, h) @ x) for x in np.asarray(x0s)], axis=0)
        total += sum(power(M, s - 1).T @ np.asarray(problem.Q) @ power(M, s) for s in range(1, H - h + 1)) @ sigma
    formula = 2 * np.asarray(problem.B).T @ total
    assert np.linalg.norm(formula) > 0.1
    np.testing.assert_allclose(offspan.lqr_gradient(problem, K, x0s), formula, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_gradient_vanishes_on_unvisited_directions(seed):
    """v ⊥ every state visited from S  ⟹  ∇J(K; S) v = 0  [R24, prop:no_exploration_no_extrapolation]."""
    n = 5
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(seed), (n, n)))[0]
    # In the rotated coordinates the first three directions map into themselves: from S = {first} nothing else is visited.
    blocks = jnp.zeros((n, n)).at[:3, :3].set(jax.random.normal(jax.random.key(seed + 1), (3, 3))).at[3:, 3:].set(jnp.eye(2))
    problem = offspan.LQR(rotation @ blocks @ rotation.T, horizon=4)
    unvisited = rotation[:, 3:]
    gradient = offspan.lqr_gradient(problem, jnp.zeros((n, n)), rotation[:, :1].T)
    assert jnp.linalg.norm(gradient) > 0.1
    np.testing.assert_allclose(gradient @ unvisited, 0.0, atol=1e-10 * jnp.linalg.norm(gradient))


def test_jit_vmap_and_grad_give_the_plain_numbers():
    problems = [random_lqr(seed, 3, 2, 4, control_cost=True) for seed in range(4)]
    gains = [random_gain(seed, problem) for seed, problem in enumerate(problems)]
    x0s = offspan.basis(3, 2)
    plain = jnp.stack([offspan.lqr_gradient(p, K, x0s) for p, K in zip(problems, gains, strict=True)])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    mapped = jax.jit(jax.vmap(offspan.lqr_gradient, in_axes=(0, 0, None)))(stacked, jnp.stack(gains), x0s)
    np.testing.assert_allclose(mapped, plain, rtol=1e-12)
    by_problem = jax.grad(lambda problem: offspan.cost(problem, offspan.Linear(gains[0]), x0s))(problems[0])
    step = 1e-6
    nudged = [offspan.LQR(problems[0].A.at[1, 2].add(d), problems[0].B, problems[0].Q, problems[0].R, horizon=4) for d in (step, -step)]
    difference = loop_cost(nudged[0], gains[0], x0s) - loop_cost(nudged[1], gains[0], x0s)
    np.testing.assert_allclose(by_problem.A[1, 2], difference / (2 * step), rtol=1e-6)


def written_out_cost(problem, controller, x0s):
    """J(π; X) with the time loop written out: nothing here knows of costates."""
    total = 0.0
    for x in x0s:
        for _ in range(problem.horizon + 1):
            u = controller(x)
            total += problem.stage_cost(x, u)
            x = problem.step(x, u)
    return problem.cost_scale * total / len(x0s)


def test_the_gradient_through_costates_is_that_of_the_loop():
    """By weights, initial states, the problem's own arrays and numbers that functions close over; forwards, backwards and twice."""
    problem = offspan.Pendulum(horizon=5, target=(3.0, 0.1))
    network = offspan.MLP.init(jax.random.key(0), 2, 1, width=4, depth=2)
    x0s = jnp.array([[2.5, 0.3], [3.5, -0.2], [1.0, 0.0]])

    def of(J):
        def value(scale, x0s, problem, network):
            return J(problem, lambda x: scale * network(x), x0s)

        return value, (jnp.asarray(1.3), x0s, problem, network)

    (ours, arguments), (theirs, _) = of(offspan.cost), of(written_out_cost)
    every = tuple(range(4))
    for a, b in zip(jax.tree.leaves(jax.grad(ours, every)(*arguments)), jax.tree.leaves(jax.grad(theirs, every)(*arguments)), strict=True):
        assert np.linalg.norm(b) > 1e-3
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)
    directions = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=float)).reshape(leaf.shape), arguments)
    for a, b in zip(jax.jvp(ours, arguments, directions), jax.jvp(theirs, arguments, directions), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    twice = [jax.jvp(jax.grad(J, every), arguments, directions)[1] for J in (ours, theirs)]
    for a, b in zip(*map(jax.tree.leaves, twice), strict=True):
        assert np.linalg.norm(b) > 1e-3
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


class Switched(offspan.Problem):
    """x' = x + u where the first of some whole numbers is large, at a cost with √p in it."""

    switches: jax.Array = eqx.field(default_factory=lambda: jnp.array([2, 3]))
    p: jax.Array = eqx.field(default_factory=lambda: jnp.array(0.0))
    state_dim: int = eqx.field(static=True, default=1)
    control_dim: int = eqx.field(static=True, default=1)
    horizon: int = eqx.field(static=True, default=3)
    cost_scale: float = eqx.field(static=True, default=1.0)
    control_bounds: tuple | None = eqx.field(static=True, default=None)

    def step(self, x, u):
        return jnp.where(self.switches[0] > 1, x + u, x)

    def stage_cost(self, x, u):
        return x @ x + jnp.sqrt(self.p)


def test_whole_numbers_and_what_is_not_differentiated_by_do_no_harm():
    """With K = k from x = 1, J(k) = Σ_h (1 + k)^{2h}; √p at 0 has no derivative, but nobody asked for it."""
    problem, x0s = Switched(), jnp.ones((1, 1))
    J = lambda k: offspan.cost(problem, lambda x: k * x, x0s)  # noqa: E731
    expected = sum(2 * h * 1.5 ** (2 * h - 1) for h in range(4))
    for derivative in (jax.grad(J), jax.jit(jax.grad(J)), jax.jacfwd(J), lambda k: jax.vmap(jax.grad(J))(k[None])[0]):
        np.testing.assert_allclose(derivative(jnp.asarray(0.5)), expected, rtol=1e-12)
    of_switch = lambda on: jax.grad(lambda k: offspan.cost(problem, lambda x: jnp.where(on, k * x, 0 * x), x0s))(0.5)  # noqa: E731
    np.testing.assert_allclose(jax.vmap(of_switch)(jnp.array([True, False])), [expected, 0.0], rtol=1e-12)


def test_float32_in_float32_out_and_mixed_precision_is_float64():
    problem = offspan.LQR(np.eye(2, dtype=np.float32), horizon=3)
    x0s = np.eye(2, dtype=np.float32)
    K = np.full((2, 2), -0.1, np.float32)
    assert offspan.cost(problem, offspan.Linear(K), x0s).dtype == np.float32
    assert offspan.lqr_gradient(problem, K, x0s).dtype == np.float32
    wide = offspan.LQR(np.eye(2), horizon=3)
    assert offspan.cost(wide, offspan.Linear(K), x0s).dtype == np.float64
    np.testing.assert_allclose(offspan.lqr_gradient(problem, K, x0s), offspan.lqr_gradient(wide, K, x0s), rtol=1e-5)


def test_a_rollout_makes_h_steps():
    """x_1 = 1e200 costs 1e200 · u²; x_2 = x_1² would overflow, and is no part of a problem with H = 1."""
    problem = offspan.FunctionProblem(
        lambda x, u: jnp.where(x > 1e100, x**2, 1e200 * x) + 0 * u,
        lambda x, u: 1e-200 * jnp.sum(x) + u @ u,
        state_dim=1,
        control_dim=1,
        horizon=1,
    )
    trajectory = offspan.rollout(problem, offspan.Linear([[0.0]]), jnp.ones(1))
    assert trajectory.states.tolist() == [[1.0], [1e200]]
    assert trajectory.controls.shape == (2, 1)
    J, gradient = jax.value_and_grad(lambda b: offspan.cost(problem, lambda x: b + 0 * x, jnp.ones((1, 1))))(0.5)
    np.testing.assert_allclose([J, gradient], [1.0 + 2 * 0.25, 2 * 2 * 0.5], rtol=1e-12)


class Agent:
    """An object that jax does not look into."""

    def __init__(self, K):
        self.K = jnp.asarray(K)

    def act(self, x):
        return self.K @ x

    def __call__(self, x):
        return self.K @ x

    def move(self, x, u):
        return self.K @ x + u


class Plain:
    """Another, with one number, or with arrays in a list."""

    def __init__(self, k):
        self.k = k

    def __call__(self, x, u=0.0):
        return jnp.sum(self.k[0] if isinstance(self.k, list) else self.k) * x + u


class Policy(eqx.Module):
    K: jax.Array

    def act(self, x):
        return self.K @ x


@pytest.mark.parametrize("controller", [Agent([[0.5]]).act, Agent([[0.5]]), offspan.Bounded(Agent([[0.5]]).act, -1.0, 1.0)])
def test_a_controller_whose_numbers_would_be_frozen_is_refused(controller):
    """`agent.K = …` would leave the program, and so the cost, as they were."""
    problem, seen = offspan.identity(1, horizon=2), jnp.ones((1, 1))
    with pytest.raises(offspan.OffspanError, match=r"controller is a( method of a)? Agent.*equinox\.Module.*HostController"):
        offspan.cost(problem, controller, seen)
    with pytest.raises(offspan.OffspanError, match="Agent"):
        offspan.rollout(problem, controller, seen[0])
    with pytest.raises(offspan.OffspanError, match="`policy` is a method"):
        offspan.Observed(Agent([[0.5]]).act, lambda x: x)


@pytest.mark.parametrize("k", [0.5, [jnp.ones((1, 1))]], ids=["number", "list"])
def test_numbers_and_lists_of_arrays_of_an_object_would_be_frozen_too(k):
    with pytest.raises(offspan.OffspanError, match="controller is a Plain"):
        offspan.cost(offspan.identity(1, horizon=2), Plain(k), jnp.ones((1, 1)))
    with pytest.raises(offspan.OffspanError, match=r"`step` is a Plain.*BlackBox"):
        offspan.FunctionProblem(Plain(k), lambda x, u: x @ x, state_dim=1, control_dim=1, horizon=2)


def test_a_method_is_found_in_a_partial_function_and_under_jit():
    agent = Agent([[0.5]])
    for controller in (functools.partial(agent.act), jax.jit(agent.act), functools.partial(jax.jit(agent.act))):
        with pytest.raises(offspan.OffspanError, match="controller is a method of a Agent"):
            offspan.cost(offspan.identity(1, horizon=2), controller, jnp.ones((1, 1)))


def test_a_model_of_torch_with_numbers_is_told_of_files():
    model = type("Actor", (Plain,), {"__module__": "torch.nn"})(0.5)
    with pytest.raises(offspan.OffspanError, match=r"a model of torch.*load_policy"):
        offspan.cost(offspan.identity(1, horizon=2), model, jnp.ones((1, 1)))


def doubled(x):
    return 2 * x


doubled.rate = 0.1  # pyright: ignore[reportFunctionMemberAccess]
MIXED = Plain({1: "one", "x": "letters"})
MIXED.__class__ = type("Lookup", (Plain,), {"__call__": lambda self, x: -x})


@pytest.mark.parametrize(
    "controller",
    [
        *(jnp.tanh, jax.jit(jnp.sin), eqx.filter_jit(jnp.sin), jax.tree_util.Partial(jnp.multiply, 0.5)),
        *(doubled, jax.jit(doubled), functools.wraps(doubled)(lambda x: 2 * x), MIXED),
    ],
)
def test_functions_without_numbers_of_their_own_are_controllers(controller):
    assert np.isfinite(offspan.cost(offspan.identity(1, horizon=2), controller, jnp.ones((1, 1))))


def test_the_numbers_of_a_module_are_arguments_of_the_program():
    problem, seen = offspan.identity(1, horizon=1), jnp.ones((1, 1))
    assert [float(offspan.cost(problem, Policy(jnp.full((1, 1), K)).act, seen)) for K in (0.0, 1.0)] == [2.0, 5.0]
    with pytest.raises(offspan.OffspanError, match="FunctionProblem: `step` is a method of a Agent"):
        offspan.FunctionProblem(Agent([[0.5]]).move, lambda x, u: x @ x, state_dim=1, control_dim=1, horizon=2)


class Whole(Switched):
    def step(self, x, u):
        return jnp.where(x > 1, 1, 0)

    def stage_cost(self, x, u):
        return jnp.asarray(1)


@pytest.mark.parametrize("process", [0.0, 0.5])
def test_a_step_to_whole_numbers_leaves_the_state_a_real_number(process):
    """2.7 ↦ 1 ↦ 0, at one a time step; x0 was cut to 2, and noise to zero."""
    made = offspan.FunctionProblem(lambda x, u: jnp.where(x > 1, 1, 0), lambda x, u: 1, state_dim=1, control_dim=1, horizon=2)
    key, x0 = jax.random.key(0), jnp.array([2.7])
    for problem in (made, Whole(horizon=2)):
        noisy = offspan.Noisy(problem, process=process)
        trajectory = offspan.rollout(noisy, offspan.Linear([[0.0]]), x0, key=key)
        drawn = noisy.draw(key, 1)[1]
        noise = np.zeros((2, 1)) if drawn is None else np.asarray(drawn[0])
        first = 1 + noise[0, 0]
        np.testing.assert_allclose(trajectory.states[:, 0], [2.7, first, float(first > 1) + noise[1, 0]], rtol=1e-12)
        assert float(offspan.cost(noisy, offspan.Linear([[0.0]]), x0[None], key=key)) == 3.0
    assert float(jax.grad(lambda k: offspan.cost(made, lambda x: k * x, x0[None]))(1.0)) == 0.0
