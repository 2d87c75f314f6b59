"""Environments of Gymnasium and plants of python-control, against the libraries' own stepping."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import offspan
from offspan.systems.control import from_control
from offspan.systems.gymnasium import Observation, _Environment, from_gymnasium

gymnasium = pytest.importorskip("gymnasium")
control = pytest.importorskip("control")
RANDOM = np.random.default_rng(0)
STARTS = {
    "Pendulum-v1": RANDOM.uniform([-np.pi, -8], [np.pi, 8], (100, 2)),
    "CartPole-v1": RANDOM.uniform(-0.2, 0.2, (100, 4)),
    "InvertedPendulum-v5": RANDOM.uniform(-0.1, 0.1, (100, 4)),
}


def own_stepping(env, start, controls):
    """The environment, reset and set once, and then left to itself: its states, rewards, and when it terminated."""
    env.reset(seed=1)
    inside = env.unwrapped
    if hasattr(inside, "set_state"):
        inside.set_state(start[:2], start[2:])
        state = lambda: np.concatenate([inside.data.qpos, inside.data.qvel])  # noqa: E731
    else:
        inside.state = np.array(start)
        state = lambda: np.array(inside.state)  # noqa: E731
    states, rewards = [state()], []
    for u in controls:
        _, reward, terminated, _, _ = env.step(int(np.argmax(u)) if env.action_space.shape == () else u)
        states.append(state())
        rewards.append(reward)
        if terminated:
            break
    return np.array(states), np.array(rewards)


@pytest.mark.parametrize("name", STARTS)
def test_rollouts_are_the_environments_own_to_the_last_bit(name):
    problem, env = from_gymnasium(name, horizon=30), gymnasium.make(name)
    gain = RANDOM.normal(size=(problem.control_dim, problem.state_dim))
    roll = jax.jit(jax.vmap(lambda x0: offspan.rollout(problem, offspan.Linear(gain), x0)))
    found = roll(STARTS[name])
    lengths = []
    for start, X, U, C in zip(STARTS[name], *map(np.asarray, (found.states, found.controls, found.costs)), strict=True):
        states, rewards = own_stepping(env, start, U)
        steps = len(rewards)
        np.testing.assert_array_equal(X[: min(steps, 30) + 1], states[:31])
        np.testing.assert_array_equal(C[:steps], -rewards)
        np.testing.assert_array_equal(X[steps:], np.broadcast_to(X[min(steps, 30)], X[steps:].shape))
        assert np.all(C[steps:] == 0)
        lengths.append(steps)
    assert max(lengths) == 31 if name == "Pendulum-v1" else min(lengths) < 31  # some end, where some can


def test_an_environment_inside_what_needs_no_derivative():
    problem = from_gymnasium("CartPole-v1", horizon=50)
    assert problem.coordinates[2] == "θ [rad]"
    assert problem.control_bounds is None
    start = offspan.MLP.init(jax.random.key(0), 4, 2, width=4, depth=2)
    seen = np.zeros((1, 4))
    how = {"optimizer": optax.adam(0.1), "gradient": offspan.TwoPoint(0.5, 8), "key": jax.random.key(1)}
    run = offspan.train(problem, start, seen, iterations=15, **how)
    assert run.cost.min() < run.cost[0] - 10  # one for each step that it stands
    again = offspan.train(problem, start, seen, iterations=15, **how)
    np.testing.assert_array_equal(run.cost, again.cost)
    found = offspan.extrapolation_map(problem, run.controller, {2: np.linspace(-0.1, 0.1, 5)})
    env, rewards = gymnasium.make("CartPole-v1"), []
    for angle in found.axes[0]:
        env.reset(seed=0)
        env.unwrapped.state = x = np.array([0.0, 0.0, angle, 0.0])
        stood, terminated = 0, False
        while stood < 51 and not terminated:
            _, _, terminated, _, _ = env.step(int(np.argmax(run.controller(jnp.asarray(x)))))
            x, stood = np.array(env.unwrapped.state), stood + 1
        rewards.append(stood)
    np.testing.assert_array_equal(-found.values, rewards)


def test_a_stage_cost_of_ones_own_and_what_the_end_costs():
    """With −reward nothing is paid after the end; with a stage cost of one's own, what it says of the last state."""
    fallen = np.array([[0.0, 0.0, 0.19, 2.0]])  # beyond 0.2 rad after a step
    counted = from_gymnasium("CartPole-v1", horizon=9, stage_cost=lambda X, U: np.ones(len(X)))
    push = offspan.Linear(np.zeros((2, 4)))
    assert float(offspan.cost(counted, push, fallen)) == 10
    problem = from_gymnasium("CartPole-v1", horizon=9)
    assert float(offspan.cost(problem, push, fallen)) == -1
    ended = np.asarray(offspan.rollout(problem, push, fallen[0]).states[-1:])
    for one in (problem, from_gymnasium("CartPole-v1", horizon=9)):  # whatever it has been through
        assert float(offspan.cost(one, push, ended)) == 0
    noisy = offspan.Noisy(problem, process=1e-9)
    assert float(offspan.cost(noisy, push, fallen, key=jax.random.key(0))) == -1


def test_an_unstable_state_is_not_replaced_and_leaves_no_file(tmp_path, monkeypatch):
    """MuJoCo would put the model's first state in its place, and a log into the working directory; also in an environment of one's own."""
    monkeypatch.chdir(tmp_path)
    found = []
    for env in ("InvertedPendulum-v5", gymnasium.make("InvertedPendulum-v5")):
        problem = from_gymnasium(env, horizon=1, stage_cost=lambda X, U: X[:, 0], done=lambda X: np.zeros(len(X), bool))
        found.append(np.asarray(problem.step(jnp.array([0.0, 0.0, 1e8, 1e12]), jnp.zeros(1))))
    assert np.abs(found[0]).max() > 1e10
    np.testing.assert_array_equal(*found)
    assert list(tmp_path.iterdir()) == []


def test_ends_are_those_of_the_environments():
    """From random states, an environment terminates exactly where offspan says that it ends."""
    for name in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "InvertedPendulum-v5", "Hopper-v5"):
        environment, ended = _Environment("test", name), []
        for _ in range(300):
            low, high = {"M": ([0.3, 0.0], [0.6, 0.07]), "I": (-0.25, 0.25), "H": (-0.6, 1.2)}.get(
                name[0], (-3.0, 3.0) if name[0] == "A" else (-1.5, 1.5)
            )
            x = RANDOM.uniform(low, high, environment.state_dim)
            environment._set(x)
            action = environment.env.action_space.sample()
            _, _, terminated, _, _ = environment.env.step(action)
            following = environment._state()
            assert terminated == environment._has_ended(following), (name, following)
            ended.append(terminated)
            if terminated:
                environment.env.reset()
        assert 0.02 < np.mean(ended) < 0.98, name


def test_an_environment_whose_end_is_not_known():
    class Falling(gymnasium.Env):
        action_space = gymnasium.spaces.Box(-1, 1, (1,))
        observation_space = gymnasium.spaces.Box(-9, 9, (1,))

        def reset(self, *, seed=None, options=None):
            self.state = np.zeros(1)
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.state = self.state + 1
            return self.state.astype(np.float32), 1.0, bool(self.state[0] > 2), False, {}

    with pytest.raises(offspan.OffspanError, match=r"Falling ended at \[3\.0\], .* pass `done`"):
        offspan.cost(from_gymnasium(Falling(), horizon=5), offspan.Linear([[0.0]]), np.zeros((1, 1)))
    told = from_gymnasium(Falling(), horizon=5, done=lambda X: X[:, 0] > 2)
    assert float(offspan.cost(told, offspan.Linear([[0.0]]), np.zeros((1, 1)))) == -3


def test_single_and_double_precision_do_not_mix():
    problem, push = from_gymnasium("Pendulum-v1", horizon=2), offspan.Linear(np.zeros((1, 2)))
    assert offspan.costs(problem, push, np.zeros((1, 2))).shape == (1,)
    assert offspan.costs(problem, offspan.Linear(np.zeros((1, 2), np.float32)), np.zeros((2, 2), np.float32)).shape == (2,)


@pytest.mark.parametrize("name", ["Pendulum-v1", "Acrobot-v1", "InvertedPendulum-v5"])
def test_a_policy_sees_what_the_environment_shows(name):
    env = gymnasium.make(name)
    observation, _ = env.reset(seed=3)
    inside = env.unwrapped
    state = np.concatenate([inside.data.qpos, inside.data.qvel]) if hasattr(inside, "set_state") else inside.state
    show = Observation(name)
    np.testing.assert_allclose(jax.jit(show)(jnp.asarray(state)), observation, atol=1e-6)
    policy = offspan.Observed(offspan.Linear(np.ones((1, show.size))), show)
    np.testing.assert_allclose(policy(jnp.asarray(state)), [observation.sum()], atol=1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Pendulum-v99", r"Gymnasium cannot make the environment 'Pendulum-v99'"),
        (3, "`env_or_id` is a int"),
    ],
)
def test_an_environment_that_is_none(given, said):
    with pytest.raises(offspan.OffspanError, match=said):
        from_gymnasium(given, horizon=3)


def test_an_environment_without_a_state_to_set():
    class Hidden(gymnasium.Env):
        action_space = gymnasium.spaces.Box(-1, 1, (1,))
        observation_space = gymnasium.spaces.Box(-1, 1, (1,))

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

    with pytest.raises(offspan.OffspanError, match=r"Hidden keeps its state neither .* write its simulator as a BlackBox"):
        from_gymnasium(Hidden(), horizon=3)


def test_a_package_that_is_missing(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(offspan.OffspanError, match=r"pip install 'offspan\[gymnasium\]'"):
        from_gymnasium("Pendulum-v1", horizon=3)


A, B = (
    np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 11.0, 0.0]]),
    np.array([[0.0], [1.0], [0.0], [-1.0]]),
)
CART = control.ss(A, B, np.eye(4), np.zeros((4, 1)), states=["x", "v", "angle", "rate"])


def test_a_continuous_plant_is_sampled():
    """Against python-control's own response to a control that is held: exact, so to rounding."""
    problem = from_control(CART, Q=np.eye(4), R=[[0.1]], horizon=20, dt=0.05)
    assert problem.coordinates == ("x", "v", "angle", "rate")
    K = offspan.Linear.from_python_control(control.dlqr(np.asarray(problem.A), np.asarray(problem.B), np.eye(4), [[0.1]])[0])
    x0 = np.array([0.1, 0.0, 0.05, 0.0])
    trajectory = offspan.rollout(problem, K, x0)
    response = control.forced_response(CART.sample(0.05), np.arange(21) * 0.05, np.asarray(trajectory.controls)[:, 0], x0)
    np.testing.assert_allclose(trajectory.states, response.states.T, atol=1e-12)
    assert np.abs(response.states).max() > 0.05


def test_a_discrete_plant_keeps_its_time_steps():
    sampled = CART.sample(0.05)
    np.testing.assert_array_equal(from_control(sampled, horizon=3).A, sampled.A)
    with pytest.raises(offspan.OffspanError, match=r"`dt` is 0\.1, but the system is discrete, with time steps of 0\.05"):
        from_control(sampled, horizon=3, dt=0.1)


def test_a_transfer_function_and_its_states():
    problem = from_control(control.tf([1.0], [1.0, 0.0, 0.0]), horizon=3, dt=0.1)
    assert (problem.state_dim, problem.control_dim) == (2, 1)


def test_a_nonlinear_plant_against_the_librarys_integrator():
    pendulum = control.nlsys(
        lambda t, x, u, params: np.array([x[1], 10 * np.sin(x[0]) + u[0]]), None, states=["angle", "rate"], inputs=1, dt=0
    )
    problem = from_control(pendulum, Q=np.eye(2), R=[[0.1]], horizon=20, dt=0.05)
    assert isinstance(problem, offspan.BlackBox)
    x0 = np.array([0.3, 0.0])
    trajectory = offspan.rollout(problem, offspan.Linear([[-20.0, -5.0]]), x0)
    X, U, T = np.asarray(trajectory.states), np.asarray(trajectory.controls), np.arange(21) * 0.05
    x = x0
    for h in range(20):
        held = control.input_output_response(pendulum, T[:2], np.full((1, 2), U[h, 0]), x, solve_ivp_kwargs={"rtol": 1e-10, "atol": 1e-12})
        x = held.states[:, -1]
        np.testing.assert_allclose(X[h + 1], x, atol=1e-6)
    np.testing.assert_allclose(trajectory.costs, np.sum(X**2, axis=1) + 0.1 * U[:, 0] ** 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("system", "options", "said"),
    [
        (CART, {}, "`system` is continuous, .* pass `dt`"),
        (CART, {"dt": -1.0}, r"`dt` is -1\.0"),
        (CART, {"dt": 0.1, "stage_cost": np.sum}, "`stage_cost` is given, but a linear system"),
        (control.ss(A, B, np.eye(4), np.zeros((4, 1)), dt=None), {"dt": 0.1}, "has no time base"),
        (np.eye(2), {}, "`system` is a ndarray"),
        (
            control.nlsys(lambda t, x, u, params: np.sin(t) + x, None, states=1, inputs=1, dt=0),
            {"dt": 0.1, "Q": [[1.0]]},
            "depends on time",
        ),
        (control.nlsys(lambda t, x, u, params: x, None, states=1, inputs=1, dt=True), {}, "needs either `stage_cost`"),
        (control.nlsys(lambda t, x, u, params: x, None, states=1, inputs=1, dt=True), {"Q": np.eye(2)}, "`Q` has shape"),
    ],
)
def test_plants_that_do_not_fit(system, options, said):
    with pytest.raises(offspan.OffspanError, match=said):
        from_control(system, horizon=3, **options)
