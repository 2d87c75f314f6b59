"""Gradient flow on the shift, from any set of basis states  [beyond R24].

The closed loop A + BK = Σ_d α_d e_{d%D+1} e_dᵀ keeps this form: e_d goes to α_d e_{d%D+1}, along the d-th arrow of the cycle. With the
squared arrows u_d = α_d², which start from 1,

    J(K; S) = 1/|S| Σ_{i∈S} Σ_{h=0}^{H} Π_{j<h} u_{i+j}      and      du_d/dt = −4 θ_d,   θ_d = u_d ∂J/∂u_d,

for Q = I, R = 0 and any orthogonal B. In code, arrows and seen states are counted from 0: the paper's e_1 is index 0, indices are modulo D.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import scipy.integrate
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.special import lambertw

from offspan.errors import OffspanError, as_count
from offspan.problems.lqr import LQR, shift
from offspan.rollout import lqr_gradient
from offspan.states import basis
from offspan.theory import closed_forms
from offspan.theory.claims import Claim, Settings, at_least, equal, random_orthogonal
from offspan.theory.exploring import ratios
from offspan.training import train_lqr

_gradient = jax.jit(lqr_gradient)
NEGLIGIBLE = 1e-16  # what the flow may still change after the time at which it is stopped, relative


def path_sums(u: Float[np.ndarray, "n"], horizon: int, seen: Int[np.ndarray, "s"]) -> Float[np.ndarray, "n"]:
    """θ_d = 1/|S| Σ_{i∈S} Σ_{h=1}^{H} m_d(i,h) Π_{j<h} u_{i+j}, with m_d(i,h) how often the path of h arrows from e_i takes the d-th."""
    path = (seen[:, None] + np.arange(horizon)) % len(u)  # the arrows from each seen state, in their order
    products = np.cumprod(u[path], axis=1)
    later = np.cumsum(products[:, ::-1], axis=1)[:, ::-1]  # over all paths that go on from here, so that an arrow counts at each passage
    return np.bincount(path.ravel(), later.ravel(), minlength=len(u)) / len(seen)


def endless_path_sums(u: Float[np.ndarray, "n"], seen: Int[np.ndarray, "s"]) -> Float[np.ndarray, "n"]:
    """(1 − P)² θ_d for H = ∞, where P = Π_d u_d: a path comes round infinitely often, and the factor makes it finite at the start, too.

    θ_d = 1/|S| Σ_{i∈S} Π_{i..d} u · (1 + u_{d+1} + u_{d+1}u_{d+2} + … + u_{d+1}⋯u_{d+D−1}) / (1 − P)².
    """
    D = len(u)
    path, onwards = (seen[:, None] + np.arange(D)) % D, (np.arange(1, D + 1)[:, None] + np.arange(D - 1)) % D
    round_from = 1 + np.cumprod(u[onwards], axis=1).sum(axis=1)
    return np.bincount(path.ravel(), (np.cumprod(u[path], axis=1) * round_from[path]).ravel(), minlength=D) / len(seen)


def shift_flow(dim: int, horizon: int | float, seen: ArrayLike, time: float = math.inf) -> Float[np.ndarray, "n"]:
    """The squared arrows u_d of the shift after gradient flow from K = 0 for so long, by default to its end; `seen` are indices of basis
    states, e_1 being 0, and `horizon` may be math.inf.

    The end is right to 1e-12. Seen arrows decay at least as e^{−4t/|S|}, so that after t the others change by at most
    |S| H(H+1)/2 e^{−4t/|S|}, relatively; the equation is integrated until that is 1e-16, by DOP853 with a tolerance of 1e-13 a step.

    >>> shift_flow(2, 2, [0]).round(10).tolist()  # S = {e_1}: the omega constant
    [0.0, 0.5671432904]
    >>> shift_flow(5, 5, [0, 1])[2:].mean().round(4).item()  # E_opt over that of K_no-ext
    0.5861
    """
    D, H, S = _setting("shift_flow", dim, horizon, seen)
    if not isinstance(time, int | float) or not time >= 0 or (math.isinf(H) and time < math.inf):
        raise OffspanError(f"shift_flow: `time` is {time!r}, but must be ≥ 0, and for an infinite horizon be left out.")
    sums, paths = ((lambda u: endless_path_sums(u, S)), D) if math.isinf(H) else ((lambda u: path_sums(u, int(H), S)), H * (H + 1) / 2)
    enough = len(S) / 4 * math.log(len(S) * paths / NEGLIGIBLE)
    # Trial steps may leave [0, 1], where long products overflow; the flow itself never does.
    u = _integrated(lambda u: -4 * sums(np.clip(u, 0.0, 1.0)), np.ones(D), min(time, enough), rtol=1e-13)
    if time >= enough:
        u[S] = 0.0
    return np.clip(u, 0.0, 1.0)


def flow_ratios(u: ArrayLike, horizon: int | float, seen: ArrayLike) -> tuple[float, float]:
    """E_opt(K)/E_opt(K_no-ext) = 1/|U| Σ_{d∉S} u_d, and E_cost(K)/E_cost(K_no-ext), from the squared arrows.

    E_cost = 1/|U| Σ_{d∉S} Σ_{h=1}^{H} Π_{j<h} u_{d+j}, and for K_no-ext the same with u = 0 on S and 1 elsewhere.

    >>> [round(ratio, 4) for ratio in flow_ratios(shift_flow(5, 5, [0]), 5, [0])]
    [0.6326, 0.4432]
    """
    u = np.asarray(u, float)
    D, H, S = _setting("flow_ratios", len(u), horizon, seen)
    if not np.all(np.isfinite(u)):
        raise OffspanError("flow_ratios: `u` has entries that are not finite numbers.")
    unseen = np.setdiff1d(np.arange(D), S)
    if not len(unseen):
        raise OffspanError(f"flow_ratios: `seen` holds all {D} basis states, so that no direction is unseen; pass fewer.")
    if math.isinf(H) and np.any(u[S]):
        raise OffspanError("flow_ratios: an infinite horizon needs arrows of the seen states that are 0, as at the end of the flow.")

    def excess(u: np.ndarray, steps: int) -> float:
        return float(np.cumprod(u[(unseen[:, None] + np.arange(steps)) % D], axis=1).sum())

    nonextrapolating = np.isin(np.arange(D), unseen).astype(float)
    optimality, cost = (excess(u, steps) / excess(nonextrapolating, steps) for steps in (1, D if math.isinf(H) else int(H)))
    return optimality, cost


def arrows_by_quadrature(horizon: int) -> Float[np.ndarray, "n"]:
    """The end of the flow for S = {e_1} and H ≤ D, without time: u_1, …, u_H as functions of u_H, which falls from 1 until u_1 = 0.

    du_{d−1} = (1 + 1/(u_d c_d)) du_d with c_H = 1 and c_{d−1} = 1 + u_d c_d. So u_{H−1} = u_H + ln u_H, and each arrow before it is an
    integral of those after it.

    >>> arrows_by_quadrature(2).round(10).tolist()
    [0.0, 0.5671432904]
    """
    H = as_count("arrows_by_quadrature", "horizon", horizon, least=2)

    def slopes(last: float, others: np.ndarray) -> np.ndarray:
        u, slope, c = np.append(others, last), np.ones(H), 1.0
        for d in range(H - 1, 0, -1):
            slope[d - 1] = (1 + 1 / (u[d] * c)) * slope[d]
            c = 1 + u[d] * c
        return slope[:-1]

    def first(last: float, others: np.ndarray) -> float:
        return others[0]

    first.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    solution = scipy.integrate.solve_ivp(slopes, (1.0, 0.5), np.ones(H - 1), "DOP853", events=first, rtol=1e-13, atol=1e-15)
    return np.append(0.0, np.append(solution.y_events[0][0], solution.t_events[0][0])[1:])


def gradient_flow(settings: Settings) -> Iterator[Claim]:
    """Shift, S any set of basis states, Q = I, R = 0, B orthogonal, dK/dt = −∇J(K; S) from K = 0: A + BK = Σ_d α_d e_{d%D+1} e_dᵀ at all
    times, and u_d = α_d² obeys du_d/dt = −4θ_d, θ_d = 1/|S| Σ_{i∈S} Σ_{h=1}^{H} m_d(i,h) Π_{j<h} u_{i+j}, with m_d(i,h) the number of
    times that the path of h arrows from e_i takes the d-th. Seen arrows go to 0, each other one to at least exp(−Σ_{i∈S} Σ_h m_d(i,h)):
    small steps never extrapolate perfectly, not even for H → ∞."""
    D, H, route = settings.dim, settings.horizon, "flow of K by an ODE solver, B random orthogonal"
    for key in settings.keys("beyond:shift_flow"):
        key_states, key_control, key_arrows = jax.random.split(key, 3)
        S = np.asarray(jax.random.permutation(key_states, D))[: min(2, D - 1)]
        problem, x0s = LQR(shift(D, horizon=H).A, random_orthogonal(key_control, D), horizon=H), np.eye(D)[S]
        alpha = np.asarray(jax.random.uniform(key_arrows, (D,), minval=0.3))
        slope = problem.B @ _gradient(problem, closed_forms.shift_controller(alpha, problem.B), x0s)
        predicted = np.roll(np.diag(2 * path_sums(alpha**2, H, S) / alpha), 1, axis=0)
        yield equal("∂J/∂(A + BK): 2θ_d/α_d on arrows, else 0", [(predicted, slope)], "adjoint recursion, random arrows")
        on_the_way, at_the_end = flow_of_controller(problem, x0s, (1 / H, 8.0 * len(S)))
        for when, time, K in ((f"t = 1/{H}", 1 / H, on_the_way), ("the end", math.inf, at_the_end)):
            u = shift_flow(D, H, S, time)
            M = np.asarray(problem.A + problem.B @ K)
            yield equal(f"A + BK at {when}, squared: u_d on arrows, else 0", [(np.roll(np.diag(u), 1, axis=0), M**2)], route, 1e-8)
            yield equal(f"E_opt and E_cost over K_no-ext's at {when}", [(flow_ratios(u, H, S), ratios(problem, K, x0s))], route, 1e-8)
        unseen = np.setdiff1d(np.arange(D), S)
        least = np.exp(-len(S) * path_sums(np.ones(D), H, S))
        yield at_least("u_d of the unseen at the end: positive", [(least[unseen], arrows(problem, at_the_end)[unseen])], route)
    problem, S = shift(D, horizon=H), basis(D, 1)
    rates = closed_forms.shift_learning_rate(D, H) / 10 / 2 ** np.arange(4)
    trained = [arrows(problem, train_lqr(problem, S, learning_rate=eta, iterations=round(6 / eta)).K) for eta in rates]
    yield equal(
        "u_d at the end, S = {e_1}", [(shift_flow(D, H, [0]), extrapolated(trained))], "training at four η, extrapolated to 0", 1e-4
    )
    longer = [shift_flow(D, periods * D, [0]) for periods in (20, 40)]
    yield equal("u_d for H = ∞, S = {e_1}", [(shift_flow(D, math.inf, [0]), (4 * longer[1] - longer[0]) / 3)], "H = 20 D and 40 D", 1e-4)


def omega_constant(settings: Settings) -> Iterator[Claim]:
    """Gradient flow on the shift from S = {e_1}: at H = 2, u_1 − u_2 − ln u_2 is conserved, so that u_2 ends at W(1) = 0.5671432904…, the
    omega constant (W e^W = 1). At every H ≤ D, u_{H−1} − u_H − ln u_H is conserved, and each arrow before is an integral of those after
    it. At D = 2 and H = ∞, u_1 + u_1²/2 − u_2 − ln u_2 is conserved, so that u_2 ends at W(e^{−1/2}) = 0.4046738485…"""
    D = settings.dim
    problem, S, rates = shift(D, horizon=2), basis(D, 1), 0.05 / 2 ** np.arange(7)
    trained = [arrows(problem, train_lqr(problem, S, learning_rate=eta, iterations=round(10 / eta)).K) for eta in rates]
    route = "training at seven η from 1/20 to 1/1280, extrapolated to 0"
    yield equal("u_2 at the end, H = 2", [(lambertw(1.0).real, extrapolated(trained)[1])], route, 1e-10)
    problem, route = shift(D, horizon=D), "flow of K by an ODE solver"
    u = np.array([arrows(problem, K) for K in flow_of_controller(problem, S, (0.1 / D, 1 / D, 8.0))])
    yield equal("ln u_H + u_H = u_{H−1} on the way, H = D", [(u[:, -2], np.log(u[:, -1]) + u[:, -1])], route, 1e-8)
    yield equal("u_d at the end, H = D", [(arrows_by_quadrature(D), u[-1])], f"quadrature, and {route}", 1e-8)
    yield equal("u_2 at the end, D = 2, H = ∞", [(lambertw(np.exp(-0.5)).real, shift_flow(2, math.inf, [0])[1])], "flow of u", 1e-12)


def flow_of_controller(problem: LQR, x0s: Any, times: Sequence[float]) -> list[np.ndarray]:
    """K at these times, in their order, of dK/dt = −∇J(K; S) from K = 0."""
    shape, iterates = problem.B.shape[::-1], [np.zeros(problem.B.size)]
    for before, time in zip((0.0, *times), times, strict=False):
        slopes = lambda K: -np.asarray(_gradient(problem, K.reshape(shape), x0s)).ravel()  # noqa: E731
        iterates.append(_integrated(slopes, iterates[-1], time - before, rtol=1e-10))
    return [K.reshape(shape) for K in iterates[1:]]


def arrows(problem: LQR, K: Any) -> Float[np.ndarray, "n"]:
    """u_d = (e_{d%D+1}ᵀ (A + BK) e_d)²."""
    return np.diag(np.roll(np.asarray(problem.A + problem.B @ K), -1, axis=0)) ** 2


def extrapolated(values: Any) -> Float[np.ndarray, "n"]:
    """Richardson: what values at η, η/2, η/4, … tend to, for an error in whole powers of η."""
    values = np.asarray(values)
    for power in range(1, len(values)):
        values = (2**power * values[1:] - values[:-1]) / (2**power - 1)
    return values[0]


def _integrated(rates: Callable[[np.ndarray], np.ndarray], start: np.ndarray, time: float, rtol: float) -> np.ndarray:
    return scipy.integrate.solve_ivp(lambda _, u: rates(u), (0.0, time), start, "DOP853", rtol=rtol, atol=rtol / 1000).y[:, -1]


def _setting(where: str, dim: int, horizon: int | float, seen: ArrayLike) -> tuple[int, int | float, np.ndarray]:
    D = as_count(where, "dim", dim, least=2)
    try:
        S = np.asarray(seen)
    except ValueError:  # ragged
        S = np.asarray(math.nan)
    H = math.inf if horizon == math.inf else as_count(where, "horizon", horizon, least=1)
    if S.ndim != 1 or not len(S) or not np.issubdtype(S.dtype, np.integer) or S.min() < 0 or S.max() >= D:
        raise OffspanError(f"{where}: `seen` is {seen!r}, but must be indices of basis states, each from 0 (for e_1) to {D - 1}.")
    return D, H, S
