"""The genus expansion and the exact law of the first step, by routes that share no code with them."""

import random
from fractions import Fraction
from itertools import product
from math import comb, prod

import jax
import numpy as np
import pytest

import offspan
from offspan.theory.gaussian import (
    FirstStepLaw,
    alignment_covariance,
    alignment_mean,
    alignment_variance,
    bounds,
    expected_gradient_norm,
    first_step_law,
    likely_dimension,
    terms,
)
from offspan.theory.genus import Laurent, Letter, expectation, expectation_by_gluings, expectation_of_forms, gluings, word
from offspan.theory.monte_carlo import estimate, simulate, stepped_measures, trained_ratios
from offspan.theory.random_systems import _by_entries


def necklaces(length: int) -> list[str]:
    """Every word of this length in A and Aᵀ, one of each class under rotation, transposition and exchange of A and Aᵀ."""
    swap, kept = str.maketrans("AT", "TA"), []
    for letters in map("".join, product("AT", repeat=length)):
        alike = [letters, letters.translate(swap), letters[::-1], letters[::-1].translate(swap)]
        if letters == min(one[i:] + one[:i] for one in alike for i in range(length)):
            kept.append(letters)
    return kept


def all_pairings(length: int) -> np.ndarray:
    """Each row the partners of 0..length−1 in one of the (length−1)!! pairings."""

    def pairings(items):
        if not items:
            yield {}
        for i in range(1, len(items)):
            for rest in pairings(items[1:i] + items[i + 1 :]):
                yield {items[0]: items[i], items[i]: items[0], **rest}

    return np.array([[one[k] for k in range(length)] for one in pairings(tuple(range(length)))])


def by_arrays(letters: str, pairings: np.ndarray) -> Laurent:
    """E Tr(word) by Wick's formula in arrays: A_ij A_kl pairs to δ_ik δ_jl / D, so count the classes of equal indices for each pairing.

    Letter k stands between the indices k and k+1, its row being k for A, and k+1 for Aᵀ. Gluing makes a permutation of the 2p ends of
    letters, from an end over to the partner's like end, and from there to the neighbour that shares its index; its cycles, two by two,
    are the classes.
    """
    p = len(letters)
    row_is_left = np.array([letter == "A" for letter in letters])
    left_end, right_end = np.where(row_is_left, 0, p) + np.arange(p), np.where(row_is_left, p, 0) + np.arange(p)  # rows first, then columns
    neighbour = np.empty(2 * p, int)  # the end that shares its index
    neighbour[right_end], neighbour[np.roll(left_end, -1)] = np.roll(left_end, -1), right_end
    step = neighbour[np.hstack([pairings, pairings + p])]
    label = np.tile(np.arange(2 * p), (len(step), 1))
    for _ in range(int(np.ceil(np.log2(2 * p))) + 1):
        label = np.minimum(label, np.take_along_axis(label, step, axis=1))
        step = np.take_along_axis(step, step, axis=1)
    classes = np.sum(label == np.arange(2 * p), axis=1) // 2
    return Laurent({int(e) - p // 2: int(np.sum(classes == e)) for e in np.unique(classes)})


@pytest.mark.parametrize("length", [2, 4, 6, 8, 10, 12])
def test_the_recursion_is_the_sum_over_all_pairings_for_every_word(length):
    """Every word up to 12 letters by all its pairings; up to 8, also in the theorem's own permutations."""
    words, pairings = necklaces(length), all_pairings(length)
    assert len(words) == {2: 2, 4: 4, 6: 8, 8: 18, 10: 44, 12: 122}[length]
    assert len(pairings) == prod(range(length - 1, 1, -2))
    for letters in words:
        exact = expectation([word(letters)])
        assert exact == by_arrays(letters, pairings)
        if length <= 8:
            assert exact == expectation_by_gluings([word(letters)])


def test_words_that_are_alike_have_one_expectation():
    rng = random.Random(0)
    for _ in range(50):
        letters = "".join(rng.choices("AT", k=rng.choice((6, 8, 10))))
        shift = rng.randrange(len(letters))
        alike = [letters[shift:] + letters[:shift], letters[::-1], letters.translate(str.maketrans("AT", "TA"))]
        assert {expectation([word(one)]) for one in [letters, *alike]} == {expectation([word(letters)])}


def test_products_of_traces_with_fixed_matrices():
    """Several traces, with x yᵀ after some letters: the recursion against all gluings, and short ones against sums over all entries."""
    rng, nonzero, by_entries = random.Random(0), 0, 0
    fixed = [(None, None), (None, None), ("x", "y"), ("x", "x"), ("y", "x")]
    while nonzero < 25:
        words = [tuple(Letter(rng.choice((1, -1)), *rng.choice(fixed)) for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        if sum(map(len, words)) not in (2, 4, 6, 8):
            continue
        exact = expectation(words)
        assert exact == expectation_by_gluings(words)
        nonzero += exact != Laurent()
        if exact != Laurent() and sum(map(len, words)) <= 6:
            assert exact(2) == _by_entries(words, 2)
            by_entries += 1
    assert by_entries > 5


@pytest.mark.parametrize("horizon", [2, 3])
def test_the_words_of_the_theorem_by_all_gluings(horizon):
    """a, b, E‖∇J‖² (x = y and x ≠ y), Var and Cov for H = 2, 3: up to 12 letters."""

    def by_gluings(*forms):
        if any(not W and alpha != beta for alpha, W, beta in forms):
            return Laurent()
        return expectation_by_gluings([word(W, beta, alpha) for alpha, W, beta in forms if W])

    a, b, norm = Laurent(), {}, {}
    for n, k in terms(horizon):
        if n:
            a += by_gluings(("v", "A" * n, "x"), ("x", "T" * (n + k + 1) + "A" * (k + 1), "v")) * 4
    for y in "xy":
        b[y] = norm[y] = Laurent()
        for (n, k), (m, j) in product(terms(horizon), repeat=2):
            core = ("x", "T" * (n + k + 1) + "A" * k + "T" * j + "A" * (m + j + 1), y)
            b[y] += by_gluings(("v", "A" * n, "x"), ("v", "A" * m, y), core) * 4
            norm[y] += by_gluings((y, "T" * m + "A" * n, "x"), core) * 4
    for seen in (1, 2, 3):
        share = Fraction(1, seen)
        assert first_step_law(None, horizon, seen) == FirstStepLaw(a, (b["x"] + b["y"] * (seen - 1)) * share)
        assert expected_gradient_norm(None, horizon, seen) == (norm["x"] + norm["y"] * (seen - 1)) * share
    for n, k in [(n, k) for n, k in terms(horizon) if n][:2]:
        z = [("x", "T" * (n + k + 1) + "A" * (k + 1)), ("A" * n, "x")]
        both = [(z[0][0], z[0][1], v) for v in "vw"] + [(v, *z[1]) for v in "vw"]
        mean = alignment_mean(n, k)
        assert alignment_covariance(n, k) == by_gluings(*both) - mean * mean
        once = [(z[0][0], z[0][1], "v"), ("v", *z[1])]
        assert alignment_variance(n, k) == by_gluings(*once, *once) - mean * mean


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_moments_of_wishart_matrices(k):
    """E tr(AAᵀ)^k: (2k−1)!! at D = 1; at D = 2 by Bartlett's decomposition AAᵀ = LLᵀ, with moments of χ²; Catalan's number for large D."""
    exact = expectation([word("AT" * k)])
    assert exact(1) == prod(range(2 * k - 1, 1, -2))
    assert exact.coefficients[1] == comb(2 * k, k) // (k + 1)

    # L = [[p, 0], [q, r]] / √2 with p² ~ χ²_2, r² ~ χ²_1, q ~ N(0, 1). tr and det of L Lᵀ give tr (L Lᵀ)^k by Newton's recursion.
    def multiply(f, g):
        out = {}
        for (i, j, m), c in f.items():
            for (a, b, d), e in g.items():
                out[i + a, j + b, m + d] = out.get((i + a, j + b, m + d), 0) + c * e
        return out

    trace, determinant = {(1, 0, 0): 1, (0, 1, 0): 1, (0, 0, 1): 1}, {(1, 0, 1): -1}  # in p², q², r²; the sign is Newton's
    powers = [{(0, 0, 0): 2}, trace]
    while len(powers) <= k:
        first, second = multiply(trace, powers[-1]), multiply(determinant, powers[-2])
        powers.append({key: first.get(key, 0) + second.get(key, 0) for key in first.keys() | second.keys()})

    def chi2_moment(freedom, power):
        return prod(freedom + 2 * i for i in range(power))

    total = sum(c * chi2_moment(2, i) * chi2_moment(1, j) * chi2_moment(1, m) for (i, j, m), c in powers[k].items())
    assert exact(2) == Fraction(total, 2**k)


@pytest.mark.parametrize(("letters", "sizes"), [("ATAT", [1, 2, 2]), ("AATT", [0, 0, 2]), ("AAAA", [0, 0, 1])])
def test_surfaces_of_four_letters(letters, sizes):
    """Spheres (2), projective planes (1), Klein bottles and tori (0); with one polygon, a twisted pair alone makes it non-orientable."""
    found = list(gluings([word(letters)]))
    assert sorted(gluing.euler_characteristic for gluing in found) == sizes
    for gluing in found:
        twisted = any(letters[i - 1] == letters[j - 1] for i, j in gluing.pairs)
        assert gluing.orientable != twisted
        assert gluing.components == 1
    assert sum((gluing.term for gluing in found), Laurent()) == expectation([word(letters)])


def test_the_law_at_two_steps_is_the_one_by_hand():
    """H = 2: a = 4/D for any |S|, b = 4((D+4)/D³ + (D+1)/D²) for |S| = 1; at D = 5 the best η is 0.3205, E‖∇J‖² = 35.104."""
    for seen in (1, 2, 3):
        assert first_step_law(None, 2, seen).a == Laurent({-1: 4})
    for dim in (2, 5, 11):
        assert first_step_law(dim, 2, 1).b == 4 * (Fraction(dim + 4, dim**3) + Fraction(dim + 1, dim**2))
    law = first_step_law(5, 2, 1)
    assert float(law.best_learning_rate) == pytest.approx(0.3205, abs=5e-5)
    assert law.ratio(law.best_learning_rate) == law.best_ratio == 1 - law.a**2 / (4 * law.b)
    assert law.ratio(law.largest_learning_rate) == 1
    assert law.ratio(Fraction(1, 4)) == 1 - law.a / 4 + law.b / 16
    assert law.ratio(0.25) == float(law.ratio(Fraction(1, 4)))
    assert expected_gradient_norm(5, 2, 1) == Fraction(35104, 1000)


@pytest.mark.parametrize(("dim", "horizon", "seen"), [(5, 2, 1), (3, 2, 2), (6, 3, 2), (10, 2, 4), (8, 4, 1)])
def test_the_law_is_what_simulated_systems_do(dim, horizon, seen):
    steps = simulate(jax.random.key(dim), dim, horizon, seen, 60_000)
    law = first_step_law(dim, horizon, seen)
    expected = {"baseline": 1, "alignment": law.a, "curvature": law.b, "gradient_norm": expected_gradient_norm(dim, horizon, seen)}
    for name, exact in expected.items():
        mean, error = estimate(getattr(steps, name))
        assert abs(mean - float(exact)) < 4 * error, name
        assert error < 0.1 * mean


def test_a_simulated_step_is_a_step_of_training():
    """The ratio of one system by its quadratic law, against `train_lqr` and the measures; starts of length 2 are η times 4."""
    draws = jax.random.normal(jax.random.split(jax.random.key(3), 1)[0], (7, 4, 4)) / 2
    steps = simulate(jax.random.key(3), 4, 3, 2, 7)
    longer = simulate(jax.random.key(3), 4, 3, 2, 7, length=2.0)
    for r in range(7):
        problem, seen = offspan.LQR(draws[r], horizon=3), offspan.basis(4, 2)
        K = offspan.train_lqr(problem, seen, learning_rate=0.05, iterations=1).K
        assert steps.ratios(0.05)[r] == pytest.approx(float(offspan.normalized_optimality(problem, K, seen)), rel=1e-10)
    np.testing.assert_allclose(longer.ratios(0.05 / 4), steps.ratios(0.05), rtol=1e-10)
    assert trained_ratios(jax.random.key(0), 4, 3, 1, 0.01, 5, 50).shape == (5,)


def test_the_measure_after_a_real_step_is_the_law_for_any_orthogonal_control():
    law = first_step_law(6, 2, 2)
    mean, error = estimate(stepped_measures(jax.random.key(1), 6, 2, 2, 0.2, 60_000))
    assert abs(mean - float(law.ratio(0.2))) < 4 * error
    assert error < 0.005


@pytest.mark.parametrize("horizon", [2, 3, 4])
def test_exact_values_keep_the_bounds_of_the_proof(horizon):
    """For every D at once where all coefficients are positive, else at several D; the printed bound on E‖∇J‖² holds by far."""
    for n, k in terms(horizon):
        if n:
            mean = alignment_mean(n, k)
            assert mean.coefficients[-1] == 1
            assert all(c > 0 for c in mean.coefficients.values())  # so E Z ≥ 1/D for every D
    for seen in (1, 2, 3):
        norm = expected_gradient_norm(None, horizon, seen)
        assert isinstance(norm, Laurent)
        assert max(norm.coefficients) == 0
        for dim in (4, 10, 100):
            law, limits = first_step_law(dim, horizon, seen), bounds(dim, horizon)
            assert law.a >= limits.alignment
            assert norm(dim) <= min(limits.gradient_norm, limits.gradient_norm_counted)
            assert law.ratio(limits.learning_rate) <= 1 - limits.learning_rate * Fraction(horizon * (horizon - 1), dim)
            assert law.best_learning_rate > 100 * limits.learning_rate


@pytest.mark.parametrize("horizon", [2, 3, 4])
def test_the_law_for_large_dimensions(horizon):
    """D·a → 2H(H−1) and D·b → H²(H²−1)/(3|S|): so η* → 3|S|/(H(H+1)), and the gain there is 3|S|(H−1)/((H+1)D)."""
    for seen in (1, 2, 5):
        law = first_step_law(None, horizon, seen)
        assert law.a.coefficients[-1] == 2 * horizon * (horizon - 1)
        assert law.b.coefficients[-1] == Fraction(horizon**2 * (horizon**2 - 1), 3 * seen)
        far = law.at(10**9)
        assert float(far.best_learning_rate) == pytest.approx(3 * seen / (horizon * (horizon + 1)), rel=1e-6)
        assert float(1 - far.best_ratio) * 10**9 == pytest.approx(3 * seen * (horizon - 1) / (horizon + 1), rel=1e-6)


def test_numbers_of_the_theorem():
    """The required D is 2521 at H = 2, δ = ½, and about 750,000 at H = 3; the learning rate at D = 5, H = 2 is 2.4e-4."""
    assert likely_dimension(2, 1, Fraction(1, 2)) == 2521
    assert likely_dimension(3, 1, Fraction(1, 2)) == 748_441
    assert float(bounds(5, 2).learning_rate) == pytest.approx(2.4e-4, rel=0.01)
    assert bounds(5, 2).gradient_norm == 1680
    assert bounds(5, 2).gradient_norm_counted == 540
    for horizon in range(2, 8):  # so the printed bound follows from the proof's terms
        assert bounds(5, horizon).gradient_norm_counted <= bounds(5, horizon).gradient_norm


def test_laurent_polynomials():
    p, q = Laurent({1: 2, 0: -1, -2: Fraction(1, 3)}), Laurent({-1: 1})
    for dim in (1, 2, 7):
        assert (p + q)(dim) == p(dim) + q(dim)
        assert (p * q)(dim) == p(dim) * q(dim)
        assert (p - q * 2)(dim) == p(dim) - 2 * q(dim)
    assert p + 0 == p
    assert p * 0 == Laurent()
    assert repr(p) == "2D − 1 + 1/3/D^2"
    assert [repr(Laurent(c)) for c in ({}, {0: 1}, {1: 1}, {-1: -1, -3: 2})] == ["0", "1", "D", "−1/D + 2/D^3"]


def test_what_cannot_be_asked():
    with pytest.raises(ValueError, match="the letters are 'AB', but must be A, and T"):
        word("AB")
    with pytest.raises(ValueError, match="give both, for the matrix"):
        word("A", "x")
    with pytest.raises(ValueError, match="36 letters, but"):
        expectation_of_forms([("x", "A" * 18, "y"), ("x", "A" * 18, "y")])
    with pytest.raises(ValueError, match=r"`horizon` is 10, but exact values have words of 4H − 2 ≤ 34 letters: H ≤ 9\."):
        first_step_law(20, 10, 1)
    with pytest.raises(ValueError, match="but must be a probability between 0 and 1"):
        likely_dimension(2, 1, Fraction(3))
    with pytest.raises(ValueError, match="`left` and `right` both names or both None"):
        expectation([(Letter(1, "x"), Letter(-1))])
    with pytest.raises(ValueError, match="`seen` is 5 and `dim` 5, so that no direction is unseen"):
        first_step_law(5, 2, 5)
    with pytest.raises(ValueError, match="`horizon` is 1, but must be a whole number of at least 2"):
        first_step_law(5, 1, 1)
    with pytest.raises(ValueError, match=r"take `law.at\(dim\)` first"):
        _ = first_step_law(None, 2, 1).best_learning_rate
    assert expectation([word("AAT")]) == Laurent()
