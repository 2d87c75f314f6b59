"""The numbers behind the figures of the theory: closed forms beside training, as columns of equal length."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from offspan.baselines import nonextrapolating_controller
from offspan.controllers import Linear
from offspan.exploration import visited_states
from offspan.measures import normalized_cost, normalized_optimality
from offspan.problems.lqr import LQR, shift
from offspan.states import basis
from offspan.theory import closed_forms
from offspan.theory.claims import iterates
from offspan.training import train_lqr

Columns = dict[str, np.ndarray]


class Dynamics(NamedTuple):
    """The closed loop A + BK of a controller in the plane, and the states that training visits under it from e_1."""

    name: str
    closed_loop: np.ndarray  # (2, 2)
    visited: np.ndarray  # (H, 2)


def intuition() -> list[Dynamics]:
    """K(t) early in training, K_pg and K_no-ext for a rotation of the plane that is trained from e_1  [R24, fig:intuition]."""
    angle = np.deg2rad(50)
    problem = LQR([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], horizon=8)
    S = basis(2, 1)
    history = iterates(problem, S, 0.005, 2000)
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
        one_step = iterates(problem, S, rate, 2)[1]
        measured = normalized_optimality(problem, one_step, S), normalized_cost(problem, one_step, S)
        slow = (np.nan, np.nan)
        if H % dim == 0:  # training to the end takes longer than all else here
            K = train_lqr(problem, S, learning_rate=rate / 10, iterations=5_000).K
            slow = normalized_optimality(problem, K, S), normalized_cost(problem, K, S)
        rows.append((H, *predicted, closed_forms.shift_bound(dim, H), *measured, *slow))
    names = ("horizon", "optimality", "cost", "bound", "one_step_optimality", "one_step_cost", "slow_optimality", "slow_cost")
    return _columns(names, rows)


def norm_gap_over_dimensions(dims: tuple[int, ...] = (2, 4, 8, 12, 16, 24, 32), periods: tuple[int, ...] = (1, 2, 8)) -> Columns:
    """‖K_pg‖² − ‖K_no-ext‖² against D for H = D, 2D, 8D: closed form, one step of policy gradient, and the paper's lower bound."""
    rows = []
    for dim in dims:
        S = basis(dim, 1)
        for period in periods:
            H = period * dim
            problem = shift(dim, horizon=H)
            K = iterates(problem, S, closed_forms.shift_learning_rate(dim, H), 2)[1]
            measured = jnp.sum(K**2) - jnp.sum(nonextrapolating_controller(problem, S) ** 2)
            rows.append((dim, period, closed_forms.shift_norm_gap(closed_forms.shift_alpha(dim, H)), measured, (np.ceil(dim / 2) - 1) / 4))
    return _columns(("dim", "periods", "gap", "measured", "lower_bound"), rows)


def shift_over_weights(dim: int = 5, periods: tuple[int, ...] = (1, 2)) -> Columns:
    """Both ratios for Q = diag(1, w, …, w) against w: closed form and one step of policy gradient  [R24, prop:shift_diag_q]."""
    S, rows = basis(dim, 1), []
    for period in periods:
        H = period * dim
        for w in (0.0, *np.geomspace(1e-2, 1e2, 25)):
            q = np.append(1.0, np.full(dim - 1, w))
            problem = LQR(shift(dim, horizon=H).A, Q=np.diag(q), horizon=H)
            K = iterates(problem, S, closed_forms.shift_learning_rate(dim, H, q), 2)[1]
            predicted = closed_forms.shift_ratios(closed_forms.shift_alpha(dim, H, q), H, q)
            rows.append((period, w, *predicted, normalized_optimality(problem, K, S), normalized_cost(problem, K, S)))
    return _columns(("periods", "weight", "optimality", "cost", "one_step_optimality", "one_step_cost"), rows)


def _columns(names: tuple[str, ...], rows: list[tuple]) -> Columns:
    return {name: np.array([float(row[i]) for row in rows]) for i, name in enumerate(names)}
