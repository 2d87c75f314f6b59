"""Planar counts against all pairings and exact expectations; the law of the first step for any seen states; sub-critical systems."""

import math
import random
from fractions import Fraction
from itertools import product

import jax
import numpy as np
import pytest

import offspan
from offspan.theory.gaussian import expected_gradient_norm, first_step_law, participation_ratio, terms
from offspan.theory.genus import expectation_of_forms
from offspan.theory.large_dimension import cost_alignment_mean
from offspan.theory.monte_carlo import estimate, simulate, stepped_measures
from offspan.theory.planar import LeadingOrder, leading_order, planar_count, planar_sums


def closed_chain(rng: random.Random, letters: int) -> list[tuple[str, str, str]]:
    """Forms that close up, of A and Aᵀ equally often, with two or three vectors."""
    word = rng.sample("AT" * (letters // 2), letters)
    cuts = sorted(rng.sample(range(letters), rng.randint(2, min(letters, 4))))
    vectors = [rng.choice("xyv") for _ in cuts]
    starts = [*cuts, letters]
    word = word[cuts[0] :] + word[: cuts[0]]
    starts = [start - cuts[0] for start in starts]
    starts[-1] = letters
    return [(vectors[i], "".join(word[starts[i] : starts[i + 1]]), vectors[(i + 1) % len(cuts)]) for i in range(len(cuts))]


def by_all_pairings(forms) -> int:
    """Every pairing of A with Aᵀ; corners glued by hand; kept where the sphere (p/2 + 1 points) and the vectors come out right."""
    letters = "".join(W for _, W, _ in forms)
    p, marks, corner = len(letters), {}, 0
    for alpha, W, _ in forms:
        marks.setdefault(corner % p, set()).add(alpha)
        corner += len(W)

    def pairings(free):
        if not free:
            yield []
        for i in range(1, len(free)):
            if letters[free[0]] != letters[free[i]]:
                for rest in pairings(free[1:i] + free[i + 1 :]):
                    yield [(free[0], free[i]), *rest]

    total = 0
    for pairing in pairings(tuple(range(p))):
        point = list(range(p))
        for i, j in pairing:
            for one, other in ((i, (j + 1) % p), ((i + 1) % p, j)):
                point = [point[one] if q == point[other] else q for q in point]
        of_vector = {(vector, point[corner]) for corner, vectors in marks.items() for vector in vectors}
        vectors, points = (set(column) for column in zip(*of_vector, strict=True))
        total += len(set(point)) == p // 2 + 1 and len(of_vector) == len(vectors) == len(points)
    return total


def test_planar_counts_are_the_leading_coefficients():
    """E of a closed chain of forms has no power above D^{1−d}, whose coefficient is the planar count; the count by hand for each, too."""
    rng, positive = random.Random(1), 0
    for _ in range(120):
        forms = closed_chain(rng, rng.choice((4, 6, 8, 10)))
        different = len({alpha for alpha, _, _ in forms})
        exact, count = expectation_of_forms(forms).coefficients, planar_count(forms)
        assert max(exact, default=-99) <= 1 - different
        assert exact.get(1 - different, 0) == count == by_all_pairings(forms)
        positive += count > 1
    assert positive > 5


def test_the_counts_of_the_proof():
    """Rainbows; min(k, l) + 1 ways to close T^{n+k+1}A^kT^lA^{n+l+1}; (min(m, n) + 1)(min(k, l) + 1) for six blocks."""
    for n, k, m, j in product(range(4), repeat=4):
        core = "T" * (n + k + 1) + "A" * k + "T" * j + "A" * (m + j + 1)
        assert planar_count([("v", "A" * n, "x"), ("x", "T" * (n + k + 1) + "A" * (k + 1), "v")]) == (n > 0)
        assert planar_count([("x", core, "x"), ("x", "T" * m, "v"), ("v", "A" * n, "x")]) == (n == m > 0) * (min(k, j) + 1)
        assert planar_count([("x", core, "x"), ("x", "T" * m + "A" * n, "x")]) == (n == m) * (min(k, j) + 1)
        all_six = (min(m, n) + 1) * (min(k, j) + 1)
        assert planar_count([("v", core + "T" * m + "A" * n, "v")]) == all_six
        assert planar_count([("v", core, "x"), ("x", "T" * m + "A" * n, "v")]) == all_six - (n == m) * (min(k, j) + 1)
        if max(n, k, m, j) < 2:  # three vectors: of order 1/D²
            forms = [("x", core, "y"), ("y", "T" * m, "v"), ("v", "A" * n, "x")]
            assert planar_count(forms) == expectation_of_forms(forms).coefficients.get(-2, 0)


@pytest.mark.parametrize("horizon", [2, 3, 4, 5])
def test_the_leading_order_of_the_exact_law(horizon):
    counted = planar_sums(horizon)
    for seen in (1, 2, 5):
        law, norm = first_step_law(None, horizon, seen), expected_gradient_norm(None, horizon, seen)
        assert max(law.a.coefficients) == max(law.b.coefficients) == -1
        assert law.a.coefficients[-1] == counted.alignment
        assert law.b.coefficients[-1] == Fraction(counted.curvature, seen)
        assert max(norm.coefficients) == 0
        assert norm.coefficients[0] == Fraction(counted.gradient_norm, seen)
        # No term is negative, so that the limits are lower bounds.
        assert all(c > 0 for polynomial in (law.a, law.b, norm) for c in polynomial.coefficients.values())
    cost = cost_alignment_mean(None, horizon)
    assert max(cost.coefficients) == -1
    assert cost.coefficients[-1] == counted.cost_alignment
    assert all(c > 0 for c in cost.coefficients.values())


def test_the_closed_forms():
    """All four against planar counts up to H = 10; the known values; as q → 1 the sums go over into the polynomials."""
    for H in range(2, 11):
        assert planar_sums(H) == leading_order(H)
    for q in (Fraction(1, 3), Fraction(9, 10)):
        for H in (2, 3, 7):
            assert planar_sums(H, q) == leading_order(H, q)
    assert [int(leading_order(H).gradient_norm) for H in (2, 3, 4, 5)] == [24, 80, 200, 420]
    assert leading_order(2) == LeadingOrder(1, 4, 4, 24, 20)
    np.testing.assert_allclose(leading_order(30, 1 - 1e-9), np.array(leading_order(30), float), rtol=1e-6)
    for H in (2, 5, 40):
        assert leading_order(H).best_learning_rate == pytest.approx(3 / (H * (H + 1)), rel=1e-14)
        assert leading_order(H).best_gain == pytest.approx(3 * (H - 1) / (H + 1), rel=1e-14)


def test_long_horizons_of_subcritical_systems():
    """The sums for growing H come to the limits; best gain (1+q)²; 4 as q → 1, and 3 for H → ∞ at q = 1."""
    for q in (0.1, 0.5, 0.9):
        limit = leading_order(math.inf, q)
        np.testing.assert_allclose(leading_order(400, q), limit, rtol=1e-9)
        assert abs(leading_order(8, q).best_gain - limit.best_gain) > 1e-9
        assert limit.best_gain == pytest.approx((1 + q) ** 2, rel=1e-12)
        assert limit.best_learning_rate == pytest.approx((1 - q**2) ** 2 / (2 * q), rel=1e-12)
    half = Fraction(1, 2)
    assert leading_order(math.inf, half) == LeadingOrder(half, 4, Fraction(32, 9), Fraction(128, 9), Fraction(128, 3))


def test_the_cost_measure_falls_in_the_first_step():
    """⟨∇E_cost, ∇J⟩ by differentiating the measure itself, against its exact mean; the measure's own value against Σ_h E‖A^h v‖²."""
    D, H, S, zero = 6, 2, offspan.basis(6, 2), np.zeros((6, 6))

    def of_one(A):
        problem = offspan.LQR(A, horizon=H)
        value, gradient = jax.value_and_grad(lambda K: offspan.cost_measure(problem, K, S))(zero)
        return value, (gradient * offspan.lqr_gradient(problem, zero, S)).sum()

    values, alignment = jax.jit(jax.vmap(of_one))(jax.random.normal(jax.random.key(0), (20_000, D, D)) / D**0.5)
    at_start = sum(expectation_of_forms([("v", "T" * h + "A" * h, "v")])(D) for h in range(1, H + 1))
    for samples, exact in ((values, at_start), (alignment, cost_alignment_mean(D, H))):
        mean, error = estimate(np.asarray(samples))
        assert abs(mean - float(exact)) < 4 * error
        assert error < 0.05 * mean


SETS = {
    "unequal lengths": np.diag([2.0, 1.0, 0.5, 0.1, 0, 0])[:4],
    "dependent": np.array([[1.0, 0, 0, 0, 0, 0], [2.0, 0.5, 0, 0, 0, 0], [0, 0.7, 0, 0, 0, 0], [-1, 0.2, 0, 0, 0, 0]]),
    "on a line, with a zero": np.array([[1.0], [0.0], [-0.5], [1.0]]) * np.ones(6) / 3,
}


@pytest.mark.parametrize("name", SETS)
def test_the_law_for_any_states_is_what_a_step_does(name):
    """The measure itself after a step, through the projector on S⊥ and a random orthogonal B; and a, b of the simulation."""
    S = SETS[name]
    law = first_step_law(6, 2, S)
    eta = float(law.best_learning_rate)
    mean, error = estimate(stepped_measures(jax.random.key(4), 6, 2, S, eta, 20_000))
    assert abs(mean - float(law.best_ratio)) < 4 * error
    assert error < 0.005
    steps = simulate(jax.random.key(5), 6, 2, S, 20_000)
    for samples, exact in ((steps.alignment, law.a), (steps.curvature, law.b), (steps.baseline, 1)):
        mean, error = estimate(samples)
        assert abs(mean - float(exact)) < 4 * error
        assert error < 0.03 * mean


def test_the_law_for_any_states_by_its_terms():
    """S = {2e_1, e_1 + e_2}, H = 2: every form multiplied out in the axes, which are orthonormal; expectations are exact."""
    S, forms = [{"x": 2}, {"x": 1, "y": 1}], 0
    a = sum(
        expectation_of_forms([("v", "A" * n, i), (j, "T" * (n + k + 1) + "A" * (k + 1), "v")]) * (s[i] * s[j])
        for s in S
        for i in s
        for j in s
        for n, k in terms(2)
        if n
    ) * Fraction(4, 2)
    b = 0
    for s, t in product(S, repeat=2):
        for (i, j), (g, h), (n, k), (m, l) in product(product(s, s), product(t, t), terms(2), terms(2)):  # noqa: E741
            if n and m:
                core = (j, "T" * (n + k + 1) + "A" * k + "T" * l + "A" * (m + l + 1), h)
                b += expectation_of_forms([("v", "A" * n, i), ("v", "A" * m, g), core]) * (s[i] * s[j] * t[g] * t[h])
                forms += 1
    assert forms == 25
    assert first_step_law(None, 2, [[2, 0, 0], [1, 1, 0]]) == (a, b * Fraction(4, 4))


def test_states_enter_through_their_inner_products():
    rng = np.random.default_rng(0)
    S = rng.normal(size=(3, 5))
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    law, turned, longer = first_step_law(5, 3, S), first_step_law(5, 3, S @ turn), first_step_law(5, 3, 3 * S)
    np.testing.assert_allclose(np.array(law, float), np.array(turned, float), rtol=1e-12)
    assert longer.ratio(0.01) == pytest.approx(law.ratio(0.09), rel=1e-12)
    assert first_step_law(5, 3, np.eye(5)[1:4]) == first_step_law(5, 3, 3)
    assert first_step_law(None, 2, np.eye(3)) == first_step_law(None, 2, 3)  # in any larger space
    assert first_step_law(5, 2, [[1, 0, 0, 0, 0]] * 7) == first_step_law(5, 2, 1)
    assert float(first_step_law(5, 2, 1e200 * S).best_ratio) == pytest.approx(float(first_step_law(5, 2, S).best_ratio), rel=1e-12)


def test_the_participation_ratio():
    """(Σλ)²/Σλ² over the eigenvalues of Σ; |S| for orthonormal states, 1 on a line; the best gain for large D is that of as many states."""
    rng = np.random.default_rng(1)
    S = rng.normal(size=(4, 7))
    eigenvalues = np.linalg.eigvalsh(S.T @ S / 4)
    assert participation_ratio(S) == pytest.approx(eigenvalues.sum() ** 2 / (eigenvalues**2).sum(), rel=1e-12)
    assert participation_ratio(3) == participation_ratio(np.eye(5)[:3]) == 3
    assert participation_ratio([[1.0, 2.0], [-2.0, -4.0]]) == pytest.approx(1, rel=1e-12)
    for H in (2, 4):
        far = first_step_law(None, H, S).at(10**9)
        gain = float(leading_order(H).best_gain) * participation_ratio(S)
        assert float(1 - far.best_ratio) * 10**9 == pytest.approx(gain, rel=1e-6)
        rate = float(leading_order(H).best_learning_rate) * eigenvalues.sum() / (eigenvalues**2).sum()
        assert float(far.best_learning_rate) == pytest.approx(rate, rel=1e-6)


def test_what_cannot_be_asked():
    mistakes = [
        ((5, 2, [1.0, 2.0]), r"`seen` has shape \(2,\), but needs shape \(s, 5\): one state a row"),
        ((5, 2, [[1.0], [1.0, 2.0]]), "`seen` must be an array of numbers"),
        ((5, 2, np.eye(4)[:2]), r"`seen` has shape \(2, 4\), but needs shape \(s, 5\)"),
        ((5, 2, np.full((1, 5), np.nan)), "`seen` has 5 NaN or infinite entries"),
        ((5, 2, np.eye(5)), "the states `seen` span all 5 dimensions"),
        ((5, 2, np.zeros((2, 5))), "all states in `seen` are zero"),
        ((None, 2, np.zeros((0, 5))), "but needs shape"),
        ((5, 2, "two"), "`seen` is 'two', but must be a whole number of at least 1"),
        ((1, 2, [[1.0]]), "`dim` is 1, but must be a whole number of at least 2"),
    ]
    for given, message in mistakes:
        with pytest.raises(offspan.OffspanError, match=message):
            first_step_law(*given)
    with pytest.raises(offspan.OffspanError, match="do not close up"):
        planar_count([("x", "AT", "y")])
    for q, horizon in ((1, math.inf), (0, 3), (1.5, 3)):
        with pytest.raises(offspan.OffspanError, match=r"`q` is .*, but must be (above 0 and at most 1|less than 1)"):
            leading_order(horizon, q)
    with pytest.raises(offspan.OffspanError, match="must be above 0"):
        planar_sums(3, q=-1)
    with pytest.raises(offspan.OffspanError, match="'AB' has letters other than A and T"):
        planar_count([("x", "AB", "x")])
    assert first_step_law(6, 2, np.full((1, 6), 1e308)).a > 0  # nothing overflows
    with pytest.raises(offspan.OffspanError, match=r"`horizon` is 2\.5, but must be a whole number"):
        leading_order(2.5)
