"""Statements about the system that explores: the shift from e_1, where one step of policy gradient reaches a minimiser."""

from collections.abc import Iterator

import jax
import numpy as np

from offspan.baselines import minimal_cost, nonextrapolating_controller
from offspan.controllers import Linear
from offspan.measures import cost_measure, normalized_cost, normalized_optimality, optimality_measure
from offspan.problems.lqr import LQR, gaussian, shift
from offspan.rollout import cost, lqr_gradient
from offspan.states import basis
from offspan.theory import closed_forms
from offspan.theory.claims import Claim, Settings, at_least, at_most, equal, iterates, random_orthogonal
from offspan.training import Status, train_lqr, train_lqr_batch

ONE_STEP = "one step of policy gradient"


def shift_ratios(settings: Settings) -> Iterator[Claim]:
    """Shift, S = {e_1}, H divisible by D, η = (H²/D + H)⁻¹, B orthogonal: policy gradient converges to a minimiser K_pg of J(·; S), with

    E_opt(K_pg)/E_opt(K_no-ext) = 4 Σ_{d≥2} (d−1)² / ((D−1)(H+D)²), and this and E_cost(K_pg)/E_cost(K_no-ext) at most 4(D−1)²/(H+D)².
    """
    D, H, S = settings.dim, settings.horizon, basis(settings.dim, 1)
    predicted, bound = closed_forms.shift_ratios(closed_forms.shift_alpha(D, H), H), closed_forms.shift_bound(D, H)
    for key in settings.keys("prop:shift"):
        problem = _rotated_control(key, settings)
        K = train_lqr(problem, S, learning_rate=1 / (H**2 / D + H), iterations=1).K
        yield equal("J(K_pg; S), the least there is", [(minimal_cost(problem, S), cost(problem, Linear(K), S))], ONE_STEP)
        yield equal("∇J(K_pg; S): one step was all", [(0.0, lqr_gradient(problem, K, S))], ONE_STEP)
        yield from _ratio_claims(predicted, problem, K, S, ONE_STEP)
        yield at_most("the larger of both against 4(D−1)²/(H+D)²", [(bound, ratios(problem, K, S))], ONE_STEP)
        against_zero = [(bound, measure(problem, K, S) / measure(problem, 0 * K, S)) for measure in (optimality_measure, cost_measure)]
        yield at_most("the same bound with K(1) = 0 as the baseline", against_zero, ONE_STEP)


def shift_controller(settings: Settings) -> Iterator[Claim]:
    """In the setting of prop:shift, K_pg = K(2) = −Bᵀ Σ_d (1 − 2(d−1)/(H+D)) e_{d%D+1} e_dᵀ."""
    D, H = settings.dim, settings.horizon
    alpha, rate = closed_forms.shift_alpha(D, H), closed_forms.shift_learning_rate(D, H)
    for key in settings.keys("lem:shift_Kpg_K2"):
        problem = _rotated_control(key, settings)
        K = train_lqr(problem, basis(D, 1), learning_rate=rate, iterations=1).K
        yield equal("K(2), each entry", [(closed_forms.shift_controller(alpha, problem.B), K)], f"{ONE_STEP}, B random orthogonal")


def shift_any_horizon(settings: Settings) -> Iterator[Claim]:
    """Beyond the paper: the same for every H ≥ 1, with g_d = 2 Σ_{h<H, h≡d−1 (mod D)} (H − h), η = 1/g_1 and α_d = 1 − g_d/g_1."""
    D, S = settings.dim, basis(settings.dim, 1)
    horizons = [H for H in sorted({1, 2, D - 1, D, D + 1, settings.horizon}) if settings.horizon >= H]
    route = f"{ONE_STEP}, for H = {', '.join(map(str, horizons))}"
    for H in horizons:
        problem, alpha = shift(D, horizon=H), closed_forms.shift_alpha_any_horizon(D, H)
        K = one_step(problem, S, closed_forms.shift_learning_rate(D, H))
        yield equal("K(2), each entry", [(closed_forms.shift_controller(alpha), K)], route)
        yield from _ratio_claims(closed_forms.shift_ratios(alpha, H), problem, K, S, route)


def shift_any_start(settings: Settings) -> Iterator[Claim]:
    """Beyond the paper: the same from any x_0 ≠ 0, with A = Pᵀ A_shift P, P orthogonal, P x_0 = ‖x_0‖ e_1, and η/‖x_0‖².

    The paper's footnote has some invertible P that maps x_0 to e_1: this one, over ‖x_0‖, is one.
    """
    D, H, route = settings.dim, settings.horizon, f"{ONE_STEP} from random x_0"
    predicted = closed_forms.shift_ratios(closed_forms.shift_alpha_any_horizon(D, H), H)
    for key in settings.keys("beyond:shift_any_start"):
        x0 = 2 * jax.random.normal(key, (D,))
        problem, S = closed_forms.shift_from(x0, horizon=H), x0[None, :]
        K = one_step(problem, S, closed_forms.shift_learning_rate(D, H) / float(x0 @ x0))
        yield equal("J(K_pg; x_0), the least there is", [(minimal_cost(problem, S), cost(problem, Linear(K), S))], route)
        yield from _ratio_claims(predicted, problem, K, S, route)


def norm_gap(settings: Settings) -> Iterator[Claim]:
    """In the setting of prop:shift, ‖K_pg‖² − min_{K∈K_S} ‖K‖² = Σ_{d≥2} (1 − 2(d−1)/(H+D))² = Ω(D): the norm is not minimised."""
    route = f"{ONE_STEP}, for D and 2 and 3 times as much, H in proportion"
    for factor in (1, 2, 3):
        predicted, measured, lower_bound = norm_gaps(factor * settings.dim, factor * settings.horizon)
        yield equal("‖K_pg‖² − ‖K_no-ext‖²", [(predicted, measured)], route)
        yield at_least("the same against (⌈D/2⌉ − 1)/4 = Ω(D)", [(lower_bound, measured)], route)


def norm_gaps(D: int, H: int) -> tuple[float, float, float]:
    """‖K_pg‖² − ‖K_no-ext‖² of the shift: in closed form, after one step of policy gradient, and its lower bound (⌈D/2⌉ − 1)/4."""
    problem, S = shift(D, horizon=H), basis(D, 1)
    K = one_step(problem, S, closed_forms.shift_learning_rate(D, H))
    measured = np.sum(np.asarray(K) ** 2) - np.sum(np.asarray(nonextrapolating_controller(problem, S)) ** 2)
    return closed_forms.shift_norm_gap(closed_forms.shift_alpha(D, H)), float(measured), (np.ceil(D / 2) - 1) / 4


def shift_diagonal_q(settings: Settings) -> Iterator[Claim]:
    """prop:shift for Q = diag(q) ⪰ 0, with η = (H/D (H/D + 1) Σ_j q_j)⁻¹ and α_d = 2 Σ_{j=2}^{d} q_j / ((H/D + 1) Σ_j q_j).

    E_opt(K_pg)/E_opt(K_no-ext) = Σ_{d≥2} q_{d%D+1} α_d² / Σ_{d≥2} q_{d%D+1}, and the same for E_cost along the way to e_1. For
    q = (q_1, 0, …, 0) both are zero: extrapolation is perfect.
    """
    D, H, S, route = settings.dim, settings.horizon, basis(settings.dim, 1), f"{ONE_STEP}, q and B random"
    for seed, key in enumerate(settings.keys("prop:shift_diag_q")):
        key_weights, key_control = jax.random.split(key)
        q = jax.random.exponential(key_weights, (D,))
        if seed % 2:  # every second time a direction that costs nothing, e_1 among them
            q = q.at[seed // 2 % D].set(0.0)
        problem = _rotated_control(key_control, settings, q)
        K = one_step(problem, S, 1 / float(H / D * (H / D + 1) * q.sum()))
        yield equal("J(K_pg; S) = q_1, the least there is", [(q[0], cost(problem, Linear(K), S))], route)
        K_no_ext = nonextrapolating_controller(problem, S)  # whose measures may be 0, so that there is no ratio
        predicted = closed_forms.shift_ratios(closed_forms.shift_alpha(D, H, q), H, q)
        for name, measure, ratio in zip(("E_opt", "E_cost"), (optimality_measure, cost_measure), predicted, strict=True):
            pair = ratio * measure(problem, K_no_ext, S), measure(problem, K, S)
            yield equal(f"{name}(K_pg): the ratio times {name}(K_no-ext)", [pair], route)
        only_first = np.append(1.0 + q[0], np.zeros(D - 1))
        problem = _rotated_control(key_control, settings, only_first)
        K = one_step(problem, S, closed_forms.shift_learning_rate(D, H, only_first))
        predicted = closed_forms.shift_ratios(closed_forms.shift_alpha(D, H, only_first), H, only_first)
        yield equal("both ratios for q = (q_1, 0, …, 0)", [(predicted, ratios(problem, K, S))], f"{ONE_STEP}, q_1 and B random")


def less_than_the_shift(settings: Settings) -> Iterator[Claim]:
    """Random systems often, but not always, extrapolate less than the shift: so says the caption of the figure, which has D = H = 5."""
    D, H, count, iterations = 5, 5, 40, 30_000
    systems = [shift(D, horizon=H), *(gaussian(key, D, horizon=H) for key in jax.random.split(jax.random.key(0), count))]
    sets = [basis(D, seen) for seen in range(1, D) for _ in systems]
    batch = train_lqr_batch(systems * (D - 1), sets, learning_rate=1e-3, iterations=iterations, record_every=iterations)
    measures = np.where(batch.codes == Status.diverged, np.inf, batch.normalized_optimality[:, -1]).reshape(D - 1, count + 1)
    shares = np.mean(measures[:, 1:] > measures[:, :1], axis=1)
    route = f"{count} random systems, {iterations:,} iterations with η = 0.001"
    for seen, share in zip(range(1, D), shares, strict=True):
        yield at_least(f"share of random systems with a larger E_opt than the shift, |S| = {seen}: often", [(0.5, share)], route)
    yield at_most("the least of these shares: not always", [(1 - 1 / count, min(shares))], route, 0.0)


def one_step(problem: LQR, S, learning_rate: float):
    """K(2)."""
    return iterates(problem, S, learning_rate, 2)[1]


def ratios(problem: LQR, K, S) -> np.ndarray:
    """E_opt(K)/E_opt(K_no-ext) and E_cost(K)/E_cost(K_no-ext)."""
    return np.array([normalized_optimality(problem, K, S), normalized_cost(problem, K, S)])


def _ratio_claims(predicted: tuple[float, float], problem: LQR, K, S, route: str) -> Iterator[Claim]:
    for name, ratio, measured in zip(("E_opt", "E_cost"), predicted, ratios(problem, K, S), strict=True):
        yield equal(f"{name}(K_pg) / {name}(K_no-ext)", [(ratio, measured)], route)


def _rotated_control(key, settings: Settings, q=None) -> LQR:
    """The shift with a random orthogonal B, and Q = diag(q)."""
    A = shift(settings.dim, horizon=settings.horizon).A
    return LQR(A, random_orthogonal(key, settings.dim), None if q is None else np.diag(q), horizon=settings.horizon)
