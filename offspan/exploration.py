"""What trajectories visit: the states that enter a gradient, how much of each direction and region they cover, whether gradients from other
states agree with theirs, and which directions can be reached at all.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from offspan.controllers import Linear, flat_weights
from offspan.errors import OffspanError, as_floats, as_positive_array, as_states, check_size, is_concrete, is_false, is_number
from offspan.host import own_errors
from offspan.problems.base import Problem, as_problem
from offspan.problems.lqr import LQR, as_lqr
from offspan.problems.variants import is_noisy
from offspan.rollout import Controller, as_gain, cost, rollout
from offspan.sizes import blocks


def visited_states(problem: Problem, controller: Controller, x0s: Float[ArrayLike, "s n"]) -> Float[Array, "s v n"]:
    """{x_h : x_0 ∈ S, h = 0..H−1}, the states that enter ∇J(π; S): `visited[s, h]` is x_h from the seen state s  [R24, eq:pgstates].

    When controls cost something (an LQR with R ≠ 0, or any other problem) the last control counts, too, and with it x_H; so it does under
    jit with the problem as an argument, where the value of R is not known. Trajectories are without noise here, and in what is made of
    these states: of a `Noisy` problem pass `problem.problem`.

    >>> import jax.numpy as jnp, offspan
    >>> offspan.visited_states(offspan.shift(3, horizon=2), offspan.Linear(jnp.zeros((3, 3))), offspan.basis(3, 1)).tolist()
    [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]
    """
    x0s = as_states("visited_states", "x0s", x0s, _as_noiseless("visited_states", problem).state_dim)
    with own_errors() as finished:
        visited = finished(jax.vmap(lambda x0: rollout(problem, controller, x0).states)(x0s))
    return visited[:, : visited_count(problem)]


def _as_noiseless(where: str, problem: Any) -> Problem:
    if is_noisy(as_problem(where, problem)):
        raise OffspanError(f"{where}: the problem is Noisy, but this is of trajectories without noise; pass `problem.problem`.")
    return problem


def visited_count(problem: Problem) -> int:
    """How many states of a trajectory enter the gradient: H where the last control is free, else H + 1 (`visited_states`)."""
    last_control_is_free = isinstance(problem, LQR) and is_concrete(problem.R) and not np.any(np.asarray(problem.R))
    return problem.horizon if last_control_is_free else problem.horizon + 1


def gramian(problem: LQR, x0s: Any, K: Any = None) -> Float[Array, "n n"]:
    """G = 1/|S| Σ_{x_0∈S} Σ_h x_h x_hᵀ over the states that enter the gradient (`visited_states`), under u = K x; K = 0 by default.

    It is finite for any system, since the horizon is. Directions with Gv = 0 are the ones that policy gradient leaves alone
    [R24, prop:no_exploration_no_extrapolation].

    >>> import offspan
    >>> offspan.gramian(offspan.shift(3, horizon=2), offspan.basis(3, 1)).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    m, n = as_lqr("gramian", problem).control_dim, problem.state_dim
    X = visited_states(problem, Linear(jnp.zeros((m, n)) if K is None else as_gain("gramian", problem, K)), x0s)
    return jnp.einsum("shi,shj->ij", X, X) / X.shape[0]


def overlap(problem: LQR, x0s: Any, unseen: Any, K: Any = None) -> Float[Array, "u"]:
    """uᵀGu / tr G for each unseen direction u, ‖u‖ = 1: the share of the visited states' squared length that lies along u.

    Zero for a direction that is never visited; over an orthonormal basis of the space the shares sum to one. A number for the overlap that
    the paper speaks of  [beyond R24; the word is in fig:intuition].

    >>> import offspan
    >>> offspan.overlap(offspan.shift(3, horizon=2), offspan.basis(3, 1), offspan.basis(3)).tolist()  # e_1 and e_2 are visited
    [0.5, 0.5, 0.0]
    """
    U = as_states("overlap", "unseen", unseen, as_lqr("overlap", problem).state_dim)
    lengths = jnp.linalg.norm(U, axis=1, keepdims=True)
    if is_false(jnp.all(lengths > 0)):
        raise OffspanError("overlap: `unseen` has a zero state, which is no direction.")
    check_size("overlap", "x0s", as_states("overlap", "x0s", x0s, problem.state_dim), power=2)
    G = gramian(problem, x0s, K)
    return jnp.einsum("ui,ij,uj->u", U / lengths, G, U / lengths) / jnp.trace(G)


def visited_covariance(problem: Problem, controller: Controller, x0s: Any, *, scale: Any = 1.0) -> Float[Array, "n n"]:
    """The covariance, about their mean, of all states visited from S, in the coordinates x / scale; for any problem and controller.

    mean_z (z − z̄)(z − z̄)ᵀ over z = x / scale, with z̄ = mean_z z  [beyond R24].

    >>> import jax.numpy as jnp, offspan
    >>> offspan.visited_covariance(offspan.shift(2, horizon=2), offspan.Linear(jnp.zeros((2, 2))), offspan.basis(2, 1)).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    n = _as_noiseless("visited_covariance", problem).state_dim
    Z = visited_states(problem, controller, x0s).reshape(-1, n) / as_scale("visited_covariance", scale, n)[None]
    Z = Z - Z.mean(axis=0, keepdims=True)
    return Z.T @ Z / Z.shape[0]


def coverage(problem: Problem, controller: Controller, x0s: Any, candidates: Any, *, scale: Any = 1.0) -> Float[Array, "c"]:
    """d(x) = min_v ‖(x − v) / scale‖, a distance: 0 where training passes through, large where it does not  [beyond R24].

    For each candidate x, over the states v that are visited from S.

    >>> import jax.numpy as jnp, offspan
    >>> problem, zero = offspan.shift(2, horizon=2), offspan.Linear(jnp.zeros((2, 2)))
    >>> offspan.coverage(problem, zero, offspan.basis(2, 1), [[0.0, 1.0], [4.0, 4.0]]).tolist()  # e_1 goes to e_2; (4, 4) − e_1 = (3, 4)
    [0.0, 5.0]
    """
    n = _as_noiseless("coverage", problem).state_dim
    factor = as_scale("coverage", scale, n)[None]
    visited = visited_states(problem, controller, x0s).reshape(-1, n) / factor
    candidates = as_states("coverage", "candidates", candidates, n) / factor

    def nearest(some: Float[Array, "c n"]) -> Float[Array, "c"]:
        apart = jnp.linalg.norm(some[:, None] - visited[None], axis=2)
        return jnp.min(jnp.where(jnp.isnan(apart), jnp.inf, apart), axis=1)  # a state that is not finite is near to nothing

    return jnp.concatenate([nearest(candidates[one]) for one in blocks(len(candidates), visited.size)])


def state_gradients(problem: Problem, controller: Controller, x0s: Any) -> Float[Array, "s w"]:
    """∇J(π; x) with respect to all weights of the controller, as one vector, for each state x on its own."""
    x0s = as_states("state_gradients", "x0s", x0s, _as_noiseless("state_gradients", problem).state_dim)
    w, with_weights = flat_weights(controller)
    check_weights("state_gradients", controller, w)
    return jax.vmap(jax.grad(lambda w, x0: cost(problem, with_weights(w), x0[None])), (None, 0))(w, x0s)


def check_weights(where: str, controller: Controller, w: Float[Array, "d"]) -> None:
    if not w.size:
        raise OffspanError(f"{where}: the controller (a {type(controller).__name__}) holds no weights, so there is no gradient.")


def gradient_alignment(problem: Problem, controller: Controller, x0s: Any, unseen: Any) -> Float[Array, "u"]:
    """cos(∇J(π; S), ∇J(π; x)) for each unseen x: does a step of training on S also lower the cost from x? 0 where either gradient is.

    J(π_{w−ηg}; x) = J(π_w; x) − η ⟨g, ∇J(π_w; x)⟩ + O(η²) for g = ∇J(π_w; S), so its sign is that of what the step gains. The proof of
    thm:typical_system has this product with E_opt in place of J(·; x)  [R24, lem:clm_cost_grad_inner_prod]; here it is defined for
    networks as well.

    >>> import jax.numpy as jnp, offspan
    >>> problem, zero, e = offspan.shift(4, horizon=2), offspan.Linear(jnp.zeros((4, 4))), offspan.basis(4)
    >>> [round(c, 9) for c in offspan.gradient_alignment(problem, zero, e[:1], e[1:3]).tolist()]  # e_1 goes to e_2, not to e_3
    [0.4, 0.0]
    """
    where = "gradient_alignment"
    n = _as_noiseless(where, problem).state_dim
    S, U = as_states(where, "x0s", x0s, n), as_states(where, "unseen", unseen, n)
    for name, states in {"x0s": S, "unseen": U}.items() if isinstance(problem, LQR) else ():  # whose gradients are quadratic in x
        check_size(where, name, states, power=2)
    on_S, on_U = state_gradients(problem, controller, S).mean(axis=0), state_gradients(problem, controller, U)
    if is_false(jnp.all(jnp.isfinite(on_S)) & jnp.all(jnp.isfinite(on_U))):
        raise OffspanError(f"{where}: a gradient is not finite, as costs from these states overflow; pass smaller states.")
    return jax.vmap(cosine, (None, 0))(_near_one(on_S), jax.vmap(_near_one)(on_U))


def _near_one(a: Float[Array, "w"]) -> Float[Array, "w"]:
    """Times the power of two that makes the largest entry about 1, which changes no angle and no digit: squares do not vanish."""
    return jnp.ldexp(a, -jnp.frexp(jnp.max(jnp.abs(a)))[1])


def cosine(a: Float[Array, "w"], b: Float[Array, "w"]) -> Float[Array, ""]:
    """Of the angle between two vectors; 0 where either is zero, NaN where one is not finite."""
    lengths = jnp.linalg.norm(a) * jnp.linalg.norm(b)
    return jnp.where(lengths == 0, 0, a @ b / jnp.where(lengths == 0, 1, lengths))


def as_scale(where: str, scale: Any, n: int) -> Float[Array, "n"]:
    """The unit of length of each coordinate, in which distances are measured."""
    given = [scale] * n if is_number(scale) else scale
    return as_positive_array(where, "scale", given, shape=(n,), meaning=f"one number, or {n}")


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
        raise OffspanError(f"{where}: `A` has shape {A.shape}, but must be square: x' = A x.")
    x0s = as_states(where, "x0s", x0s, A.shape[0])
    if not (is_concrete(A) and is_concrete(x0s)):
        raise OffspanError(f"{where}: a rank depends on the values, which jit and vmap do not show; call it outside.")
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
            raise OffspanError(
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
