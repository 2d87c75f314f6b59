"""Beyond the paper: the first step on random systems in large dimensions, from any seen states, and on sub-critical systems."""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from offspan.problems.lqr import LQR
from offspan.rollout import lqr_gradient
from offspan.states import basis
from offspan.theory import gaussian as law
from offspan.theory import planar
from offspan.theory.claims import Claim, Settings, at_least, equal, random_orthogonal, within_errors
from offspan.theory.monte_carlo import simulate, simulate_wide
from offspan.theory.random_systems import RECURSION, SAMPLES

LONGEST = 10  # horizon of the planar counts
SYSTEMS = 20  # sub-critical ones, simulated in a large dimension: so few that their errors exceed what the limit leaves out
WIDE = 4_000  # systems that are compared with the exact law
LEADING = f"{RECURSION}: leading coefficients in 1/D"


def leading_order(settings: Settings) -> Iterator[Claim]:
    """As D → ∞, for fixed H and |S| orthonormal states: D·a → 2H(H−1), D·b → H²(H²−1)/(3|S|), E‖∇J(K(1); S)‖² → H(H+1)²(H+2)/(3|S|).

    All three, over their power of D, are lower bounds at every D, too. So η* → 3|S|/(H(H+1)), one step with it lowers the ratio by
    3|S|(H−1)/((H+1)D), and for fixed H the limit of E‖∇J‖² is polynomial in H, where the theorem's bound has (4H−1)!!.
    """
    exact = []
    for H in range(2, min(settings.horizon, 4) + 1):
        at = law.first_step_law(None, H, 1)
        measured = at.a.coefficients[-1], at.b.coefficients[-1], law.expected_gradient_norm(None, H, 1).coefficients[0]
        exact.append((planar.planar_sums(H)[1:4], measured))
    yield equal("D·a, D·b and E‖∇J‖² by planar counts, H ≤ 4, |S| = 1", exact, LEADING, 0.0)
    counted = [(planar.leading_order(H)[1:4], planar.planar_sums(H)[1:4]) for H in range(2, LONGEST + 1)]
    yield equal(f"the same in closed form, H ≤ {LONGEST}", counted, "planar counts", 0.0)
    D, H, far = 200, 5, 10**9
    ends = law.first_step_law(far, H, 1), law.expected_gradient_norm(far, H, 1)
    measured = float(ends[0].a * far), float(ends[0].b * far), float(ends[1])
    yield equal(f"the same at H = {H}, D = 10⁹", [(planar.leading_order(H)[1:4], measured)], RECURSION, 1e-6)
    steps, exact, norm = simulate_wide(jax.random.key(0), D, H, 1, WIDE), law.first_step_law(D, H, 1), law.expected_gradient_norm(D, H, 1)
    pairs = zip(
        ("D·a", "D·b", "E‖∇J‖²"),
        (D * exact.a, D * exact.b, norm),
        (D * steps.alignment, D * steps.curvature, steps.gradient_norm),
        strict=True,
    )
    for name, value, samples in pairs:
        yield within_errors(f"{name} by the exact law at D = {D}", [(float(value), samples, f"H = {H}, |S| = 1")], _simulated(WIDE))


def cost_alignment(settings: Settings) -> Iterator[Claim]:
    """As D → ∞, for fixed H and orthonormal states, at K(1) = 0: D·E⟨∇E_cost, ∇J⟩ → H(H²−1)(H+2)(H²+7H+7)/30, and E[E_cost(K(1))] → H.

    The first is a lower bound at every D, so that a first step with a small η lowers the expected cost measure in every dimension; for
    large D by (H²−1)(H+2)(H²+7H+7)/30 · η/D of its value.
    """
    exact, measures, lower = [], [], []
    for H in range(2, min(settings.horizon, 4) + 1):
        limit = planar.leading_order(H).cost_alignment
        lower += [(limit, D * cost_alignment_mean(D, H)) for D in (2, settings.dim, 10 * settings.dim)]
        exact.append((limit, cost_alignment_mean(None, H).coefficients[-1]))
        measures.append((H, sum(planar.planar_count([("v", "T" * h + "A" * h, "v")]) for h in range(1, H + 1))))
    yield equal("D·E⟨∇E_cost, ∇J⟩ in closed form, H ≤ 4", exact, LEADING, 0.0)
    horizons = range(2, LONGEST + 1)
    counted = [(planar.leading_order(H).cost_alignment, planar.planar_sums(H).cost_alignment) for H in horizons]
    yield equal(f"the same, H ≤ {LONGEST}", counted, "planar counts", 0.0)
    yield equal("E[E_cost(K(1))] as D → ∞", measures, "planar counts", 0.0)
    yield at_least(f"D·E⟨∇E_cost, ∇J⟩ against its limit, H ≤ 4, D = 2, {settings.dim}, {10 * settings.dim}", lower, RECURSION)
    D, H, count = settings.dim, 2, SAMPLES * settings.seeds
    samples = np.asarray(_cost_alignments(jax.random.key(D), count, D, H))
    yield within_errors("E⟨∇E_cost, ∇J⟩ itself", [(cost_alignment_mean(D, H), samples, f"H = {H}, |S| = 1")], _simulated(count))


def cost_alignment_mean(dim: int | None, horizon: int):
    """E⟨∇E_cost, ∇J⟩ at K(1) = 0 for orthonormal S, exactly: ∇E_cost(v) is ∇J from v, so it is the cross term x ⊥ y of E‖∇J‖²."""
    one, two = (law.expected_gradient_norm(None, horizon, seen) for seen in (1, 2))  # the mean over x, y ∈ S, times 4
    mean = two * 2 - one
    return mean if dim is None else mean(dim)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _cost_alignments(key, count: int, dim: int, horizon: int):
    directions, zero = basis(dim), jnp.zeros((dim, dim))

    def of_one(A):
        of_cost, of_measure = (lqr_gradient(LQR(A, horizon=horizon), zero, X) for X in (directions[:1], directions[1:]))
        return jnp.sum(of_measure * of_cost)  # E_cost = J(K; U) − J*(U)

    return jax.vmap(of_one)(jax.random.normal(key, (count, dim, dim)) / dim**0.5)


def any_states(settings: Settings) -> Iterator[Claim]:
    """For any seen states S that do not span the space, at every D, with Σ = 1/|S| Σ_{x∈S} x xᵀ:

    a = tr Σ · a₁ and b = 4 (b_other (tr Σ)² + (b_same − b_other) tr Σ²). As D → ∞, the reduction at the best η is that of (tr Σ)²/tr Σ²
    orthonormal states: the participation ratio of Σ takes the place of |S|.
    """
    D, H = settings.dim, 2
    a, b, rotated, limits = [], [], [], []
    for seed, key in enumerate(settings.keys("beyond:any_states")):
        key_states, key_systems, key_turn = jax.random.split(key, 3)
        S = _dependent_states(key_states, D)
        exact = law.first_step_law(D, H, S)
        steps, case = simulate(key_systems, D, H, S, SAMPLES), f"set {seed + 1}"
        a.append((exact.a, steps.alignment, case))
        b.append((exact.b, steps.curvature, case))
        several = max(D // 2, 1)
        turned = law.first_step_law(D, H, np.asarray(random_orthogonal(key_turn, D))[:several])
        rotated += list(zip(law.first_step_law(D, H, several), turned, strict=True))
        far = law.first_step_law(None, 3, S).at(10**9)
        limits.append((float(planar.leading_order(3).best_gain) * law.participation_ratio(S), float(1 - far.best_ratio) * 10**9))
    route = f"{_simulated(SAMPLES)}, for each set of dependent states of several lengths"
    yield within_errors("a = E⟨∇E_opt, ∇J⟩", a, route)
    yield within_errors("b = E[1/|U| Σ_v ‖B∇J v‖²]", b, route)
    yield equal("a and b for orthonormal states in any position", rotated, "the law by their number")
    yield equal("D (1 − ratio) at the best η, H = 3: 3(H−1)/(H+1) · (tr Σ)²/tr Σ²", limits, "the law at D = 10⁹", 1e-6)


def _dependent_states(key, dim: int) -> np.ndarray:
    """Three states of several lengths, neither orthogonal nor independent; in the plane, on one line."""
    key_space, key_states = jax.random.split(key)
    rank = min(2, dim - 1)
    return np.asarray(jax.random.normal(key_states, (3, rank)) @ random_orthogonal(key_space, dim)[:rank])


def subcritical(settings: Settings) -> Iterator[Claim]:
    """A with entries N(0, q/D), q < 1, |S| orthonormal states; D → ∞ and then H → ∞: D·a → 4q²/(1−q)², D·b → 4q³/(|S|(1−q²)²(1−q)²).

    So the best step takes |S|(1+q)²/D off the ratio. As q → 1 this is 4|S|/D; for q = 1 and H → ∞ it is 3|S|/D: the limits do not commute.
    """
    q, H = Fraction(2, 3), min(settings.horizon, 6)
    alignment = sum(law.alignment_mean(n, k).coefficients[-1] * 4 * q ** (n + k + 1) for n, k in law.terms(4) if n)
    yield equal("D·a for H = 4, q = 2/3", [(planar.leading_order(4, q).alignment, alignment)], LEADING)
    counted = [(planar.leading_order(h, q), planar.planar_sums(h, q)) for h in range(2, H + 1)]
    yield equal(f"all limits for H ≤ {H}, q = 2/3", counted, "planar counts")
    long = [(planar.leading_order(math.inf, q), planar.leading_order(300, q)) for q in (0.2, 0.5, 0.8)]
    yield equal("the limits for H → ∞; q = 0.2, 0.5, 0.8", long, "the sums up to H = 300")
    D, H = 300, 60
    for q in (0.3, 0.6):
        steps, limit = simulate(jax.random.key(1), D, H, 1, SYSTEMS // 2, q=q), planar.leading_order(math.inf, q)
        for name, value, samples in (("a", limit.alignment, steps.alignment), ("b", limit.curvature, steps.curvature)):
            yield within_errors(f"D·{name} at D = {D}", [(value, D * samples, f"H = {H}, q = {q}")], _simulated(SYSTEMS // 2))
    gains = [((1 + q) ** 2, planar.leading_order(math.inf, q).best_gain) for q in (0.2, 0.5, 0.8)]
    yield equal("D/|S| (1 − ratio) at the best η, H = ∞: (1+q)²", gains, "a²/(4bq)")
    orders = [(4, planar.leading_order(math.inf, 1 - 1e-6).best_gain), (3, planar.leading_order(10**6).best_gain)]
    yield equal("the same for q → 1 after H → ∞: 4; for H → ∞ at q = 1: 3", orders, "q = 1 − 10⁻⁶, and H = 10⁶", 1e-5)


def _simulated(systems: int) -> str:
    return f"{systems:,} simulated systems, within 4 standard errors"
