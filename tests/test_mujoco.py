"""MuJoCo's models as problems: its own steps by the C engine, to the bit, and by MJX, with the derivative of the C engine's cost."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import offspan
from offspan.systems.mjx import from_mjx
from offspan.systems.mujoco import from_mujoco

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("mujoco.mjx")

CARTPOLE = Path(__file__).parent.parent / "examples" / "cartpole.xml"
BALANCE = offspan.Linear([[2.8, 33.1, 3.6, 6.3]])
LIMIT = 1.8  # of the slider
INSIDE = np.random.default_rng(0).uniform(-1, 1, (100, 4)) * [1.0, 0.5, 0.5, 0.5]
AT_LIMIT = np.random.default_rng(1).uniform(0, 1, (100, 4)) * [0.4, 0.5, 2.0, 1.0] + [1.5, 0.0, 0.0, 0.0]


def squares(X, U):
    return np.sum(X**2, axis=1) + 0.01 * U[:, 0] ** 2


def square(x, u):
    return x @ x + 0.01 * u[0] ** 2


def cartpole() -> Any:
    return mujoco.MjModel.from_xml_path(str(CARTPOLE))


def model_of(*, joint: str = "slide", limits: str = "", more: str = "", option: str = "", actuator: str = '<motor joint="j"/>') -> Any:
    limited = f'range="{limits}"' if limits else ""
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><option>{option}</option><worldbody>{more}<body><joint name="j" type="{joint}" {limited}/><geom size="0.1"/></body>'
        f"</worldbody><actuator>{actuator}</actuator></mujoco>"
    )


def stepped(model, data, u, frames=1):
    """The next state of the data as it is, warm start and all."""
    data.ctrl[:] = u
    for _ in range(frames):
        mujoco.mj_step(model, data)
    return np.concatenate([data.qpos, data.qvel])


def data_at(model, x):
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = x[: model.nq], x[model.nq :]
    return data


def steps(problem, X, U):
    return np.asarray(jax.vmap(problem.step)(jnp.asarray(X), jnp.asarray(U)))


def trajectories(problem, x0s):
    found = jax.vmap(lambda x0: offspan.rollout(problem, BALANCE, x0))(jnp.asarray(x0s))
    return np.asarray(found.states), np.asarray(found.controls)


BOX = from_mujoco(CARTPOLE, stage_cost=squares, horizon=30)


@pytest.mark.parametrize("frames", [1, 3])
def test_rollouts_are_mujocos_bit_for_bit(frames):
    """By one MjData for each trajectory, stepped in a plain loop."""
    problem = from_mujoco(CARTPOLE, stage_cost=squares, horizon=30, frame_skip=frames)
    model = cartpole()
    states, controls = trajectories(problem, INSIDE)
    free = np.abs(states[:, :, 0]).max(axis=1) < LIMIT
    assert free.sum() > 80
    assert np.mean(np.abs(controls) > 10) > 0.02  # some are clamped
    for X, U in zip(states[free], controls[free], strict=True):
        data = data_at(model, X[0])
        np.testing.assert_array_equal(X[1:], [stepped(model, data, u, frames) for u in U[:-1]])


def test_at_a_limit_a_step_is_mujocos_bit_for_bit_without_its_warm_start():
    """With it the solver starts elsewhere and stops elsewhere; Newton's method takes both to within rounding of one solution (5e-14)."""
    model = cartpole()
    states, controls = trajectories(BOX, AT_LIMIT)
    assert np.mean(states[:, :, 0] > LIMIT) > 0.05
    difference = 0.0
    for X, U in zip(states, controls, strict=True):
        np.testing.assert_array_equal(X[1:], [stepped(model, data_at(model, x), u) for x, u in zip(X[:-1], U[:-1], strict=True)])
        data = data_at(model, X[0])
        difference = max(difference, np.abs(X[1:] - [stepped(model, data, u) for u in U[:-1]]).max())
    assert 0 < difference < 1e-11


def test_a_step_depends_on_its_state_and_control_alone_bit_for_bit(monkeypatch):
    """Not on the rest of the batch, what was stepped before, the number of threads, or who else is stepping."""
    X, U = np.concatenate([INSIDE[:25], AT_LIMIT[:25]]), np.linspace(-12, 12, 50)[:, None]
    expected = steps(BOX, X, U)
    np.testing.assert_array_equal(np.concatenate([steps(BOX, X[i : i + 1], U[i : i + 1]) for i in range(50)]), expected)
    np.testing.assert_array_equal(steps(BOX, X[::-1], U[::-1])[::-1], expected)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: steps(BOX, X, U), range(8)):
            np.testing.assert_array_equal(found, expected)
    for threads in (1, 5):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, threads=threads: set(range(threads)), raising=False)
        np.testing.assert_array_equal(steps(from_mujoco(CARTPOLE, stage_cost=squares, horizon=1), X, U), expected)


@pytest.mark.parametrize("frames", [1, 3])
def test_an_unstable_state_is_nan_and_leaves_no_file(frames, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    problem = from_mujoco(CARTPOLE, stage_cost=squares, horizon=1, frame_skip=frames)
    X = np.array([[0.0, 0.1, 0.0, 0.0], [np.nan, 0, 0, 0], [0, 0, 0, 2e10], [0, 1, 9e9, 9e9], [0, 0.1, 0, 0]])
    U = np.array([[1.0], [0.0], [0.0], [0.0], [np.nan]])
    found = np.concatenate([steps(problem, X, U), steps(problem, steps(problem, X, U), U)])  # from the fourth, one step is still stable
    assert np.all(np.isfinite(found[[0, 5]]))
    assert np.all(np.isnan(found[[1, 2, 4, 6, 7, 8, 9]]))
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    data = data_at(cartpole(), X[1])  # what the user steps is logged as before
    mujoco.mj_step(cartpole(), data)
    assert [path.name for path in tmp_path.iterdir()] == ["MUJOCO_LOG.TXT"]


def test_the_users_model_stays_the_users():
    model = model_of(joint="hinge", limits="-90 90")

    def content():
        buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        return buffer.tobytes()

    before, x, u = content(), jnp.array([0.2, 0.0]), jnp.ones(1)
    problem = from_mujoco(model, stage_cost=squares, horizon=1)
    expected = problem.step(x, u)
    from_mjx(model, stage_cost=square, horizon=1, iterations=1)
    assert content() == before
    model.opt.timestep = 1.0
    np.testing.assert_array_equal(problem.step(x, u), expected)


def test_bounds_and_names_are_the_models():
    assert (BOX.state_dim, BOX.control_dim, BOX.control_bounds) == (4, 1, ((-10.0,), (10.0,)))
    assert BOX.coordinates == ("slider [m]", "hinge [rad]", "d slider/dt [m/s]", "d hinge/dt [rad/s]")
    half = from_mujoco(
        model_of(actuator='<motor joint="j" ctrlrange="0 1"/><motor joint="j"/>'), stage_cost=squares, horizon=1, cost_scale=0.5
    )
    assert (half.control_dim, half.control_bounds, half.cost_scale) == (2, None, 0.5)
    others = model_of(joint="ball", more='<body><freejoint/><geom size="0.1"/></body>', actuator='<motor joint="j" gear="1 0 0"/>')
    assert from_mujoco(others, stage_cost=squares, horizon=1).coordinates == (
        *("joint 0 x [m]", "joint 0 y [m]", "joint 0 z [m]", "joint 0 qw", "joint 0 qx", "joint 0 qy", "joint 0 qz"),
        *("j qw", "j qx", "j qy", "j qz"),
        *("d joint 0 x/dt [m/s]", "d joint 0 y/dt [m/s]", "d joint 0 z/dt [m/s]"),
        *("joint 0 ωx [rad/s]", "joint 0 ωy [rad/s]", "joint 0 ωz [rad/s]", "j ωx [rad/s]", "j ωy [rad/s]", "j ωz [rad/s]"),
    )


def test_a_trajectory_ends_where_it_is_done():
    problem = from_mujoco(CARTPOLE, stage_cost=squares, horizon=30, done=lambda X: np.abs(X[:, 1]) > 0.5, done_cost=7.0)
    fallen = np.array([[0.0, 0.6, 0.0, 1.0]])
    assert float(offspan.cost(problem, BALANCE, fallen)) == pytest.approx(31 * 7.0)


@pytest.mark.parametrize("build", [from_mujoco, from_mjx])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: "no-such-model.xml", "there is no file 'no-such-model.xml'; pass the path"),
        (lambda: 3, "`model_or_path` is a int, but must be a mujoco.MjModel"),
        (lambda: model_of(actuator=""), "the model has 0 actuators and 1 positions"),
        (lambda: model_of(actuator='<general joint="j" dyntype="integrator"/>'), "1 numbers of activations.* more than qpos and qvel"),
        (lambda: model_of(more='<body mocap="true"><geom size="0.1"/></body>'), "1 mocap bodies, so that its state is more"),
        (lambda: model_of(option='<flag sleep="enable"/>'), "bodies that fall asleep"),
    ],
)
def test_a_model_that_does_not_fit_is_one_sentence(build, given, said):
    with pytest.raises(offspan.OffspanError, match=f"{build.__name__}: .*{said}"):
        build(given(), stage_cost=squares, horizon=1)


def test_mistakes_are_one_sentence(tmp_path, monkeypatch):
    broken = tmp_path / "broken.xml"
    broken.write_text("<mujoco><worldbody><bdy/></worldbody></mujoco>")
    with pytest.raises(offspan.OffspanError, match=r"cannot compile '.*broken.xml' \(XML Error: .* Element 'bdy', line 1\)\."):
        from_mujoco(broken, stage_cost=squares, horizon=1)
    with pytest.raises(offspan.OffspanError, match=r"from_mujoco: `frame_skip` is 0"):
        from_mujoco(CARTPOLE, stage_cost=squares, horizon=1, frame_skip=0)
    with pytest.raises(offspan.OffspanError, match=r"from_mjx: `iterations` is 0"):
        from_mjx(CARTPOLE, stage_cost=square, horizon=1, iterations=0)
    implicit = cartpole()
    implicit.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICIT
    with pytest.raises(offspan.OffspanError, match=r"MJX cannot take this model \(.*IMPLICIT.*\); from_mujoco can"):
        from_mjx(implicit, stage_cost=square, horizon=1)
    monkeypatch.setitem(sys.modules, "mujoco.mjx", None)
    with pytest.raises(offspan.OffspanError, match=r"pip install 'offspan\[mjx\]'"):
        from_mjx(CARTPOLE, stage_cost=square, horizon=1)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(offspan.OffspanError, match=r"pip install 'offspan\[mujoco\]'"):
        from_mujoco(CARTPOLE, stage_cost=squares, horizon=1)


def test_mjx_and_its_gradient_are_those_of_the_c_engine():
    """Trajectories to rounding (5e-14, which a pole that falls multiplies); one step of gradient descent is a central difference of the C
    engine's cost, both over trajectories that reach the limit and controls that are clamped."""
    problem = from_mjx(CARTPOLE, stage_cost=square, horizon=30)
    x0s = np.concatenate([INSIDE[:50], AT_LIMIT[:50]])
    states, controls = trajectories(BOX, x0s)
    assert np.mean(states[:, :, 0] > LIMIT) > 0.02
    assert np.mean(np.abs(controls) > 10) > 0.02
    np.testing.assert_allclose(trajectories(problem, x0s)[0], states, atol=1e-11)

    run = offspan.train(problem, BALANCE, x0s, optimizer=optax.sgd(1e-3), iterations=1)
    gradient, radius = np.asarray(BALANCE.K - run.controller.K)[0] / 1e-3, 1e-5
    J = [float(offspan.cost(BOX, offspan.Linear(BALANCE.K + s * radius * e[None]), x0s)) for e in jnp.eye(4) for s in (1, -1)]
    differences = (np.array(J[::2]) - J[1::2]) / (2 * radius)
    assert np.abs(differences).min() > 1e-2
    np.testing.assert_allclose(gradient, differences, rtol=1e-6)


def test_without_a_loop_mjx_has_a_reverse_mode_of_its_own():
    """The Jacobian of one step, at the limit, against central differences of the C engine."""
    model, radius = model_of(limits="-0.5 0.5"), 1e-6
    problem, box = from_mjx(model, stage_cost=square, horizon=1, iterations=1), from_mujoco(model, stage_cost=squares, horizon=1)
    found = jax.jit(jax.jacrev(lambda xu: problem.step(xu[:2], xu[2:])))(at := jnp.array([0.52, 0.3, 1.0]))
    ahead, behind = (at[None] + s * radius * jnp.eye(3) for s in (1, -1))
    differences = (steps(box, ahead[:, :2], ahead[:, 2:]) - steps(box, behind[:, :2], behind[:, 2:])).T / (2 * radius)
    assert differences[1, 0] < -1  # it is pushed back
    np.testing.assert_allclose(found, differences, atol=1e-6)
