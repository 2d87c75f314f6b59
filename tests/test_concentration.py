"""Sharp dimensions, wide systems and the law at long horizons, by routes that share no code with them."""

from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

from offspan.theory import concentration, gaussian
from offspan.theory.concentration import (
    alignment_failure,
    alignment_spread,
    limit_of_gain,
    step_failure,
    sufficient_dimension,
)
from offspan.theory.gaussian import expected_gradient_norm, first_step_law, terms
from offspan.theory.genus import Laurent, closings, expectation, expectation_by_gluings, expectation_of_forms, word
from offspan.theory.monte_carlo import estimate, simulate, simulate_wide


def by_gluings(*forms):
    if any(not W and alpha != beta for alpha, W, beta in forms):
        return Laurent()
    return expectation_by_gluings([word(W, beta, alpha) for alpha, W, beta in forms if W])


@pytest.mark.parametrize("words", [("AATT",), ("AT", "TA"), ("A", "AAT"), ("A", "A", "TA"), ("A", "AT", "TAA"), ("AA", "A", "T", "TT")])
def test_a_unit_vector_averages_to_closings(words):
    """D (D+2) ⋯ (D+2q−2) E Π xᵀW_i x = Σ over closings of E Π Tr, both by all pairings of the letters; (2q−1)!! closings."""
    q = len(words)
    cycles = list(closings(words))
    assert len(cycles) == prod(range(2 * q - 1, 1, -2))
    factor = Laurent(1)
    for i in range(q):
        factor *= Laurent({1: 1, 0: 2 * i})
    traces = sum((expectation_by_gluings([word(W) for W in one]) for one in cycles), Laurent())
    assert by_gluings(*(("x", W, "x") for W in words)) * factor == traces


@pytest.mark.parametrize("horizon", [3, 4])
def test_the_law_by_traces_is_the_sum_of_its_named_terms(horizon):
    """b and E‖∇J‖² term by term, with v and y as vectors, by the recursion on forms: nothing is averaged there."""
    seen: dict = {}
    for i, y in enumerate("xy"):
        b, norm = Laurent(), Laurent()
        for (n, k), (m, j) in product(terms(horizon), repeat=2):
            core = "x", "T" * (n + k + 1) + "A" * k + "T" * j + "A" * (m + j + 1), y
            norm += expectation_of_forms([(y, "T" * m + "A" * n, "x"), core], seen=seen)
            b += expectation_of_forms([("v", "A" * n, "x"), ("v", "A" * m, y), core], seen=seen)
        assert gaussian._sums(horizon)[0][i] == b
        assert gaussian._sums(horizon)[1][i] == norm


@pytest.mark.parametrize("horizon", [5, 7])
def test_long_horizons(horizon, monkeypatch):
    """At D = 1, J = Σ A^{2N} and E J'² = 4 Σ_{N,M} N M (2N+2M−3)!!; at D → ∞, the planar counts."""
    monkeypatch.setattr(gaussian, "_KNOWN", {})
    shares = []
    law = first_step_law(None, horizon, 1, progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) > 3
    assert shares[-1] == 1
    norm, steps = expected_gradient_norm(None, horizon, 1), range(1, horizon + 1)
    assert norm(1) == 4 * sum(N * M * prod(range(2 * N + 2 * M - 3, 1, -2)) for N in steps for M in steps)
    assert law.a.coefficients[-1] == 2 * horizon * (horizon - 1)
    assert law.b.coefficients[-1] == Fraction(horizon**2 * (horizon**2 - 1), 3)
    assert norm.coefficients[0] == Fraction(horizon * (horizon + 1) ** 2 * (horizon + 2), 3)


@pytest.mark.parametrize(("dim", "horizon", "seen"), [(100, 6, 1), (60, 5, 2), (30, 3, 3)])
def test_wide_systems_have_the_law(dim, horizon, seen):
    steps, law = simulate_wide(jax.random.key(1), dim, horizon, seen, 20_000), first_step_law(dim, horizon, seen)
    exact = {"baseline": 1, "alignment": law.a, "curvature": law.b, "gradient_norm": expected_gradient_norm(dim, horizon, seen)}
    for name, value in exact.items():
        mean, error = estimate(getattr(steps, name))
        assert abs(mean - float(value)) < 4 * error, name
        assert error < 0.02 * mean


def test_wide_systems_are_distributed_like_whole_matrices():
    """Two-sample Kolmogorov–Smirnov tests on all four numbers, and their correlations."""
    whole, wide = simulate(jax.random.key(0), 16, 3, 2, 4_000), simulate_wide(jax.random.key(0), 16, 3, 2, 4_000)
    for one, other in zip(whole, wide, strict=True):
        pvalue: Any = scipy.stats.ks_2samp(one, other)[1]
        assert pvalue > 1e-3
    np.testing.assert_allclose(np.corrcoef(np.log(np.abs(whole))), np.corrcoef(np.log(np.abs(wide))), atol=0.06)
    with pytest.raises(ValueError, match=r"`dim` is 12, but must be more than 2\|S\|H = 12"):
        simulate_wide(jax.random.key(0), 12, 3, 2, 10)


def test_covariances_by_all_pairings():
    """H = 2, the four cases v = w or not, x = y or not."""
    mean = by_gluings(("v", "A", "x"), ("x", "TTA", "v"))
    for (y, w), covariance in zip(product("xy", "vw"), concentration._covariances(2), strict=True):
        assert covariance == by_gluings(("v", "A", "x"), ("x", "TTA", "v"), (w, "A", y), (y, "TTA", w)) - mean * mean


@pytest.mark.parametrize("horizon", [2, 3])
def test_the_variance_without_unseen_vectors(horizon):
    """|S| = 1: X = 4/(D−1) (Σ_N (N−1)‖A^N x‖² − Σ xᵀAⁿx · xᵀ(A^{n+k+1})ᵀA^{k+1}x), with x averaged over the sphere."""
    N_words = [(N - 1, ("T" * N + "A" * N,)) for N in range(2, horizon + 1)]
    x_words = [(-1, ("A" * n, "T" * (n + k + 1) + "A" * (k + 1))) for n, k in terms(horizon) if n]
    for dim in (5, 50):
        moments = [Fraction(0), Fraction(0)]
        for power in (1, 2):
            for chosen in product(N_words + x_words, repeat=power):
                words = tuple(W for _, part in chosen for W in part)
                traces = sum((expectation([word(W) for W in one]) for one in closings(words)), Laurent())
                moments[power - 1] += prod(c for c, _ in chosen) * traces(dim) / prod(dim + 2 * i for i in range(len(words)))
        a, second = Fraction(4, dim - 1) * moments[0], Fraction(16, (dim - 1) ** 2) * moments[1]
        assert alignment_spread(dim, horizon, 1) == (a, second - a**2)


@pytest.mark.parametrize(("dim", "horizon", "seen"), [(20, 2, 3), (30, 3, 2)])
def test_the_variance_of_simulated_systems(dim, horizon, seen):
    a, variance = alignment_spread(dim, horizon, seen)
    mean, error = estimate((simulate_wide(jax.random.key(2), dim, horizon, seen, 40_000).alignment - float(a)) ** 2)
    assert abs(mean - float(variance)) < 4 * error
    assert error < 0.06 * mean


def test_numbers_of_the_bounds():
    """Two-sided, H = 2: 0.332 at D = 50, 0.00635 at 2521; at H = 3, D = 200, a union bound over (n, k) gives 0.326, X itself 0.099."""

    def chebyshev(dim, horizon):
        a, variance = alignment_spread(dim, horizon, 1)
        return float(variance / (a - Fraction(horizon * (horizon - 1), dim)) ** 2)

    assert chebyshev(50, 2) == pytest.approx(0.3316, abs=1e-4)
    assert chebyshev(2521, 2) == pytest.approx(0.00635, abs=1e-5)
    assert chebyshev(200, 3) == pytest.approx(0.0994, abs=1e-4)
    union = 0
    for n, k in [(n, k) for n, k in terms(3) if n]:
        variance = (gaussian.alignment_variance(n, k)(200) + 198 * gaussian.alignment_covariance(n, k)(200)) / 199
        union += float(variance / (gaussian.alignment_mean(n, k)(200) - Fraction(1, 400)) ** 2)
    assert union == pytest.approx(0.326, abs=1e-3)
    assert [[sufficient_dimension(H, 1, delta) for delta in concentration.FAILURES] for H in (2, 3)] == [[34, 146, 1586], [43, 180, 1940]]


@pytest.mark.parametrize(("horizon", "seen"), [(2, 1), (3, 1), (3, 3)])
def test_the_bound_falls_with_the_dimension(horizon, seen):
    """So bisection finds the least D; and a learning rate that does not depend on D will do, too."""
    for eta in (None, 0.01):
        failures = [step_failure(dim, horizon, seen, eta) for dim in [*range(seen + 1, 60), 100, 1000, 10_000]]
        assert failures == sorted(failures, reverse=True)
        assert all(step_failure(dim, horizon, seen, eta) >= alignment_failure(dim, horizon, seen) for dim in (10, 100))
    dim = sufficient_dimension(horizon, seen, 0.2, eta=0.01)
    assert step_failure(dim, horizon, seen, 0.01) <= 0.2 < step_failure(dim - 1, horizon, seen, 0.01)
    steps = simulate_wide(jax.random.key(5), 100, horizon, seen, 500)
    assert np.mean(concentration.reduces(steps, 100, horizon, 0.01)) >= 1 - step_failure(100, horizon, seen, 0.01)
    assert limit_of_gain(horizon, seen, 3 * seen / (horizon * (horizon + 1))) == pytest.approx(3 * seen * (horizon - 1) / (horizon + 1))


def test_what_cannot_be_asked():
    with pytest.raises(ValueError, match="`horizon` is 9, but exact variances are for H ≤ 5"):
        alignment_spread(20, 9, 1)
    with pytest.raises(ValueError, match=r"`failure` is 2\.0, but must be a probability"):
        sufficient_dimension(2, 1, 2.0)
    with pytest.raises(ValueError, match=r"`eta` is -1\.0, but a learning rate is positive"):
        step_failure(20, 2, 1, -1.0)
    with pytest.raises(ValueError, match=r"no dimension up to 10⁹ gives δ = 0.01; pass a smaller `eta`"):
        sufficient_dimension(2, 1, 0.01, eta=0.5)
