"""The paper's formulas, evaluated: predictions, made without training, rollouts or derivatives.

All in NumPy and float64, with the paper's indices d = 1..D, so that arrays over d have d at index d − 1.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from offspan.errors import OffspanError, as_count, as_floats
from offspan.problems.lqr import LQR, shift


class DoesNotApplyError(OffspanError):
    """The settings are sound, but not among those that a statement is about."""


def lqr_gradient_sum(problem: LQR, K: ArrayLike, x0s: ArrayLike) -> Float[np.ndarray, "m n"]:
    """∇J(K; X) = 2Bᵀ Σ_{h=0}^{H−1} (Σ_{s=1}^{H−h} [(A+BK)^{s−1}]ᵀ Q (A+BK)^s) Σ_{X,h}  [R24, lem:lqr_gradient], for R = 0 and any Q ⪰ 0."""
    A, B, Q, K, X = (np.asarray(M) for M in (problem.A, problem.B, problem.Q, K, x0s))
    H, M = problem.horizon, A + B @ K
    powers = [np.linalg.matrix_power(M, s) for s in range(H + 1)]
    total = np.zeros_like(A)
    for h in range(H):
        x_h = X @ powers[h].T
        total += sum(powers[s - 1].T @ Q @ powers[s] for s in range(1, H - h + 1)) @ (x_h.T @ x_h / len(X))
    return 2 * B.T @ total


def shift_alpha(dim: int, horizon: int, q: ArrayLike | None = None) -> Float[np.ndarray, "n"]:
    """α_d = 2 Σ_{j=2}^{d} q_j / ((H/D + 1) Σ_j q_j), as printed, for H divisible by D  [R24, prop:shift_diag_q].

    With Q = I it is 2(d−1)/(H+D)  [R24, lem:shift_Kpg_K2]. After one step from e_1, (A + BK) e_d = α_d e_{d%D+1}.
    """
    D, H, q = _shift_setting("shift_alpha", dim, horizon, q)
    if H % D:
        raise DoesNotApplyError(
            f"the printed statement needs a horizon divisible by the dimension, but H = {H} and D = {D}; "
            f"take H = {' or '.join(str(D * k) for k in (H // D, H // D + 1) if k)}, or beyond:shift_any_horizon (shift_alpha_any_horizon)."
        )
    return 2 * np.append(0.0, np.cumsum(q[1:])) / ((H / D + 1) * q.sum())


def shift_alpha_any_horizon(dim: int, horizon: int, q: ArrayLike | None = None) -> Float[np.ndarray, "n"]:
    """α_d = 1 − g_d/g_1 for every H, with ∇J(0; e_1) = Bᵀ Σ_d g_d e_{d%D+1} e_dᵀ; beyond the paper, which has H divisible by D.

    α_d ∈ [0, 1] for every H and q ≥ 0: what e_1 leads to is paid for longest, so g_d ≤ g_1.
    """
    g = _shift_gradient(*_shift_setting("shift_alpha_any_horizon", dim, horizon, q))
    return 1 - g / g[0]


def shift_learning_rate(dim: int, horizon: int, q: ArrayLike | None = None) -> float:
    """η = 1/g_1: one step from K = 0 sends e_1 to zero; for H divisible by D, (H/D · (H/D + 1) Σ_j q_j)⁻¹  [R24, prop:shift_diag_q]."""
    return 1 / _shift_gradient(*_shift_setting("shift_learning_rate", dim, horizon, q))[0]


def _shift_gradient(D: int, H: int, q: np.ndarray) -> np.ndarray:
    """g_d = 2 Σ_{h<H, h≡d−1 (mod D)} Σ_{s=h+1}^{H} q_{s%D+1}; with Q = I the inner sum is H − h."""
    paid_later = np.cumsum(q[np.arange(1, H + 1) % D][::-1])[::-1]  # over s = h+1..H, for h = 0..H−1
    g = 2 * np.bincount(np.arange(H) % D, weights=paid_later, minlength=D)
    if g[0] <= 0:
        raise OffspanError(f"shift: nothing that e_1 leads to within H = {H} steps costs anything (q = {q.tolist()}), so no step is made.")
    return g


def shift_controller(alpha: Float[np.ndarray, "n"], B: ArrayLike | None = None) -> Float[np.ndarray, "n n"]:
    """K_pg = K(2) = −Bᵀ Σ_d (1 − α_d) e_{d%D+1} e_dᵀ, for any orthogonal B  [R24, lem:shift_Kpg_K2]."""
    D = len(alpha)
    B = np.eye(D) if B is None else np.asarray(as_floats("shift_controller", "B", B, shape=(D, D), meaning=f"shape ({D}, {D})"))
    if (error := np.abs(B @ B.T - np.eye(D)).max()) > 1e-8:
        advice = "the closed form needs it to be; the orthogonal factor of a QR decomposition is"
        raise OffspanError(f"shift_controller: `B` is not orthogonal (B Bᵀ differs from I by {error:.2g}), and {advice}.")
    return -B.T @ np.roll(np.diag(1 - alpha), 1, axis=0)


def shift_ratios(alpha: Float[np.ndarray, "n"], horizon: int, q: ArrayLike | None = None) -> tuple[float, float]:
    """E_opt(K_pg)/E_opt(K_no-ext) and E_cost(K_pg)/E_cost(K_no-ext), exactly  [R24, prop:shift, prop:shift_diag_q].

    Σ_{d≥2} q_{d%D+1} α_d² / Σ_{d≥2} q_{d%D+1}, and Σ_{d≥2} Σ_{h=1}^{min(D−d+1, H)} q_{(h+d−1)%D+1} Π_{d'=d}^{h+d−1} α_{d'}² over the same
    with α = 1. Where a sum below is 0 (no unseen direction leads to a cost), its ratio is 0 by the paper's convention.
    """
    D, H, q = _shift_setting("shift_ratios", len(alpha), horizon, q)

    def total(squares: np.ndarray, steps: int) -> float:  # the first ratio is the second for H = 1
        ways = ((d, h) for d in range(2, D + 1) for h in range(1, min(D - d + 1, steps) + 1))
        return float(sum(q[(h + d - 1) % D] * np.prod(squares[d - 1 : h + d - 1]) for d, h in ways))

    optimality, excess = (total(alpha**2, steps) / below if (below := total(np.ones(D), steps)) > 0 else 0.0 for steps in (1, H))
    return optimality, excess


def shift_bound(dim: int, horizon: int) -> float:
    """4(D−1)²/(H+D)², the bound on both ratios  [R24, prop:shift]."""
    return 4 * (dim - 1) ** 2 / (horizon + dim) ** 2


def shift_norm_gap(alpha: Float[np.ndarray, "n"]) -> float:
    """‖K_pg‖² − min_{K∈K_S} ‖K‖² = Σ_{d=2}^{D} (1 − α_d)²  [R24, cor:no_euc_norm_min]."""
    return float(np.sum((1 - alpha[1:]) ** 2))


def shift_from(x0: ArrayLike, *, horizon: int) -> LQR:
    """The shift that starts from `x0`: A = Pᵀ A_shift P with P orthogonal and P x_0 = ‖x_0‖ e_1. Its learning rate is e_1's over ‖x_0‖².

    The paper's footnote has some invertible P [R24, sec:analysis:shift]; the cost is Euclidean, so P is taken orthogonal up to scale.
    """
    x0 = np.asarray(as_floats("shift_from", "x0", x0, shape=(None,), meaning="shape (n,), one state"), float)
    length = np.linalg.norm(x0)
    if length == 0:
        raise OffspanError("shift_from: `x0` is 0, and from there the system never moves; pass a state other than 0.")
    P = _reflection_onto_first(x0 / length)
    return LQR(P.T @ np.asarray(shift(len(x0), horizon=horizon).A) @ P, horizon=horizon)


def _reflection_onto_first(unit: np.ndarray) -> np.ndarray:
    """The Householder reflection that swaps a unit vector and e_1."""
    normal = unit - np.eye(len(unit))[0]
    return np.eye(len(unit)) - (2 * np.outer(normal, normal) / (normal @ normal) if normal @ normal > 0 else 0.0)


def identity_measures(horizon: int) -> tuple[float, float]:
    """E_opt(K(t)) = 1 and E_cost(K(t)) = H for A = B = Q = I, at every t and for every S  [R24, prop:no_exploration_no_extrapolation]."""
    return 1.0, float(horizon)


def _shift_setting(where: str, dim: int, horizon: int, q: ArrayLike | None) -> tuple[int, int, np.ndarray]:
    D, H = as_count(where, "dim", dim, least=2), as_count(where, "horizon", horizon, least=1)
    meaning = f"shape ({D},), the diagonal of Q"
    weights = np.asarray(as_floats(where, "q", np.ones(D) if q is None else q, shape=(D,), meaning=meaning), float)
    if (weights < 0).any() or not (weights > 0).any():
        raise OffspanError(f"{where}: `q` is {weights.tolist()}, but the diagonal of Q must be ≥ 0 with at least one entry > 0.")
    return D, H, weights
