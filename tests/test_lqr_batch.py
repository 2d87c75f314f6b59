"""A batch is many single runs: the same controllers, records, ends, and nothing of one run in another."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offspan
from offspan.training import engine, lqr_sweep
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


@pytest.mark.parametrize(("n", "m", "horizon"), [(3, 2, 4), (2, 3, 5), (1, 1, 1), (12, 7, 6), (18, 18, 6), (3, 3, 70)])
@pytest.mark.parametrize("control_cost", [False, True])
def test_all_shapes_in_both_layouts(n, m, horizon, control_cost):
    """Controls fewer and more than states, R = 0 and not, systems of up to 16 dimensions in lanes and larger ones by products."""
    # Contracting systems, so that a long horizon does not explode.
    problems = [random_lqr(seed, n, m, horizon, control_cost=control_cost) for seed in range(5)]
    problems = [offspan.LQR(0.5 * p.A, p.B, p.Q, p.R, horizon=horizon) for p in problems]
    x0s = [offspan.sphere(jax.random.key(seed), 2 + seed % 2, n) for seed in range(5)]
    rates = np.full(5, 1e-3)
    batch = offspan.train_lqr_batch(problems, x0s, learning_rate=1e-3, iterations=120, record_every=50)
    assert_equals_single_runs(batch, problems, x0s, rates, 120)
    assert np.abs(batch.K).max(axis=(1, 2)).min() > 1e-5


@pytest.mark.parametrize(("n", "horizon"), [(3, 4), (12, 6)])
def test_the_program_of_a_gpu_equals_single_runs(n, horizon, monkeypatch):
    """All runs in one group, whatever their number of seen states, and time written out; clipped and unclipped."""
    monkeypatch.setattr(lqr_sweep, "_on_cpu", lambda devices: False)
    problems = [random_lqr(seed, n, n, horizon, control_cost=False) for seed in range(5)]
    problems = [offspan.LQR(0.5 * p.A, p.B, p.Q, p.R, horizon=horizon) for p in problems]
    x0s = [offspan.sphere(jax.random.key(seed), 1 + seed % 2, n) for seed in range(5)]
    batch = offspan.train_lqr_batch(problems, x0s, learning_rate=1e-3, iterations=120, record_every=50)
    assert_equals_single_runs(batch, problems, x0s, np.full(5, 1e-3), 120)
    for r in range(5):
        np.testing.assert_allclose(batch.normalized_cost[r, -1], offspan.normalized_cost(problems[r], batch.K[r], x0s[r]), rtol=1e-9)
    clipped = offspan.train_lqr_batch(problems, x0s, learning_rate=1e-3, iterations=20, clip=0.1)
    for r in range(5):
        alone = offspan.train_lqr(problems[r], x0s[r], learning_rate=1e-3, iterations=20, clip=0.1)
        np.testing.assert_allclose(clipped.K[r], alone.K, rtol=1e-10, atol=1e-12)
    assert np.abs(clipped.K - batch.K).max() > 1e-4


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


@pytest.mark.parametrize("iterations", [0, 1, 1_500])
def test_a_run_whose_first_cost_overflows_has_diverged_at_once(iterations):
    """K(1) = 1e120 I on the shift with H = 5: every number is finite but the cost, before any update is made."""
    problem, seen = offspan.shift(2, horizon=5), offspan.basis(2, 1)
    K0 = np.stack([0 * np.eye(2), 1e120 * np.eye(2)])
    batch = offspan.train_lqr_batch([problem] * 2, [seen] * 2, learning_rate=0.01, iterations=iterations, K0=K0)
    alone = offspan.train_lqr(problem, seen, learning_rate=0.01, iterations=iterations, K0=K0[1])
    assert (batch.status[1], batch.iterations[1]) == (alone.status, alone.iterations)
    assert batch.status[1] == ("diverged" if iterations else "finished")  # nothing was done, so nothing failed
    assert batch.iterations.tolist() == [iterations, 0]
    np.testing.assert_array_equal(batch.K[1], K0[1])
    assert np.isinf(batch.cost[1, 0])


@pytest.mark.parametrize("stages", [(2_000,), (1_000, 2_000)])
def test_a_cost_that_overflows_at_the_end_of_a_thousand_iterations(stages):
    """1 + K is multiplied by 1 − 2η = −1.1 with each update, and J = 1 + (1 + K)² is finite for 1,000 updates from this K(1), no longer;
    also where a checkpoint is taken just there."""
    problem, seen = offspan.identity(1, horizon=1), offspan.basis(1)
    K0 = np.full((1, 1, 1), np.sqrt(np.finfo(float).max) / 1.1**999.5 - 1)
    settings: dict[str, Any] = {"learning_rate": 1.05, "iterations": 2_000, "record_every": 500, "K0": K0}
    alone = offspan.train_lqr(problem, seen, learning_rate=1.05, iterations=2_000, K0=K0[0])
    assert (alone.status, alone.iterations) == ("diverged", 1_000)
    batches: list[offspan.Batch] = []
    batch = offspan.train_lqr_batch([problem], [seen], on_chunk=batches.append, **settings)
    if len(stages) == 2:
        (stopped,) = [one for one in batches if one.done == 1_000]
        batch = offspan.train_lqr_batch([problem], [seen], resume=stopped, **settings)
    assert (batch.status[0], batch.iterations[0]) == ("diverged", 1_000)
    assert np.isfinite(batch.cost[0, :2]).all()


def test_a_batch_resumes_in_its_own_precision_only():
    problem, seen = offspan.shift(2, horizon=2), np.eye(2, dtype=np.float32)[:1]
    narrow = jax.tree.map(lambda a: a.astype(np.float32), problem)
    batch = offspan.train_lqr_batch([problem], [seen], learning_rate=0.01, iterations=5)
    with pytest.raises(offspan.OffspanError, match="`resume` belongs to another batch"):
        offspan.train_lqr_batch([narrow], [seen], learning_rate=0.01, iterations=5, resume=batch)


def test_mixed_precision_is_the_wider_one():
    narrow = jax.tree.map(lambda a: a.astype(np.float32), offspan.shift(3, horizon=3))
    batch = offspan.train_lqr_batch(
        [narrow, offspan.shift(3, horizon=3)], [np.eye(3, dtype=np.float32)[:1], np.eye(3)[:2]], learning_rate=0.01, iterations=20
    )
    assert batch.K.dtype == np.float64


@pytest.mark.parametrize("stop_after", [2, 4])
def test_a_resumed_batch_gives_the_same_bits(monkeypatch, stop_after):
    """Stopped before and after a run of it diverges, at iterations that are no multiples of `record_every`."""
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

    monkeypatch.setattr(engine, "SECONDS", 1e9)  # chunks of 1, 10, 100 and the rest of a thousand iterations
    with pytest.raises(KeyboardInterrupt):
        offspan.train_lqr_batch(problems, x0s, on_chunk=interrupt, **settings)
    assert seen[-1].done == (11 if stop_after == 2 else 1_000)
    assert (seen[-1].status[2] == "diverged") == (seen[-1].done >= 1_000)
    assert seen[-1].carried[1] == seen[-1].done // 1_000 * 1_000, "a run that diverges is repeated from there"
    before = seen[-1].cost.copy()
    again = offspan.train_lqr_batch(problems, x0s, resume=seen[-1], **settings)
    np.testing.assert_array_equal(seen[-1].cost, before, err_msg="resuming changed the batch that it was given")
    for name, value in whole.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], value, err_msg=name)


@pytest.mark.parametrize("first", [700, 1_000])
def test_a_batch_resumes_to_more_iterations_bit_for_bit(first):
    """With the records of the whole, and without the last one of the part."""
    problems, x0s, rates, K0 = mixed_batch()
    settings: dict[str, Any] = {"learning_rate": rates, "K0": K0, "record_every": 300}
    whole = offspan.train_lqr_batch(problems, x0s, iterations=1_500, **settings)
    part = offspan.train_lqr_batch(problems, x0s, iterations=first, **settings)
    assert part.recorded.tolist() == [*range(0, first, 300), first]
    longer = offspan.train_lqr_batch(problems, x0s, iterations=1_500, resume=part, **settings)
    for name, value in whole.to_arrays().items():
        np.testing.assert_array_equal(longer.to_arrays()[name], value, err_msg=name)


def test_many_runs_are_worked_through_in_blocks(monkeypatch):
    problems = [offspan.gaussian(jax.random.key(seed), 3, horizon=3) for seed in range(21)]
    x0s = [offspan.basis(3, 1 + seed % 2) for seed in range(21)]
    whole = offspan.train_lqr_batch(problems, x0s, learning_rate=0.01, iterations=40)
    monkeypatch.setattr(lqr_sweep, "LANES", 8)
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
    with pytest.raises(
        ValueError, match=r"10,000 runs of 3 time steps with 1,001 records each need about 0\.\d\d GiB, but 0\.10 GiB are free"
    ):
        offspan.train_lqr_batch([problem] * 10_000, [seen] * 10_000, memory_limit=0.1 * 2**30, **settings)


def test_the_kernels_are_the_adjoint_gradient():
    """One update of each kernel against `lqr_gradient`, with every matrix there and with each left out."""
    from offspan.training.lqr_kernels import Systems, descend_by_products, descend_in_lanes

    for B, Q, R in ((True, True, True), (False, True, False), (True, False, True), (False, False, False)):
        full = random_lqr(1, 4, 4, 5, control_cost=R)
        problem = offspan.LQR(full.A, full.B if B else None, full.Q if Q else None, full.R if R else None, horizon=5)
        K, x0s = random_gain(1, problem), offspan.sphere(jax.random.key(0), 2, 4)
        states = jnp.concatenate([x0s, jnp.zeros((1, 4))])  # as many as the largest set of a batch, those after |S| zero
        matrices = problem.B if B else None, problem.Q if Q else None, problem.R if R else None
        one = Systems(problem.A, *matrices, states, jnp.asarray(2.0), jnp.asarray(0.1))
        expected = K - 0.1 * offspan.lqr_gradient(problem, K, x0s)
        assert jnp.linalg.norm(expected - K) > 1e-2
        several = jax.tree.map(lambda a: a[None], one)
        for unroll in (1, 2, 5):
            for stacked in (True, False):
                np.testing.assert_allclose(descend_by_products(one, K, 5, 1, unroll, stacked), expected, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(descend_in_lanes(several, K[None], 5, 1, unroll)[0], expected, rtol=1e-12, atol=1e-13)


def test_systems_whose_coordinates_have_different_names_are_one_batch():
    """Names are no numbers: the runs are those of `train_lqr` all the same."""
    named = [offspan.LQR(np.eye(2), horizon=2, coordinates=names) for names in (("x", "y"), ("p", "q"), None)]
    batch = offspan.train_lqr_batch(named, [offspan.basis(2, 1)] * 3, learning_rate=0.1, iterations=5)
    alone = offspan.train_lqr(offspan.identity(2, horizon=2), offspan.basis(2, 1), learning_rate=0.1, iterations=5).K
    np.testing.assert_allclose(batch.K, np.broadcast_to(alone, (3, 2, 2)), rtol=1e-12)


def test_where_nothing_is_to_be_normalised_by_the_records_are_nan():
    """A = W P_S has A U = 0 up to rounding, and for B not square no measure is defined: those runs train, but have no measures."""
    keys = jax.random.split(jax.random.key(0), 2)
    x0s, W = jax.random.normal(keys[0], (2, 4)), jax.random.normal(keys[1], (4, 4))
    blind, generic = offspan.LQR(W @ offspan.seen_projector(x0s), horizon=3), offspan.LQR(W, horizon=3)
    batch = offspan.train_lqr_batch([blind, generic], [x0s] * 2, learning_rate=1e-4, iterations=20)
    fewer = random_lqr(0, 4, 3, 3, control_cost=False)
    narrow = offspan.train_lqr_batch([fewer], [x0s], learning_rate=1e-4, iterations=20)
    assert np.all(batch.cost[:, -1] < batch.cost[:, 0])
    assert np.all(narrow.cost[:, -1] < narrow.cost[:, 0])
    for name in ("normalized_optimality", "normalized_cost"):
        assert np.isnan(getattr(batch, name)[0]).all()
        assert np.isfinite(getattr(batch, name)[1]).all()
        assert np.isnan(getattr(narrow, name)).all()


def test_the_record_of_the_controller_that_no_update_follows_is_kept():
    """J(K) = 1 + (1 + k)² for K = k I from e_1, and 1 + k unseen: at k = 1e150 all is finite, but η ∇J = 2e200 (1 + k) is not.

    The run fails at iteration 0, with its K(1), and with the record of K(1): `train_lqr`'s cost[0].
    """
    problem, seen, K0 = offspan.identity(2, horizon=1), offspan.basis(2, 1), 1e150 * np.eye(2)
    settings: dict[str, Any] = {"learning_rate": 1e200, "iterations": 3}
    run = offspan.train_lqr(problem, seen, K0=K0, **settings)
    batch = offspan.train_lqr_batch([problem], [seen], K0=K0[None], record_every=1, **settings)
    assert (run.status, run.iterations) == (batch.status[0], batch.iterations[0]) == ("diverged", 0)
    np.testing.assert_array_equal(batch.K[0], K0)
    for record in (run.cost, batch.cost[0], batch.normalized_optimality[0], batch.normalized_cost[0]):
        np.testing.assert_allclose(record[0], 1e300, rtol=1e-12)
        assert np.isnan(record[1:]).all()


@pytest.mark.parametrize(("of_problem", "of_states"), [(np.float32, np.float64), (np.float64, np.float32)])
def test_training_in_mixed_precision_is_training_in_the_wider_one(of_problem, of_states):
    """Matrices and states of zeros and ones are the same numbers in both precisions, so the run is the float64 run."""
    problem, x0s = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    mixed: Any = jax.tree.map(lambda a: a.astype(of_problem), problem), np.asarray(x0s, of_states)
    settings: dict[str, Any] = {"learning_rate": 0.01, "iterations": 50}
    expected = offspan.train_lqr(problem, x0s, **settings)
    run = offspan.train_lqr(*mixed, **settings)
    batch = offspan.train_lqr_batch(*([part] for part in mixed), **settings)
    assert run.K.dtype == run.cost.dtype == batch.K.dtype == batch.cost.dtype == np.float64
    np.testing.assert_allclose(run.K, expected.K, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(batch.K[0], expected.K, rtol=1e-12, atol=1e-14)


def test_a_run_that_diverges_in_a_later_chunk_says_so_and_keeps_its_earlier_records():
    """1 + K is multiplied by 1 − 2η = −1.26 with each update, so J = 1 + 1.26^(2i) is finite for 1,500 updates: more than one chunk."""
    problem, seen = offspan.identity(2, horizon=1), offspan.basis(2, 1)
    batch = offspan.train_lqr_batch([problem], [seen], learning_rate=1.13, iterations=2_000, record_every=100)
    overflow = np.log(np.finfo(float).max) / (2 * np.log(1.26))
    assert batch.status[0] == "diverged"
    assert 1_000 < overflow - 1 < batch.iterations[0] < overflow + 1
    sooner, later = batch.recorded < batch.iterations[0], batch.recorded > batch.iterations[0]
    np.testing.assert_allclose(batch.cost[0, sooner], 1 + 1.26 ** (2.0 * batch.recorded[sooner]), rtol=1e-9)
    assert np.isnan(batch.cost[0, later]).all()
