"""What trajectories visit: the states of a training step, and the directions that can be reached at all."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from offspan.checks import as_floats, as_states, is_concrete
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR
from offspan.rollout import Controller, rollout


def visited_states(problem: Problem, controller: Controller, x0s: Float[ArrayLike, "s n"]) -> Float[Array, "s v n"]:
    """The states that ∇J(π; S) hears of: x_0..x_{H−1} from each seen state  [R24, eq:pgstates].

    When controls cost something (an LQR with R ≠ 0, or any other problem) the last control counts, too, and with it x_H.
    """
    x0s = as_states("visited_states", "x0s", x0s, problem.state_dim)
    states = jax.vmap(lambda x0: rollout(problem, controller, x0).states)(x0s)
    last_control_is_free = isinstance(problem, LQR) and not np.any(np.asarray(problem.R))
    return states[:, :-1] if last_control_is_free else states


class Reachable(NamedTuple):
    """An orthonormal basis of a reachable space, one direction a row, and how clearly each direction stands out.

    `margins[i]` is the part of direction i that is new, relative to ‖M‖₂ (1 for the directions of the initial states themselves).
    """

    directions: Float[np.ndarray, "k n"]
    margins: Float[np.ndarray, "k"]


def reachable(M: Float[ArrayLike, "n n"], x0s: Float[ArrayLike, "s n"]) -> Reachable:
    """span{M^h x_0 : x_0 ∈ S, h ≥ 0}, the smallest space that holds S and that M maps into itself.

    The columns M^h x_0 themselves turn towards the leading eigenvector, so that their singular values run into rounding (for a Gaussian M
    of dimension 100 they show a rank below 80). Here M is applied to an orthonormal basis of the newest directions only, and what is left
    after projecting out the known ones is judged by its singular values. One below n·ε·‖M‖₂ counts as zero: a change of M by as little
    would make it so. What comes back is therefore the exact answer for some matrix that close to M.

    >>> reachable([[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0]]).directions.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    where = "reachable"
    M = as_floats(where, "M", M, shape=(None, None), meaning="shape (n, n), the matrix of x' = M x")
    if M.shape[0] != M.shape[1]:
        raise ValueError(f"{where}: `M` has shape {M.shape}, but must be square: x' = M x.")
    x0s = as_states(where, "x0s", x0s, M.shape[0])
    if not (is_concrete(M) and is_concrete(x0s)):
        raise ValueError(f"{where}: the number of directions depends on the values, which jit and vmap do not show; call it outside.")
    M, X = np.asarray(M), np.asarray(x0s)
    rounding = len(M) * np.finfo(M.dtype).eps
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    scale = np.linalg.norm(M, 2)
    newest, margins = _directions(np.divide(X, lengths, out=np.zeros_like(X), where=lengths > 0), rounding)
    known, margins = newest, [np.ones_like(margins)]
    while len(newest) and len(known) < len(M) and scale > 0:
        image = newest @ M.T / scale
        for _ in range(2):  # twice is enough: the second pass removes what rounding left of the first
            image = image - image @ known.T @ known
        newest, new_margins = _directions(image, rounding)
        known = np.vstack([known, newest])
        margins.append(new_margins)
    return Reachable(known, np.concatenate(margins))


def krylov_rank(A: Float[ArrayLike, "n n"], x0s: Float[ArrayLike, "s n"]) -> int:
    """dim span{A^h x_0 : x_0 ∈ S, h ≥ 0}; n for one cyclic vector  [R24, lem:cyc_vector_generic]. How it is decided: see `reachable`."""
    return len(reachable(A, x0s).directions)


def _directions(rows: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """An orthonormal basis of the rows' span, with its singular values, as far as these exceed the tolerance."""
    _, singular_values, right = np.linalg.svd(rows, full_matrices=False)
    kept = singular_values > tolerance
    return right[kept], singular_values[kept]
