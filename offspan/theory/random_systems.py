"""Statements about random systems: the theorem on the first step, the lemmas of its proof, and the genus expansion that they rest on."""

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import product
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from offspan.controllers import Linear
from offspan.measures import optimality_measure
from offspan.problems.lqr import LQR, gaussian
from offspan.rollout import cost, lqr_gradient
from offspan.states import basis
from offspan.theory import gaussian as law
from offspan.theory import genus
from offspan.theory.claims import Claim, Settings, at_least, at_most, equal, random_orthogonal, within_errors
from offspan.theory.genus import Word, word
from offspan.theory.monte_carlo import simulate, simulate_wide, stepped_measures

SAMPLES = 10_000  # simulated systems for each seed
RECURSION = "exact, by recursion"


def typical_system(settings: Settings) -> Iterator[Claim]:
    """A with entries N(0, 1/D), S orthonormal, H ≥ 2, η ≤ 1/(4DH(H−1)(4H−1)!!): E[E_opt(K(2))]/E[E_opt(K_no-ext)] ≤ 1 − η H(H−1)/D.

    And for D ≥ |S| + 6|S|H(H−1)(4H−1)!!/δ and η ≤ 1/(8D²H(H−1)(4H−1)!!), E_opt(K(2))/E_opt(K_no-ext) ≤ 1 − η H(H−1)/(4D) with
    probability at least 1 − δ. Beyond the paper, the ratio of the expectations is 1 − a η + b η² exactly.
    """
    D, count = settings.dim, SAMPLES * settings.seeds
    a, b, ratios, reduction = [], [], [], []
    for H, seen in _cases(settings):
        exact, eta, case = law.first_step_law(D, H, seen), law.bounds(D, H).learning_rate, f"H = {H}, |S| = {seen}"
        steps, best = simulate(_key(H, seen), D, H, seen, count), float(exact.best_learning_rate)
        a.append((exact.a, steps.alignment, case))
        b.append((exact.b, steps.curvature, case))
        if seen == min(H - 1, D - 1):  # steps themselves in every second case only: they take the longest
            ratios.append((exact.ratio(best), stepped_measures(_key(H, seen, 3), D, H, seen, best, count), case))
        reduction.append((Fraction(H * (H - 1), D), (1 - exact.ratio(eta)) / eta))
    exact = law.first_step_law(D, 2, 1)
    best = float(exact.best_learning_rate)
    longer = [(exact.ratio(best), stepped_measures(_key(2, 1, 1), D, 2, 1, best / 4, count, length=2.0), "H = 2, |S| = 1")]
    route = f"{count:,} simulated systems, within 4 standard errors"
    yield within_errors("a = E⟨∇E_opt, ∇J⟩", a, route)
    yield within_errors("b = E[1/|U| Σ_v ‖B∇J v‖²]", b, route)
    yield within_errors("E[E_opt(K(2))] / E[E_opt(K_no-ext)] at the best η", ratios, f"{route}, random orthogonal B")
    yield within_errors("that ratio from starts of length 2, with η/4", longer, route)
    yield at_least("(1 − ratio)/η at the theorem's η against H(H−1)/D", reduction, "the exact law")
    wide = law.likely_dimension(2, 1, Fraction(1, 2))
    steps = simulate_wide(_key(wide), wide, 2, 1, 100 * settings.seeds)
    route, eta = f"{len(steps.baseline)} simulated systems", float(law.bounds(wide, 2).likely_learning_rate)
    # (E_opt(K(2)) − E_opt(K_no-ext))/η against −E_opt(K_no-ext) H(H−1)/(4D): in the ratio itself, η times that is lost to rounding.
    likely = -steps.alignment + eta * steps.curvature <= -steps.baseline * 2 / (4 * wide)
    yield at_least(f"share of systems with D = {wide} that the second part holds for, H = 2, δ = ½", [(0.5, np.mean(likely))], route)
    small, chebyshev = np.mean(steps.alignment / 4 <= 1 / (2 * wide)), 8 * law.double_factorial(7) / (wide - 1)
    yield at_most(f"share with Y ≤ 1/(2D), D = {wide}, against 8(4H−1)!!/|U|", [(chebyshev, small)], route)


def norm_concentration(settings: Settings) -> Iterator[Claim]:
    """For independent Z_1..Z_K ~ N(0, I/D): Pr(1/K Σ_k ‖Z_k‖² ≥ 2) ≤ 2/(KD)."""
    pairs = [(_tail_bound(K, D), scipy.stats.chi2.sf(2 * K * D, K * D)) for K in (1, 2, 5) for D in (1, 2, settings.dim)]
    yield at_most("Pr(1/K Σ ‖Z_k‖² ≥ 2) against 2/(KD)", pairs, "the χ² distribution with KD degrees of freedom")


def _tail_bound(K: int, D: int) -> float:
    return 2 / (K * D)


def inner_product(settings: Settings) -> Iterator[Claim]:
    """⟨∇E_opt(K(1); v), ∇J(K(1); x)⟩ = 4 Σ_{n<H} Σ_{k<H−n} ⟨v, Aⁿx⟩ Tr(v (Aⁿx)ᵀ (A^{k+1})ᵀ A^{k+1}) for unit vectors x and v."""
    D, zero = settings.dim, jnp.zeros((settings.dim, settings.dim))
    for key in settings.keys("lem:clm_cost_grad_inner_prod"):
        key_system, key_states = jax.random.split(key)
        problem, (x, v) = gaussian(key_system, D, horizon=settings.horizon), _two_states(key_states, D)
        of_measure = jax.grad(lambda K, A=problem.A, v=v: jnp.sum(((A + K) @ v) ** 2))(zero)
        of_cost = jax.grad(lambda K, problem=problem, x=x: cost(problem, Linear(K), x[None]))(zero)
        ratio = jnp.sum(of_measure * of_cost) / _inner_product_sum(np.asarray(problem.A), v, x, settings.horizon)
        yield equal("⟨∇E_opt(K(1); v), ∇J(K(1); x)⟩ over the sum", [(1.0, ratio)], "automatic differentiation")


def _inner_product_sum(A: np.ndarray, v: np.ndarray, x: np.ndarray, H: int) -> float:
    powers = [np.linalg.matrix_power(A, n) for n in range(H + 1)]
    return 4 * float(sum((v @ powers[n] @ x) * (powers[k + 1] @ powers[n] @ x) @ (powers[k + 1] @ v) for n, k in law.terms(H)))


def smoothness(settings: Settings) -> Iterator[Claim]:
    """E_opt is 2-smooth: ‖∇E_opt(K) − ∇E_opt(K')‖ ≤ 2‖K − K'‖. The best constant is 2/|U|, for orthogonal B."""
    D, route = settings.dim, "automatic differentiation at random K, K'"
    S = basis(D, max(D // 2, 1))
    for key in settings.keys("smoothness_lemma"):
        key_system, key_control, key_gain, key_other = jax.random.split(key, 4)
        problem = LQR(gaussian(key_system, D, horizon=1).A, random_orthogonal(key_control, D), horizon=1)
        gradient = jax.grad(lambda K, problem=problem: optimality_measure(problem, K, S))
        K, other = (jax.random.normal(k, (D, D)) for k in (key_gain, key_other))
        ratio = jnp.linalg.norm(gradient(K) - gradient(other)) / jnp.linalg.norm(K - other)
        yield at_most("‖∇E_opt(K) − ∇E_opt(K')‖ / ‖K − K'‖", [(2.0, ratio)], route)
        on_unseen = other * (jnp.arange(D) >= len(S))[None, :]
        ratio = jnp.linalg.norm(gradient(K + on_unseen) - gradient(K)) / jnp.linalg.norm(on_unseen)
        yield equal("the same for K − K' on unseen directions: 2/|U|", [(2 / (D - len(S)), ratio)], route)


def any_orthonormal_states(settings: Settings) -> Iterator[Claim]:
    """E⟨∇E_opt(K(1); v), ∇J(K(1); x)⟩ is the same for all orthonormal v and x, and so is each of its terms."""
    D, H, totals, first, second = settings.dim, min(settings.horizon, 3), [], [], []
    for key in settings.keys("lem:in_prod_initial_states"):
        key_states, key_systems = jax.random.split(key)
        x, v = _two_states(key_states, D)
        A = np.asarray(jax.random.normal(key_systems, (2 * SAMPLES, D, D))) / D**0.5
        gradients = jax.vmap(lambda A, x=x: lqr_gradient(LQR(A, horizon=H), jnp.zeros((D, D)), x[None]))(A)
        totals.append((law.first_step_law(D, H, 1).a, 2 * np.sum((A @ v) * (np.asarray(gradients) @ v), axis=1), f"H = {H}"))
        Ax, Av = A @ x, A @ v
        AAx = np.einsum("rij,rj->ri", A, Ax)
        first.append((law.alignment_mean(1, 0)(D), Ax @ v * np.sum(AAx * Av, axis=1), "n = 1, k = 0"))
        second.append((law.alignment_mean(2, 0)(D), AAx @ v * np.sum(np.einsum("rij,rj->ri", A, AAx) * Av, axis=1), "n = 2, k = 0"))
    route = f"{2 * SAMPLES:,} simulated systems, within 4 standard errors"
    yield within_errors("a = E⟨∇E_opt(v), ∇J(x)⟩ for random orthonormal v and x", totals, route)
    yield within_errors("its term E Z_{n,k}", first, route)
    yield within_errors("its term E Z_{n,k}", second, route)


def _two_states(key, dim: int) -> np.ndarray:
    return np.asarray(random_orthogonal(key, dim))[:2]


def alignment_terms(settings: Settings) -> Iterator[Claim]:
    """E Z_{n,k} ≥ 1/D for n = 1..H−1 and k = 0..H−n−1, where Z_{n,k} = ⟨v, Aⁿx⟩ Tr(v (Aⁿx)ᵀ (A^{k+1})ᵀ A^{k+1}); so a ≥ 2H(H−1)/D."""
    H, dims = min(settings.horizon, 5), (2, settings.dim, 10 * settings.dim)
    short, tried = range(2, min(H, 4) + 1), f"for D = {', '.join(map(str, dims))}"
    means = [(1 / D, law.alignment_mean(n, k)(D)) for n, k in law.terms(H) if n for D in dims]
    totals = [(law.bounds(D, h).alignment, law.first_step_law(D, h, 1).a) for h in short for D in dims]
    leading = [(2 * h * (h - 1), law.first_step_law(None, h, 1).a.coefficients.get(-1, 0)) for h in short]
    yield at_least(f"E Z_{{n,k}} against 1/D, {tried} and H ≤ {H}", means, RECURSION)
    yield at_least(f"a against 2H(H−1)/D, {tried} and H ≤ {min(H, 4)}", totals, RECURSION)
    yield equal("D·a as D → ∞: 2H(H−1)", leading, RECURSION, 0.0)


def gradient_norm(settings: Settings) -> Iterator[Claim]:
    """E‖∇J(K(1); S)‖² ≤ 4H²(H−1)²(4H−1)!!. The terms of the proof give H²(H+1)²(4H−3)!!, which is less for every H ≥ 2."""
    D, count = settings.dim, SAMPLES * settings.seeds
    simulated, markov = [], []
    for H, seen in _cases(settings):
        samples = simulate(_key(H, seen, 2), D, H, seen, count).gradient_norm
        simulated.append((law.expected_gradient_norm(D, H, seen), samples, f"H = {H}, |S| = {seen}"))
        markov.append((1 / D, np.mean(samples > D * float(law.bounds(D, H).gradient_norm))))
    yield within_errors("E‖∇J(K(1); S)‖²", simulated, f"{count:,} simulated systems, within 4 standard errors")
    yield at_most("Pr(‖∇J(K(1); S)‖² > D · the bound on its mean) against 1/D", markov, f"{count:,} simulated systems")
    sizes = [seen for seen in (1, 2, 4) if seen < D]
    for H in range(2, min(settings.horizon, 4) + 1):
        exact, bounds = np.array([law.expected_gradient_norm(D, H, seen) for seen in sizes], float), law.bounds(D, H)
        case = f"H = {H}, |S| = {', '.join(map(str, sizes))}"
        yield at_most(f"E‖∇J(K(1); S)‖² against 4H²(H−1)²(4H−1)!!, as printed; {case}", [(bounds.gradient_norm, exact)], "exact")
        yield at_most(f"and against H²(H+1)²(4H−3)!!, by the proof's terms; {case}", [(bounds.gradient_norm_counted, exact)], "exact")
    pairs = [
        (law.double_factorial(2 * (n + k + m + j) + 1), law.gradient_norm_term(n, k, m, j, same=same)(dim))
        for (n, k), (m, j), same, dim in product(law.terms(3), law.terms(3), (True, False), (2, D))
    ]
    yield at_most(f"each of its terms against (p−1)!!, p = 2(n+k+m+l+1); H ≤ 3, D = 2, {D}", pairs, RECURSION)


def variance(settings: Settings) -> Iterator[Claim]:
    """Var Z_{n,k} ≤ (4H−1)!!/D²."""
    yield from _second_moments(settings, law.alignment_variance, "variance", "Var Z_{n,k}", "(4H−1)!!/D²")


def covariance(settings: Settings) -> Iterator[Claim]:
    """Cov(Z_{v,n,k}, Z_{w,n,k}) ≤ (4H−1)!!/D³ for orthogonal v and w."""
    yield from _second_moments(settings, law.alignment_covariance, "covariance", "Cov(Z_{v,n,k}, Z_{w,n,k})", "(4H−1)!!/D³")
    pairs = []
    for (n, k), D in product(((1, 0), (1, 1), (2, 0)), (max(settings.dim, 3), 10 * settings.dim)):
        of_mean = (law.alignment_variance(n, k)(D) + (D - 2) * law.alignment_covariance(n, k)(D)) / (D - 1)  # |U| = D − 1
        pairs.append((2 * law.bounds(D, n + k + 1).variance / (D - 1), of_mean))
    yield at_most("Var Y_{n,k}, of the mean of Z_{v,n,k} over U, against 2(4H−1)!!/(|U|D²); H ≤ 3, |S| = 1", pairs, RECURSION)


def _second_moments(settings: Settings, exact, which: str, name: str, bound: str) -> Iterator[Claim]:
    D, H = max(settings.dim, 3), min(settings.horizon, 3)  # x, v and w take three dimensions
    moments = {(n, k): exact(n, k) for n, k in law.terms(H) if n}
    # Each term with the bound of the shortest horizon that has it.
    pairs = [(getattr(law.bounds(dim, n + k + 1), which), moments[n, k](dim)) for n, k in moments for dim in (3, D, 10 * D)]
    yield at_most(f"{name} against {bound}, for D = 3, {D}, {10 * D} and H ≤ {H}", pairs, RECURSION)
    count = 4 * SAMPLES * settings.seeds
    draws = np.asarray(jax.random.normal(_key(len(which)), (count, D, D))) / D**0.5
    forwards, (v, w) = draws @ np.eye(D)[0], np.eye(D)[1:3]  # A x
    pair = (v, v) if which == "variance" else (v, w)
    products = [forwards @ u * np.sum((draws @ u) * np.einsum("rij,rj->ri", draws, forwards), axis=1) for u in pair]
    centred = [values - float(law.alignment_mean(1, 0)(D)) for values in products]
    simulated = [(moments[1, 0](D), centred[0] * centred[1], f"n = 1, k = 0, D = {D}")]
    yield within_errors(name, simulated, f"{count:,} simulated systems, within 4 standard errors")


def _cases(settings: Settings) -> list[tuple[int, int]]:
    """(H, |S|): short horizons. In few dimensions the tails at H = 3 are too heavy for a mean of some 10,000 systems."""
    horizons = (2, 3) if settings.dim >= 5 and settings.horizon >= 3 else (2,)
    return [(H, seen) for H in horizons for seen in (1, 2) if seen < settings.dim]


def _key(*numbers: int):
    return jax.random.fold_in(jax.random.key(numbers[0]), sum(100**i * number for i, number in enumerate(numbers[1:])))


def genus_expansion(settings: Settings) -> Iterator[Claim]:
    """E Π Tr(A_{ε(1)} C_1 ⋯) = Σ_ρ D^{χ(γ, δ_ε ρδρ δ_ε) − |γ|} tr_{γ_−⁻¹ δ_ε ρδρ δ_ε γ_+/2}(C_1, …, C_p), over all pairings ρ."""
    for words in _example_words(settings):
        gluings, recursion = genus.expectation_by_gluings(words), genus.expectation(words)
        yield equal("the expectation at D = 2", [(gluings(2), _by_entries(words, 2))], "sum over all entries of A, by Gaussian moments")
        exponents = sorted({0, *gluings.coefficients, *recursion.coefficients})
        pairs = [(gluings.coefficients.get(e, 0), recursion.coefficients.get(e, 0)) for e in exponents]
        yield equal("its coefficients", pairs, "recursion on words", 0.0)


def _by_entries(words: list[Word], dim: int) -> Fraction:
    """By writing every trace as a sum over indices, and E of a product of entries of A as a product of moments E a^k = (k−1)!!/D^{k/2}."""
    letters, following = _following(words)
    names = sorted({name for letter in letters.values() for name in letter[1:] if name})
    moments = Fraction(0)
    for rows in product(range(dim), repeat=len(letters)):  # the index before each letter; C = I, or entry (left, right) of x yᵀ, follows it
        row = dict(zip(letters, rows, strict=True))
        column = {k: row[following[k]] if letter.left is None else names.index(letter.left) for k, letter in letters.items()}
        if all(letter.right is None or row[following[k]] == names.index(letter.right) for k, letter in letters.items()):
            entries = Counter((row[k], column[k]) if letter.sign > 0 else (column[k], row[k]) for k, letter in letters.items())
            if all(power % 2 == 0 for power in entries.values()):
                moments += prod(law.double_factorial(power - 1) for power in entries.values())
    return moments / dim ** (len(letters) // 2)


def euler_characteristics(settings: Settings) -> Iterator[Claim]:
    """χ(γ, σ) = V − E + F of the surface that ρ glues, and a connected surface has χ ≤ 2, with equality for the sphere alone."""
    route = "all gluings of some words"
    for words in _example_words(settings):
        edges = sum(map(len, words)) // 2
        for gluing in genus.gluings(words):
            chi, most = gluing.euler_characteristic, 2 * gluing.components
            counted = _vertices(words, gluing.pairs) - edges + len(words)
            yield equal("χ(γ, σ) = V − E + F", [(chi, counted)], "polygons with glued corners", 0.0)
            yield at_most("χ against twice the number of components", [(most, chi)], route, 0.0)
            if chi == most:
                yield equal("orientable, where χ is that", [(1, gluing.orientable)], route, 0.0)


def _vertices(words: list[Word], pairs: Iterable[tuple[int, int]]) -> int:
    """Corners of the polygons that are one point after gluing; edge k runs from corner k to the next corner of its polygon."""
    letters, following = _following(words)
    point = {k: k for k in letters}
    for k, other in pairs:
        ends = (other, following[other]) if letters[k].sign == letters[other].sign else (following[other], other)
        for mine, theirs in zip((k, following[k]), ends, strict=True):
            point = {corner: point[mine] if one == point[theirs] else one for corner, one in point.items()}
    return len(set(point.values()))


def _following(words: list[Word]) -> tuple[dict[int, genus.Letter], dict[int, int]]:
    """The letters of all words, numbered from 1, and the number of the letter that follows each of them in its trace."""
    letters = dict(enumerate((letter for one in words for letter in one), start=1))
    following, start = {}, 1
    for one in words:
        following |= {start + i: start + (i + 1) % len(one) for i in range(len(one))}
        start += len(one)
    return letters, following


def _example_words(settings: Settings) -> list[list[Word]]:
    """One, two and three traces, with and without fixed matrices x yᵀ; more of them with more seeds."""
    single = [[word("ATAT")], [word("AATT")], [word("AAAATT", "x", "x")]]
    several = [[word("AT", "x", "y"), word("TAAT", "x", "y")], [word("A"), word("T"), word("AATT")]]
    rng = np.random.default_rng(settings.seeds)
    random = ["".join(rng.choice(list("AT"), 6)) for _ in range(settings.seeds)]
    halves = [[word(letters[:3], "x", "y"), word(letters[3:], "y", "x")] for letters in random]
    return [*single, *several, *([word(letters)] for letters in random), *halves]
