"""NumPy functions as problems and controllers: what jax computes of the same system, without derivatives, with the user's own errors."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import offspan

KEY = jax.random.key(0)
SEEN = np.array([[2.6, 0.0], [3.6, 0.0]])


def step(X, U):
    angle, velocity = X.T
    return np.stack([angle + 0.05 * velocity, velocity + 0.05 * (U[:, 0] - 10 * np.sin(angle))], axis=1)


def stage_cost(X, U):
    return np.sum((X - np.array([np.pi, 0.0])) ** 2, axis=1)


SIZES: dict[str, Any] = {"state_dim": 2, "control_dim": 1, "horizon": 30}
BOX = offspan.BlackBox(step, stage_cost, **SIZES, cost_scale=1 / 30)
TWIN = offspan.Pendulum(horizon=30)
NETWORK = offspan.MLP.init(KEY, 2, 1, width=8, depth=2)
COMPUTED = {
    "cost": lambda problem: offspan.cost(problem, NETWORK, SEEN),
    "costs": lambda problem: offspan.costs(problem, NETWORK, SEEN),
    "rollout": lambda problem: offspan.rollout(problem, NETWORK, SEEN[0]).states,
    "map": lambda problem: offspan.extrapolation_map(problem, NETWORK, {0: [0.0, 1.0, 3.0], 1: [-1.0, 1.0]}).values,
    "noise": lambda problem: offspan.cost(offspan.Noisy(problem, process=0.1), NETWORK, SEEN, key=KEY, samples=3),
    "covariance": lambda problem: offspan.visited_covariance(problem, NETWORK, SEEN),
    "coverage": lambda problem: offspan.coverage(problem, NETWORK, SEEN, np.array([[0.0, 0.0], [1.0, 2.0]])),
    "select": lambda problem: (
        offspan.select(
            problem, np.stack([np.linspace(0, 6, 7), np.zeros(7)], axis=1), 2, method="gramian-logdet", key=KEY, controllers=NETWORK
        ).indices
    ),
    "two points": lambda problem: (
        offspan.train(problem, NETWORK, SEEN, optimizer=optax.adam(1e-2), iterations=20, gradient=offspan.TwoPoint(0.1, 4), key=KEY).cost
    ),
    "two points, a curriculum of seeds": lambda problem: (
        offspan.train_batch(
            problem,
            [NETWORK, NETWORK, NETWORK],
            SEEN,
            optimizer=optax.sgd(1e-3),
            iterations=6,
            record_every=1,
            gradient=offspan.TwoPoint(0.1, 2),
            horizons=(5, 30),
            key=KEY,
        ).cost
    ),
    "REINFORCE": lambda problem: (
        offspan.train(problem, NETWORK, SEEN, optimizer=optax.adam(1e-2), iterations=5, gradient=offspan.Reinforce(0.1, 4), key=KEY).cost
    ),
    "pilots": lambda problem: (
        offspan.select(
            problem,
            np.array([[2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]),
            1,
            method="adaptive",
            key=KEY,
            controllers=NETWORK,
            optimizer=optax.sgd(1e-3),
            iterations=3,
            gradient=offspan.TwoPoint(0.1, 2),
        ).scores
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_black_box_gives_what_its_twin_in_jax_gives(name):
    expected = np.asarray(COMPUTED[name](TWIN))
    assert expected.size > 0
    np.testing.assert_allclose(np.asarray(COMPUTED[name](BOX)), expected, rtol=1e-9, atol=1e-12)


def test_functions_get_whole_batches():
    """All perturbed controllers and states of a time step are one call."""
    sizes = []

    def counted(X, U):
        sizes.append(len(X))
        return step(X, U)

    box = offspan.BlackBox(counted, stage_cost, **SIZES)
    offspan.TwoPoint(0.1, 8)(KEY, box, NETWORK, jnp.asarray(SEEN))
    assert set(sizes) == {17 * 2}
    assert len(sizes) == 30


def test_a_derivative_names_what_needs_none():
    with pytest.raises(offspan.OffspanError, match=r"^this call needs a derivative, but .*; train with `gradient=TwoPoint"):
        jax.grad(lambda pi: offspan.cost(BOX, pi, SEEN))(NETWORK)
    with pytest.raises(offspan.OffspanError, match=r"gradient=TwoPoint"):
        offspan.train(BOX, NETWORK, SEEN, optimizer=optax.sgd(1e-3), iterations=3)
    with pytest.raises(offspan.OffspanError, match=r"method without gradients"):
        offspan.select(BOX, SEEN, 1, method="alignment", key=KEY, controllers=NETWORK)


class SimulatorCrashedError(Exception):
    pass


@pytest.mark.parametrize("call", ["cost", "rollout", "map", "select", "coverage", "two points", "two points, a curriculum of seeds"])
def test_an_error_of_the_users_function_is_the_users(call):
    def crash(X, U):
        raise SimulatorCrashedError("the engine is on fire")

    with pytest.raises(SimulatorCrashedError, match="the engine is on fire") as raised:
        COMPUTED[call](offspan.BlackBox(crash, stage_cost, **SIZES))
    assert any(frame.name == "crash" for frame in raised.traceback)
    with pytest.raises(offspan.OffspanError, match="has shape"):  # nothing is left behind
        offspan.cost(BOX, NETWORK, SEEN[:, :1])
    with pytest.raises(jax.errors.JaxRuntimeError):  # also of a program of the user's own, whose errors nobody collects
        jax.block_until_ready(jax.jit(offspan.BlackBox(crash, stage_cost, **SIZES).step)(jnp.zeros(2), jnp.zeros(1)))

    def crash_otherwise(X, U):
        raise KeyError("another simulator")

    with pytest.raises(KeyError, match="another simulator"):
        offspan.cost(offspan.BlackBox(crash_otherwise, stage_cost, **SIZES), NETWORK, SEEN)


def test_two_threads_get_the_errors_of_their_own_functions():
    """Each simulator waits for the other to have failed, too."""
    both = threading.Barrier(2, timeout=30)

    def failing(error):
        def crash(X, U):
            both.wait()
            raise error

        return offspan.BlackBox(crash, stage_cost, **SIZES)

    def raised_by(error):
        with pytest.raises(type(error)) as caught:
            offspan.cost(failing(error), NETWORK, SEEN)
        return caught.value

    errors = [KeyError("mine"), SimulatorCrashedError("yours")]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(raised_by, errors)) == errors


def test_a_host_function_inside_a_plain_function_raises_its_own_error():
    host = offspan.HostController(lambda X: 1 / 0, control_dim=1)
    for call, states in ((offspan.cost, SEEN), (offspan.costs, SEEN), (offspan.rollout, SEEN[0])):
        with pytest.raises(ZeroDivisionError):
            call(TWIN, lambda x: 2 * host(x), states)


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ({"step": lambda X, U: X[:, :1]}, r"BlackBox: `step` returned shape \(2, 1\) for a batch of 2, but must return shape \(2, 2\)"),
        ({"stage_cost": lambda X, U: 0.0}, r"BlackBox: `stage_cost` returned shape \(\)"),
        ({"step": lambda X, U: "up"}, "BlackBox: `step` returned a str"),
        ({"done": lambda X: X}, r"BlackBox: `done` returned shape \(2, 2\)"),
        ({"done_cost": 1.0}, "there is no `done`"),
        ({"coordinates": ["θ"]}, r"`coordinates` is \['θ'\], but must be a list of 2 names"),
    ],
)
def test_what_does_not_fit_is_one_sentence(functions, said):
    with pytest.raises(offspan.OffspanError, match=said):
        offspan.cost(offspan.BlackBox(**{"step": step, "stage_cost": stage_cost, **functions, **SIZES}), NETWORK, SEEN)


FALLING: dict[str, Any] = {"state_dim": 1, "control_dim": 1, "horizon": 6}


@pytest.mark.parametrize("done_cost", [None, 10.0])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_what_has_ended_stays_where_it_is(done_cost, noise):
    """By a plain loop; x' = 2x past 3 is NaN, which must reach no number."""

    def grow(x, u):
        return jnp.where(x > 3, jnp.nan, 2 * x) + u

    problem = offspan.FunctionProblem(grow, lambda x, u: x[0] ** 2, **FALLING, done=lambda x: x[0] > 3, done_cost=done_cost)
    box = offspan.BlackBox(
        lambda X, U: np.where(X > 3, np.nan, 2 * X) + U,
        lambda X, U: X[:, 0] ** 2,
        **FALLING,
        done=lambda X: X[:, 0] > 3,
        done_cost=done_cost,
    )
    K, x, total = 0.1, 1.0, 0.0
    drawn = offspan.Noisy(problem, process=noise).draw(KEY, 1)[1] if noise else None
    draws = np.zeros((1, 6, 1)) if drawn is None else np.asarray(drawn)
    for h in range(7):
        total += x**2 if done_cost is None or x <= 3 else done_cost
        if x <= 3 and h < 6:
            x = (2 + K) * x + float(draws[0, h, 0])
    for one in (problem, box):
        one = offspan.Noisy(one, process=noise) if noise else one
        assert float(offspan.cost(one, offspan.Linear([[K]]), jnp.ones((1, 1)), key=KEY)) == pytest.approx(total, rel=1e-12)
        trajectory = offspan.rollout(one, offspan.Linear([[K]]), jnp.ones(1), key=KEY)
        assert float(trajectory.costs.sum()) == pytest.approx(total, rel=1e-12)
        assert float(trajectory.states[-1, 0]) == pytest.approx(x, rel=1e-12)


def test_ends_and_costs_that_are_plain_numbers():
    never = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: 1, **FALLING, done=lambda x: False, done_cost=0.5)
    always = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: 1, **FALLING, done=lambda x: True, done_cost=0.5)
    still = offspan.Linear([[0.0]])
    assert [float(offspan.cost(one, still, jnp.ones((1, 1)))) for one in (never, always)] == [7.0, 3.5]


def test_the_gradient_of_what_has_ended_is_that_of_the_way_there():
    """x_1 = 2 + K, x_2 = (2 + K)² ends it: J = 1 + (2 + K)² + 5 (2 + K)⁴, and NaN past the end reaches no derivative."""

    def grow(x, u):
        return 2 * x + u + 0 * jnp.sqrt(9 - x**2)  # NaN, as is its derivative, where |x| > 3

    problem = offspan.FunctionProblem(grow, lambda x, u: x[0] ** 2, **FALLING, done=lambda x: x[0] > 3)
    value, slope = jax.value_and_grad(lambda K: offspan.cost(problem, offspan.Linear(jnp.reshape(K, (1, 1))), jnp.ones((1, 1))))(0.1)
    assert float(value) == pytest.approx(1 + 2.1**2 + 5 * 2.1**4)
    assert float(slope) == pytest.approx(2 * 2.1 + 20 * 2.1**3)


def test_controllers_of_numpy_functions():
    K = np.array([[0.3, -0.2]])
    for host in (
        offspan.HostController(lambda X: X @ K.T, control_dim=1),
        offspan.HostController(lambda x: K @ x, control_dim=1, batched=False),
    ):
        np.testing.assert_allclose(offspan.cost(TWIN, host, SEEN), offspan.cost(TWIN, offspan.Linear(K), SEEN))
    with pytest.raises(offspan.OffspanError, match=r"returned shape \(2, 2\) for a batch of 2"):
        offspan.cost(TWIN, offspan.HostController(lambda X: X, control_dim=1), SEEN)
    with pytest.raises(ZeroDivisionError):
        offspan.costs(TWIN, offspan.HostController(lambda X: 1 / 0, control_dim=1), SEEN)
    with pytest.raises(offspan.OffspanError, match="no floating-point arrays to train"):
        offspan.train(TWIN, offspan.HostController(lambda X: X @ K.T, control_dim=1), SEEN, optimizer=optax.sgd(1), iterations=1)
    with pytest.raises(offspan.OffspanError, match=r"turns its state into a NumPy array.*HostController"):
        offspan.cost(TWIN, lambda x: K @ np.asarray(x), SEEN)  # pyright: ignore[reportArgumentType]


def test_a_model_of_another_library_is_told_how():
    class Module:
        def __call__(self, x):
            return x

    Module.__module__ = "torch.nn.modules.module"
    with pytest.raises(offspan.OffspanError, match=r"a model of torch.*load_policy.*HostController"):
        offspan.cost(TWIN, Module(), SEEN)


def test_a_policy_that_sees_observations():
    observe = lambda x: jnp.stack([jnp.cos(x[0]), jnp.sin(x[0]), x[1]])  # noqa: E731
    policy = offspan.MLP.init(KEY, 3, 1, width=4, depth=2, activation="tanh")
    seen = offspan.Observed(policy, observe)
    x = jnp.array([0.3, -2.0])
    np.testing.assert_array_equal(seen(x), policy(observe(x)))
    run = offspan.train(TWIN, seen, SEEN, optimizer=optax.sgd(1e-3), iterations=3)
    assert run.cost[-1] < run.cost[0]


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "elu", "leaky-relu", "silu", "softplus", "gelu"])
def test_activations_are_the_functions_of_their_names(activation, tmp_path):
    from scipy.special import erf, expit

    expected = {
        "relu": lambda z: np.maximum(z, 0),
        "tanh": np.tanh,
        "sigmoid": expit,
        "elu": lambda z: np.where(z > 0, z, np.expm1(z)),
        "leaky-relu": lambda z: np.where(z > 0, z, 0.01 * z),
        "silu": lambda z: z * expit(z),
        "softplus": lambda z: np.log1p(np.exp(z)),
        "gelu": lambda z: z * (1 + erf(z / np.sqrt(2))) / 2,
    }[activation]
    z = np.linspace(-3, 3, 7)
    network = offspan.MLP([(np.ones((7, 1)), z), (np.eye(7), np.zeros(7))], activation)
    np.testing.assert_allclose(network(jnp.zeros(1)), expected(z), atol=1e-12)
    offspan.save_controller(network, tmp_path / "pi.npz")
    np.testing.assert_array_equal(offspan.load_controller(tmp_path / "pi.npz")(jnp.ones(1)), network(jnp.ones(1)))


def test_a_differential_equation_solver_inside_a_step():
    """diffrax solves x' = −x + u over each time step; one such step is x e^{−dt} + u (1 − e^{−dt})."""
    diffrax = pytest.importorskip("diffrax")

    def solved(x, u):
        term = diffrax.ODETerm(lambda t, x, u: -x + u)
        found = diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 0.1, 0.05, x, args=u)
        return found.ys[-1]

    sizes: dict[str, Any] = {"state_dim": 1, "control_dim": 1, "horizon": 5}
    problem = offspan.FunctionProblem(solved, lambda x, u: x @ x, **sizes)
    decay = np.exp(-0.1)
    twin = offspan.LQR([[decay]], [[1 - decay]], horizon=5)
    runs = [
        offspan.train(one, offspan.Linear([[0.0]]), np.ones((1, 1)), optimizer=optax.sgd(1e-2), iterations=4) for one in (problem, twin)
    ]
    np.testing.assert_allclose(runs[0].cost, runs[1].cost, rtol=1e-6)
    assert runs[0].cost[-1] < runs[0].cost[0]
