"""From what dimension on a single random system does as the mean does: the second part of thm:typical_system, sharply  [beyond R24].

The alignment is X = ⟨∇E_opt(K(1)), ∇J(K(1); S)⟩ = 4/(|S||U|) Σ_{x,v,n,k} Z_{v,x,n,k}. The proof takes Chebyshev's inequality for the mean
of Z_{v,x,n,k} over v, with Var Z ≤ (4H−1)!!/D² and Cov ≤ (4H−1)!!/D³, and a union bound over x, n, k. Here X itself has its exact mean a
and its exact variance, all covariances between terms included, in Cantelli's inequality (Chebyshev's, on one side).
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement, product

import jax
import numpy as np
import scipy.stats

from offspan.errors import OffspanError
from offspan.theory import gaussian as law
from offspan.theory.claims import Claim, Settings, at_least, at_most, equal, within_errors
from offspan.theory.genus import Laurent, expectation_of_forms
from offspan.theory.monte_carlo import FirstSteps, simulate, simulate_wide

LONGEST = 5  # horizon: 2 s at 4
FAILURES = Fraction(1, 3), Fraction(1, 10), Fraction(1, 100)  # the δ of the tables


def alignment_spread(dim: int, horizon: int, seen: int) -> tuple[Fraction, Fraction]:
    """The mean a and the variance of X = ⟨∇E_opt(K(1)), ∇J(K(1); S)⟩ over A, exactly; seconds at H = 4, minutes at H = 5, and no further.

        Var X = 16/(|S||U|) · (c_same + (|U|−1) c_v + (|S|−1) c_x + (|U|−1)(|S|−1) c_both),

    where c = Σ_{n,k,m,l} Cov(Z_{v,x,n,k}, Z_{w,y,m,l}): c_same for w = v, y = x; c_v for w ⊥ v; c_x for y ⊥ x; c_both for both.

    >>> alignment_spread(50, horizon=2, seen=1)
    (Fraction(2, 25), Fraction(10154, 19140625))
    """
    horizon, seen = _setting("alignment_spread", dim, horizon, seen)
    unseen = dim - seen
    same, other_v, other_x, both = (covariance(dim) for covariance in _covariances(horizon))
    total = same + (unseen - 1) * other_v + (seen - 1) * other_x + (unseen - 1) * (seen - 1) * both
    return law.alignment_total(horizon)(dim), 16 * total / (seen * unseen)


@lru_cache
def _covariances(horizon: int) -> tuple[Laurent, ...]:
    """c_same, c_v, c_x, c_both as functions of D; (n, k) and (m, l) can be exchanged, so each pair is computed once."""
    terms, seen = [(n, k) for n, k in law.terms(horizon) if n], {}
    mean = law.alignment_total(horizon) * Fraction(1, 4)

    def second_moment(w: str, y: str) -> Laurent:
        pairs = combinations_with_replacement(terms, 2)
        forms = ((law.alignment_forms("v", "x", *one) + law.alignment_forms(w, y, *other), one != other) for one, other in pairs)
        return sum((expectation_of_forms(both, seen=seen) * (2 if twice else 1) for both, twice in forms), Laurent())

    return tuple(second_moment(w, y) - mean * mean for y, w in product("xy", "vw"))


def alignment_failure(dim: int, horizon: int, seen: int) -> Fraction:
    """Pr(X < H(H−1)/D) is at most this: Var X / (Var X + (a − H(H−1)/D)²), by Cantelli's inequality.

    The proof has 4|S|H(H−1)(4H−1)!!/(D−|S|) in its place  [R24, thm:typical_system].

    >>> round(float(alignment_failure(50, horizon=2, seen=1)), 4), 4 * 2 * 105 / 49
    (0.249, 17.142857142857142)
    """
    a, variance = alignment_spread(dim, horizon, seen)
    return variance / (variance + (a - Fraction(horizon * (horizon - 1), dim)) ** 2)


def step_failure(dim: int, horizon: int, seen: int, eta: float | Fraction | None = None) -> float:
    """Pr(E_opt(K(2))/E_opt(K_no-ext) > 1 − η H(H−1)/(4D)) is at most this, for the theorem's η = 1/(8D²H(H−1)(4H−1)!!) or another.

    As in the proof, three events are left out: X < H(H−1)/D; η/|U| Σ_v ‖B∇J v‖² > H(H−1)/(2D), by Markov's inequality with the exact b;
    and E_opt(K_no-ext) > 2, by the χ² distribution with D|U| degrees of freedom.
    """
    failure = float(alignment_failure(dim, horizon, seen))
    if eta is not None and not 0 < eta < math.inf:
        raise OffspanError(f"step_failure: `eta` is {eta!r}, but a learning rate is positive and finite.")
    eta = law.bounds(dim, horizon).likely_learning_rate if eta is None else Fraction(eta)
    curvature = 2 * dim * eta * law.first_step_law(dim, horizon, seen).b / (horizon * (horizon - 1))
    freedom = float(dim * (dim - seen))
    return min(1.0, failure + float(curvature) + float(scipy.stats.chi2.sf(2 * freedom, freedom)))


def sufficient_dimension(horizon: int, seen: int, failure: float | Fraction, eta: float | Fraction | None = None) -> int:
    """The least D from which on `step_failure` is at most δ = `failure`; for the theorem's, see `gaussian.likely_dimension`.

    The bound falls with D (checked in the tests), so that D is found by bisection.

    >>> sufficient_dimension(2, 1, 0.1), law.likely_dimension(2, 1, Fraction(1, 10))
    (146, 12601)
    """
    horizon, seen = _setting("sufficient_dimension", None, horizon, seen)
    if not 0 < failure < 1:
        raise OffspanError(f"sufficient_dimension: `failure` is {failure!r}, but must be a probability between 0 and 1.")
    low, high = seen, seen + 1
    while step_failure(high, horizon, seen, eta) > failure:
        low, high = high, 2 * high
        if high > 10**9:
            raise OffspanError(f"sufficient_dimension: at η = {eta} no dimension up to 10⁹ gives δ = {failure}; pass a smaller `eta`.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if step_failure(middle, horizon, seen, eta) <= failure else (middle, high)
    return high


def limit_of_gain(horizon: int, seen: int, eta: float) -> float:
    """2H(H−1)η − H²(H²−1)η²/(3|S|), to which D (1 − E_opt(K(2))/E_opt(K_no-ext)) tends in probability as D → ∞."""
    H = horizon
    return 2 * H * (H - 1) * eta - H**2 * (H**2 - 1) * eta**2 / (3 * seen)


def gains(steps: FirstSteps, dim: int, eta: float) -> np.ndarray:
    """D (1 − E_opt(K(2))/E_opt(K_no-ext)) of each system, without the rounding of a ratio near 1."""
    return dim * eta * (steps.alignment - eta * steps.curvature) / steps.baseline


def reduces(steps: FirstSteps, dim: int, horizon: int, eta: float) -> np.ndarray:
    """Whether the second part of thm:typical_system holds for each system: E_opt(K(2))/E_opt(K_no-ext) ≤ 1 − η H(H−1)/(4D)."""
    return gains(steps, dim, eta) >= eta * horizon * (horizon - 1) / 4


def sharp_dimensions(settings: Settings) -> Iterator[Claim]:
    """With the exact Var X, X = ⟨∇E_opt, ∇J⟩: Pr(X < H(H−1)/D) ≤ Var X / (Var X + (a − H(H−1)/D)²), and the second part of
    thm:typical_system holds with probability 2/3 for D in the tens, where the proof needs thousands (H = 2) or a million (H = 3)."""
    count = 4_000 * settings.seeds
    spreads, failing = [], []
    for H, seen, D in ((2, 1, 50), (3, 1, 50), (2, 2, 30)):
        (a, variance), alignment = alignment_spread(D, H, seen), _wide(D, H, seen, count).alignment
        spreads.append((variance, (alignment - float(a)) ** 2, f"H = {H}, |S| = {seen}, D = {D}"))
        failing.append((alignment_failure(D, H, seen), np.mean(alignment < H * (H - 1) / D)))
    yield _relative("Var⟨∇E_opt, ∇J⟩", spreads, f"{count:,} simulated systems, within 4 standard errors")
    yield at_most("share with ⟨∇E_opt, ∇J⟩ < H(H−1)/D, against the bound", failing, f"{count:,} simulated systems")
    systems, D = 100 * settings.seeds, sufficient_dimension(3, 1, Fraction(1, 3))
    holding = reduces(simulate(jax.random.key(3), D, 3, 1, systems), D, 3, float(law.bounds(D, 3).likely_learning_rate))
    text = f"share of systems that the second part holds for, H = 3, at D = {D}, which suffices for δ = 1/3"
    yield at_least(text, [(2 / 3, np.mean(holding))], f"{systems:,} simulated systems")
    pairs = [(law.likely_dimension(H, 1, delta), sufficient_dimension(H, 1, delta)) for H in (2, 3) for delta in FAILURES]
    yield at_most("D that suffices, against the theorem's; H = 2, 3, δ = 1/3, 1/10, 1/100", pairs, "exact variances", 0.0)


def single_systems(settings: Settings) -> Iterator[Claim]:
    """D (1 − E_opt(K(2))/E_opt(K_no-ext)) → 2H(H−1)η − H²(H²−1)η²/(3|S|) in probability as D → ∞, for fixed H, |S| and η; by the Poincaré
    inequality, its variance is O(1/D)."""
    count = 200 * settings.seeds
    limits = [
        (limit_of_gain(H, seen, 0.1), 10**7 * (1 - law.first_step_law(10**7, H, seen).ratio(Fraction(1, 10))))
        for H, seen in product((2, 3, 4), (1, 2))
    ]
    yield equal("D (1 − ratio of the means) at D = 10⁷ against the limit, η = 0.1", limits, "the exact law", 1e-4)
    means, spreads, far = [], [], []
    for H, eta in ((2, 0.5), (3, 0.25)):  # 3|S|/(H(H+1)): the best for large D
        limit, distances = limit_of_gain(H, 1, eta), {}
        for D in (100, 1600):
            steps, exact = _wide(D, H, 1, count), law.first_step_law(D, H, 1)
            gain, case = gains(steps, D, eta), f"H = {H}, D = {D}"
            means.append((D * (1 - exact.ratio(eta)), gain, case))
            a, variance = alignment_spread(D, H, 1)
            spreads.append((D**2 * variance, (D * (steps.alignment - float(a))) ** 2, case))
            distances[D] = np.sqrt(np.mean((gain - limit) ** 2))
        far.append((distances[100] / 2, distances[1600]))
    route = f"{count:,} simulated systems, within 4 standard errors"
    yield _relative("mean of D (1 − ratio) over systems", means, route)
    yield _relative("Var D⟨∇E_opt, ∇J⟩", spreads, route)
    yield at_most("root mean square distance of D (1 − ratio) from its limit at D = 1600, against half of it at 100", far, route)


def _relative(text: str, simulated: list, route: str) -> Claim:
    """`within_errors` in units of the exact value, which may be small."""
    in_units = [(1.0, samples / float(exact), case) for exact, samples, case in simulated]
    return within_errors(f"{text}, over the exact value", in_units, route)


def _wide(dim: int, horizon: int, seen: int, count: int) -> FirstSteps:
    return simulate_wide(jax.random.key(dim + 10**6 * horizon + 10**8 * seen), dim, horizon, seen, count)


def _setting(where: str, dim: int | None, horizon: int, seen: int) -> tuple[int, int]:
    horizon, seen = law.setting(where, dim, horizon, seen)
    if horizon > LONGEST:
        raise OffspanError(
            f"{where}: `horizon` is {horizon}, but exact variances are for H ≤ {LONGEST}: each step more takes 40 times as long."
        )
    return horizon, seen
