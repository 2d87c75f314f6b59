import itertools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import offspan
from offspan.errors import as_key
from offspan.training import engine, lqr_sweep
from tests.systems import loop_cost, random_gain, random_lqr

ZEROS = np.zeros((3, 3))
SGD = optax.sgd(0.01)


def loop_descent(problem, x0s, learning_rate, iterations, K):
    """Policy gradient with central differences of a plain loop in place of a gradient."""
    costs, step = [], 1e-6
    for _ in range(iterations):
        costs.append(loop_cost(problem, K, x0s))
        gradient = np.zeros_like(K)
        for index in np.ndindex(*K.shape):
            nudge = np.zeros_like(K)
            nudge[index] = step
            gradient[index] = (loop_cost(problem, K + nudge, x0s) - loop_cost(problem, K - nudge, x0s)) / (2 * step)
        K = K - learning_rate * gradient
    return K, costs


@pytest.mark.parametrize(("m", "control_cost"), [(3, False), (2, True)])
def test_both_trainers_are_gradient_descent(m, control_cost):
    """N iterations are N updates, and cost[i] is the cost before update i."""
    problem = random_lqr(0, 3, m, 3, control_cost=control_cost)
    x0s, K0 = offspan.basis(3, 2), np.asarray(random_gain(0, problem))
    K, costs = loop_descent(problem, x0s, 0.01, 20, K0)
    assert costs[0] > 1.01 * costs[-1]
    run = offspan.train_lqr(problem, x0s, learning_rate=0.01, iterations=20, K0=K0)
    np.testing.assert_allclose(run.K, K, atol=1e-7)
    np.testing.assert_allclose(run.cost, costs, rtol=1e-7)
    assert (run.status, run.iterations) == ("finished", 20)
    other = offspan.train(problem, offspan.Linear(K0), x0s, optimizer=optax.sgd(0.01), iterations=20)
    np.testing.assert_allclose(other.controller.K, run.K, atol=1e-13)
    np.testing.assert_allclose(other.cost, run.cost, rtol=1e-13)
    assert (other.status, other.iterations) == ("finished", 20)


def test_training_starts_from_zero_and_learns_the_seen_state():
    """On the shift, with the paper's learning rate, one update reaches the least cost  [R24, prop:shift]."""
    D = H = 4
    problem, x0s = offspan.shift(D, horizon=H), offspan.basis(D, 1)
    run = offspan.train_lqr(problem, x0s, learning_rate=1 / (H**2 / D + H), iterations=2)
    np.testing.assert_allclose(run.cost, [H + 1, 1.0], rtol=1e-14)
    np.testing.assert_allclose(run.K @ x0s[0], -(problem.A @ x0s[0]), atol=1e-14)


@pytest.mark.parametrize("iterations", [0, 1, 9])
@pytest.mark.parametrize("trainer", ["train_lqr", "train_batch", "train_lqr_batch"])
def test_chunks_leave_no_trace(monkeypatch, trainer, iterations):
    """Whatever the number of iterations in one compiled call, a run has the same bits and the same records."""
    problem, x0s = random_lqr(1, 3, 3, 3, control_cost=False), offspan.basis(3, 2)

    def run():
        if trainer == "train_lqr":
            found = offspan.train_lqr(problem, x0s, learning_rate=0.01, iterations=iterations)
            return found.K, found.cost, found.recorded
        if trainer == "train_batch":
            starts = [offspan.Linear(ZEROS), offspan.Linear(ZEROS + 0.1)]
            found = offspan.train_batch(problem, starts, x0s, optimizer=SGD, iterations=iterations, record_every=4)
        else:
            found = offspan.train_lqr_batch([problem] * 2, [x0s] * 2, learning_rate=0.01, iterations=iterations, record_every=4)
        return found.K, found.cost, found.recorded

    whole = run()
    monkeypatch.setattr(engine, "SECONDS", 0.0)  # one iteration in each chunk
    chunked = run()
    for a, b in zip(chunked, whole, strict=True):
        np.testing.assert_array_equal(a, b)
    expected = list(range(iterations)) if trainer == "train_lqr" else sorted({*range(0, iterations, 4), iterations})
    assert whole[2].tolist() == expected


def test_a_diverging_run_has_the_same_end_whatever_the_chunks(monkeypatch):
    """Chunks of all lengths, through a multiple of 1,000 iterations, against chunks as long as they may be."""
    problems = [offspan.gaussian(jax.random.key(seed), 3, horizon=5) for seed in range(3)]
    seen, rates = [offspan.basis(3, 1)] * 3, [1e-3, 5.0, 1e-3]
    whole = offspan.train_lqr_batch(problems, seen, learning_rate=rates, iterations=1_300, record_every=7)
    assert whole.status.tolist() == ["finished", "diverged", "finished"]
    lengths = iter([3, 1, 400, 11, 5, 1000, 2, *[77] * 50])
    monkeypatch.setattr(lqr_sweep, "next_chunk", lambda count, seconds: next(lengths))
    again = offspan.train_lqr_batch(problems, seen, learning_rate=rates, iterations=1_300, record_every=7)
    for name, value in whole.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], value, err_msg=name)


def test_both_batches_call_on_chunk_at_the_end_even_of_nothing():
    problem, seen = offspan.shift(2, horizon=2), offspan.basis(2, 1)
    for iterations in (0, 3):
        called: list[list[offspan.Batch]] = [[], []]
        zero = offspan.Linear(np.zeros((2, 2)))
        results = (
            offspan.train_batch(problem, [zero], seen, optimizer=SGD, iterations=iterations, on_chunk=called[0].append),
            offspan.train_lqr_batch([problem], [seen], learning_rate=0.01, iterations=iterations, on_chunk=called[1].append),
        )
        for batches, result in zip(called, results, strict=True):
            assert batches[-1] is result
            assert result.recorded.tolist() == sorted({0, iterations})
            np.testing.assert_allclose(result.cost[0, -1], offspan.cost(problem, result.controllers[0], seen), rtol=1e-14)


def test_an_old_style_key_is_taken_as_a_new_one_and_others_are_refused():
    new, old = (offspan.gaussian(key, 3, horizon=2).A for key in (jax.random.key(3), jax.random.PRNGKey(3)))
    np.testing.assert_array_equal(new, old)
    for key in (jnp.zeros(5, jnp.uint32), jax.random.split(jax.random.key(0), 3)):
        with pytest.raises(offspan.OffspanError, match="`key` is"):
            as_key("sphere", key)


def test_a_chunk_takes_about_two_seconds(monkeypatch):
    """With a clock that runs 0.1 s an iteration, chunks grow tenfold from one iteration, and stay at 20."""
    sizes, elapsed = [], [0.0]
    monkeypatch.setattr(engine.time, "perf_counter", lambda: elapsed[0])
    advance = engine._advance

    def slow(mesh, settings, structure, x0s, loop, span):
        _, count = span
        elapsed[0] += 0.1 * int(count)
        sizes.append(int(count))
        return advance(mesh, settings, structure, x0s, loop, span)

    monkeypatch.setattr(engine, "_advance", slow)
    offspan.train_lqr(offspan.shift(2, horizon=2), offspan.basis(2, 1), learning_rate=0.01, iterations=75)
    assert sizes == [0, 1, 10, 20, 20, 20, 4]  # the first call compiles
    assert [engine.next_chunk(100, 1e-6), engine.next_chunk(1000, 1e-6), engine.next_chunk(5, 1e6)] == [1000, 1000, 1]


def test_training_is_deterministic():
    problem, x0s = random_lqr(2, 3, 3, 3, control_cost=False), offspan.basis(3, 1)
    network = offspan.MLP.init(jax.random.key(0), 3, 3, width=8)
    first, second = (offspan.train(problem, network, x0s, optimizer=optax.adam(1e-3), iterations=50) for _ in range(2))
    np.testing.assert_array_equal(first.cost, second.cost)
    for a, b in zip(jax.tree.leaves(first.controller), jax.tree.leaves(second.controller), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_network_learns_a_nonlinear_problem():
    problem = offspan.FunctionProblem(
        lambda x, u: x + 0.1 * jnp.array([x[1], u[0] - jnp.sin(x[0])]), lambda x, u: x @ x, state_dim=2, control_dim=1, horizon=30
    )
    x0s = np.array([[1.0, 0.0], [-1.0, 0.0]])
    network = offspan.MLP.init(jax.random.key(0), 2, 1, width=16, depth=3)
    run = offspan.train(problem, network, x0s, optimizer=optax.adam(3e-3), iterations=400)
    assert run.cost[-1] < 0.7 * run.cost[0]
    np.testing.assert_allclose(run.cost[0], offspan.cost(problem, network, x0s), rtol=1e-12)


def test_a_loss_takes_the_place_of_the_cost_and_the_cost_is_recorded():
    """Descending J + λ‖K‖² by hand gives the same controller; what is recorded is J alone."""
    problem, x0s = random_lqr(3, 3, 3, 3, control_cost=False), offspan.basis(3, 1)
    penalised = lambda problem, controller, x0s: offspan.cost(problem, controller, x0s) + 0.5 * jnp.sum(controller.K**2)  # noqa: E731
    run = offspan.train(problem, offspan.Linear(ZEROS), x0s, optimizer=optax.sgd(0.01), iterations=30, loss=penalised)
    K, costs = jnp.asarray(ZEROS), []
    for _ in range(30):
        costs.append(loop_cost(problem, K, x0s))
        K = K - 0.01 * (offspan.lqr_gradient(problem, K, x0s) + K)
    np.testing.assert_allclose(run.controller.K, K, atol=1e-12)
    np.testing.assert_allclose(run.cost, costs, rtol=1e-12)


@pytest.mark.parametrize("trainer", ["train", "train_lqr"])
def test_a_diverged_run_says_when_and_keeps_its_last_finite_controller(trainer):
    """Doubling K each time from a learning rate far too large: the run ends at the first update that is not finite."""
    problem, x0s = offspan.gaussian(jax.random.key(0), 3, horizon=6), offspan.basis(3, 1)
    if trainer == "train":
        run = offspan.train(problem, offspan.Linear(ZEROS), x0s, optimizer=optax.sgd(10.0), iterations=2_500)
        K = run.controller.K
    else:
        run = offspan.train_lqr(problem, x0s, learning_rate=10.0, iterations=2_500)
        K = run.K
    assert run.status == "diverged"
    assert 0 < run.iterations < 100
    assert len(run.cost) == run.iterations + 1
    assert np.all(np.isfinite(run.cost[:-1]))
    assert np.all(np.isfinite(K))
    assert jnp.linalg.norm(K) > 1e10
    gradient = offspan.lqr_gradient(problem, K, x0s)
    assert not (np.isfinite(run.cost[-1]) and np.all(np.isfinite(K - 10.0 * gradient)))


def test_cost_below_stops_before_the_first_update_that_is_not_needed():
    problem, x0s = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    settings = {"optimizer": optax.sgd(0.01), "iterations": 500}
    full = offspan.train(problem, offspan.Linear(ZEROS), x0s, **settings)
    run = offspan.train(problem, offspan.Linear(ZEROS), x0s, stop=offspan.CostBelow(1.5), **settings)
    expected = int(np.argmax(full.cost <= 1.5))
    assert (run.status, run.iterations) == ("converged", expected)
    np.testing.assert_array_equal(run.cost, full.cost[: expected + 1])
    np.testing.assert_allclose(offspan.cost(problem, run.controller, x0s), run.cost[-1], rtol=1e-12)


def test_no_improvement_evaluates_waits_and_restores_the_best():
    """A plain loop over the recorded costs finds the same end and the same best look."""
    problem, x0s = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    rule = offspan.NoImprovement(every=10, patience=5, gain=0.01)
    # At this learning rate and momentum the cost swings, so that the last look is not the best one.
    settings = {"optimizer": optax.sgd(0.05, momentum=0.9), "iterations": 3_000}
    full = offspan.train(problem, offspan.Linear(ZEROS), x0s, **settings)
    run = offspan.train(problem, offspan.Linear(ZEROS), x0s, stop=rule, **settings)
    best, best_at, stale, i = np.inf, None, 0, 0
    for i in range(0, 3_000, 10):
        if full.cost[i] < best - 0.01:
            best, best_at, stale = full.cost[i], i, 0
        else:
            stale += 1
        if stale > 5:
            break
    assert (run.status, run.iterations) == ("converged", i)
    assert best_at is not None
    assert 0 < best_at < i
    np.testing.assert_allclose(offspan.cost(problem, run.controller, x0s), best, rtol=1e-12)


def test_a_run_shorter_than_the_first_look_returns_what_it_learned():
    problem, x0s = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    run = offspan.train(problem, offspan.Linear(ZEROS), x0s, optimizer=optax.sgd(0.05), iterations=50, stop=offspan.NoImprovement())
    plain = offspan.train(problem, offspan.Linear(ZEROS), x0s, optimizer=optax.sgd(0.05), iterations=50)
    assert run.status == "finished"
    np.testing.assert_array_equal(run.controller.K, plain.controller.K)


def test_a_rule_that_fires_wins_over_the_update_that_it_forestalls():
    """‖x‖ has no derivative at its optimum 0: the update would be NaN, but the rule stops before it."""
    problem = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: jnp.linalg.norm(x), state_dim=1, control_dim=1, horizon=1)
    settings = {"optimizer": optax.sgd(0.1), "iterations": 5}
    optimum, x0s = offspan.Linear([[-1.0]]), np.ones((1, 1))
    assert offspan.train(problem, optimum, x0s, **settings).status == "diverged"
    run = offspan.train(problem, optimum, x0s, stop=offspan.CostBelow(1.0), **settings)
    assert (run.status, run.iterations, run.cost.tolist()) == ("converged", 0, [1.0])


def test_an_optimiser_whose_memory_overflows_has_diverged():
    """A gradient of 1e25 has a square of +∞ in float32, after which Adam would stand still for ever."""
    problem = offspan.LQR(np.full((1, 1), 1e12, np.float32), horizon=1)
    controller = offspan.Linear(np.zeros((1, 1), np.float32))
    run = offspan.train(problem, controller, np.ones((1, 1), np.float32), optimizer=optax.adam(1e-3), iterations=5)
    assert run.status == "finished"
    problem = offspan.LQR(np.full((1, 1), 1e18, np.float32), np.full((1, 1), 1e7, np.float32), horizon=1)
    run = offspan.train(problem, controller, np.ones((1, 1), np.float32), optimizer=optax.adam(1e-3), iterations=5)
    assert (run.status, run.iterations) == ("diverged", 0)


@pytest.mark.parametrize(
    "optimizer", [optax.lbfgs(), optax.chain(optax.sgd(0.05), optax.contrib.reduce_on_plateau())], ids=["lbfgs", "plateau"]
)
def test_optimisers_that_want_more_than_the_gradient(optimizer):
    problem, x0s = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    run = offspan.train(problem, offspan.Linear(ZEROS), x0s, optimizer=optimizer, iterations=60)
    assert run.status == "finished"
    np.testing.assert_allclose(offspan.cost(problem, run.controller, x0s), 1.0, atol=1e-4)


def test_progress_is_called_after_every_chunk():
    heard = []
    offspan.train_lqr(offspan.identity(2, horizon=1), offspan.basis(2, 1), learning_rate=0.1, iterations=2_300, progress=heard.append)
    assert heard == sorted(set(heard))
    assert heard[-1] == 2_300


def test_training_follows_the_precision_of_its_inputs():
    problem = offspan.LQR(np.eye(3, dtype=np.float32), horizon=2)
    x0s = np.eye(3, dtype=np.float32)[:1]
    run = offspan.train_lqr(problem, x0s, learning_rate=0.1, iterations=10)
    assert run.K.dtype == run.cost.dtype == np.float32
    network = jax.tree.map(lambda a: a.astype(np.float32), offspan.MLP.init(jax.random.key(0), 3, 3, width=4))
    other = offspan.train(problem, network, x0s, optimizer=optax.adam(1e-3), iterations=10, stop=offspan.NoImprovement(every=1))
    assert other.cost.dtype == np.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(other.controller)} == {np.dtype(np.float32)}


def test_a_curriculum_of_states_in_single_precision_that_cost_double():
    """x_{h+1} = x_h + u_h rounds to float32, and the target is float64: J up to each horizon, and its slope, as by a plain sum."""
    target = np.array([1.0, 3.0])
    problem = offspan.FunctionProblem(
        lambda x, u: (x + u).astype(np.float32), lambda x, u: jnp.sum((x - target) ** 2), state_dim=2, control_dim=2, horizon=3
    )
    controller, x0s = offspan.Linear(np.zeros((2, 2), np.float32)), np.ones((1, 2), np.float32)
    run = offspan.train(problem, controller, x0s, optimizer=optax.sgd(0.0), iterations=2, horizons=(1, 3))
    assert run.cost.tolist() == [4.0 * 2, 4.0 * 4]  # ‖(1, 1) − (1, 3)‖² at h = 0..1, and at h = 0..3
    run = offspan.train(problem, controller, x0s, optimizer=optax.sgd(0.125), iterations=1, horizons=(1, 3))
    assert run.K.tolist() == [[0.0, 0.0], [0.5, 0.5]]  # ∂J/∂K = 2 (x_1 − target) x_0ᵀ for the first stage


def test_a_cost_that_overflows_ends_a_run_though_its_update_is_finite():
    """x_1 = K x_0 with K = 1e160: J = 1 + x_1² is infinite, ∇J = 2 x_1 is not."""
    problem = offspan.FunctionProblem(lambda x, u: u, lambda x, u: x @ x, state_dim=1, control_dim=1, horizon=1)
    controller, one = offspan.Linear([[1e160]]), offspan.basis(1)
    assert np.isfinite(jax.grad(lambda pi: offspan.cost(problem, pi, one))(controller).K).all()
    run = offspan.train(problem, controller, one, optimizer=SGD, iterations=5)
    assert (run.status, run.iterations, run.cost.tolist()) == ("diverged", 0, [np.inf])
    np.testing.assert_array_equal(run.K, controller.K)


def test_a_diverged_run_keeps_its_last_finite_controller_not_its_best():
    """1 + K is multiplied by −19 with each update, so that the first controller is the best one."""
    problem, one = offspan.identity(1, horizon=1), offspan.basis(1)
    stop = offspan.NoImprovement(every=1, patience=10_000)
    run = offspan.train(problem, offspan.Linear([[0.0]]), one, optimizer=optax.sgd(10.0), iterations=1_000, stop=stop)
    assert run.status == "diverged"
    np.testing.assert_allclose(abs(1 + float(run.K[0, 0])), 19.0**run.iterations, rtol=1e-9)


def test_the_last_controller_is_an_evaluation_too():
    """Evaluated at 0, 10 and 20 of 25 iterations: the cost falls all along, so that the last controller is the best."""
    problem, seen = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    settings = {"optimizer": SGD, "iterations": 25}
    plain = offspan.train(problem, offspan.Linear(ZEROS), seen, **settings)
    run = offspan.train(problem, offspan.Linear(ZEROS), seen, stop=offspan.NoImprovement(every=10, gain=1e-6), **settings)
    assert run.cost[20] > run.cost[24]
    np.testing.assert_array_equal(run.K, plain.K)


def test_an_optimiser_gets_the_value_that_it_descends_and_may_begin_with_infinity():
    """K ← K − value, where the value is that of the loss, not J; of its state, one number begins at ∞ and one stays there."""

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **_: Any) -> Any:
        return jax.tree.map(lambda g: jnp.full_like(g, -value), updates), (value, state[1])

    infinite = jnp.asarray(jnp.inf), jnp.asarray(jnp.inf)
    optimizer = optax.GradientTransformationExtraArgs(lambda params: infinite, update)  # pyright: ignore
    problem, one = offspan.identity(1, horizon=1), offspan.basis(1)
    loss = lambda problem, controller, x0s: 3.0 + 0 * offspan.cost(problem, controller, x0s)  # noqa: E731
    run = offspan.train(problem, offspan.Linear([[0.0]]), one, optimizer=optimizer, iterations=2, loss=loss)
    assert (run.status, run.K.tolist()) == ("finished", [[-6.0]])
    assert run.cost.tolist() == [2.0, 5.0]  # 1 + (1 + K)² at 0 and −3


@pytest.mark.parametrize("which", [slice(None), slice(1), slice(1, None)])
def test_runs_are_trained_on_the_devices_that_are_named(which, monkeypatch):
    devices, used = jax.devices()[which], []
    for module in (engine, lqr_sweep):
        monkeypatch.setattr(module, "Mesh", lambda given, names, make=module.Mesh: used.append(list(given)) or make(given, names))
    problems, seen = [offspan.shift(3, horizon=3)] * 16, offspan.basis(3, 1)  # eight runs of an LQR fill the lanes of one device
    chosen = {} if which == slice(None) else {"devices": devices}
    swept = offspan.train_lqr_batch(problems, [seen] * 16, learning_rate=0.1, iterations=3, **chosen)
    assert used
    assert all(one == devices for one in used)
    used.clear()
    starts = [offspan.Linear(jnp.zeros((3, 3)))] * 2
    batch = offspan.train_batch(problems[0], starts, seen, optimizer=optax.sgd(0.1), iterations=3, **chosen)
    assert used == [devices]
    np.testing.assert_allclose(batch.K, swept.K[:2], rtol=1e-12)


@pytest.mark.parametrize("module", [engine, lqr_sweep], ids=["networks", "a sweep"])
def test_iterations_that_take_seconds_are_told_one_by_one(monkeypatch, module):
    """Else two thousand networks show no progress, leave no checkpoint and hear no Ctrl-C for a thousand iterations. Each reading of this
    clock is three seconds after the one before."""
    clock = itertools.count(0.0, 3.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    told, problem, x0s = [], offspan.shift(2, horizon=2), offspan.basis(2, 1)
    options: dict[str, Any] = {"iterations": 5, "on_chunk": lambda batch: told.append(batch.done)}
    if module is lqr_sweep:
        offspan.train_lqr_batch([problem], [x0s], learning_rate=0.01, **options)
    else:
        offspan.train_batch(problem, [offspan.Linear(np.zeros((2, 2)))], x0s, optimizer=optax.sgd(0.01), **options)
    assert told == [1, 2, 3, 4, 5]
