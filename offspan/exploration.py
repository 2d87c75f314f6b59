"""What trajectories visit: the states of a training step, and the directions that can be reached at all."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from offspan.checks import as_floats, as_states, is_concrete
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR
from offspan.rollout import Controller, rollout


def visited_states(problem: Problem, controller: Controller, x0s: Float[ArrayLike, "s n"]) -> Float[Array, "s v n"]:
    """The states that ∇J(π; S) hears of: x_0..x_{H−1} from each seen state  [R24, eq:pgstates].

    When controls cost something (an LQR with R ≠ 0, or any other problem) the last control counts, too, and with it x_H; so it does under
    jit with the problem as an argument, where R has no value to look at.
    """
    x0s = as_states("visited_states", "x0s", x0s, problem.state_dim)
    states = jax.vmap(lambda x0: rollout(problem, controller, x0).states)(x0s)
    last_control_is_free = isinstance(problem, LQR) and is_concrete(problem.R) and not np.any(np.asarray(problem.R))
    return states[:, :-1] if last_control_is_free else states


def krylov_rank(A: Any, x0s: Any) -> int:
    """dim span{A^h x_0 : x_0 ∈ S, h ≥ 0}; n for one cyclic vector  [R24, lem:cyc_vector_generic].

    The powers A^h x_0 themselves turn towards the leading eigenvector, so that their singular values run into rounding: for a Gaussian
    A of dimension 100 they show a rank below 90. So, where A has a well-conditioned basis V of eigenvectors, the modes are counted that S
    excites: x_0 = V c reaches mode i iff c_i ≠ 0 (for a repeated eigenvalue, the rank of its block of c). In place of a zero, rounding
    leaves about n·ε·cond(V) over the distance to the next eigenvalue (relative to ‖A‖), and ten times that is the tolerance.

    Elsewhere, an orthonormal basis is built direction by direction: A times the newest ones, less what is known. There, rounding grows by
    1/σ with each step whose new part has the singular value σ. Where it could reach 1e-6, no rank can be told from double precision, and
    an error says so.

    >>> krylov_rank([[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0]])
    2
    """
    where = "krylov_rank"
    A = as_floats(where, "A", A, shape=(None, None), meaning="shape (n, n), the matrix of x' = A x")
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"{where}: `A` has shape {A.shape}, but must be square: x' = A x.")
    x0s = as_states(where, "x0s", x0s, A.shape[0])
    if not (is_concrete(A) and is_concrete(x0s)):
        raise ValueError(f"{where}: a rank depends on the values, which jit and vmap do not show; call it outside.")
    A, X = np.asarray(A, float), np.asarray(x0s, float)
    scale, lengths = np.linalg.norm(A, 2), np.linalg.norm(X, axis=1)
    X = X[lengths > 0] / lengths[lengths > 0, None]
    if scale == 0 or not len(X):
        return int(np.linalg.matrix_rank(X)) if len(X) else 0
    rounding = len(A) * np.finfo(float).eps
    eigenvalues, V = np.linalg.eig(A / scale)
    noise = rounding * np.linalg.cond(V)
    apart = np.abs(eigenvalues[:, None] - eigenvalues)
    same = apart < noise
    tolerance = 10 * noise / np.min(np.where(same, 1.0, apart))
    if tolerance > UNDECIDABLE:
        return _rank_by_directions(A / scale, X, rounding)
    modes = np.linalg.solve(V, X.T.astype(complex))
    blocks = {tuple(np.flatnonzero(row)) for row in same}
    return sum(int(np.linalg.matrix_rank(modes[list(block)], tol=tolerance)) for block in blocks)


UNDECIDABLE = 1e-6


def _rank_by_directions(A: np.ndarray, X: np.ndarray, rounding: float) -> int:
    """For ‖A‖ = 1."""
    newest = X
    known, noise = np.empty((0, len(A))), rounding
    while len(newest) and len(known) < len(A):
        _, sigma, right = np.linalg.svd(newest, full_matrices=False)
        if noise > UNDECIDABLE:
            raise ValueError(
                f"krylov_rank: after {len(known)} directions rounding may have grown to {noise:.1g}, so that a new direction cannot be "
                "told from it; this matrix is too far from having a basis of eigenvectors for a rank in double precision."
            )
        newest = right[sigma > noise]
        known = np.vstack([known, newest])
        noise /= min([1.0, *sigma[sigma > noise]])
        newest = newest @ A.T
        for _ in range(2):  # twice is enough: the second pass removes what rounding left of the first
            newest = newest - newest @ known.T @ known
    return len(known)
