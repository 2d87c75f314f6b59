"""The numbers behind the figures of the theory: closed forms beside training and simulation, as columns of equal length."""

import math
from itertools import product
from typing import NamedTuple

import jax
import numpy as np

from offspan.baselines import nonextrapolating_controller
from offspan.controllers import Linear
from offspan.exploration import visited_states
from offspan.problems.lqr import LQR, shift
from offspan.states import basis
from offspan.theory import closed_forms
from offspan.theory.claims import iterates
from offspan.theory.concentration import (
    FAILURES,
    alignment_failure,
    alignment_spread,
    gains,
    limit_of_gain,
    reduces,
    step_failure,
    sufficient_dimension,
)
from offspan.theory.exploring import norm_gaps, one_step, ratios
from offspan.theory.flow import flow_ratios, shift_flow
from offspan.theory.gaussian import bounds, double_factorial, expected_gradient_norm, first_step_law, participation_ratio
from offspan.theory.genus import Gluing, gluings, word
from offspan.theory.large_dimension import cost_alignment_mean
from offspan.theory.monte_carlo import estimate, simulate, simulate_wide, trained_ratios
from offspan.theory.planar import leading_order
from offspan.training import train_lqr, train_lqr_batch

TENTHS = tuple(k / 10 for k in range(1, 21))
Columns = dict[str, np.ndarray]
Surfaces = list[tuple[str, Gluing]]


def _columns(names: str, rows: list[tuple]) -> Columns:
    return {name: np.array(column, float) for name, column in zip(names.split(), zip(*rows, strict=True), strict=True)}


class Dynamics(NamedTuple):
    """The closed loop A + BK of a controller in the plane, and the states that training visits under it from e_1."""

    name: str
    closed_loop: np.ndarray  # (2, 2)
    visited: np.ndarray  # (H, 2)


def intuition() -> list[Dynamics]:
    """K(t) early in training, K_pg and K_no-ext for a rotation of the plane that is trained from e_1  [R24, fig:intuition]."""
    angle, S = np.deg2rad(50), basis(2, 1)
    problem = LQR([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], horizon=8)
    history = iterates(problem, S, 0.01, 2000)
    controllers = {"K(5), in training": history[4], "K_pg, after it": history[-1], "K_no-ext": nonextrapolating_controller(problem, S)}
    return [
        Dynamics(name, np.asarray(problem.A + problem.B @ K), np.asarray(visited_states(problem, Linear(K), S)[0]))
        for name, K in controllers.items()
    ]


def shift_over_horizons(dim: int = 5, periods: int = 4) -> Columns:
    """Both ratios against H: closed form, bound, one step of policy gradient, and training to the end with a tenth of its learning rate."""
    S, rows = basis(dim, 1), []
    for H in range(1, periods * dim + 1):
        problem, rate = shift(dim, horizon=H), closed_forms.shift_learning_rate(dim, H)
        predicted = closed_forms.shift_ratios(closed_forms.shift_alpha_any_horizon(dim, H), H)
        slow = np.nan, np.nan
        if H % dim == 0:  # training to the end takes longer than all else here
            slow = ratios(problem, train_lqr(problem, S, learning_rate=rate / 10, iterations=5_000).K, S)
        rows.append((H, *predicted, closed_forms.shift_bound(dim, H), *ratios(problem, one_step(problem, S, rate), S), *slow))
    return _columns("horizon optimality cost bound one_step_optimality one_step_cost slow_optimality slow_cost", rows)


def norm_gap_over_dimensions(dims: tuple[int, ...] = (2, 4, 8, 12, 16, 24, 32), periods: tuple[int, ...] = (1, 2, 8)) -> Columns:
    """‖K_pg‖² − ‖K_no-ext‖² against D for H = D, 2D, 8D: closed form, one step of policy gradient, and the paper's lower bound."""
    rows = [(dim, period, *norm_gaps(dim, period * dim)) for dim, period in product(dims, periods)]
    return _columns("dim periods gap measured lower_bound", rows)


def shift_over_weights(dim: int = 5, periods: tuple[int, ...] = (1, 2)) -> Columns:
    """Both ratios for Q = diag(1, w, …, w) against w: closed form and one step of policy gradient  [R24, prop:shift_diag_q]."""
    S, rows = basis(dim, 1), []
    for period, w in product(periods, (0.0, *np.geomspace(1e-2, 1e2, 25))):
        H, q = period * dim, np.append(1.0, np.full(dim - 1, w))
        problem = LQR(shift(dim, horizon=H).A, Q=np.diag(q), horizon=H)
        K = one_step(problem, S, closed_forms.shift_learning_rate(dim, H, q))
        rows.append((period, w, *closed_forms.shift_ratios(closed_forms.shift_alpha(dim, H, q), H, q), *ratios(problem, K, S)))
    return _columns("periods weight optimality cost one_step_optimality one_step_cost", rows)


def flow_over_rates(dim: int = 5, periods: tuple[int, ...] = (1, 4), shares: tuple[float, ...] = (0.02, 0.05, *TENTHS)) -> Columns:
    """Both ratios of the shift after training to the end, against η over that of prop:shift, with gradient flow's and the proposition's."""
    rows = []
    for H in (period * dim for period in periods):
        rates = closed_forms.shift_learning_rate(dim, H) * np.array(shares)
        steps = round(6 / rates.min())  # what is left of the seen arrow is e^{−24} or less
        problems, S = [shift(dim, horizon=H)] * len(rates), [basis(dim, 1)] * len(rates)
        batch = train_lqr_batch(problems, S, learning_rate=rates, iterations=steps, record_every=steps)
        trained = zip(shares, rates, batch.normalized_optimality[:, -1], batch.normalized_cost[:, -1], strict=True)
        flow = flow_ratios(shift_flow(dim, H, [0]), H, [0])
        one_step = closed_forms.shift_ratios(closed_forms.shift_alpha(dim, H), H)
        rows += [(H, *row, *flow, *one_step) for row in trained]
    return _columns("horizon share eta optimality cost flow_optimality flow_cost one_step_optimality one_step_cost", rows)


def flow_over_horizons(dims: tuple[int, ...] = (2, 3, 5), periods: tuple[int, ...] = (1, 2, 3, 4, 6, 8)) -> Columns:
    """E_opt(K)/E_opt(K_no-ext) on the shift from e_1 against H/D, up to ∞: at the end of gradient flow, and after prop:shift's one step."""
    rows = []
    for dim, period in product(dims, (*periods, math.inf)):
        one_step = closed_forms.shift_ratios(closed_forms.shift_alpha(dim, int(period * dim)), 1)[0] if period < math.inf else 0.0
        rows.append((dim, period, flow_ratios(shift_flow(dim, period * dim, [0]), 1, [0])[0], one_step))
    return _columns("dim periods flow one_step", rows)


def exact_and_bounds(dim: int = 10, longest: int = 5) -> Columns:
    """The quantities that the theorem bounds, exact and by its bound, against H, for one seen state."""
    rows = []
    for H in range(2, longest + 1):
        law, limits, norm = first_step_law(dim, H, 1), bounds(dim, H), expected_gradient_norm(dim, H, 1)
        gain, promised = 1 - law.best_ratio, limits.learning_rate * H * (H - 1) / dim
        rows.append((H, law.best_learning_rate, limits.learning_rate, law.a, limits.alignment, norm, limits.gradient_norm, gain, promised))
    return _columns("horizon rate rate_bound alignment alignment_bound norm norm_bound gain gain_bound", rows)


def best_rates(dims: tuple[int, ...] = (5, 10, 20, 50, 100, 200), longest: int = 4, seen: tuple[int, ...] = (1, 2, 4)) -> Columns:
    """The best learning rate and the ratio there, over D, H and |S|, with their limits for large D."""
    rows = []
    for H, s, D in product(range(2, longest + 1), seen, dims):
        law = first_step_law(D, H, s)
        rows.append((D, H, s, law.best_learning_rate, 3 * s / (H * (H + 1)), 1 - law.best_ratio, 3 * s * (H - 1) / ((H + 1) * D)))
    return _columns("dim horizon seen rate rate_limit gain gain_limit", rows)


def ratios_of_systems(dims: tuple[int, ...] = (5, 20, 80), horizon: int = 3, systems: int = 2_000) -> Columns:
    """E_opt(K(2))/E_opt(K_no-ext) of single systems after a step with the best learning rate, for several D."""
    rates = [float(first_step_law(D, horizon, 1).best_learning_rate) for D in dims]
    ratio = [simulate(jax.random.key(D), D, horizon, 1, systems).ratios(rate) for D, rate in zip(dims, rates, strict=True)]
    return {"dim": np.repeat(dims, systems), "ratio": np.concatenate(ratio)}


def failures_over_dimensions(horizons: tuple[int, ...] = (2, 3, 4), systems: int = 1_000) -> Columns:
    """Bounds on the probability that the second part of the theorem fails, its own and the sharp one, over D; and simulated shares.

    Shares are for D ≤ 2500. `delta` names the rows whose D is the least that suffices for that δ.
    """
    rows = []
    for H in horizons:
        sufficient = {sufficient_dimension(H, 1, delta): float(delta) for delta in FAILURES}
        for D in sorted({*(int(D) for D in np.geomspace(10, 1e4, 13)), *(10**power for power in range(5, 11)), *sufficient}):
            theorem = 6 * H * (H - 1) * double_factorial(4 * H - 1) / (D - 1)
            weak, failed, count = np.nan, np.nan, 0
            if 2 * H < D <= 2_500:
                steps, eta, count = simulate_wide(jax.random.key(D), D, H, 1, systems), float(bounds(D, H).likely_learning_rate), systems
                weak, failed = np.mean(steps.alignment < H * (H - 1) / D), 1 - np.mean(reduces(steps, D, H, eta))
            delta = sufficient.get(D, np.nan)
            rows.append((H, D, delta, theorem, step_failure(D, H, 1), alignment_failure(D, H, 1), weak, failed, count))
    return _columns("horizon dim delta theorem sharp alignment_bound alignment_failed failed systems", rows)


def gains_over_dimensions(
    dims: tuple[int, ...] = (25, 50, 100, 200, 400, 800, 1600, 3200), horizon: int = 3, systems: int = 1_000
) -> Columns:
    """D (1 − E_opt(K(2))/E_opt(K_no-ext)) of single systems at the η that is best for large D: quantiles over D, with the limit."""
    eta, rows = 3 / (horizon * (horizon + 1)), []
    for D in dims:
        steps, law = simulate_wide(jax.random.key(D), D, horizon, 1, systems), first_step_law(D, horizon, 1)
        spread = D * np.std(steps.alignment), D * float(alignment_spread(D, horizon, 1)[1]) ** 0.5
        quantiles = np.quantile(gains(steps, D, eta), (0.05, 0.25, 0.5, 0.75, 0.95))
        rows.append((D, eta, limit_of_gain(horizon, 1, eta), D * (1 - law.ratio(eta)), *quantiles, *spread))
    return _columns("dim eta limit mean q05 q25 median q75 q95 alignment_spread alignment_spread_exact", rows)


def first_step_and_end(dim: int = 5, horizon: int = 3, systems: int = 400, iterations: int = 5_000) -> Columns:
    """The law against η; simulated means and medians after one step, and medians after training to the end with the same η."""
    law, rows = first_step_law(dim, horizon, 1), []
    steps = simulate(jax.random.key(0), dim, horizon, 1, 100_000)
    for share in (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0):
        eta = share * float(law.best_learning_rate)
        mean, error = estimate(steps.baseline - eta * steps.alignment + eta**2 * steps.curvature)
        trained = trained_ratios(jax.random.key(1), dim, horizon, 1, eta, systems, iterations)
        rows.append((eta, law.ratio(eta), mean, error, np.median(steps.ratios(eta)), np.median(trained), np.mean(np.isinf(trained))))
    return _columns("eta exact mean standard_error median trained_median diverged", rows)


def small_surfaces() -> Surfaces:
    """The three gluings of each of two words of four letters."""
    return [(letters, gluing) for letters in ("ATAT", "AATT") for gluing in gluings([word(letters)])]


def exact_over_leading(dims: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000), longest: int = 5) -> Columns:
    """The quantities of the first step, exactly and over their leading order, and E‖∇J‖² with the theorem's bound; one seen state."""
    rows = []
    for H, D in product(range(2, longest + 1), dims):
        law, norm, limit = first_step_law(D, H, 1), expected_gradient_norm(D, H, 1), leading_order(H)
        shares = D * law.a / limit.alignment, D * law.b / limit.curvature, norm / limit.gradient_norm
        cost = D * cost_alignment_mean(D, H) / limit.cost_alignment
        rows.append((D, H, *shares, cost, norm, limit.gradient_norm, bounds(D, H).gradient_norm))
    return _columns("dim horizon alignment curvature norm cost exact_norm norm_limit norm_bound", rows)


def gains_of_state_sets(dim: int = 20, horizon: int = 3, systems: int = 10_000) -> Columns:
    """The reduction of the ratio at the best η for sets of four states with tr Σ = 1: by the law, by |S| alone, and simulated."""
    axes, turn, rows = np.eye(dim), np.arange(4) * np.pi / 8, []
    cones = [np.cos(t) * axes[4] + np.sin(t) * axes[:4] for t in np.deg2rad([0, 25, 40, 55, 90])]
    lengths = [np.diag(ratio ** np.arange(4.0)) @ axes[:4] for ratio in (0.3, 0.5, 0.65, 0.8)]
    planes = [np.stack([np.cos(spread * turn), np.sin(spread * turn)], axis=1) @ axes[:2] for spread in (0.8, 1.3, 2.0)]
    for kind, sets in enumerate((cones, lengths, planes)):
        for states in sets:
            S = states / np.sqrt(np.mean(np.sum(states**2, axis=1)))
            law = first_step_law(dim, horizon, S)
            eta = float(law.best_learning_rate)
            steps = simulate(jax.random.key(len(rows)), dim, horizon, S, systems)
            simulated = estimate(eta * steps.alignment - eta**2 * steps.curvature)
            by_number = 1 - first_step_law(dim, horizon, 4).best_ratio
            rows.append((kind, participation_ratio(S), eta, 1 - law.best_ratio, by_number, *simulated))
    return _columns("kind participation eta gain gain_by_number simulated standard_error", rows)


def gains_of_subcritical_systems(systems: tuple[tuple[int, int], ...] = ((100, 200), (400, 60))) -> tuple[Columns, Columns]:
    """D/|S| (1 − ratio) at the best η against q: the limits for several H; and quartiles of simulated systems (D, how many), H = 60."""
    horizons, simulated = (2, 4, 10, 40, math.inf), []
    limits = [(H, q, leading_order(H, q).best_gain) for H, q in product(horizons, np.linspace(0.02, 0.995, 60))]
    limits += [(H, 1.0, leading_order(H).best_gain) for H in horizons[:-1]]
    for (dim, count), q in product(systems, (0.15, 0.3, 0.45, 0.6, 0.75)):
        ratios = simulate(jax.random.key(dim), dim, 60, 1, count, q=q).ratios(leading_order(math.inf, q).best_learning_rate)
        simulated.append((dim, q, *np.quantile(dim * (1 - ratios), [0.25, 0.5, 0.75])))
    return _columns("horizon q gain", limits), _columns("dim q low gain high", simulated)
