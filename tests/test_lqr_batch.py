"""A batch is many single runs: the same controllers, records, ends, and nothing of one run in another."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offspan
from offspan.training import lqr_group
from tests.systems import random_gain, random_lqr

CASES = json.loads((Path(__file__).parent / "data" / "lqr.json").read_text())


def mixed_batch(horizon: int = 4):
    """Families, sizes of the seen set, learning rates and starts of all sorts."""
    problems = [
        offspan.identity(4, horizon=horizon),
        offspan.shift(4, horizon=horizon),
        offspan.gaussian(jax.random.key(0), 4, horizon=horizon),
        offspan.gaussian_abq(jax.random.key(1), 4, horizon=horizon),
        random_lqr(2, 4, 4, horizon, control_cost=False),
        random_lqr(3, 4, 4, horizon, control_cost=True),
        offspan.shift(4, horizon=horizon),
    ]
    x0s = [offspan.basis(4, count) for count in (1, 2, 3, 1, 2, 2)] + [offspan.sphere(jax.random.key(2), 3, 4)]
    rates = [0.01, 0.02, 0.003, 0.004, 0.005, 0.006, 0.007]
    K0 = np.stack([0.1 * i * np.asarray(random_gain(i, problem)) for i, problem in enumerate(problems)])
    return problems, x0s, rates, K0


def assert_equals_single_runs(batch, problems, x0s, rates, iterations, K0=None, tolerance=1e-10):
    for r, (problem, seen, rate) in enumerate(zip(problems, x0s, rates, strict=True)):
        run = offspan.train_lqr(problem, seen, learning_rate=rate, iterations=iterations, K0=None if K0 is None else K0[r])
        np.testing.assert_allclose(batch.K[r], run.K, rtol=tolerance, atol=tolerance)
        assert (batch.status[r], batch.iterations[r]) == (run.status, run.iterations)
        sooner = batch.recorded < len(run.cost)
        finite = np.isfinite(run.cost[batch.recorded[sooner]])
        np.testing.assert_allclose(batch.cost[r, sooner][finite], run.cost[batch.recorded[sooner]][finite], rtol=tolerance)


@pytest.mark.parametrize("iterations", [0, 1, 30, 250])
def test_a_mixed_batch_equals_its_single_runs(iterations):
    problems, x0s, rates, K0 = mixed_batch()
    batch = offspan.train_lqr_batch(problems, x0s, learning_rate=rates, iterations=iterations, K0=K0, record_every=30)
    assert_equals_single_runs(batch, problems, x0s, rates, iterations, K0)
    assert batch.recorded.tolist() == sorted({*range(0, iterations, 30), iterations})
    for r, (problem, seen) in enumerate(zip(problems, x0s, strict=True)):
        np.testing.assert_allclose(batch.cost[r, -1], offspan.cost(problem, offspan.Linear(batch.K[r]), seen), rtol=1e-10)
        if r == 5:  # R ≠ 0: no measure is defined
            assert np.isnan(batch.normalized_cost[r]).all()
            assert np.isnan(batch.normalized_optimality[r]).all()
            continue
        for name in ("normalized_optimality", "normalized_cost"):
            measure = getattr(offspan, name)
            np.testing.assert_allclose(getattr(batch, name)[r, -1], measure(problem, batch.K[r], seen), rtol=1e-9)
            np.testing.assert_allclose(getattr(batch, name)[r, 0], measure(problem, K0[r], seen), rtol=1e-9)


@pytest.mark.parametrize(("n", "m", "horizon"), [(3, 2, 4), (2, 3, 5), (1, 1, 1), (12, 7, 6), (12, 12, 6), (3, 3, 70)])
@pytest.mark.parametrize("control_cost", [False, True])
def test_all_shapes_in_both_layouts(n, m, horizon, control_cost):
    """Controls fewer and more than states, R = 0 and not, small systems in lanes and large ones by products."""
    # Contracting systems, so that a long horizon does not explode.
    problems = [random_lqr(seed, n, m, horizon, control_cost=control_cost) for seed in range(5)]
    problems = [offspan.LQR(0.5 * p.A, p.B, p.Q, p.R, horizon=horizon) for p in problems]
    x0s = [offspan.sphere(jax.random.key(seed), 2 + seed % 2, n) for seed in range(5)]
    rates = np.full(5, 1e-3)
    batch = offspan.train_lqr_batch(problems, x0s, learning_rate=1e-3, iterations=120, record_every=50)
    assert_equals_single_runs(batch, problems, x0s, rates, 120)
    assert np.abs(batch.K).max(axis=(1, 2)).min() > 1e-5


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['system']}-{case['n_train']}")
def test_the_official_numbers(case):
    problem = offspan.LQR(case["A"], case["B"], case["Q"], horizon=case["H"])
    seen = offspan.basis(case["D"], case["n_train"])
    batch = offspan.train_lqr_batch([problem], [seen], learning_rate=case["learning_rate"], iterations=case["iterations"])
    for value, name in (
        (batch.K[0], "K_final"),
        (batch.cost[0, -1], "train_cost"),
        (batch.normalized_optimality[0, -1], "normalized_optimality"),
        (batch.normalized_cost[0, -1], "normalized_cost"),
    ):
        np.testing.assert_allclose(value, case[name], rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("dim", [4, 12])
def test_a_diverging_run_ends_as_alone_and_leaves_the_others_bits_unchanged(dim):
    """With one run's learning rate far too large: its end is `train_lqr`'s, and every other run's bits are those beside a harmless one."""
    problems = [offspan.gaussian(jax.random.key(seed), dim, horizon=6) for seed in range(4)]
    x0s = [offspan.basis(dim, 2)] * 4
    settings: dict[str, Any] = {"iterations": 2_300, "record_every": 7}
    wild, tame = ([1e-4, rate, 1e-4, 1e-4] for rate in (10.0, 1e-4))
    diverged = offspan.train_lqr_batch(problems, x0s, learning_rate=wild, **settings)
    harmless = offspan.train_lqr_batch(problems, x0s, learning_rate=tame, **settings)
    assert diverged.status.tolist() == ["finished", "diverged", "finished", "finished"]
    others = [0, 2, 3]
    for name in ("K", "cost", "normalized_optimality", "normalized_cost", "iterations"):
        np.testing.assert_array_equal(getattr(diverged, name)[others], getattr(harmless, name)[others])
    assert_equals_single_runs(diverged, problems, x0s, wild, 2_300)
    assert np.isfinite(diverged.K[1]).all()
    failed = diverged.iterations[1]
    assert 0 < failed < 100
    assert np.isnan(diverged.cost[1, diverged.recorded > failed]).all()
    assert np.isfinite(diverged.cost[1, diverged.recorded < failed]).all()


@pytest.mark.parametrize(("rate", "iterations", "every"), [(5.5, 180, 100), (1.215, 3_000, 1_000), (100.0, 90, 7)])
def test_a_cost_that_overflows_before_its_controller_has_diverged(rate, iterations, every):
    """At a horizon of 1, J is the square of what K is: it is +∞ long before K is, and the run ends there, as it does alone."""
    problem, seen = offspan.identity(2, horizon=1), offspan.basis(2, 1)
    batch = offspan.train_lqr_batch([problem], [seen], learning_rate=rate, iterations=iterations, record_every=every)
    assert batch.status[0] == "diverged"
    assert_equals_single_runs(batch, [problem], [seen], [rate], iterations)
    later = batch.recorded > batch.iterations[0]
    assert later.any()
    assert np.isnan(batch.cost[0, later]).all()


def test_mixed_precision_is_the_wider_one():
    narrow = jax.tree.map(lambda a: a.astype(np.float32), offspan.shift(3, horizon=3))
    batch = offspan.train_lqr_batch(
        [narrow, offspan.shift(3, horizon=3)], [np.eye(3, dtype=np.float32)[:1], np.eye(3)[:2]], learning_rate=0.01, iterations=20
    )
    assert batch.K.dtype == np.float64


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_resumed_batch_gives_the_same_bits(stop_after):
    problems, x0s, rates, K0 = mixed_batch()
    rates[2] = 5.0  # diverges in the first chunk: an ended run stays ended
    settings: dict[str, Any] = {"learning_rate": rates, "iterations": 2_500, "K0": K0}
    whole = offspan.train_lqr_batch(problems, x0s, **settings)
    assert whole.status[2] == "diverged"
    seen = []

    def interrupt(batch):
        seen.append(batch)
        if len(seen) == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        offspan.train_lqr_batch(problems, x0s, on_chunk=interrupt, **settings)
    assert seen[-1].done == 1000 * stop_after
    before = seen[-1].cost.copy()
    again = offspan.train_lqr_batch(problems, x0s, resume=seen[-1], **settings)
    np.testing.assert_array_equal(seen[-1].cost, before, err_msg="resuming changed the batch that it was given")
    for name, value in whole._asdict().items():
        np.testing.assert_array_equal(getattr(again, name), value, err_msg=name)


def test_many_runs_are_worked_through_in_blocks(monkeypatch):
    problems = [offspan.gaussian(jax.random.key(seed), 3, horizon=3) for seed in range(21)]
    x0s = [offspan.basis(3, 1 + seed % 2) for seed in range(21)]
    whole = offspan.train_lqr_batch(problems, x0s, learning_rate=0.01, iterations=40)
    monkeypatch.setattr(lqr_group, "LANES", 8)
    blocked = offspan.train_lqr_batch(problems, x0s, learning_rate=0.01, iterations=40)
    np.testing.assert_allclose(blocked.K, whole.K, rtol=1e-13, atol=1e-15)
    assert_equals_single_runs(blocked, problems, x0s, np.full(21, 0.01), 40)


def test_float32_stays_float32():
    problem = jax.tree.map(lambda a: a.astype(np.float32), offspan.shift(3, horizon=3))
    x0s = np.eye(3, dtype=np.float32)[:1]
    batch = offspan.train_lqr_batch([problem], [x0s], learning_rate=0.01, iterations=20)
    assert batch.K.dtype == batch.cost.dtype == batch.normalized_cost.dtype == np.float32
    np.testing.assert_allclose(batch.K[0], offspan.train_lqr(problem, x0s, learning_rate=0.01, iterations=20).K, rtol=1e-6)


def test_seen_states_that_span_the_space_train_but_have_no_measures():
    batch = offspan.train_lqr_batch([offspan.shift(3, horizon=3)], [offspan.basis(3)], learning_rate=0.01, iterations=500)
    assert batch.cost[0, -1] < batch.cost[0, 0]
    assert np.isnan(batch.normalized_cost).all()


def test_a_batch_that_would_not_fit_is_refused_with_the_figure():
    problem, seen = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    settings: dict[str, Any] = {"learning_rate": 0.01, "iterations": 100_000}
    with pytest.raises(ValueError, match=r"10,000 runs with 1,001 records each need about 0\.\d\d GiB, but 0\.10 GiB are free"):
        offspan.train_lqr_batch([problem] * 10_000, [seen] * 10_000, memory_limit=0.1 * 2**30, **settings)


def test_the_kernels_are_the_adjoint_gradient():
    """One update of each kernel against `lqr_gradient`, with every matrix there and with each left out."""
    from offspan.training.lqr_kernels import Systems, descend_by_products, descend_in_lanes

    for B, Q, R in ((True, True, True), (False, True, False), (True, False, True), (False, False, False)):
        full = random_lqr(1, 4, 4, 5, control_cost=R)
        problem = offspan.LQR(full.A, full.B if B else None, full.Q if Q else None, full.R if R else None, horizon=5)
        K, x0s = random_gain(1, problem), offspan.sphere(jax.random.key(0), 2, 4)
        one = Systems(problem.A, problem.B if B else None, problem.Q if Q else None, problem.R if R else None, x0s, jnp.asarray(0.1))
        expected = K - 0.1 * offspan.lqr_gradient(problem, K, x0s)
        assert jnp.linalg.norm(expected - K) > 1e-2
        np.testing.assert_allclose(descend_by_products(one, K, 5, 1), expected, rtol=1e-12, atol=1e-13)
        several = jax.tree.map(lambda a: a[None], one)
        np.testing.assert_allclose(descend_in_lanes(several, K[None], 5, 1)[0], expected, rtol=1e-12, atol=1e-13)
