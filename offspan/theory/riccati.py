"""Control costs (R ≠ 0) and infinite horizons: the Riccati and Lyapunov equations  [R24, app:determined_R_neq_zero]."""

from typing import Any, cast

import numpy as np
import scipy.linalg
from jaxtyping import ArrayLike, Float

from offspan.errors import OffspanError, as_states
from offspan.problems.lqr import LQR, as_lqr
from offspan.rollout import as_gain

GOLDEN_RATIO = (1 + 5**0.5) / 2


def riccati_solution(problem: LQR) -> Float[np.ndarray, "n n"]:
    """P with P = Q + AᵀPA − AᵀPB(R + BᵀPB)⁻¹BᵀPA, the stabilising solution: x_0ᵀ P x_0 is the least cost from x_0 over an infinite horizon.

    For Q = R = I and B = I it is (1+√5)/2 · I whenever A is orthogonal  [R24, lem:determined_shift_infinite_horizon].
    """
    A, B, Q, R = _matrices(as_lqr("riccati_solution", problem))
    try:
        return scipy.linalg.solve_discrete_are(A, B, Q, R)
    except (np.linalg.LinAlgError, ValueError) as error:
        needs = "it needs (A, B) stabilisable and no undamped motion that Q does not see"
        raise OffspanError(f"riccati_solution: no controller stabilises this system at finite cost ({error}); {needs}.") from error


def riccati_residual(problem: LQR, P: Float[ArrayLike, "n n"]) -> float:
    """The largest entry of Q + AᵀPA − AᵀPB(R + BᵀPB)⁻¹BᵀPA − P."""
    (A, B, Q, R), P = _matrices(problem), np.asarray(P)
    return float(np.abs(Q + A.T @ P @ A - A.T @ P @ B @ np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A) - P).max())


def riccati_controller(problem: LQR, P: Float[ArrayLike, "n n"]) -> Float[np.ndarray, "m n"]:
    """K* = −(R + BᵀPB)⁻¹BᵀPA; for Q = R = B = I and orthogonal A, −(1+√5)/(3+√5) · A  [R24, lem:determined_shift_infinite_horizon]."""
    (A, B, _, R), P = _matrices(problem), np.asarray(P)
    return -np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)


def infinite_horizon_cost(problem: LQR, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"]) -> float:
    """J(K; S) = 1/|S| Σ_{x_0∈S} Σ_{h=0}^{∞} x_hᵀ(Q + KᵀRK) x_h, whatever `problem.horizon` is.

    By the Lyapunov equation P = MᵀPM + Q + KᵀRK for M = A + BK, on the space of all states that M brings to zero. S must lie in it; what
    M does elsewhere does not matter.
    """
    A, B, Q, R, K, X = _setting("infinite_horizon_cost", problem, K, x0s)
    M = A + B @ K
    V = _decaying("infinite_horizon_cost", M, X, "the seen states", "so the cost is infinite; pass a `K` that brings them to zero")
    P = scipy.linalg.solve_discrete_lyapunov((V @ M @ V.T).T, V @ (Q + K.T @ R @ K) @ V.T)
    reached = X @ V.T
    return float(np.mean(np.sum((reached @ P) * reached, axis=1)))


def infinite_horizon_gradient(problem: LQR, K: Float[ArrayLike, "m n"], x0s: Float[ArrayLike, "s n"]) -> Float[np.ndarray, "m n"]:
    """∇J(K; S) = 2((R + BᵀPB)K + BᵀPA) Σ, with Σ = MΣMᵀ + 1/|S| Σ_{x_0∈S} x_0x_0ᵀ and P as in `infinite_horizon_cost`.

    A change of K moves states along the columns of B, so M must bring those to zero, too: otherwise there are controllers of infinite cost
    arbitrarily close to K, and no gradient, even where the cost itself is finite.
    """
    A, B, Q, R, K, X = _setting("infinite_horizon_gradient", problem, K, x0s)
    M, start = A + B @ K, "the seen states or the columns of B"
    so = "so controllers near `K` have infinite cost; use one further in"
    V = _decaying("infinite_horizon_gradient", M, np.vstack([X, B.T]), start, so)
    M_V = V @ M @ V.T
    P = V.T @ scipy.linalg.solve_discrete_lyapunov(M_V.T, V @ (Q + K.T @ R @ K) @ V.T) @ V
    Sigma = V.T @ scipy.linalg.solve_discrete_lyapunov(M_V, V @ X.T @ X @ V.T / len(X)) @ V
    return 2 * ((R + B.T @ P @ B) @ K + B.T @ P @ A) @ Sigma


def _decaying(where: str, M: np.ndarray, X: np.ndarray, start: str, so: str) -> np.ndarray:
    """An orthonormal basis (rows) of the states that M brings to zero, which must hold the rows of X.

    From the Schur form of M with the eigenvalues inside the unit circle first: the leading columns of Z span just these states.
    """
    slightly_larger = M / (1 - 1e-12)  # so that an eigenvalue on the circle, up to rounding, counts as outside
    _, Z, inside = cast(tuple[Any, np.ndarray, int], scipy.linalg.schur(slightly_larger, output="real", sort="iuc"))
    outside = np.abs(X @ Z[:, inside:]).max(initial=0.0)
    if outside > 1e-10 * np.abs(X).max(initial=0.0):
        radius = np.abs(np.linalg.eigvals(M)).max()
        raise OffspanError(f"{where}: under `K`, states reached from {start} do not decay (spectral radius {radius:.6g}), {so}.")
    return Z[:, :inside].T


def _setting(where: str, problem: LQR, K: ArrayLike, x0s: ArrayLike) -> list[np.ndarray]:
    """A, B, Q, R, K and X."""
    K, X = as_gain(where, as_lqr(where, problem), K), as_states(where, "x0s", x0s, problem.state_dim)
    return [*_matrices(problem), np.asarray(K, float), np.asarray(X, float)]


def _matrices(problem: LQR) -> list[np.ndarray]:
    return [np.asarray(M, float) for M in (problem.A, problem.B, problem.Q, problem.R)]
