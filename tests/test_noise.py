"""Noise, sampled gradients and shortened horizons: each against a plain loop, a closed form or the exact gradient of what it estimates."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import offspan
from offspan.problems.variants import Truncated

KEY = jax.random.key(0)


def system(n=3, m=2, horizon=4, control_cost=0.5):
    keys = jax.random.split(jax.random.key(1), 4)
    R = control_cost * jnp.diag(jnp.arange(1.0, m + 1))
    problem = offspan.LQR(0.5 * jax.random.normal(keys[0], (n, n)), jax.random.normal(keys[1], (n, m)), R=R, horizon=horizon)
    return problem, 0.2 * jax.random.normal(keys[2], (m, n)), jax.random.normal(keys[3], (2, n))


def noisy_loop(problem, K, x0s, noise, of_process):
    """The mean cost with given noise, step by step."""
    total = 0.0
    for s, x in enumerate(x0s):
        for h in range(problem.horizon + 1):
            u = K @ x + noise[s, h]
            total += x @ problem.Q @ x + u @ problem.R @ u
            if h < problem.horizon:
                x = problem.A @ x + problem.B @ u + of_process[s, h]
    return total / len(x0s)


def test_a_noisy_cost_is_the_loop_with_that_noise_and_so_are_its_derivatives():
    problem, K, x0s = system()
    C, P = jax.random.normal(jax.random.key(2), (2, 3)), jnp.diag(jnp.array([0.1, 0.0, 0.4]))

    def cost(K, C, P):
        return offspan.cost(offspan.Noisy(problem, control=C, process=P), offspan.Linear(K), x0s, key=KEY)

    def plain(K, C, P):
        return noisy_loop(problem, K, x0s, *offspan.Noisy(problem, control=C, process=P).draw(KEY, len(x0s)))

    assert float(plain(K, C, P)) > 1.1 * float(offspan.cost(problem, offspan.Linear(K), x0s))
    np.testing.assert_allclose(cost(K, C, P), plain(K, C, P), rtol=1e-12)
    for ours, theirs in zip(jax.grad(cost, (0, 1, 2))(K, C, P), jax.grad(plain, (0, 1, 2))(K, C, P), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_noisy_rollout_moves_and_costs_as_the_loop():
    problem, K, x0s = system()
    noisy = offspan.Noisy(problem, control=0.3, process=[0.1, 0.2, 0.3])
    trajectory = offspan.rollout(noisy, offspan.Linear(K), x0s[0], key=KEY)
    noise, of_process = noisy.draw(KEY, 1)
    assert noise is not None
    assert of_process is not None
    np.testing.assert_allclose(trajectory.controls, trajectory.states @ K.T + noise[0], rtol=1e-12)
    following = trajectory.states[:-1] @ problem.A.T + trajectory.controls[:-1] @ problem.B.T + of_process[0]
    np.testing.assert_allclose(trajectory.states[1:], following, rtol=1e-12)
    np.testing.assert_allclose(trajectory.costs.sum(), noisy_loop(problem, K, x0s[:1], noise, of_process), rtol=1e-12)


@pytest.mark.parametrize(("control", "process"), [(0.0, 0.0), (0.3, 0.0), ([0.1, 0.5], 0.2), ([[0.3, 0.1, 0.0], [0.0, 0.2, 0.4]], 0.2)])
def test_the_expected_cost_is_the_mean_of_sampled_ones(control, process):
    problem, K, x0s = system()
    noisy = offspan.Noisy(problem, control=control, process=process)
    sampled = np.array([offspan.cost(noisy, offspan.Linear(K), x0s, key=key, samples=1000) for key in jax.random.split(KEY, 20)])
    error = max(sampled.std(ddof=1) / np.sqrt(len(sampled)), 1e-12)
    assert abs(sampled.mean() - float(offspan.expected_cost(noisy, K, x0s))) < 4 * error
    np.testing.assert_allclose(jax.grad(lambda K: offspan.expected_cost(noisy, K, x0s))(K), offspan.lqr_gradient(noisy, K, x0s), rtol=1e-10)
    if np.any(control) or process:
        assert float(offspan.expected_cost(noisy, K, x0s)) > 1.001 * float(offspan.cost(problem, offspan.Linear(K), x0s))


def test_the_same_key_is_the_same_noise_for_every_controller():
    problem, K, x0s = system()
    noisy = offspan.Noisy(problem, process=1.0)
    near = [float(offspan.cost(noisy, offspan.Linear(K + shift), x0s, key=KEY, samples=10)) for shift in (0.0, 1e-9)]
    assert abs(near[1] - near[0]) < 1e-6 < abs(near[0] - float(offspan.cost(noisy, offspan.Linear(K), x0s, key=jax.random.key(9))))


def test_maps_and_measures_of_a_noisy_problem_are_means():
    problem, K, x0s = system()
    noisy, controller = offspan.Noisy(problem, process=0.2), offspan.Linear(K)
    found = offspan.extrapolation_map(noisy, controller, {0: [0.5, 1.0]}, key=KEY, samples=2000).values
    expected = [float(offspan.expected_cost(noisy, K, jnp.array([[x, 0.0, 0.0]]))) for x in (0.5, 1.0)]
    np.testing.assert_allclose(found, expected, rtol=0.1)
    share = offspan.extrapolation_map(noisy, controller, {0: [0.0]}, key=KEY, samples=2000, success=lambda x: x[0] > 0).values
    np.testing.assert_allclose(share, 0.5, atol=0.05)
    measure = offspan.extrapolation(noisy, controller, x0s, minimal_cost=0.0, baseline_cost=1.0, key=KEY, samples=2000)
    np.testing.assert_allclose(measure, offspan.expected_cost(noisy, K, x0s), rtol=0.1)


@pytest.mark.parametrize("last", [1, 2, 4])
def test_a_truncated_cost_is_that_of_the_shorter_problem_with_discount(last):
    problem, K, x0s = system()
    short = Truncated(problem, last, 0.7)

    def plain(K):
        x, total = x0s, 0.0
        for h in range(last + 1):
            u = x @ K.T
            total += 0.7**h * (jnp.sum(x @ problem.Q * x) + jnp.sum(u @ problem.R * u))
            x = x @ problem.A.T + u @ problem.B.T
        return total / len(x0s)

    cost = lambda K: offspan.cost(short, offspan.Linear(K), x0s)  # noqa: E731
    np.testing.assert_allclose(cost(K), plain(K), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(cost)(K), jax.grad(plain)(K), rtol=1e-10)
    rolled = sum(float(offspan.rollout(short, offspan.Linear(K), x0).costs.sum()) for x0 in x0s) / len(x0s)
    np.testing.assert_allclose(rolled, plain(K), rtol=1e-12)


def test_what_is_left_out_cannot_overflow():
    """States that would overflow after the last step are not computed."""
    problem, one = offspan.identity(1, horizon=5000), jnp.ones((1, 1))
    grows = lambda K: offspan.cost(Truncated(problem, 3), offspan.Linear(K), one)  # noqa: E731
    J, gradient = jax.value_and_grad(grows)(jnp.ones((1, 1)))
    assert float(J) == 1 + 4 + 16 + 64
    assert float(gradient[0, 0]) == 2 * 2 + 4 * 8 + 6 * 32
    assert not np.isfinite(offspan.cost(problem, offspan.Linear(jnp.ones((1, 1))), one))


def mean_and_error(estimator, problem, controller, x0s, draws=10_000):
    """The mean of the estimates, each entry's standard error, and the mean of draws of the estimator's objective, differentiated."""

    def one(keys):
        exact = eqx.filter_grad(lambda controller: estimator.objective(keys[1], problem, controller, x0s))(controller)
        return tuple(ravel_pytree(tree)[0] for tree in (estimator(keys[0], problem, controller, x0s).gradient, exact))

    estimates, exact = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=500))(jax.random.split(KEY, (draws, 2)))
    error = np.sqrt((np.var(estimates, axis=0, ddof=1) + np.var(exact, axis=0, ddof=1)) / draws)
    return np.mean(estimates, axis=0), error, np.mean(exact, axis=0)


ESTIMATORS = {
    "two points": offspan.TwoPoint(radius=0.3, directions=2),
    "reinforce": offspan.Reinforce(std=0.4, rollouts=3),
    "reinforce without a baseline": offspan.Reinforce(std=0.4, rollouts=1, baseline=False),
    "pathwise": offspan.Exact(samples=2),
}


@pytest.mark.parametrize("control_cost", [0.0, 0.5])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_are_unbiased_for_what_they_descend(name, control_cost):
    problem, K, x0s = system(control_cost=control_cost)
    noisy = offspan.Noisy(problem, process=0.2, control=0.1)
    mean, error, exact = mean_and_error(ESTIMATORS[name], noisy, offspan.Linear(K), x0s)
    assert np.linalg.norm(exact) > 10 * np.linalg.norm(error)
    assert np.all(np.abs(mean - exact) < 4 * error)
    if "reinforce" in name:  # in closed form, by the covariance recursion
        total = offspan.Noisy(problem, process=0.2, control=float(np.hypot(0.4, 0.1)))
        assert np.all(np.abs(mean - np.ravel(offspan.lqr_gradient(total, K, x0s))) < 4 * error)


def pendulum():
    problem = offspan.Pendulum(horizon=10)
    return problem, offspan.MLP.init(jax.random.key(3), 2, 1, width=4, depth=2), jnp.array([[2.6, 0.0], [3.6, 0.0]])


@pytest.mark.parametrize("name", ["two points", "reinforce"])
def test_estimators_are_unbiased_on_the_pendulum(name):
    mean, error, exact = mean_and_error(ESTIMATORS[name], *pendulum())
    assert np.linalg.norm(exact) > 10 * np.linalg.norm(error)
    assert np.all(np.abs(mean - exact) < 4.5 * error)  # the largest of 17 entries


def test_two_points_give_the_gradient_of_a_quadratic_cost_itself():
    """H = 1 and R = 0: J is quadratic in K, so that smoothing changes J by a constant."""
    problem, K, x0s = system(horizon=1, control_cost=0.0)
    mean, error, _ = mean_and_error(offspan.TwoPoint(radius=2.0, directions=4), problem, offspan.Linear(K), x0s)
    exact = np.ravel(offspan.lqr_gradient(problem, K, x0s))
    assert np.linalg.norm(exact) > 10 * np.linalg.norm(error)
    assert np.all(np.abs(mean - exact) < 4 * error)


class WrongSign(offspan.TwoPoint):
    def __call__(self, *given):
        found = super().__call__(*given)
        return found._replace(gradient=jax.tree.map(jnp.negative, found.gradient))


class OverStd(offspan.Reinforce):
    """Divides by std in place of std²."""

    def __call__(self, *given):
        found = super().__call__(*given)
        return found._replace(gradient=jax.tree.map(lambda g: g * self.std, found.gradient))


class OwnBaseline(offspan.Reinforce):
    """The mean of all rollouts, its own among them."""

    def __call__(self, *given):
        found = super().__call__(*given)
        return found._replace(gradient=jax.tree.map(lambda g: g * (1 - 1 / self.rollouts), found.gradient))


@pytest.mark.parametrize(
    "wrong",
    [WrongSign(radius=0.3, directions=2), OverStd(std=0.4, rollouts=3), OwnBaseline(std=0.4, rollouts=2)],
    ids=lambda e: type(e).__name__,
)
def test_a_wrong_estimator_is_seen(wrong):
    problem, K, x0s = system(control_cost=0.0)
    mean, error, exact = mean_and_error(wrong, problem, offspan.Linear(K), x0s)
    assert np.any(np.abs(mean - exact) > 10 * error)
    quality = offspan.gradient_quality(problem, offspan.Linear(K), x0s, wrong, key=KEY, repeats=4000)
    assert quality.bias > 3 * quality.error


def test_the_baseline_lowers_the_variance():
    problem, K, x0s = system(control_cost=0.0)
    with_it, without = (
        offspan.gradient_quality(problem, offspan.Linear(K), x0s, offspan.Reinforce(0.4, 4, baseline=baseline), key=KEY, repeats=2000)
        for baseline in (True, False)
    )
    assert with_it.variance < 0.7 * without.variance
    assert with_it.cosine > without.cosine
    assert max(with_it.bias / with_it.error, without.bias / without.error) < 2


def test_rollouts_are_counted():
    problem, K, x0s = system()
    noisy = offspan.Noisy(problem, process=0.1)
    counts = {name: estimator(KEY, noisy, offspan.Linear(K), x0s).rollouts for name, estimator in ESTIMATORS.items()}
    assert counts == {"two points": (2 * 2 + 1) * 2, "reinforce": (3 + 1) * 2, "reinforce without a baseline": 2 * 2, "pathwise": 2 * 2}


@pytest.mark.parametrize("name", ["two points", "reinforce"])
def test_training_with_samples_lowers_the_cost_and_resumes_bit_for_bit(name):
    problem, controller, x0s = pendulum()
    problem = offspan.Noisy(problem, process=0.01)
    starts = [controller, jax.tree.map(lambda w: 1.1 * w, controller)]
    settings = {"optimizer": optax.adam(3e-3), "gradient": ESTIMATORS[name], "key": KEY, "record_every": 30}
    seen = []
    whole = offspan.train_batch(problem, starts, x0s, iterations=300, on_chunk=seen.append, **settings)
    assert np.all(whole.cost[:, -1] < 0.95 * whole.cost[:, 0])
    part = next(batch for batch in seen if 0 < batch.done < 300)
    again = offspan.train_batch(problem, starts, x0s, iterations=300, resume=part, **settings)
    for name, value in whole.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], value, err_msg=name)


def test_noise_trains_a_system_that_does_not_explore():
    """On the identity, E_opt is 1 without noise, and goes to 0 with it: K_ext is reached."""
    problem, seen = offspan.identity(3, horizon=4), offspan.basis(3, 1)
    settings = {"learning_rate": 0.02, "iterations": 4000}
    still = offspan.train_lqr(problem, seen, **settings)
    assert float(offspan.normalized_optimality(problem, still.K, seen)) == 1.0
    noisy = offspan.train_lqr(offspan.Noisy(problem, process=0.3), seen, **settings)
    assert float(offspan.normalized_optimality(problem, noisy.K, seen)) < 1e-6
    np.testing.assert_allclose(noisy.cost[-1], 1 + 4 * 3 * 0.3**2, rtol=1e-6)  # x_0, and after each step the new noise alone


def test_a_horizon_curriculum_is_a_training_on_each_horizon_after_another():
    """Against one plain `train` for each horizon, from where the one before it ended."""
    problem, K, x0s = system(horizon=6, control_cost=0.1)
    optimizer = optax.sgd(1e-3)
    whole = offspan.train(problem, offspan.Linear(K), x0s, optimizer=optimizer, iterations=30, horizons=(2, 3, 6))
    controller, costs = offspan.Linear(K), []
    for horizon in (2, 3, 6):
        shorter = offspan.LQR(problem.A, problem.B, problem.Q, problem.R, horizon=horizon)
        part = offspan.train(shorter, controller, x0s, optimizer=optimizer, iterations=10)
        controller, costs = part.controller, [*costs, *part.cost]
    np.testing.assert_allclose(whole.K, controller.K, rtol=1e-10)
    np.testing.assert_allclose(whole.cost, costs, rtol=1e-10)


def test_a_discount_schedule_weighs_later_steps_less():
    problem, K, x0s = system(horizon=3)
    run = offspan.train(problem, offspan.Linear(K), x0s, optimizer=optax.sgd(1e-9), iterations=4, discounts=(0.5, 1.0))
    np.testing.assert_allclose(run.cost[0], offspan.cost(Truncated(problem, 3, 0.5), offspan.Linear(K), x0s), rtol=1e-9)
    np.testing.assert_allclose(run.cost[2:], float(offspan.cost(problem, offspan.Linear(K), x0s)), rtol=1e-6)


def test_a_curriculum_in_a_batch_is_that_of_each_run_and_stopping_rules_see_the_last_stage_alone():
    problem, K, x0s = system(horizon=6)
    starts, optimizer = [offspan.Linear(K), offspan.Linear(1.5 * K), offspan.Linear(0 * K)], optax.sgd(1e-3)
    settings = {"optimizer": optimizer, "iterations": 40, "horizons": (1, 6), "stop": offspan.CostBelow(1e9)}
    batch = offspan.train_batch(problem, starts, x0s, record_every=1, **settings)
    assert batch.iterations.tolist() == [20] * 3, "a rule that is always fulfilled stops at the first iteration of the last stage"
    for r, start in enumerate(starts):
        alone = offspan.train(problem, start, x0s, **settings)
        assert alone.status == "converged"
        np.testing.assert_allclose(batch.run(r).K, alone.K, rtol=1e-12)


def test_a_curriculum_resumes_bit_for_bit():
    problem, K, x0s = system(horizon=6)
    seen = []
    settings = {"optimizer": optax.adam(1e-3), "iterations": 200, "horizons": (2, 4, 6), "record_every": 10}
    whole = offspan.train_batch(problem, [offspan.Linear(K)], x0s, on_chunk=seen.append, **settings)
    part = next(batch for batch in seen if 0 < batch.done < 200)
    again = offspan.train_batch(problem, [offspan.Linear(K)], x0s, resume=part, **settings)
    for name, value in whole.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], value, err_msg=name)


@pytest.mark.parametrize("estimator", [offspan.TwoPoint(radius=0.1, directions=2), offspan.Reinforce(std=0.2, rollouts=3)])
def test_estimators_are_unbiased_for_a_shortened_problem(estimator):
    problem, K, x0s = system(horizon=6, control_cost=0.0)
    mean, error, exact = mean_and_error(estimator, Truncated(problem, 3, 0.8), offspan.Linear(K), x0s)
    short = offspan.LQR(problem.A, problem.B, problem.Q, horizon=3)
    other = mean_and_error(estimator, short, offspan.Linear(K), x0s, draws=2000)[2]
    assert np.linalg.norm(exact - other) > 0.1 * np.linalg.norm(exact), "the discount matters"
    assert np.all(np.abs(mean - exact) < 4 * error)


def test_a_long_unstable_plant_trains_with_clipping():
    """Radius 1.02, H = 1000, from K = 0: without clipping, training diverges at the first update."""
    problem = offspan.LQR([[1.02, 0.1], [0.0, 0.95]], horizon=1000)
    seen = jnp.array([[1.0, 1.0]])
    plain = offspan.train_lqr(problem, seen, learning_rate=1e-2, iterations=3000)
    assert plain.status == "diverged"
    clipped = offspan.train_lqr(problem, seen, learning_rate=1e-2, iterations=3000, clip=1.0)
    assert clipped.status == "finished"
    np.testing.assert_allclose(clipped.cost[-1], offspan.minimal_cost(problem, seen), rtol=1e-3)


@pytest.mark.parametrize(("n", "m", "control_cost"), [(3, 2, 0.5), (2, 2, 0.0), (9, 4, 0.5)])
def test_a_sweep_of_noisy_systems_equals_its_single_runs(n, m, control_cost):
    """In lanes and by products, with and without noise in one batch; `train_lqr` goes by the covariance recursion."""
    problem, K, x0s = system(n, m, horizon=4, control_cost=control_cost)
    noises = [{"process": 0.3}, {"control": 0.2}, {}, {"process": 0.1 * jnp.eye(n)[:, :2], "control": [0.1] * m}]
    problems, seen = [offspan.Noisy(problem, **noise) for noise in noises], [x0s[:1], x0s, x0s, x0s]
    settings = {"learning_rate": 1e-3, "iterations": 50, "clip": 5.0}
    batch = offspan.train_lqr_batch(problems, seen, K0=jnp.stack([K] * 4), record_every=10, **settings)
    for r, (noisy, S) in enumerate(zip(problems, seen, strict=True)):
        alone = offspan.train_lqr(noisy, S, K0=K, **settings)
        np.testing.assert_allclose(batch.K[r], alone.K, rtol=1e-9)
        np.testing.assert_allclose(batch.cost[r, :-1], alone.cost[::10], rtol=1e-10)
        np.testing.assert_allclose(batch.cost[r, -1], offspan.expected_cost(noisy, alone.K, S), rtol=1e-10)
    assert len(np.unique(batch.cost[1:, 0].round(9))) == 3, "the noise matters"


def test_problems_that_differ_in_their_arrays_train_in_one_batch():
    """Each run is that of its problem alone, also with noise, samples and stages."""
    problems = [offspan.Noisy(offspan.gaussian(jax.random.key(seed), 3, horizon=4), process=0.1 * (seed + 1)) for seed in range(3)]
    start, seen, optimizer = offspan.Linear(jnp.zeros((3, 3))), offspan.basis(3, 1), optax.sgd(1e-2)
    settings = {"optimizer": optimizer, "iterations": 20, "horizons": (2, 4)}
    batch = offspan.train_batch(problems, [start] * 3, seen, key=KEY, record_every=1, **settings)
    for r, problem in enumerate(problems):
        alone = offspan.train_batch(problem, [start] * 3, seen, key=KEY, record_every=1, **settings)  # so that run r draws what it drew
        np.testing.assert_allclose(batch.K[r], alone.K[r], rtol=1e-10)
    assert not np.allclose(batch.K[0], batch.K[1])


def test_a_stuck_run_is_seen_and_told_what_to_do():
    """An unstable plant, H = 1000: Adam ends finite, far above what is possible."""
    problem, seen = offspan.LQR([[1.02, 0.1], [0.0, 0.95]], horizon=1000), jnp.array([[1.0, 1.0]])
    for rate in (1e-2, 1e-3):  # Adam's memory of the first gradients makes its steps too small
        with pytest.warns(UserWarning, match="train: the run is finite, but stuck: the cost .*diagnose"):
            stuck = offspan.train(problem, offspan.Linear(jnp.zeros((2, 2))), seen, optimizer=optax.adam(rate), iterations=2000)
        diagnosis = offspan.diagnose(problem, stuck, seen)
        assert stuck.cost[-1] > 5 * float(offspan.minimal_cost(problem, seen))
        assert (stuck.status, diagnosis.what) == ("finished", "progress")
    for remedy in ("clip", "horizons", "TwoPoint"):
        assert remedy in str(diagnosis)
    trained = offspan.train_lqr(problem, seen, learning_rate=1e-2, iterations=3000, clip=1.0)
    assert offspan.diagnose(problem, trained, seen).what == "nothing"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_what_has_converged_is_not_called_stuck(dtype):
    """Warnings are errors here: a cost that fell to rounding, noise about the optimum, and a loss that trades J away."""
    zero = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: u @ u, state_dim=1, control_dim=1, horizon=2)
    start, seen = offspan.Linear(jnp.full((1, 1), 0.5, dtype)), jnp.ones((1, 1), dtype)
    assert offspan.train(zero, start, seen, optimizer=optax.sgd(0.02), iterations=2_000).cost[-1] < 1e-6
    noisy = offspan.Noisy(offspan.identity(1, horizon=1), process=1.0)  # from 0 it costs w², at any K
    drawn = offspan.train(noisy, start, 0 * seen, optimizer=optax.sgd(1e-3), iterations=300, key=KEY)
    assert drawn.cost[-1] > 10 * drawn.cost.min()
    away = lambda problem, controller, x0s: jnp.sum((controller.K - 9.0) ** 2)  # noqa: E731
    traded = offspan.train(offspan.identity(1, horizon=1), start, seen, optimizer=optax.sgd(0.1), iterations=200, loss=away)
    assert traded.cost[-1] > 9 * traded.cost[0]


def test_pilots_that_did_not_train_are_named():
    options = {"method": "pilot", "key": KEY, "iterations": 4}
    with pytest.warns(UserWarning, match="pilot runs did not train"):
        chosen = offspan.select(offspan.shift(4, horizon=3), offspan.basis(4), 1, optimizer=optax.sgd(1e-300), **options)
    assert "clip the gradient's norm" in chosen.note
    assert not offspan.select(offspan.shift(4, horizon=3), offspan.basis(4), 1, optimizer=optax.sgd(1e-2), **options).note


def test_training_methods_of_select_take_a_curriculum_and_a_sampled_gradient():
    """An unstable plant over 400 steps: pilots that see all of it from the start diverge or stand still; with short horizons first, or a
    cut, they train. Sampled gradients count all their rollouts."""
    problem, pool = offspan.LQR(1.1 * np.roll(np.eye(3), 1, axis=0), horizon=400), offspan.basis(3)
    options: dict[str, Any] = {"method": "exhaustive", "key": KEY, "optimizer": optax.adam(3e-3), "iterations": 1_000}
    with pytest.warns(UserWarning, match="did not train|diverged"):
        assert offspan.select(problem, pool, 1, **{**options, "optimizer": optax.sgd(1e-3)}).note
    chosen = offspan.select(problem, pool, 1, horizons=(2, 10, 50, 400), **options)
    assert chosen.note == ""
    costs = [float(offspan.cost(problem, controller, chosen.states)) for controller in chosen.controllers or []]
    assert costs[0] < 1.3 * float(offspan.minimal_cost(problem, chosen.states))

    short = offspan.shift(3, horizon=2)
    how: dict[str, Any] = {"method": "adaptive", "optimizer": optax.sgd(1e-2), "iterations": 10}
    sampled = offspan.select(short, pool, 2, key=KEY, gradient=offspan.TwoPoint(0.1, 4), horizons=(1, 2), **how)
    # Two stages of five updates, on one and on two states, with 2·4 + 1 rollouts a state, and every candidate before each.
    assert sampled.rollouts == 5 * 9 + 5 * 9 * 2 + 2 * 3
    again = offspan.select(short, pool, 2, key=KEY, gradient=offspan.TwoPoint(0.1, 4), horizons=(1, 2), **how)
    assert sampled.controllers is not None
    assert again.controllers is not None
    np.testing.assert_array_equal(sampled.controllers[0].K, again.controllers[0].K)
    with pytest.raises(offspan.OffspanError, match="'flow' follows exact gradients"):
        offspan.select(short, pool, 1, key=KEY, **{**how, "method": "flow"}, gradient=offspan.TwoPoint(0.1, 4))


def test_states_are_chosen_for_a_noisy_problem():
    """Pilots train with the noise, and are compared by their cost with it: on the identity, any state will do where noise explores."""
    problem, pool = offspan.identity(3, horizon=4), offspan.basis(3)
    noisy = offspan.Noisy(problem, process=0.3)
    options: dict[str, Any] = {"method": "exhaustive", "key": KEY, "optimizer": optax.sgd(0.01), "iterations": 300}
    with pytest.warns(UserWarning, match="no choice explores"):  # of the system itself
        chosen = offspan.select(noisy, pool, 1, **options)
    assert chosen.controllers is not None
    without = offspan.train_lqr(problem, chosen.states, learning_rate=0.01, iterations=300)
    reached, kept = (float(offspan.cost(problem, one, pool)) for one in (chosen.controllers[0], without.controller))
    assert reached < 0.5 * kept
    assert chosen.rollouts == 3 * 300 + 3 * 3 * 16


def test_a_curriculum_that_worked_is_not_called_stuck_and_is_not_resumed_to_another_schedule():
    """The cost of a longer horizon is higher, as here every step costs 1 at least."""
    problem = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: 1 + x @ x, state_dim=1, control_dim=1, horizon=100)
    start, seen = offspan.Linear([[-0.5]]), jnp.ones((1, 1))
    settings: dict[str, Any] = {"optimizer": optax.sgd(0.1), "horizons": (2, 100)}
    run = offspan.train(problem, start, seen, iterations=40, **settings)
    assert run.cost[-1] > 10 * run.cost[0]
    assert offspan.diagnose(problem, run, seen).what == "nothing"
    part = offspan.train_batch(problem, [start], seen, iterations=40, **settings)
    with pytest.raises(offspan.OffspanError, match="`resume`"):
        offspan.train_batch(problem, [start], seen, iterations=80, resume=part, **settings)
    adjoint: dict[str, Any] = {"optimizer": optax.sgd(0.1), "gradient": offspan.Adjoint(), "horizons": (1, 4)}
    with pytest.raises(offspan.OffspanError, match="Exact"):
        offspan.train(offspan.identity(1, horizon=4), start, seen, iterations=4, **adjoint)


def test_single_precision_in_a_process_of_double_precision():
    problem = jax.tree.map(lambda M: M.astype(jnp.float32), offspan.gaussian(KEY, 3, horizon=4))
    seen = jnp.eye(3, dtype=jnp.float32)[:1]
    noisy = offspan.Noisy(problem, process=0.1, control=0.1)
    assert offspan.expected_cost(noisy, jnp.zeros((3, 3), jnp.float32), seen).dtype == jnp.float32
    assert offspan.train_lqr(noisy, seen, learning_rate=1e-3, iterations=3).K.dtype == jnp.float32
    start = offspan.Linear(jnp.zeros((3, 3), jnp.float32))
    for estimator in (offspan.TwoPoint(0.1, 2), offspan.Reinforce(0.1, 2)):
        how: dict[str, Any] = {"optimizer": optax.sgd(1e-3), "iterations": 3, "gradient": estimator, "key": KEY}
        run = offspan.train(offspan.gaussian(KEY, 3, horizon=4), start, seen, **how)
        assert run.K.dtype == jnp.float32


def test_the_last_record_of_a_noisy_batch_is_that_of_the_estimator():
    noisy, seen = offspan.Noisy(offspan.shift(3, horizon=4), process=0.5), offspan.basis(3, 1)
    start, still = [offspan.Linear(jnp.zeros((3, 3)))], {"optimizer": optax.sgd(1e-300), "iterations": 4, "record_every": 1, "key": KEY}
    np.testing.assert_allclose(offspan.train_batch(noisy, start, seen, gradient=offspan.Adjoint(), **still).cost, 5 + 3 * 10 * 0.25)
    spread = offspan.train_batch(noisy, start, seen, gradient=offspan.Exact(samples=2000), **still).cost
    np.testing.assert_allclose(spread, 5 + 3 * 10 * 0.25, rtol=0.1)
