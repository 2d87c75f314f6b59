"""Batches of runs, the diagnosis of divergence, and network experiments from their spec to their pictures."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from PIL import Image, ImageSequence
from typer.testing import CliRunner

import offspan
from offspan import cli
from offspan.experiments.mapping import map_of_run
from offspan.experiments.network import OBJECTIVES, NetworkSpec, is_near, make, near_the_target
from offspan.experiments.registry import SYSTEMS, System, load_preset, load_spec, preset_of
from offspan.experiments.run import run
from offspan.experiments.store import RunFolder
from offspan.report.network import states_figure
from offspan.report.results import report
from offspan.report.tables import latex_table, markdown_table

PENDULUM = offspan.Pendulum(horizon=4)
X0S = np.array([[2.6, 0.0], [3.6, 0.1]])


def networks(count: int, width: int = 4) -> list[offspan.MLP]:
    return [offspan.MLP.init(key, 2, 1, width=width, depth=2) for key in jax.random.split(jax.random.key(0), count)]


def assert_same_bits(first, second) -> None:
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_is_its_runs():
    """Each controller, cost and status as if trained alone; also with seen states of its own, and with three runs on two devices."""
    assert jax.device_count() == 2
    starts = networks(3)
    own = np.stack([X0S, X0S + 0.1, X0S - 0.2])
    settings = {"optimizer": optax.adam(1e-2), "iterations": 1_250, "stop": offspan.NoImprovement(every=50, patience=3, gain=1e-3)}
    for x0s, each in ((X0S, [X0S] * 3), (own, own)):
        batch = offspan.train_batch(PENDULUM, starts, x0s, record_every=50, **settings)
        for r, start in enumerate(starts):
            alone, of_batch = offspan.train(PENDULUM, start, each[r], **settings), batch.run(r)
            assert (of_batch.status, of_batch.iterations) == (alone.status, alone.iterations)
            before = of_batch.recorded < len(alone.cost)  # a batch also records what the last update leads to
            np.testing.assert_allclose(of_batch.cost[before], alone.cost[::50], rtol=1e-9)
            np.testing.assert_array_equal(of_batch.recorded[before], alone.recorded[::50])
            for a, b in zip(jax.tree.leaves(of_batch.controller), jax.tree.leaves(alone.controller), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    assert len(set(batch.iterations)) > 1, "the runs should end at different iterations"
    assert np.isnan(batch.cost[np.argmin(batch.iterations), -1])


def rate_of_ones_own() -> optax.GradientTransformation:
    """Gradient descent with the learning rate 0.01, and with 1e200 for a run whose first bias begins at 0.25."""

    def init(params: Any) -> Any:
        return jnp.where(params.layers[0][1][0] == 0.25, 1e200, 0.01)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda g: -state * g, updates), state

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize("place", [0, 3])
def test_a_diverging_run_changes_no_bit_of_the_others(place):
    settings = {"optimizer": rate_of_ones_own(), "iterations": 1_500, "stop": offspan.NoImprovement(every=100, patience=2, gain=1e-6)}
    starts = networks(4)
    (W, b), *rest = starts[place].layers
    wild = [*starts]
    wild[place] = offspan.MLP([(W, b.at[0].set(0.25)), *rest])
    harmless, spoilt = (offspan.train_batch(PENDULUM, each, X0S, **settings) for each in (starts, wild))
    assert spoilt.status[place] == "diverged"
    assert harmless.status[place] != "diverged"
    assert spoilt.iterations[place] < 5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(spoilt.controllers[place]))
    others = [r for r in range(4) if r != place]
    for r in others:
        assert_same_bits(harmless.controllers[r], spoilt.controllers[r])
    np.testing.assert_array_equal(harmless.cost[others], spoilt.cost[others])
    np.testing.assert_array_equal(harmless.iterations[others], spoilt.iterations[others])


def test_a_batch_resumes_bit_for_bit():
    settings = {"optimizer": optax.adam(1e-2), "iterations": 3_300, "stop": offspan.NoImprovement(every=100, patience=9, gain=1e-3)}
    states = []
    whole = offspan.train_batch(PENDULUM, networks(3), X0S, on_chunk=states.append, **settings)
    assert states[-1].done == 3_300
    assert whole.iterations.max() < 3_300, "the batch should end early"
    assert len(set(whole.iterations)) > 1
    for state in (states[0], states[2], states[-1]):
        if state is not whole:  # through arrays, as a checkpoint does
            state = offspan.Batch.from_arrays(state.to_arrays(), networks(1)[0])
        again = offspan.train_batch(PENDULUM, networks(3), X0S, resume=state, **settings)
        assert_same_bits(again.controllers, whole.controllers)
        np.testing.assert_array_equal(again.cost, whole.cost)
        np.testing.assert_array_equal(again.status, whole.status)


class Once(offspan.StoppingRule):
    """Fires at the fourth iteration and never again, for a run whose first bias is 0.25."""

    def init(self, controller):
        return jnp.asarray(0)

    def update(self, memory, iteration, cost, controller):
        return memory + 1, (memory == 3) & (controller.layers[0][1][0] == 0.25)

    def result(self, memory, cost, controller):
        return controller


def test_a_run_that_has_ended_stays_ended_while_others_go_on():
    """Four runs on two devices, so that the one that ends shares its device with one that does not."""
    starts = networks(4)
    (W, b), *rest = starts[0].layers
    starts[0] = offspan.MLP([(W, b.at[0].set(0.25)), *rest])
    batch = offspan.train_batch(PENDULUM, starts, X0S, optimizer=optax.sgd(0.0), iterations=20, stop=Once(), record_every=1)
    assert batch.status.tolist() == ["converged", "finished", "finished", "finished"]
    assert batch.iterations.tolist() == [3, 20, 20, 20]
    assert np.isfinite(batch.cost).sum(axis=1).tolist() == [4, 21, 21, 21]


def test_a_batch_whose_runs_have_ended_takes_no_more_time():
    heard = []
    offspan.train_batch(
        PENDULUM, networks(2), X0S, optimizer=optax.sgd(1e-3), iterations=50_000, stop=offspan.CostBelow(1e6), on_chunk=heard.append
    )
    assert [state.done for state in heard] == [50_000]
    assert heard[0].status.tolist() == ["converged", "converged"]


def squares(x, u):
    return jnp.stack([x[0] ** 2, u[0]])


def at_zero(x, u):
    """x falls by one each time; the root has no derivative where it arrives at zero."""
    return jnp.stack([x[0] - 1.0 + u[0], jnp.sqrt(jnp.abs(x[0]))])


@pytest.mark.parametrize(
    ("step", "x0", "what", "time_step"),
    [
        (squares, 1e10, "state", 5),  # 1e10, 1e20, …, 1e160, and 1e320 is too large
        (squares, 1e5, "cost", 5),  # 1e160 is a state, its square in the cost is not; the states end at h = 5
        (at_zero, 3.0, "gradient", 3),
    ],
)
def test_the_diagnosis_names_the_right_step(step, x0, what, time_step):
    problem = offspan.FunctionProblem(step, lambda x, u: jnp.sum(x**2), state_dim=2, control_dim=1, horizon=5)
    x0s = np.array([[1.0 if step is squares else 0.5, 0.0], [x0, 0.0]])
    run = offspan.train(problem, offspan.Linear([[0.0, 0.0]]), x0s, optimizer=optax.sgd(1e-3), iterations=10)
    assert (run.status, run.iterations) == ("diverged", 0)
    diagnosis = offspan.diagnose(problem, run, x0s)
    assert (diagnosis.what, diagnosis.iteration, diagnosis.time_step, diagnosis.x0) == (what, 0, time_step, 1)
    assert f"the {what} was not finite, at time step {time_step} from seen state 1." in str(diagnosis)
    assert diagnosis.advice in str(diagnosis)


def test_the_diagnosis_multiplies_the_step_jacobians():
    """On a linear problem ∂x_h/∂x_0 = M^h, and ∂J/∂x_h is the sum over later costs; a run that did not diverge says so."""
    problem = offspan.gaussian(jax.random.key(1), 3, horizon=4)
    x0s = offspan.basis(3, 2)
    run = offspan.train(problem, offspan.Linear(np.zeros((3, 3))), x0s, optimizer=optax.sgd(1e-3), iterations=3)
    diagnosis = offspan.diagnose(problem, run, x0s)
    M = np.asarray(problem.A + run.controller.K)
    powers = [np.linalg.matrix_power(M, h) for h in range(5)]
    np.testing.assert_allclose(diagnosis.jacobian_norms, [np.linalg.norm(power, 2) for power in powers], rtol=1e-12)
    x = [power @ np.asarray(x0s[diagnosis.x0]) for power in powers]
    costates = [np.sum([powers[k - h].T @ x[k] for k in range(h, 5)], axis=0) for h in range(5)]  # 2/|S| = 1
    np.testing.assert_allclose(diagnosis.costate_norms, np.linalg.norm(costates, axis=1), rtol=1e-12)
    assert diagnosis.what == "nothing"
    assert str(diagnosis).startswith("Nothing diverged: after 3 iterations")


def test_lengths_in_a_diagnosis_overflow_no_sooner_than_the_states():
    """x_1 = (1 + K) x_0 with |1 + K| > 1e154, whose square is no number any more."""
    problem, seen = offspan.identity(1, horizon=2), offspan.basis(1)
    run = offspan.train(problem, offspan.Linear(np.zeros((1, 1))), seen, optimizer=optax.sgd(10.0), iterations=50)
    x1 = abs(1 + float(run.controller.K[0, 0]))
    assert 1e154 < x1 < np.inf
    assert offspan.diagnose(problem, run, seen).state_norms[:2].tolist() == [1.0, x1]


def test_before_the_first_step_its_length_is_not_to_blame():
    """x' = x³ from 100 overflows whatever the learning rate."""
    problem = offspan.FunctionProblem(lambda x, u: x**3 + u, lambda x, u: x @ x, state_dim=1, control_dim=1, horizon=8)
    seen = np.array([[100.0]])
    run = offspan.train(problem, offspan.Linear(np.zeros((1, 1))), seen, optimizer=optax.sgd(1e-15), iterations=5)
    diagnosis = offspan.diagnose(problem, run, seen)
    assert (diagnosis.iteration, diagnosis.what) == (0, "state")
    assert "learning rate" not in diagnosis.advice


def test_the_diagnosis_finds_where_the_cost_exploded():
    problem, x0s = offspan.gaussian(jax.random.key(0), 3, horizon=6), offspan.basis(3, 1)
    run = offspan.train(problem, offspan.Linear(np.zeros((3, 3))), x0s, optimizer=optax.sgd(2.0), iterations=100)
    diagnosis = offspan.diagnose(problem, run, x0s)
    expected = next(i for i in range(1, len(run.cost)) if not run.cost[i] <= 100 * run.cost[:i].min())
    assert diagnosis.explosion == expected < diagnosis.iteration == run.iterations
    assert f"(the cost exploded first at iteration {expected})" in str(diagnosis)


def test_an_optimisers_overflow_is_a_diagnosis_of_its_own():
    """A gradient whose square overflows ends Adam, though states, costs and gradient are finite."""
    problem = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: 1e200 * x @ x, state_dim=1, control_dim=1, horizon=2)
    run = offspan.train(problem, offspan.Linear([[1.0]]), np.ones((1, 1)), optimizer=optax.adam(1e-3), iterations=5)
    assert run.status == "diverged"
    assert offspan.diagnose(problem, run, np.ones((1, 1))).what == "update"


class Root(eqx.Module):
    """u = √w · x: the derivative by w is infinite at 0."""

    w: jax.Array

    def __call__(self, x):
        return jnp.sqrt(self.w) * x


class Whole(offspan.Problem):
    """x' = x + u, at a cost in whole numbers."""

    def __init__(self):
        self.state_dim, self.control_dim, self.horizon, self.cost_scale, self.control_bounds = 1, 1, 3, 1.0, None

    def step(self, x, u):
        return x + u

    def stage_cost(self, x, u):
        return jnp.where(x[0] > 1, 1, 0)


def test_costs_in_whole_numbers_are_diagnosed():
    ones = np.ones((1, 1))
    run = offspan.train(Whole(), offspan.Linear([[0.5]]), ones, optimizer=optax.sgd(0.1), iterations=3)
    assert offspan.diagnose(Whole(), run, ones).state_norms.tolist() == [1.0, 1.5, 2.25, 3.375]


def test_the_diagnosis_tells_sums_weights_and_losses_apart():
    """Numbers that no single time step shows: the sum of costs, the gradient by weights, and a loss that overflows where J does not."""
    line: dict[str, Any] = {"state_dim": 1, "control_dim": 1, "horizon": 2}
    still = offspan.FunctionProblem(lambda x, u: x + 0 * u, lambda x, u: x @ x, **line)
    settings = {"optimizer": optax.sgd(1e-3), "iterations": 3}
    x0s = np.full((1, 1), 1.2e154)  # its square is finite, three of them are not
    assert offspan.diagnose(still, offspan.train(still, offspan.Linear([[0.0]]), x0s, **settings), x0s).what == "cost"
    moved = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: x @ x, **line)
    ones = np.ones((1, 1))
    assert offspan.diagnose(moved, offspan.train(moved, Root(jnp.zeros(1)), ones, **settings), ones).what == "gradient"
    loss = lambda problem, controller, x0s: offspan.cost(problem, controller, x0s) + jnp.exp(1e4 * (1 + controller.K[0, 0]))  # noqa: E731
    lost = offspan.train(moved, offspan.Linear([[0.0]]), ones, loss=loss, **settings)
    assert lost.status == "diverged"
    assert offspan.diagnose(moved, lost, ones, loss=loss).what == "loss"


class Gain(eqx.Module):
    W: jax.Array
    gain: float

    def __call__(self, x):
        return self.gain * self.W @ x


def test_runs_that_differ_in_more_than_weights_are_refused():
    """They would all be trained as the first of them."""
    with pytest.raises(ValueError, match="must be a list of controllers that differ in the values of their weights alone"):
        offspan.train_batch(
            PENDULUM, [Gain(jnp.ones((1, 2)), 1.0), Gain(jnp.ones((1, 2)), 5.0)], X0S, optimizer=optax.sgd(1e-3), iterations=1
        )


def test_an_optimiser_may_carry_a_random_key_through_a_checkpoint():
    settings = {"optimizer": optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(1e-3)), "iterations": 1_500}
    states = []
    whole = offspan.train_batch(PENDULUM, networks(2), X0S, on_chunk=states.append, **settings)
    again = offspan.train_batch(PENDULUM, networks(2), X0S, resume=states[2], **settings)
    assert_same_bits(again.controllers, whole.controllers)


def test_learned_controllers_are_free_of_the_devices_they_were_trained_on():
    batch = offspan.train_batch(PENDULUM, networks(3), X0S, optimizer=optax.sgd(1e-3), iterations=2)
    single = offspan.train(PENDULUM, networks(3)[2], X0S, optimizer=optax.sgd(1e-3), iterations=2)
    differences = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), batch.controllers[2], single.controller)
    assert max(jax.tree.leaves(differences)) < 1e-12


def test_network_presets_have_the_papers_settings():
    """[R24, app:experiments:details:nn], table:pend_experiments_states and its like."""
    expected = {
        "pendulum": (2, 5, "gradient-descent", 5e-4),
        "quadcopter-below": (7, 5, "adam", 3e-4),
        "quadcopter-further": (7, 10, "adam", 3e-4),
        "quadcopter-distance": (5, 5, "adam", 3e-4),
    }
    for name, (seen, unseen, optimizer, rate) in expected.items():
        spec = load_preset(name)
        assert isinstance(spec, NetworkSpec)
        problem, S, U, targets = make(spec)
        assert (S.shape, U.shape) == ((seen, problem.state_dim), (unseen, problem.state_dim))
        for objective in ("policy_gradient", "minimal_cost"):
            assert (getattr(spec, objective).optimizer, getattr(spec, objective).learning_rate) == (optimizer, rate)
        adversary = spec.non_extrapolating
        assert (adversary.optimizer, adversary.learning_rate, adversary.coefficient) == ("adam", 3e-4, 0.1)
        assert (spec.iterations, spec.precision, len(spec.seeds), spec.baseline_seeds) == (75_000, "float32", 5, [0, 1, 2, 3, 4])
        assert (spec.evaluate_every, spec.patience, spec.gain, spec.width, spec.depth) == (100, 50, 1e-5, 50, 4)
        assert not targets[:, 2:].any()
        assert spec.as_quick().iterations <= 10_000
        assert spec.as_quick().seeds == spec.as_quick().baseline_seeds == [0, 1], "fewer seeds leave time for twice the iterations"
        assert spec.with_seeds(9).as_quick().seeds == list(range(9)), "seeds that were asked for are kept"
        angle = U[:, 0] if name == "pendulum" else None
        np.testing.assert_allclose(targets[:, 0], 0.0 if angle is None else np.where(angle <= np.pi, 0, 2 * np.pi), rtol=1e-6)
        assert spec.with_seeds(7).seeds == list(range(7))
        assert spec.with_seeds(7).name == f"{name}-7-seeds"
        controller = spec.first_controller(problem, 0)
        shapes = [leaf.shape for leaf in jax.tree.leaves(controller) if leaf.ndim == 2]
        assert shapes == [(50, problem.state_dim), (50, 50), (50, 50), (problem.control_dim, 50)]
        assert isinstance(controller, offspan.Bounded) == (name != "pendulum")


SPEC = """
kind = "network"
problem = "pendulum"
settings = { horizon = 12 }
seeds = [0, 1, 2]
baseline_seeds = [0, 1]
iterations = 1500
precision = "float32"
width = 6
depth = 2
seen_states = [[2.6], [3.6]]
unseen_states = [[1.57, 0.0], [4.71, 0.5]]
policy_gradient = { optimizer = "gradient-descent", learning_rate = 1e-3 }
minimal_cost = { optimizer = "adam", learning_rate = 1e-2 }
non_extrapolating = { optimizer = "adam", learning_rate = 1e-2, targets = [[0.0], [6.283]] }
"""


@pytest.fixture(scope="session")  # of a module, it would be made again after tests of another
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    (folder / "small.toml").write_text(SPEC)
    spec = load_spec(folder / "small.toml")
    return spec, run(spec, folder, lambda share: None)


def loop_costs(layers, x0s, targets) -> np.ndarray:
    """J(π; x) of a pendulum and a network with H = 12, for each state towards its target, in plain NumPy."""
    costs = []
    for (angle, velocity), target in zip(x0s, targets, strict=True):
        total = 0.0
        for _ in range(13):
            total += (angle - target) ** 2 + velocity**2
            x = np.array([angle, velocity])
            for i, (W, b) in enumerate(layers):
                x = W @ x + b
                x = np.maximum(x, 0) if i < len(layers) - 1 else x
            angle, velocity = angle + 0.05 * velocity, velocity + 0.05 * (x[0] - 10 * np.sin(angle))
        costs.append(total / 12)
    return np.array(costs)


class Drift(offspan.Problem):
    """x' = x + u: a system without a time step in seconds."""

    target: jax.Array

    def __init__(self, *, horizon: int = 4, target: Any = (0.0, 0.0, 0.0)):
        self.target = jnp.asarray(target)
        self.state_dim = self.control_dim = 3
        self.horizon, self.cost_scale, self.control_bounds = horizon, 1.0, None

    @property
    def coordinates(self):
        return "a [m]", "b [m]", "c"

    def step(self, x, u):
        return x + u

    def stage_cost(self, x, u):
        return jnp.sum((x - self.target) ** 2)


def test_a_system_needs_one_entry_in_the_registry(tmp_path, monkeypatch):
    """From its spec to tables, figures with units, an animation and a map."""
    monkeypatch.setitem(SYSTEMS, "drift", System(Drift, position=(0, 2), mapped=(0, 2)))
    text = SPEC.replace("pendulum", "drift").replace("horizon = 12", "horizon = 3").replace("iterations = 1500", "iterations = 20")
    (tmp_path / "drift.toml").write_text(text)
    made = report(run(load_spec(tmp_path / "drift.toml"), tmp_path, lambda share: None))
    assert made.tables["states"].headings[-3:] == ["a", "b", "c"]
    labels = {(ax.get_xlabel(), ax.get_ylabel()) for ax in made.figures()["states"][0].get_axes()}
    assert labels == {("a [m]", "c")}
    assert len(made.animations()["trajectories"]) == 4
    assert map_of_run(RunFolder(tmp_path / "drift"), None, points=3, margin=0.1)[0].coordinates == (0, 2)
    (tmp_path / "other.toml").write_text(text.replace('"drift"', '"drfit"'))
    with pytest.raises(offspan.OffspanError, match=r"there is no system 'drfit' \(did you mean 'drift'\?\)"):
        load_spec(tmp_path / "other.toml")


def test_near_the_target_is_a_distance_of_positions():
    """A corner of the box of 0.2 m about it is 0.35 m away; speeds and the pendulum's do not count."""
    target = np.zeros(12)
    assert is_near("quadcopter", target, np.array([0.14, 0.14, -0.14, *9 * [5.0]]))
    assert not is_near("quadcopter", target, np.array([0.2, 0.2, -0.2, *9 * [0.0]]))
    assert is_near("pendulum", np.array([np.pi, 0.0]), np.array([3.0, 9.0]))
    assert near_the_target("quadcopter") == "within 0.25 m of the target"
    assert near_the_target("pendulum") == "within 0.25 rad of the target"


def test_a_map_of_a_stored_run_holds_the_costs_of_its_states(small, tmp_path):
    """The cost at the seen states, which are on the map, is the stored one; and the picture is drawn."""
    spec, result = small
    folder = RunFolder(tmp_path / "small")
    with folder.claimed(spec):
        folder.save_result(spec, result, {})
    made = map_of_run(folder, [0], points=3, margin=0.0)
    found, seen = made.map, made.seen
    final = result.policy_gradient_unseen_final.sel(seed=int(result.shown_seed)).values[:, 0]
    assert made.unseen_success.tolist() == [bool(abs(angle - np.pi) <= 0.25) for angle in final]
    np.testing.assert_allclose(found.axes[0][[0, 2]], [1.57, 4.71], rtol=1e-6)
    assert seen.tolist() == [[pytest.approx(2.6), 0.0], [pytest.approx(3.6), 0.0]]
    shown = int(np.flatnonzero(result.seed.values == int(result.shown_seed))[0])
    assert found.values[0] == pytest.approx(float(result.policy_gradient_unseen_cost[shown, 0]), rel=1e-5)
    assert map_of_run(folder, None, points=5, margin=0.5)[0].values.shape == (5, 5)
    drawn = CliRunner().invoke(cli.app, ["map", "small", "--folder", str(tmp_path), "--points", "9"])
    assert drawn.exit_code == 0, drawn.output
    assert (folder.figures / "map-0-1.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="must be one or two of 0"):
        map_of_run(folder, [2], points=3, margin=0.0)
    with pytest.raises(offspan.OffspanError, match="a map of 0 points"):
        map_of_run(folder, None, points=0, margin=0.0)


def test_a_network_result_holds_what_its_controllers_do(small):
    """Costs by a plain NumPy loop over the stored weights; the measure by its definition; the runs shown by the paper's choice."""
    _, result = small
    seen, unseen = (np.array(states, np.float32).astype(float) for states in ([[2.6, 0.0], [3.6, 0.0]], [[1.57, 0.0], [4.71, 0.5]]))
    unseen_costs = {}
    for objective, count in zip(OBJECTIVES, (3, 2, 2), strict=True):
        for r in range(count):
            layers = [(result[f"{objective}_W{i}"].values[r].astype(float), result[f"{objective}_b{i}"].values[r]) for i in range(2)]
            costs = [loop_costs(layers, x0s, np.full(2, np.pi)) for x0s in (seen, unseen)]
            np.testing.assert_allclose(result[f"{objective}_seen_cost"][r], costs[0], rtol=1e-4)
            np.testing.assert_allclose(result[f"{objective}_unseen_cost"][r], costs[1], rtol=1e-4)
            unseen_costs[objective, r] = costs[1].mean()
            trained_on = costs[0] if objective != "minimal_cost" else costs[1]
            curve = result[f"{objective}_curve"].values[r]
            assert trained_on.mean() <= np.nanmin(curve) * (1 + 1e-4) + 1e-5
            assert curve[0] > 1.001 * np.nanmin(curve)
    least = min(unseen_costs["minimal_cost", r] for r in range(2))
    lowest = int(np.argmin(result.non_extrapolating_training_cost.values))
    expected = [(unseen_costs["policy_gradient", r] - least) / (unseen_costs["non_extrapolating", lowest] - least) for r in range(3)]
    np.testing.assert_allclose(result.normalized_cost, expected, rtol=1e-3)
    assert int(result.shown_seed) == int(np.argsort(expected)[1])
    assert int(result.shown_baseline_seed) == lowest
    np.testing.assert_array_equal(
        result.policy_gradient_unseen_trajectory[:, -1], result.policy_gradient_unseen_final.sel(seed=int(result.shown_seed))
    )
    assert result.normalized_cost.dtype == np.float32
    assert result.attrs["diagnoses"] == ""


def test_the_adversarial_runs_descend_towards_other_targets(small):
    """J(S) + λ J_adv(U) of these is below that of every other run."""
    _, result = small
    unseen = [[1.57, 0.0], [4.71, 0.5]]

    def adversarial(objective, r):
        layers = [(result[f"{objective}_W{i}"].values[r], result[f"{objective}_b{i}"].values[r]) for i in range(2)]
        return loop_costs(layers, [[2.6, 0.0], [3.6, 0.0]], np.full(2, np.pi)).mean() + 0.1 * loop_costs(layers, unseen, [0, 6.283]).mean()

    ours = [adversarial("non_extrapolating", r) for r in range(2)]
    others = [*(adversarial("minimal_cost", r) for r in range(2)), *(adversarial("policy_gradient", r) for r in range(3))]
    assert max(ours) < min(others)


def test_a_diverged_seed_is_counted_as_the_worst_and_diagnosed(tmp_path):
    (tmp_path / "wild.toml").write_text(SPEC.replace("learning_rate = 1e-3", "learning_rate = 1e4").replace("1500", "1000"))
    result = run(load_spec(tmp_path / "wild.toml"), tmp_path, lambda share: None)
    assert np.isinf(result.normalized_cost).all()
    assert (result.policy_gradient_status == 2).all()
    assert result.attrs["diagnoses"].count("The run diverged at iteration") == 3
    made = report(result)
    assert made.tables["table"].rows[0][1:3] == ["3/3", "0"]
    assert made.tables["table"].rows[0][-1] == "∞"
    assert "policy_gradient, seed 0: The run diverged at iteration" in made.tables["table"].note
    assert "Try: lower the learning rate" in made.tables["table"].note
    assert "2 more did not train" in made.tables["table"].note


def test_nothing_to_normalise_by_is_not_perfect(tmp_path):
    """Where every non-extrapolating run diverges, the measure is not defined, and says so."""
    (tmp_path / "wild.toml").write_text(
        SPEC.replace('"adam", learning_rate = 1e-2, targets', '"gradient-descent", learning_rate = 1e9, targets').replace("1500", "1000")
    )
    result = run(load_spec(tmp_path / "wild.toml"), tmp_path, lambda share: None)
    assert (result.non_extrapolating_status == 2).all()
    assert np.isnan(result.normalized_cost).all()
    sheet = report(result).tables["table"]
    assert [row[-1] for row in sheet.rows] == ["–", "–", "–"]
    assert "The measure is not defined" in sheet.note
    titles = [ax.get_title() for ax in states_figure(result).axes]
    assert len(titles) == 3
    assert not [title for title in titles if "measure" in title]
    defined = result.assign(normalized_cost=xr.full_like(result.normalized_cost, 0.25))
    assert [ax.get_title().count("measure") for ax in states_figure(defined).axes] == [0, 1, 1]


def test_a_measure_that_should_not_be_trusted_says_so(small):
    _, result = small
    assert "beats the runs" not in report(result.assign(normalized_cost=("seed", [0.1, 0.2, 0.3]))).tables["table"].note
    assert "A seed below 0 beats the runs" in report(result.assign(normalized_cost=("seed", [-0.5, 0.2, 0.3]))).tables["table"].note
    untrained = result.assign(non_extrapolating_training_cost=1e4 * result.non_extrapolating_training_cost)
    assert "so the measure says little" in report(untrained).tables["table"].note


def test_the_settings_of_a_preset_are_known_whatever_the_name():
    spec = load_preset("pendulum")
    assert isinstance(spec, NetworkSpec)
    varied = spec.with_seeds(9).as_quick()
    assert isinstance(varied, NetworkSpec)
    assert preset_of(varied) == preset_of(spec.as_quick()) == "pendulum"
    assert preset_of(spec.as_one_program()) == preset_of(spec.with_seeds_per_task(2)) == "pendulum"
    assert preset_of(spec.model_copy(update={"width": 49})) is None


def test_a_killed_network_run_resumes_bit_for_bit(small, tmp_path):
    """A real process, killed with SIGKILL after a checkpoint of its second part, then left to finish."""
    (tmp_path / "small.toml").write_text(SPEC)
    script = (
        f"import time, jax\njax.config.update('jax_num_cpu_devices', {jax.device_count()})\nfrom pathlib import Path\n"
        "from offspan.experiments.run import run\nfrom offspan.experiments.registry import load_spec\n"
        f"spec = load_spec(Path({str(tmp_path / 'small.toml')!r}))\n"
        f"run(spec, Path({str(tmp_path)!r}), lambda share: time.sleep(0.5), checkpoint_seconds=0.0)\n"
    )
    folder = RunFolder(tmp_path / "small")
    process = subprocess.Popen([sys.executable, "-c", script])
    while process.poll() is None and not (folder.checkpoints / "non_extrapolating.npz").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    assert process.poll() is None, "the run ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 1 / 4 < folder.share_done() < 1  # 2 of 8 states are those of the first objective
    subprocess.run([sys.executable, "-c", script], check=True)
    assert folder.load_result().identical(small[1])


def test_the_report_of_a_network_experiment(small, tmp_path):
    _, result = small
    made = report(result)
    drawn = made.figures()
    assert set(drawn) == {"states", "through-time", "curves", "unseen"}
    assert made.tables["table"].rows[0][0] == "policy gradient"
    target, *rows = made.tables["states"].rows
    assert target[2:] == ["3.14", "0.00"]
    assert len(rows) == 3 * (2 + 2)
    final = result.policy_gradient_unseen_trajectory.values[:, -1]
    shown = [row[2:] for row in rows if row[:2] == ["unseen", "final, policy gradient"]]
    np.testing.assert_allclose(np.array(shown, float), final, atol=0.00501)
    assert "final, policy gradient" in markdown_table(made.tables["states"])
    assert latex_table(made.tables["states"]).count(r"\\") == 1 + 1 + 12
    for figure, data in drawn.values():
        assert figure.get_suptitle()
        assert len(data) > 0
    assert len(drawn["through-time"][0].get_axes()) == 12
    written = RunFolder(tmp_path).save_report(drawn, {}, made.animations())
    assert written[-1].read_bytes().startswith(b"GIF89a")
    with Image.open(written[-1]) as image:
        assert sum(1 for _ in ImageSequence.Iterator(image)) == 13  # one for each of x_0..x_12
    assert len(made.data) == 3 + 2 + 2


def test_more_than_five_seeds_have_a_distribution_with_the_papers_number(small):
    _, result = small
    assert "preset" not in result.attrs
    many = result.isel(seed=[0, 1, 2, 0, 1, 2, 0]).assign_coords(seed=range(7)).assign_attrs(preset="pendulum")
    many["policy_gradient_status"][4] = 2
    many["normalized_cost"][:] = [0.001, 0.002, 0.004, 0.1, np.inf, 0.5, 0.01]
    figure, data = report(many).figures()["distribution"]
    (ax,) = figure.get_axes()
    assert any("the paper: 0.003\n(29% of seeds are at or below)" in text.get_text() for text in ax.texts)
    assert "1 of 7 seeds diverged" in ax.get_xlabel()
    assert sorted(data.normalized_cost.dropna())[3] == pytest.approx(0.01)
    np.testing.assert_allclose(np.asarray(ax.lines[0].get_xydata())[-1], [0.5, 6 / 7])


MISTAKES = {
    "a state that is too long": (SPEC.replace("[[2.6], [3.6]]", "[[2.6, 0.0, 0.0]]"), "`seen_states` has states of length 3"),
    "targets that do not fit": (SPEC.replace("[[0.0], [6.283]]", "[[0.0], [6.283], [0.0]]"), "must be one state of at most 2 numbers"),
    "an unknown setting": (
        SPEC.replace("{ horizon = 12 }", "{ horizn = 12 }"),
        "a pendulum has no setting 'horizn' (did you mean 'horizon'?)",
    ),
    "a setting that is wrong": (SPEC.replace("{ horizon = 12 }", "{ horizon = 0 }"), "Pendulum: `horizon` is 0"),
    "an unknown optimiser": (SPEC.replace('"gradient-descent"', '"sgd"'), "`policy_gradient.optimizer`"),
    "a key misspelt in a table": (
        SPEC.replace("targets =", "target ="),
        "there is no key 'non_extrapolating.target' (did you mean 'targets'?)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_network_spec_gets_its_sentence(tmp_path, mistake):
    text, sentence = MISTAKES[mistake]
    (tmp_path / "spec.toml").write_text(text)
    with pytest.raises(ValueError, match=r"\.$") as caught:
        load_spec(tmp_path / "spec.toml")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
