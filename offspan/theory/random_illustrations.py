"""The numbers behind the figures about random systems, as columns of equal length."""

import jax
import numpy as np

from offspan.theory.gaussian import bounds, expected_gradient_norm, first_step_law
from offspan.theory.genus import Gluing, gluings, word
from offspan.theory.illustrations import Columns
from offspan.theory.monte_carlo import estimate, simulate, trained_ratios

Surfaces = list[tuple[str, Gluing]]


def exact_and_bounds(dim: int = 10, longest: int = 5) -> Columns:
    """What the theorem bounds, exactly and by its bound, against H, for one seen state."""
    rows = []
    for H in range(2, longest + 1):
        law, limits = first_step_law(dim, H, 1), bounds(dim, H)
        norm = expected_gradient_norm(dim, H, 1)
        gain, promised = 1 - law.best_ratio, limits.learning_rate * H * (H - 1) / dim
        rows.append((H, law.best_learning_rate, limits.learning_rate, law.a, limits.alignment, norm, limits.gradient_norm, gain, promised))
    names = ("horizon", "rate", "rate_bound", "alignment", "alignment_bound", "norm", "norm_bound", "gain", "gain_bound")
    return {name: np.array([float(row[i]) for row in rows]) for i, name in enumerate(names)}


def best_rates(dims: tuple[int, ...] = (5, 10, 20, 50, 100, 200), longest: int = 4, seen: tuple[int, ...] = (1, 2, 4)) -> Columns:
    """The best learning rate and the ratio there, over D, H and |S|, with their limits for large D."""
    rows = []
    for H in range(2, longest + 1):
        for s in seen:
            for D in dims:
                law = first_step_law(D, H, s)
                rows.append((D, H, s, law.best_learning_rate, 3 * s / (H * (H + 1)), 1 - law.best_ratio, 3 * s * (H - 1) / ((H + 1) * D)))
    names = ("dim", "horizon", "seen", "rate", "rate_limit", "gain", "gain_limit")
    return {name: np.array([float(row[i]) for row in rows]) for i, name in enumerate(names)}


def ratios_of_systems(dims: tuple[int, ...] = (5, 20, 80), horizon: int = 3, systems: int = 2_000) -> Columns:
    """E_opt(K(2))/E_opt(K_no-ext) of single systems after a step with the best learning rate, for several D."""
    dim, ratio = [], []
    for D in dims:
        steps = simulate(jax.random.key(D), D, horizon, 1, systems)
        ratio.append(steps.ratios(float(first_step_law(D, horizon, 1).best_learning_rate)))
        dim.append(np.full(systems, D))
    return {"dim": np.concatenate(dim), "ratio": np.concatenate(ratio)}


def first_step_and_end(dim: int = 5, horizon: int = 3, systems: int = 400, iterations: int = 5_000) -> Columns:
    """The law against η; simulated means and medians after one step, and medians after training to the end with the same η."""
    law, rows = first_step_law(dim, horizon, 1), []
    best = float(law.best_learning_rate)
    steps = simulate(jax.random.key(0), dim, horizon, 1, 100_000)
    for share in (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0):
        eta = share * best
        mean, error = estimate(steps.baseline - eta * steps.alignment + eta**2 * steps.curvature)
        trained = trained_ratios(jax.random.key(1), dim, horizon, 1, eta, systems, iterations)
        rows.append((eta, law.ratio(eta), mean, error, np.median(steps.ratios(eta)), np.median(trained), np.mean(np.isinf(trained))))
    names = ("eta", "exact", "mean", "standard_error", "median", "trained_median", "diverged")
    return {name: np.array([float(row[i]) for row in rows]) for i, name in enumerate(names)}


def small_surfaces() -> Surfaces:
    """The three gluings of each of two words of four letters."""
    return [(letters, gluing) for letters in ("ATAT", "AATT") for gluing in gluings([word(letters)])]
