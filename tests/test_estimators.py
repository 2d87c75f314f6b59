"""Where the gradient comes from: every estimator has the same call, and training passes it a key of its own for each run and iteration."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import offspan
from offspan.controllers import stack_weights, unstack_weights
from offspan.training.lqr_kernels import clipped
from tests.systems import loop_cost, random_gain, random_lqr

KEY = jax.random.key(0)


@pytest.mark.parametrize("control_cost", [False, True])
def test_exact_and_adjoint_are_the_slope_of_a_plain_loop(control_cost):
    problem = random_lqr(0, 3, 2, 4, control_cost=control_cost)
    K, x0s = random_gain(0, problem), offspan.basis(3, 2)
    direction, step = np.random.default_rng(0).normal(size=K.shape), 1e-6
    slope = (loop_cost(problem, K + step * direction, x0s) - loop_cost(problem, K - step * direction, x0s)) / (2 * step)
    assert abs(slope) > 0.1
    for estimator in (offspan.Exact(), offspan.Adjoint()):
        found = estimator(KEY, problem, offspan.Linear(K), x0s)
        np.testing.assert_allclose(np.sum(found.gradient.K * direction), slope, rtol=1e-7)
        np.testing.assert_allclose(found.cost, loop_cost(problem, K, x0s), rtol=1e-12)
        assert found.rollouts == 2
    assert offspan.Exact(samples=3)(KEY, problem, offspan.Linear(K), x0s).rollouts == 2  # without noise, nothing is repeated
    assert offspan.Exact(samples=3)(KEY, offspan.Noisy(problem, process=0.1), offspan.Linear(K), x0s).rollouts == 6


@pytest.mark.parametrize("gradient", [offspan.Adjoint(), offspan.Exact()])
def test_weights_in_single_precision_train_in_a_problem_in_double(gradient):
    start = offspan.Linear(np.zeros((2, 2), np.float32))
    run = offspan.train(
        offspan.identity(2, horizon=1), start, offspan.basis(2, 1), optimizer=optax.sgd(0.25), iterations=2, gradient=gradient
    )
    assert run.K.dtype == np.float32
    assert run.K.tolist() == [[-0.75, 0.0], [0.0, 0.0]]


def test_exact_of_a_loss_reports_the_cost_beside_the_value():
    """J + ‖K‖², as a number and as a pair with J: the gradient is of the sum, the cost is J."""
    problem, x0s = random_lqr(1, 3, 3, 3, control_cost=False), offspan.basis(3, 1)
    controller = offspan.Linear(random_gain(1, problem))

    def penalised(problem, controller, x0s):
        return offspan.cost(problem, controller, x0s) + jnp.sum(controller.K**2)

    def as_pair(problem, controller, x0s):
        return penalised(problem, controller, x0s), offspan.cost(problem, controller, x0s)

    expected = offspan.lqr_gradient(problem, controller.K, x0s) + 2 * controller.K
    for loss in (penalised, as_pair):
        found = offspan.Exact(loss)(KEY, problem, controller, x0s)
        np.testing.assert_allclose(found.gradient.K, expected, rtol=1e-10)
        assert found.value is not None
        np.testing.assert_allclose(found.cost, loop_cost(problem, controller.K, x0s), rtol=1e-12)
        np.testing.assert_allclose(found.value, found.cost + np.sum(controller.K**2), rtol=1e-12)


class Noise(offspan.Estimator):
    """The exact gradient with Gaussian noise of variance 1 on each entry."""

    draws = True

    def __call__(self, key, problem, controller, x0s):
        exact = offspan.Exact()(key, problem, controller, x0s)
        noise = jax.tree.map(lambda g: jax.random.normal(key, g.shape), eqx.filter(exact.gradient, eqx.is_array))
        return exact._replace(gradient=jax.tree.map(jnp.add, exact.gradient, noise))


PROBLEM, SEEN, SGD = offspan.identity(2, horizon=1), offspan.basis(2, 1), optax.sgd(1e-3)
ZERO = offspan.Linear(np.zeros((2, 2)))


def test_every_iteration_and_every_run_draws_anew():
    """K − K_exact after N updates is η times a sum of N independent N(0, 1), from the key alone; e_2 has no gradient of its own."""
    many: dict[str, Any] = {"optimizer": SGD, "iterations": 400, "gradient": Noise(), "key": KEY}
    batch = offspan.train_batch(PROBLEM, [ZERO] * 50, SEEN, **many)
    drift = batch.K[:, :, 1].ravel() / 1e-3 / 400**0.5  # 100 numbers N(0, 1)
    assert abs(drift.mean()) < 4 / 10
    assert abs(drift.var() - 1) < 4 * (2 / 100) ** 0.5
    assert len(np.unique(drift)) == 100, "two runs drew the same"
    again = offspan.train_batch(PROBLEM, [ZERO] * 50, SEEN, **many)
    np.testing.assert_array_equal(again.K, batch.K)
    other = offspan.train_batch(PROBLEM, [ZERO] * 50, SEEN, **{**many, "key": jax.random.key(1)})
    assert not np.any(other.K[:, :, 1] == batch.K[:, :, 1])


def test_a_run_that_draws_resumes_bit_for_bit():
    settings: dict[str, Any] = {"optimizer": SGD, "iterations": 150, "gradient": Noise(), "key": KEY, "record_every": 40}
    states: list[offspan.Batch] = []
    whole = offspan.train_batch(PROBLEM, [ZERO] * 3, SEEN, on_chunk=states.append, **settings)
    for state in states[:2]:
        assert 0 < state.done < 150
        restored = offspan.Batch.from_arrays(state.to_arrays(), ZERO)
        again = offspan.train_batch(PROBLEM, [ZERO] * 3, SEEN, resume=restored, **settings)
        for name, value in whole.to_arrays().items():
            np.testing.assert_array_equal(again.to_arrays()[name], value, err_msg=name)


def test_a_batch_resumed_with_another_key_goes_on_with_its_own():
    """The key is part of the state, as the estimates so far came from it."""
    settings: dict[str, Any] = {"optimizer": SGD, "gradient": Noise(), "record_every": 40}
    whole = offspan.train_batch(PROBLEM, [ZERO], SEEN, iterations=80, key=KEY, **settings)
    half = offspan.train_batch(PROBLEM, [ZERO], SEEN, iterations=40, key=KEY, **settings)
    rest = offspan.train_batch(PROBLEM, [ZERO], SEEN, iterations=80, key=jax.random.key(7), resume=half, **settings)
    np.testing.assert_array_equal(rest.K, whole.K)
    np.testing.assert_array_equal(rest.cost, whole.cost)


def test_a_result_of_fewer_iterations_continues_to_the_records_of_a_longer_run():
    """The last record of the shorter run, at 50, is none of those of the longer one."""
    settings: dict[str, Any] = {"optimizer": SGD, "record_every": 20}
    whole = offspan.train_batch(PROBLEM, [ZERO] * 2, SEEN, iterations=90, **settings)
    half = offspan.train_batch(PROBLEM, [ZERO] * 2, SEEN, iterations=50, **settings)
    assert half.recorded.tolist() == [0, 20, 40, 50]
    rest = offspan.train_batch(PROBLEM, [ZERO] * 2, SEEN, iterations=90, resume=half, **settings)
    assert rest.recorded.tolist() == whole.recorded.tolist() == [0, 20, 40, 60, 80, 90]
    np.testing.assert_array_equal(rest.cost, whole.cost)
    np.testing.assert_allclose(whole.cost[:, -1], offspan.cost(PROBLEM, whole.controllers[0], SEEN), rtol=1e-14)
    with pytest.raises(offspan.OffspanError, match="`resume` belongs to another batch"):
        offspan.train_batch(PROBLEM, [ZERO] * 2, SEEN, iterations=90, resume=half, optimizer=SGD, record_every=10)


@pytest.mark.parametrize(("n", "control_cost"), [(4, False), (4, True), (12, False)])
def test_clipping_is_optax_clip_by_global_norm(n, control_cost):
    """In `train_lqr` and in both layouts of `train_lqr_batch`; the first gradients are longer than the clip, the last ones shorter."""
    problem = random_lqr(3, n, n, 4, control_cost=control_cost)
    problem = offspan.LQR(0.5 * problem.A, problem.B, problem.Q, problem.R, horizon=4)
    x0s, K0 = offspan.sphere(jax.random.key(1), 3, n), 0.5 * np.asarray(random_gain(3, problem))
    clip, rate, iterations = 0.3, 0.05, 300
    optimizer = optax.chain(optax.clip_by_global_norm(clip), optax.sgd(rate))
    expected = offspan.train(problem, offspan.Linear(K0), x0s, optimizer=optimizer, iterations=iterations)
    lengths = [float(jnp.linalg.norm(offspan.lqr_gradient(problem, K, x0s))) for K in (K0, expected.K)]
    assert lengths[0] > 1.5 * clip > clip > lengths[1]
    run = offspan.train_lqr(problem, x0s, learning_rate=rate, iterations=iterations, K0=K0, clip=clip)
    batch = offspan.train_lqr_batch([problem] * 2, [x0s] * 2, learning_rate=rate, iterations=iterations, K0=np.stack([K0] * 2), clip=clip)
    for K in (run.K, batch.K[0], batch.K[1]):
        np.testing.assert_allclose(K, expected.K, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(run.cost, expected.cost, rtol=1e-9)


def test_a_clipped_step_is_finite_where_the_square_of_the_gradient_is_not():
    """From K = 1e180 I on the identity with H = 1, ∇J = 2e180 e_1e_1ᵀ: its norm is finite, though its square is not."""
    problem, seen, K0 = offspan.identity(2, horizon=1), offspan.basis(2, 1), 1e180 * np.eye(2)
    gradient = jnp.asarray(2e180 * np.diag([1.0, 0.0]))
    np.testing.assert_allclose(clipped(gradient, jnp.asarray(1.0)), np.diag([1.0, 0.0]), rtol=1e-15)
    assert offspan.train_lqr(problem, seen, learning_rate=0.1, iterations=1, K0=K0).status == "diverged"  # J itself overflows
    run = offspan.train_lqr(offspan.LQR(np.eye(2), horizon=40), 10 * seen, learning_rate=0.1, iterations=50, K0=2 * np.eye(2), clip=1.0)
    assert run.status == "finished"
    assert run.cost[-1] < 1e-3 * run.cost[0]


def test_a_status_is_an_integer_that_knows_its_name():
    """`np.full` of it is whole numbers, not words cut to the length of the first."""
    status = np.full(3, offspan.Status.finished)
    status[1] = offspan.Status.converged
    assert status.dtype.kind == "i"
    assert [offspan.Status(code) for code in status.tolist()] == ["finished", "converged", "finished"]
    assert offspan.Status.diverged == 2 == int(offspan.Status.diverged)
    assert offspan.Status.diverged != "finished"
    assert not offspan.Status.diverged != "diverged"  # noqa: SIM202 (`!=` has a method of its own)
    assert offspan.Status("diverged") is offspan.Status.diverged
    assert f"{offspan.Status.converged:>10}" == " converged"
    assert offspan.Status.diverged in {"diverged"}
    assert {"diverged": 1}[offspan.Status.diverged] == 1  # pyright: ignore[reportArgumentType]


def test_what_a_batch_has_and_has_not():
    batch = offspan.train_batch(PROBLEM, [ZERO] * 2, SEEN, optimizer=SGD, iterations=3)
    assert repr(batch) == "Batch(2 runs, 3 iterations: 2 finished)"
    assert batch.K.shape == (2, 2, 2)
    assert batch.status.tolist() == ["finished", "finished"]
    assert (batch.status == offspan.Status.finished).all()
    with pytest.raises(offspan.OffspanError, match="`normalized_cost` was not recorded"):
        _ = batch.normalized_cost


def test_what_is_not_done_is_running():
    """Of three runs, the one that overflows has ended while the others go on; a checkpoint says so, too."""
    said, starts = [], [ZERO, offspan.Linear(1e200 * np.eye(2)), ZERO]
    how: dict[str, Any] = {"iterations": 5, "on_chunk": lambda batch: said.append(batch)}
    whole = offspan.train_batch(PROBLEM, starts, SEEN, optimizer=SGD, **how)
    swept = offspan.train_lqr_batch([PROBLEM] * 2, [SEEN] * 2, learning_rate=0.1, **{**how, "on_chunk": lambda batch: said.append(batch)})
    for batch, ended in ((said[0], {1: "diverged"}), (next(one for one in said if one.measures), {})):
        assert batch.done < 5
        assert batch.status.tolist() == [ended.get(r, "running") for r in range(len(batch.codes))]
        assert f"{len(batch.codes) - len(ended)} running" in repr(batch)
        assert batch.run(0).status == "running"
        assert offspan.Batch.from_arrays(batch.to_arrays(), ZERO).status.tolist() == batch.status.tolist()
    assert whole.status.tolist() == ["finished", "diverged", "finished"]
    assert swept.status.tolist() == ["finished"] * 2


def test_one_run_needs_no_shard_map(monkeypatch):
    """Solvers such as diffrax's cannot be used inside it; two runs are shared out over the two devices of the tests."""
    jax.clear_caches()

    def refuse(*args, **kwargs):
        raise AssertionError("shard_map was used")

    monkeypatch.setattr(jax, "shard_map", refuse)
    run = offspan.train(PROBLEM, ZERO, SEEN, optimizer=optax.sgd(0.1), iterations=2)
    assert run.status == "finished"
    with pytest.raises(AssertionError, match="shard_map was used"):
        offspan.train_batch(PROBLEM, [ZERO] * 2, SEEN, optimizer=optax.sgd(0.1), iterations=2)


def test_weights_are_stacked_and_unstacked():
    controllers = [offspan.Bounded(offspan.MLP.init(jax.random.key(i), 2, 1, width=3, depth=2), -1.0, 1.0) for i in range(3)]
    weights, structure = stack_weights(controllers)
    assert weights.net.layers[0][0].shape == (3, 3, 2)
    for ours, theirs in zip(unstack_weights(weights, structure), controllers, strict=True):
        assert eqx.tree_equal(ours, theirs)
